// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A series as it lies in the repository: `series.toml` gives the order of the commits, `patches/`
//! their messages and their edits to existing files, `overlay/` the files they add. Files that are
//! the same in every tree lie once, in the overlay beside the trees.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::{linux::Linux, overlay::Overlay, source::Source};
use crate::command;

/// `series.toml`.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    /// In the order in which they apply.
    #[serde(default, rename = "commit")]
    pub(crate) commits: Vec<Entry>,
}

/// One commit of `series.toml`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// File name below `patches/`.
    pub(crate) patch: String,
    /// Under which name it is sent together with its neighbours of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<String>,
    /// Files of the overlay that this commit adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) overlay: Vec<String>,
}

/// One commit, read.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) patch: String,
    /// Under which name it is sent.
    pub(crate) series: Option<String>,
    /// Subject, empty line, body.
    pub(crate) message: String,
    /// What `git apply` takes; empty when the commit only adds files.
    pub(crate) diff: String,
    /// Path in the kernel tree and content of each added file.
    pub(crate) added: Files,
}

/// Content by path in the kernel tree.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The whole series, read and found consistent.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) commits: Vec<Commit>,
}

impl Index {
    /// Reads the `series.toml` of a tree.
    pub(crate) fn read(linux: Linux) -> Result<Self> {
        let path = linux.home().join("series.toml");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Every file of the overlay that a commit adds.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        self.commits.iter().flat_map(|entry| entry.overlay.iter().cloned()).collect()
    }
}

impl Series {
    /// Reads the series of a tree; every file of its own overlay must belong to one commit.
    pub(crate) fn read(linux: Linux) -> Result<Self> {
        let home = linux.home();
        let overlay = Overlay::new(linux);
        let mut unclaimed = overlay.own()?;
        let mut claimed = BTreeSet::new();
        let mut commits = Vec::new();
        for entry in Index::read(linux)?.commits {
            let path = home.join("patches").join(&entry.patch);
            let mail = fs::read_to_string(&path)
                .with_context(|| format!("series.toml names {}", path.display()))?;
            let (message, diff) =
                split_mail(&mail).with_context(|| format!("patches/{}", entry.patch))?;
            let mut added = BTreeMap::new();
            for file in entry.overlay {
                if !claimed.insert(file.clone()) {
                    bail!("{}: overlay/{file} is named twice", entry.patch);
                }
                unclaimed.remove(&file);
                let content = overlay.read(&file).with_context(|| entry.patch.clone())?;
                added.insert(file, content);
            }
            commits.push(Commit { patch: entry.patch, series: entry.series, message, diff, added });
        }
        if let Some(file) = unclaimed.first() {
            let home = home.display();
            bail!("no commit of {home}/series.toml adds {file}: name it in one `overlay` list");
        }
        Ok(Self { commits })
    }

    /// The existing files that the diffs change.
    pub(crate) fn changed(&self) -> BTreeSet<String> {
        let lines = self.commits.iter().flat_map(|commit| commit.diff.lines());
        lines.filter_map(|line| line.strip_prefix("--- a/")).map(str::to_owned).collect()
    }

    /// Copies the files that the series changes from `source` to `dir`, and
    /// applies commit after commit there; `done` is told after each.
    pub(crate) fn replay(
        &self,
        source: &Source,
        dir: &Path,
        mut done: impl FnMut(Option<&Commit>) -> Result<()>,
    ) -> Result<()> {
        for file in self.changed() {
            let to = dir.join(&file);
            make_parent(&to)?;
            fs::copy(source.dir.join(&file), &to)
                .with_context(|| format!("{file}, which the series changes, is not in {source}"))?;
        }
        done(None)?;
        for commit in &self.commits {
            commit.apply(source, dir)?;
            done(Some(commit))?;
        }
        Ok(())
    }

    /// Every file that differs from the source once the series is applied.
    pub(crate) fn result(&self, source: &Source) -> Result<Files> {
        Ok(self.steps(source)?.pop().unwrap_or_default())
    }

    /// The same after each commit.
    pub(crate) fn steps(&self, source: &Source) -> Result<Vec<Files>> {
        let dir = tempfile::tempdir()?;
        let mut steps = Vec::new();
        self.replay(source, dir.path(), |commit| {
            let mut files = Files::new();
            for file in files_below(dir.path())? {
                let content = fs::read(dir.path().join(&file))?;
                files.insert(file, content);
            }
            if commit.is_some() {
                steps.push(files);
            }
            Ok(())
        })?;
        Ok(steps)
    }
}

impl Commit {
    fn apply(&self, source: &Source, dir: &Path) -> Result<()> {
        for (file, content) in &self.added {
            let to = dir.join(file);
            make_parent(&to)?;
            fs::write(&to, content)?;
        }
        if self.diff.is_empty() {
            return Ok(());
        }
        let diff = tempfile::NamedTempFile::new()?;
        fs::write(diff.path(), &self.diff)?;
        let mut apply = command::new(dir, "git", ["apply", "--whitespace=nowarn"]);
        // Never mistake the checkout around `dir` for the tree to patch.
        apply.arg(diff.path()).env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
        let output = command::output(&mut apply)?;
        if !output.status.success() {
            bail!(
                "Debian's {source} no longer takes patches/{}:\n{}\
                 rebase it: `cargo xtask kernel tree DIR` on the last version that took it, \
                 merge the new source, `cargo xtask kernel import DIR`",
                self.patch,
                String::from_utf8_lossy(&output.stderr),
            );
        }
        Ok(())
    }
}

/// Splits a patch file into commit message and diff.
fn split_mail(mail: &str) -> Result<(String, String)> {
    let rest = mail.strip_prefix("Subject: ").context("does not begin with `Subject: `")?;
    let (message, diff) = match rest.split_once("\n---\n") {
        Some((message, diff)) => (message, diff),
        None => (rest, ""),
    };
    Ok((message.trim_end().to_owned() + "\n", diff.to_owned()))
}

/// The counterpart of [`split_mail`].
pub(crate) fn join_mail(message: &str, diff: &str) -> String {
    let message = message.trim_end();
    if diff.is_empty() {
        return format!("Subject: {message}\n");
    }
    format!("Subject: {message}\n---\n{diff}")
}

/// Relative paths of all files below `dir`, without those of git.
pub(crate) fn files_below(dir: &Path) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        let Ok(entries) = fs::read_dir(dir.join(&below)) else { continue };
        for entry in entries {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if entry.file_name() != ".git" {
                    pending.push(path);
                }
            } else {
                files.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(files)
}

/// Makes the directory that `file` lies in.
pub(crate) fn make_parent(file: &Path) -> Result<()> {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Index, Series, files_below, join_mail, split_mail};
    use crate::kernel::{linux::Linux, overlay};

    #[test]
    fn a_mail_survives_splitting_and_joining() {
        let mail = "Subject: mm: one thing\n\nWhy.\n---\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n";
        let (message, diff) = split_mail(mail).unwrap();
        assert_eq!(message, "mm: one thing\n\nWhy.\n");
        assert_eq!(join_mail(&message, &diff), mail);
    }

    #[test]
    fn each_series_in_the_repository_is_consistent() {
        for linux in Linux::ALL {
            for commit in Series::read(linux).unwrap().commits {
                let subject = commit.message.lines().next().unwrap_or_default();
                assert!(subject.contains(": "), "{}: no area in the subject", commit.patch);
                assert!(commit.message.lines().count() > 2, "{}: no reason given", commit.patch);
            }
        }
    }

    /// Lines of code that a reviewer of the core series reads, tests and documents apart.
    const MAX_CORE_LINES: usize = 2_500;

    #[test]
    fn core_series_is_short_enough_to_review() {
        let is_code = |path: &str| {
            !path.starts_with("Documentation/") && path != "MAINTAINERS" && !path.contains("kunit")
        };
        let series = Series::read(Linux::V7_3).unwrap();
        let mut lines = 0;
        for commit in series.commits.iter().filter(|one| one.series.as_deref() == Some("core")) {
            let mut in_code = false;
            for line in commit.diff.lines() {
                if let Some(path) = line.strip_prefix("+++ b/") {
                    in_code = is_code(path);
                } else if in_code && (line.starts_with('+') || line.starts_with('-')) {
                    lines += usize::from(!line.starts_with("--- "));
                }
            }
            let added = commit.added.iter().filter(|(path, _)| is_code(path));
            lines += added.map(|(_, text)| text.split(|&c| c == b'\n').count() - 1).sum::<usize>();
        }
        assert!((1_000..=MAX_CORE_LINES).contains(&lines), "{lines} of {MAX_CORE_LINES}");
    }

    #[test]
    fn every_shared_file_belongs_to_a_series() {
        let mut unclaimed = files_below(&overlay::shared()).unwrap();
        for linux in Linux::ALL {
            let claimed = Index::read(linux).unwrap().files();
            unclaimed.retain(|file| !claimed.contains(file));
        }
        assert_eq!(unclaimed, BTreeSet::new(), "name it in a series.toml");
    }
}
