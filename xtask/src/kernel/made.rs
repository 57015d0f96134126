// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a series was when a tree was made from it. A tree is worked in for days while the series
//! changes here; what came since would be undone by an import, silently, since an import replaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, bail};

use super::{
    linux::Linux,
    overlay::Overlay,
    series::{Index, files_below, make_parent},
};

/// Where a tree keeps it: out of the way of its own files.
const RECORD: &str = ".git/prezero";

/// The files of a series, by their names below its directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Made(BTreeMap<String, Vec<u8>>);

impl Made {
    /// The series as it is in this checkout.
    pub(crate) fn load(linux: Linux) -> Result<Self> {
        let (home, overlay) = (linux.home(), Overlay::new(linux));
        let mut files = BTreeMap::new();
        for patch in files_below(&home.join("patches"))? {
            let name = format!("patches/{patch}");
            files.insert(name.clone(), fs::read(home.join(name))?);
        }
        for file in Index::read(linux)?.files() {
            files.insert(format!("overlay/{file}"), overlay.read(&file)?);
        }
        Ok(Self(files))
    }

    /// The series that the tree `dir` was made from, or last imported to.
    fn read(dir: &Path) -> Result<Self> {
        let record = dir.join(RECORD);
        if !record.exists() {
            bail!(
                "{} does not say which series it was made from: make a tree with \
                 `cargo xtask kernel tree` and cherry-pick into it",
                dir.display()
            );
        }
        let names = files_below(&record)?.into_iter();
        let files = names.map(|name| Ok((name.clone(), fs::read(record.join(name))?)));
        Ok(Self(files.collect::<Result<_>>()?))
    }

    /// Notes in the tree `dir` that it has what this is.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let record = dir.join(RECORD);
        let _ = fs::remove_dir_all(&record);
        fs::create_dir_all(&record)?;
        for (name, content) in &self.0 {
            let to = record.join(name);
            make_parent(&to)?;
            fs::write(&to, content).with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }

    /// Refuses a tree that lacks what came to this series since the tree was made.
    pub(crate) fn check_current(&self, dir: &Path) -> Result<()> {
        let newer = self.newer_than(&Self::read(dir)?, dir);
        if newer.is_empty() {
            return Ok(());
        }
        bail!(
            "{} lacks what changed here since it was made, which an import would undo: {}: make \
             a new tree with `cargo xtask kernel tree` and cherry-pick into it",
            dir.display(),
            newer.join(", ")
        )
    }

    /// The files that differ from what the tree was made from. One that the tree has all the same,
    /// because the change was made in both, is no loss.
    fn newer_than(&self, made: &Self, tree: &Path) -> Vec<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(made.0.keys()).collect();
        let differs = |name: &&String| {
            let now = self.0.get(*name);
            let there =
                name.strip_prefix("overlay/").and_then(|file| fs::read(tree.join(file)).ok());
            now != made.0.get(*name) && (now.is_none() || now != there.as_ref())
        };
        names.into_iter().filter(differs).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Made;

    fn made(files: [(&str, &str); 3]) -> Made {
        Made(files.map(|(name, content)| (name.to_owned(), content.into())).into())
    }

    #[test]
    fn a_tree_that_lacks_what_came_since_is_refused_with_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let now = made([("overlay/a.c", "2"), ("overlay/b.c", "1"), ("patches/0001-x.patch", "1")]);

        let refused = now.check_current(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("does not say"), "{refused}");

        now.write(dir.path()).unwrap();
        now.check_current(dir.path()).unwrap();

        let old = made([("overlay/a.c", "1"), ("overlay/b.c", "1"), ("patches/0001-x.patch", "0")]);
        old.write(dir.path()).unwrap();
        fs::write(dir.path().join("a.c"), "1").unwrap();
        let refused = now.check_current(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("overlay/a.c, patches/0001-x.patch"), "{refused}");
        assert!(!refused.contains("b.c"), "{refused}");
    }

    #[test]
    fn a_shared_file_that_was_changed_in_both_trees_is_imported() {
        let dir = tempfile::tempdir().unwrap();
        let at = |content| [("overlay/a.c", content), ("overlay/b.c", "1"), ("patches/p", "1")];
        made(at("1")).write(dir.path()).unwrap();
        fs::write(dir.path().join("a.c"), "2").unwrap();
        made(at("2")).check_current(dir.path()).unwrap();
    }

    #[test]
    fn a_file_that_the_series_gave_up_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        made([("overlay/a.c", "1"), ("overlay/b.c", "1"), ("patches/p", "1")])
            .write(dir.path())
            .unwrap();
        fs::write(dir.path().join("b.c"), "1").unwrap();
        let now = Made([("overlay/a.c".to_owned(), b"1".to_vec())].into());
        let refused = now.check_current(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("overlay/b.c"), "{refused}");
    }
}
