// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that a series adds: those of one tree below `linux-NAME/overlay`, those that are the
//! same in every tree below `overlay` beside them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{
    linux::{self, Linux},
    series::{Index, files_below, make_parent},
};

/// `kernel/overlay` of this checkout.
pub(crate) fn shared() -> PathBuf {
    linux::home().join("overlay")
}

/// The files that one tree's series may add.
#[derive(Debug)]
pub(crate) struct Overlay {
    own: PathBuf,
    shared: PathBuf,
    /// What other trees take from the shared part.
    elsewhere: Vec<Linux>,
}

impl Overlay {
    pub(crate) fn new(linux: Linux) -> Self {
        Self {
            own: linux.home().join("overlay"),
            shared: shared(),
            elsewhere: Linux::ALL.into_iter().filter(|&other| other != linux).collect(),
        }
    }

    /// The files that no other tree has.
    pub(crate) fn own(&self) -> Result<BTreeSet<String>> {
        files_below(&self.own)
    }

    /// Where a file lies. The tree's own wins: two trees may differ in one.
    fn place(&self, file: &str) -> PathBuf {
        let (own, shared) = (self.own.join(file), self.shared.join(file));
        if !exists(&own) && exists(&shared) { shared } else { own }
    }

    /// Where a file lies, if it does.
    pub(crate) fn find(&self, file: &str) -> Option<PathBuf> {
        Some(self.place(file)).filter(|place| place.exists())
    }

    pub(crate) fn read(&self, file: &str) -> Result<Vec<u8>> {
        fs::read(self.place(file)).with_context(|| {
            format!("{file} is neither in {} nor in {}", self.own.display(), self.shared.display())
        })
    }

    /// Replaces all files by those of `tree`. A shared file is written where it lies, for every
    /// tree; a new file is this tree's own. A file that is a link here belongs to others as well,
    /// and changes where it lies: if it differs, it is left alone.
    pub(crate) fn replace(&self, tree: &Path, files: &BTreeSet<String>) -> Result<()> {
        for file in files {
            let to = self.place(file);
            if to.is_symlink() && fs::read(&to).ok() != Some(fs::read(tree.join(file))?) {
                let there = fs::canonicalize(&to).unwrap_or(to);
                bail!(
                    "{file} of the tree differs from {}, which more than the kernel uses: \
                     make them the same",
                    there.display()
                );
            }
        }
        for file in self.own()?.difference(files) {
            fs::remove_file(self.own.join(file))?;
        }
        let mut elsewhere = BTreeSet::new();
        for &other in &self.elsewhere {
            elsewhere.extend(Index::read(other)?.files());
        }
        for file in files_below(&self.shared)? {
            if !files.contains(&file) && !elsewhere.contains(&file) {
                fs::remove_file(self.shared.join(file))?;
            }
        }
        for file in files {
            let to = self.place(file);
            if to.is_symlink() {
                continue;
            }
            make_parent(&to)?;
            fs::write(&to, fs::read(tree.join(file))?)?;
        }
        Ok(())
    }
}

/// Whether there is an entry, be it a link to nothing.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

    use super::Overlay;

    #[test]
    fn used_files_are_not_written_by_an_import() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["own", "shared", "tree"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("header"), "new").unwrap();
        symlink("../header", at("shared/h")).unwrap();
        fs::write(at("shared/c"), "old").unwrap();
        fs::write(at("tree/c"), "new").unwrap();
        let overlay = Overlay { own: at("own"), shared: at("shared"), elsewhere: Vec::new() };
        let files = BTreeSet::from(["c".to_owned(), "h".to_owned()]);

        fs::write(at("tree/h"), "old").unwrap();
        let refused = overlay.replace(&at("tree"), &files).unwrap_err().to_string();
        assert!(refused.contains("header"), "{refused}");
        assert_eq!(fs::read_to_string(at("header")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("shared/c")).unwrap(), "old");

        fs::write(at("tree/h"), "new").unwrap();
        overlay.replace(&at("tree"), &files).unwrap();
        assert!(at("shared/h").is_symlink());
        assert_eq!(fs::read_to_string(at("shared/c")).unwrap(), "new");
    }
}
