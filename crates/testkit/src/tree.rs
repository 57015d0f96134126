// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A literal directory tree in the place of `/sys`, `/proc`, the cgroup mount and `/`.

use std::fs;

use linux::Roots;
use tempfile::TempDir;

/// A tree on disk, removed when dropped.
#[derive(Debug)]
pub struct Tree {
    dir: TempDir,
}

/// Writes `files`, each a path like `sys/kernel/mm/...`, `proc/...` or `cgroup/...` and its
/// content.
///
/// # Panics
/// If writing it fails.
pub fn tree(files: &[(&str, &str)]) -> Tree {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("mkdir");
        fs::write(&path, content).expect("write");
    }
    Tree { dir }
}

impl Tree {
    /// Roots that point into the tree.
    pub fn roots(&self) -> Roots {
        let root = self.dir.path();
        Roots {
            sys: root.join("sys"),
            proc: root.join("proc"),
            cgroup: root.join("cgroup"),
            dev: root.join("dev"),
            root: root.to_owned(),
        }
    }

    /// What a file of the tree holds now.
    ///
    /// # Panics
    /// If it is missing.
    pub fn content(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join(path)).expect("the file is there")
    }
}
