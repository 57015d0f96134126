// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Huge pages taken out of free memory for a while, and every pool put back afterwards.
//!
//! # Theory of operation
//!
//! A [`Reservation`] writes a pool's size down in its *note* before it changes it. The note is a
//! file that is locked while its process lives. The next run that finds an unlocked one knows that
//! its process died (SIGKILL, power) and puts those sizes back first. The ways out:
//!
//! | how it ends | who puts the pools back |
//! |---|---|
//! | normally, by an error, by a panic | `Drop` |
//! | by a signal that the program catches | `Drop`, when the program unwinds |
//! | by SIGKILL | the next [`Reservation::begin`] with the same note |
//! | with the machine | nobody needs to: the sizes are not kept over a boot |
//!
//! Limit: a size that another program changes meanwhile is overwritten by the old one. Pages that
//! are still used when their pool shrinks leave it when they are freed: the kernel's surplus.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use linux::{Error, Result, Roots, hugetlb};
use rustix::fs::FlockOperation;
use units::{Node, PageSize, Pages};

use crate::machine::{call_failed, free_pages};

/// A pool's size as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Before {
    /// The node.
    pub(crate) node: Node,
    /// The page size.
    pub(crate) page: PageSize,
    /// Its pages.
    pub(crate) total: Pages,
}

/// Pools that were changed; dropped, they have their old size again.
#[derive(Debug)]
pub(crate) struct Reservation {
    roots: Roots,
    path: PathBuf,
    note: File,
    before: Vec<Before>,
}

impl Reservation {
    /// Opens the note at `path`in an existing directory, and puts back the sizes that a dead
    /// process has left there. Returns that too.
    ///
    /// # Errors
    /// EWOULDBLOCK while another process holds the note; those of writing `/sys` without root.
    pub(crate) fn begin(roots: Roots, path: &Path) -> Result<(Self, Vec<Before>)> {
        let failed = |call: &str| {
            let call = format!("{call}({path:?})");
            move |error: std::io::Error| call_failed(call, &error, None)
        };
        let mut options = OpenOptions::new();
        let mut note = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed("open"))?;
        rustix::fs::flock(&note, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            let advice = "another process has pages reserved with this note: wait for its end";
            call_failed(format!("flock({path:?}, LOCK_EX|LOCK_NB)"), &errno.into(), Some(advice))
        })?;
        let mut text = String::new();
        note.read_to_string(&mut text).map_err(failed("read"))?;
        let left = text.lines().map(|line| parse(path, line)).collect::<Result<Vec<_>>>()?;
        let mut reservation = Self { roots, path: path.to_owned(), note, before: left.clone() };
        reservation.put_back()?;
        Ok((reservation, left))
    }

    /// Grows the pool of one size on one node until `pages` of it are free, or the kernel finds no
    /// more. Returns how many are free then, which may be fewer, or more if they were before.
    ///
    /// Blocks while the kernel migrates and compacts memory, for gigabytes many seconds; a signal
    /// ends that early. Growing does not zero or touch the pages: see [`crate::prefault`].
    ///
    /// # Errors
    /// [`linux::Error::is_denied`] without root, EINVAL where a size can be had at boot only.
    pub(crate) fn grow(&mut self, page: PageSize, node: Node, pages: Pages) -> Result<Pages> {
        let (size, at) = (page, Some(node));
        let missing = pages.saturating_sub(free_pages(&self.roots, size, node)?).0;
        if missing > 0 {
            let now = hugetlb::counters(&self.roots, size, at)?;
            // Surplus pages are not part of the size that was set, and vanish when they are freed.
            let total = Pages(now.total.saturating_sub(now.surplus));
            self.write_down(Before { node, page, total })?;
            hugetlb::set_total(&self.roots, size, at, now.total + missing)?;
        }
        free_pages(&self.roots, size, node)
    }

    /// Puts every pool back. Called by `Drop`; call it yourself to learn what went wrong.
    ///
    /// # Errors
    /// The first that occurred; the other pools are put back nevertheless.
    pub(crate) fn put_back(&mut self) -> Result<()> {
        let mut result = Ok(());
        let mut failed = Vec::new();
        // Last changed first, so that one pool's pages are free when another wants them back.
        for before in self.before.drain(..).rev() {
            let (size, at) = (before.page, Some(before.node));
            if let Err(error) = hugetlb::set_total(&self.roots, size, at, before.total.0) {
                failed.push(before);
                result = result.and(Err(error));
            }
        }
        self.before = failed;
        self.rewrite().and(result)
    }

    fn write_down(&mut self, before: Before) -> Result<()> {
        if !self.before.iter().any(|b| (b.node, b.page) == (before.node, before.page)) {
            self.before.push(before);
        }
        self.rewrite()
    }

    fn rewrite(&mut self) -> Result<()> {
        let lines = self.before.iter().map(|b| format!("{} {} {}\n", b.node, b.page, b.total));
        let text: String = lines.collect();
        let write = || -> std::io::Result<()> {
            self.note.rewind()?;
            self.note.set_len(0)?;
            self.note.write_all(text.as_bytes())?;
            self.note.sync_data()
        };
        let mut write = write;
        write().map_err(|error| call_failed(format!("write({:?})", self.path), &error, None))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        match self.put_back() {
            // The lock goes with the file; without a name no run finds an empty note.
            Ok(()) => drop(std::fs::remove_file(&self.path)),
            Err(error) => {
                tracing::error!("{error}; the old sizes are in {}", self.path.display());
            }
        }
    }
}

fn parse(path: &Path, line: &str) -> Result<Before> {
    let fields: Vec<_> = line.split(' ').collect();
    let before = match fields[..] {
        [node, page, total] => (|| {
            let (node, total) = (Node(node.parse().ok()?), Pages(total.parse().ok()?));
            Some(Before { node, page: page.parse().ok()?, total })
        })(),
        _ => None,
    };
    before.ok_or_else(|| Error::Malformed {
        path: path.into(),
        expected: "NODE PAGESIZE PAGES",
        found: line.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A tree with a pool that takes any size: the real kernel has tests of its own.
    fn tree() -> (tempfile::TempDir, Roots, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().join("sys");
        let pool = |parent: &str| sys.join(parent).join("hugepages/hugepages-2048kB");
        for parent in ["kernel/mm", "devices/system/node/node1"] {
            fs::create_dir_all(pool(parent)).unwrap();
            for (name, value) in [("nr", "3"), ("free", "2"), ("surplus", "0"), ("resv", "1")] {
                fs::write(pool(parent).join(format!("{name}_hugepages")), value).unwrap();
            }
        }
        let total = pool("devices/system/node/node1").join("nr_hugepages");
        let roots = Roots { sys, ..Roots::default() };
        (dir, roots, total)
    }

    #[test]
    fn surplus_pages_are_not_made_permanent() {
        let (dir, roots, total) = tree();
        fs::write(total.with_file_name("surplus_hugepages"), "2").unwrap();
        let mut reservation = Reservation::begin(roots, &dir.path().join("note")).unwrap().0;
        reservation.grow(PageSize::MIB_2, Node(1), Pages(2)).unwrap();
        assert_eq!(read(&total), "4", "one more page, on top of all that are in use");
        drop(reservation);
        assert_eq!(read(&total), "1", "3, of which 2 were surplus");
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn pool_grows_by_its_shortage_and_is_restored_on_drop() {
        let (dir, roots, total) = tree();
        let note = dir.path().join("note");
        let (mut reservation, left) = Reservation::begin(roots, &note).unwrap();
        assert_eq!(left, []);
        reservation.grow(PageSize::MIB_2, Node(1), Pages(1)).unwrap();
        assert_eq!(read(&total), "3", "one page is free and not promised");
        reservation.grow(PageSize::MIB_2, Node(1), Pages(5)).unwrap();
        assert_eq!(read(&total), "7", "3, and 4 that are missing");
        assert_eq!(read(&note), "1 2M 3\n");
        drop(reservation);
        assert_eq!(read(&total), "3");
        assert!(!note.exists());
    }

    #[test]
    fn remains_of_a_killed_process_are_restored_first() {
        let (dir, roots, total) = tree();
        let note = dir.path().join("note");
        fs::write(&total, "9").unwrap();
        fs::write(&note, "1 2M 3\n").unwrap();
        let (_reservation, left) = Reservation::begin(roots.clone(), &note).unwrap();
        assert_eq!(left, [Before { node: Node(1), page: PageSize::MIB_2, total: Pages(3) }]);
        assert_eq!((read(&total), read(&note)), ("3".into(), String::new()));
        let second = Reservation::begin(roots, &note).unwrap_err().to_string();
        assert!(second.contains("another process"), "{second}");
    }

    #[test]
    fn a_note_that_is_not_one_is_refused_and_kept() {
        let (dir, roots, total) = tree();
        let note = dir.path().join("note");
        fs::write(&note, "1 2M many\n").unwrap();
        assert!(Reservation::begin(roots, &note).is_err());
        assert_eq!((read(&total), read(&note)), ("3".into(), "1 2M many\n".into()));
    }
}
