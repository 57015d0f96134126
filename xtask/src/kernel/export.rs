// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The series as mails for `git am`, and the letter before them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use super::{linux::Linux, series::Series, source::Source};
use crate::command;

/// What `git format-patch --cover-letter` leaves to be filled in.
const SUBJECT: &str = "*** SUBJECT HERE ***";
const BLURB: &str = "*** BLURB HERE ***";

/// How long checkpatch lets a line of the header be.
const SUBJECT_WIDTH: usize = 75;

/// The series that the letter is of.
const CORE: &str = "core";

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
        "--no-numbered",
        cover,
        "--output-directory",
        &out,
        "pristine..HEAD",
    ])?;
    let core =
        series.commits.iter().filter(|commit| commit.series.as_deref() == Some(CORE)).count();
    for (number, tag) in tags(&series).into_iter().enumerate() {
        let file = format!("{:04}-", number + 1);
        let mut mails = fs::read_dir(&dir)?.filter_map(|entry| Some(entry.ok()?.path()));
        let path = mails
            .find(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&file))
            })
            .with_context(|| format!("git wrote no mail {file}"))?;
        let mail = fs::read_to_string(&path)?;
        fs::write(&path, retag(&mail, &tag).with_context(|| path.display().to_string())?)?;
    }
    if let Some(letter) = letter {
        let path = dir.join("0000-cover-letter.patch");
        let mail = fs::read_to_string(&path)?;
        let mail = fill_in(&mail, &letter).context("cover-letter")?;
        let mail = retag(&mail, &format!("RFC PATCH v3 0/{core}")).context("cover-letter")?;
        fs::write(&path, mail.replace("@BASE@", &source.to_string()))?;
    }
    Ok(series.commits.len())
}

/// What stands in brackets before each subject: each named series is counted by itself. The core
/// continues others' work, which has had two versions; a patch that is sent alone is a fix.
fn tags(series: &Series) -> Vec<String> {
    let names: Vec<Option<&str>> =
        series.commits.iter().map(|commit| commit.series.as_deref()).collect();
    let tag = |(at, name): (usize, &Option<&str>)| {
        let nth = names[..=at].iter().filter(|other| *other == name).count();
        let all = names.iter().filter(|other| *other == name).count();
        match name {
            Some(CORE) => format!("RFC PATCH v3 {nth}/{all}"),
            _ if all == 1 => "PATCH".to_owned(),
            _ => format!("PATCH {nth}/{all}"),
        }
    };
    names.iter().enumerate().map(tag).collect()
}

/// Puts `tag` into the brackets of the subject, and folds it again.
fn retag(mail: &str, tag: &str) -> Result<String> {
    const HEADER: &str = "Subject: [PATCH]";
    let (before, rest) = mail.split_once(HEADER).context("has no subject")?;
    let (first, mut after) = rest.split_once('\n').context("ends in its subject")?;
    let mut subject = first.to_owned();
    while after.starts_with(' ') {
        let (line, further) = after.split_once('\n').context("ends in its subject")?;
        subject.push_str(line);
        after = further;
    }
    let mut folded = format!("Subject: [{tag}]");
    let mut width = folded.len();
    for word in subject.split_whitespace() {
        width += 1 + word.len();
        let fits = width <= SUBJECT_WIDTH;
        folded.push_str(if fits { " " } else { "\n " });
        folded.push_str(word);
        width = if fits { width } else { 1 + word.len() };
    }
    Ok(format!("{before}{folded}\n{after}"))
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
    use super::{fill_in, retag, tags};
    use crate::kernel::{linux::Linux, series::Series};

    #[test]
    fn patches_are_numbered_within_their_series() {
        let tags = tags(&Series::read(Linux::V7_3).unwrap());
        assert_eq!(tags[0], "PATCH");
        assert_eq!(tags[2], "RFC PATCH v3 1/8");
        assert_eq!(tags[9], "RFC PATCH v3 8/8");
        assert_eq!(tags.last().unwrap(), "PATCH 2/2");
    }

    #[test]
    fn a_longer_tag_folds_the_subject_again() {
        let words = "mm: one two three four five six seven eight nine ten eleven";
        let mail = format!("From: x\nSubject: [PATCH] {words}\n twelve\nMIME: 1\n\nWhy.\n");
        let tagged = retag(&mail, "RFC PATCH v3 1/8").unwrap();
        assert!(tagged.lines().all(|line| line.len() <= 75), "{tagged}");
        let unfolded = tagged.replace("\n ", " ");
        let subject = format!("Subject: [RFC PATCH v3 1/8] {words} twelve\nMIME: 1\n\nWhy.\n");
        assert_eq!(unfolded, format!("From: x\n{subject}"));
    }

    #[test]
    fn a_letter_takes_the_place_that_git_leaves() {
        let mail = "Subject: [PATCH 0/2] *** SUBJECT HERE ***\n\n*** BLURB HERE ***\n\nA (2):\n";
        let filled = fill_in(mail, "Subject: one thing\n\nWhy.\n\nHow.\n").unwrap();
        assert_eq!(filled, "Subject: [PATCH 0/2] one thing\n\nWhy.\n\nHow.\n\nA (2):\n");
        assert!(fill_in(mail, "one thing\n\nWhy.\n").is_err());
        assert!(fill_in("Subject: x\n", "Subject: one thing\n\nWhy.\n").is_err());
    }
}
