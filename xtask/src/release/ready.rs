// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the commit may become a version: every file that names it agrees, and the change log has
//! it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{cache, command};

/// Returns the notes of the version: its section of the change log. A rehearsal takes a tree with
/// changes, and a section without a day.
pub(super) fn check(version: &str, is_rehearsal: bool) -> Result<String> {
    let repo = cache::repo();
    ensure!(
        version == env!("CARGO_PKG_VERSION"),
        "the workspace is version {}: change `version` in Cargo.toml first",
        env!("CARGO_PKG_VERSION")
    );
    for (file, line) in [
        ("kubernetes/chart/Chart.yaml", format!("version: {version}")),
        ("kubernetes/chart/Chart.yaml", format!("appVersion: {version}")),
        ("Cargo.toml", format!("clear = {{ version = \"{version}\", path")),
    ] {
        let text = fs::read_to_string(repo.join(file))?;
        let has = text.lines().any(|found| found.starts_with(&line));
        ensure!(has, "{file} has no line `{line}`");
    }
    if !is_rehearsal {
        let git = |words: &[&str]| command::stdout(&mut command::new(&repo, "git", words));
        let changed = git(&["status", "--porcelain"])?;
        ensure!(changed.is_empty(), "commit these changes first:\n{changed}");
        let tag = git(&["tag", "--list", &format!("v{version}")])?;
        ensure!(tag.is_empty(), "there is a tag v{version} already");
    }
    let log = read(&repo)?;
    let (day, notes) = section(&log, version)
        .with_context(|| format!("CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`"))?;
    if !is_rehearsal && !is_day(day) {
        bail!("CHANGELOG.md: `## [{version}] - {day}` needs the day of the release");
    }
    ensure!(!notes.is_empty(), "CHANGELOG.md says nothing of {version}");
    Ok(notes)
}

fn read(repo: &Path) -> Result<String> {
    fs::read_to_string(repo.join("CHANGELOG.md")).context("no CHANGELOG.md")
}

/// The day of a version in a change log, and the text about it.
fn section<'a>(log: &'a str, version: &str) -> Option<(&'a str, String)> {
    let (_, rest) = log.split_once(&format!("\n## [{version}] - "))?;
    let (day, rest) = rest.split_once('\n')?;
    let text = rest.split("\n## ").next().unwrap_or(rest);
    // The addresses of the versions stand at the end of the file.
    let lines = text.lines().filter(|line| !line.starts_with('['));
    let text: Vec<_> = lines.collect();
    Some((day.trim(), text.join("\n").trim().to_owned() + "\n")).filter(|(_, text)| text.len() > 1)
}

fn is_day(text: &str) -> bool {
    let digits =
        |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<_> = text.split('-').collect();
    matches!(parts[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_section_of_the_version() {
        let log = "# Changelog\n\n## [0.2.0] - unreleased\n\n## [0.1.0] - 2026-12-01\n\nFirst.\n\n\
                   ### Added\n\n- A.\n\n## [0.0.1] - 2026-01-01\n\n- B.\n\n[0.1.0]: tag\n";
        let (day, notes) = section(log, "0.1.0").unwrap();
        assert_eq!((day, notes.as_str()), ("2026-12-01", "First.\n\n### Added\n\n- A.\n"));
        assert_eq!(section(log, "0.0.1").unwrap().1, "- B.\n");
        assert_eq!(section(log, "0.2.0"), None, "an empty section");
        assert_eq!(section(log, "0.3.0"), None);
        assert!(is_day(day) && !is_day("unreleased") && !is_day("2026-1-01"));
    }

    #[test]
    fn files_of_this_commit_agree_on_its_version() {
        check(env!("CARGO_PKG_VERSION"), true).unwrap();
        let error = check("99.0.0", true).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml"), "{error}");
    }
}
