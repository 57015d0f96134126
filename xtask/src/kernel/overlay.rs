// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that a series adds: those of one tree below `linux-NAME/overlay`,
//! those that are the same in every tree below `overlay` beside them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

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
    pub(crate) fn of(linux: Linux) -> Self {
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
    /// tree; a new file is this tree's own.
    pub(crate) fn replace(&self, tree: &Path, files: &BTreeSet<String>) -> Result<()> {
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
            // Writing through a link keeps one copy of a header that others use.
            let to = self.place(file);
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
