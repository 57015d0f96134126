// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The series as mails for `git am`, and the letter before them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use super::{linux::Linux, series::Series, source::Source};
use crate::command;

/// What `git format-patch --cover-letter` leaves to be filled in.
const SUBJECT: &str = "*** SUBJECT HERE ***";
const BLURB: &str = "*** BLURB HERE ***";

/// Writes one mail per commit into `dir`, which is emptied first, and before
/// them the tree's `cover-letter`, if there is one; returns how many commits.
/// They are signed off with the exporter's own git identity.
pub(crate) fn write(linux: Linux, dir: &Path) -> Result<usize> {
    let source = Source::get(linux)?;
    let series = Series::read(linux)?;
    let tree = tempfile::tempdir()?;
    let git = |arguments: &[&str]| -> Result<String> {
        command::stdout(command::new(tree.path(), "git", ["-c", "gc.auto=0"]).args(arguments))
    };
    git(&["init", "-q"])?;
    series.replay(&source, tree.path(), |commit| {
        git(&["add", "-A", "-f", "."])?;
        match commit {
            None => {
                git(&["commit", "-q", "--allow-empty", "-m", &source.version])?;
                git(&["tag", "pristine"])?;
            }
            Some(commit) => {
                git(&["commit", "-q", "--signoff", "-m", &commit.message])?;
            }
        }
        Ok(())
    })?;
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let out = dir.to_string_lossy();
    let letter = fs::read_to_string(linux.home().join("cover-letter")).ok();
    let cover = if letter.is_some() { "--cover-letter" } else { "--no-cover-letter" };
    git(&[
        "format-patch",
        "-q",
        "--no-signature",
        "--zero-commit",
        cover,
        "--output-directory",
        &out,
        "pristine..HEAD",
    ])?;
    if let Some(letter) = letter {
        let path = dir.join("0000-cover-letter.patch");
        let mail = fs::read_to_string(&path)?;
        let mail = fill_in(&mail, &letter).context("cover-letter")?;
        fs::write(&path, mail.replace("@BASE@", &source.to_string()))?;
    }
    Ok(series.commits.len())
}

/// Puts the letter's subject and text where git has left room for them.
fn fill_in(mail: &str, letter: &str) -> Result<String> {
    let letter = letter.strip_prefix("Subject: ").context("does not begin with `Subject: `")?;
    let (subject, text) = letter.split_once("\n\n").context("has no text")?;
    if !mail.contains(SUBJECT) || !mail.contains(BLURB) {
        bail!("git left no room for a subject and a text");
    }
    Ok(mail.replacen(SUBJECT, subject, 1).replacen(BLURB, text.trim_end(), 1))
}

#[cfg(test)]
mod tests {
    use super::fill_in;

    #[test]
    fn a_letter_takes_the_place_that_git_leaves() {
        let mail = "Subject: [PATCH 0/2] *** SUBJECT HERE ***\n\n*** BLURB HERE ***\n\nA (2):\n";
        let filled = fill_in(mail, "Subject: one thing\n\nWhy.\n\nHow.\n").unwrap();
        assert_eq!(filled, "Subject: [PATCH 0/2] one thing\n\nWhy.\n\nHow.\n\nA (2):\n");
        assert!(fill_in(mail, "one thing\n\nWhy.\n").is_err());
        assert!(fill_in("Subject: x\n", "Subject: one thing\n\nWhy.\n").is_err());
    }
}
