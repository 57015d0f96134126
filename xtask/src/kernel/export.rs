// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The series as mails for `git am`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{linux::Linux, series::Series, source::Source};
use crate::command;

/// Writes one mail per commit into `dir`, which is emptied first; returns how
/// many. They are signed off with the exporter's own git identity.
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
    let mails = git(&[
        "format-patch",
        "-q",
        "--no-signature",
        "--zero-commit",
        "--output-directory",
        &out,
        "pristine..HEAD",
    ]);
    mails?;
    Ok(series.commits.len())
}
