// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proof that no other process has a file.
//!
//! # Theory of operation
//!
//! Every process that has a file open or maps it has a description of it, and each description
//! holds a reference of the file's directory entry. It holds it from the permission check of its
//! `open` on, until its last mapping and descriptor are gone. So does a descriptor opened with
//! `O_PATH`. A count of these at rest means that the caller's description is the only one, and that
//! no `open` is in flight. Only the caller may open the file, so it stays like this. New pins are
//! then impossible, and counts of pages that are at rest *after that* mean that none is left.
//!
//! The kernel takes the last reference of a description, by which everything that was done with it
//! comes before, ahead of that of the directory entry (`__fput`). So who sees the second count at
//! rest sees every pin.
//!
//! The write lease (fcntl(2)) says the same of descriptions, and waits for `file_rwsem`, which
//! every reader of `/proc/locks` holds: 60 such threads, with little CPU time, held up a lease for
//! 3 s. The reads here wait for no lock.

//!
//! Some state hangs on the inode and outlives all descriptions. A watch (inotify, fanotify) tells
//! its owner what the next borrower does, and each event wakes all waiters of the watcher. A lock
//! or a lease refuses other users. Adding one takes a descriptor or a name of the file. So the
//! prover reads this state after it has seen the name at rest. It answers [`Holder::Marked`] for a
//! file that has any: that file serves no other loan. An inode reference from elsewhere (a Landlock
//! rule) counts as well.
//!
//! Pages may lie behind the end of a file (`fallocate(FALLOC_FL_KEEP_SIZE)`). The prover walks the
//! whole index, and answers [`Holder::Altered`] for these files.
//!
//! A pinned page can leave the file: its borrower punches it out, or cuts the file. No index has it
//! then. [`LentPages`] holds the addresses of the pages that were lent, and the prover reads the
//! state of each page that is missing.

use std::os::fd::{AsFd, BorrowedFd};

use linux::BlockFile;

use crate::measure::Rest;
use crate::probe::{PinProbe, References, Result};

/// So often the name of a file is looked at: who looks up a file's length by its path, for one,
/// has it for a microsecond.
const MAX_NAME_READS: u32 = 8;

/// The knowledge that no other process has a file open, maps it, pins a page of it or is about to
/// open it. Only the prover's own watch hangs on its inode.
///
/// Only [`PinProbe::prove`] makes one. It lasts until a process is given access to the file.
#[derive(Debug)]
#[must_use]
pub struct Unheld(());

/// Who holds a file.
#[derive(Debug)]
pub enum Holder {
    /// Nobody.
    Nobody(Unheld),
    /// The file is closed, unmapped and unpinned; but a process has a descriptor of its name
    /// (`O_PATH`), or is about to open it.
    Named,
    /// Pinned pages: of the file, or lent with it and since removed from it. The kernel may also
    /// have them in hand for a moment.
    Pinned(u32),
    /// Somebody maps it.
    Mapped,
    /// Another process has it open.
    Open,
    /// The file is closed, unmapped and unpinned; but this number of pages has a memory error.
    Poisoned(u32),
    /// The same; but its borrower put this number of pages behind its end.
    Altered(u32),
    /// The same; but something hangs on its inode: a watch, a lock, a reference.
    Marked,
}

/// The other users of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// None, and no `open` is in flight.
    Nobody,
    /// None, but a process has a descriptor of its name (`O_PATH`), or is about to open it.
    Named,
    /// Another process has it open, or maps it.
    Open,
}

/// Which pages a file had when it was lent.
///
/// 8 bytes for each. A page that the kernel has moved elsewhere since (compaction, `move_pages`) is
/// none of them any more, and free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LentPages {
    pages: Vec<u64>,
    sum: u64,
}

impl PinProbe {
    /// Searches for holders of `file`, by the one description of the caller's. 0.15 us for each of
    /// its pages, and 3 us. Returns without waiting. `watcher` is the inotify descriptor by which
    /// the caller may watch the file. `lent` is the pages of the file at the start of its loan, if
    /// known: pages that have left it and are free are forgotten there.
    ///
    /// Only the caller may have access to the file: an answer about a file that others may open
    /// expires at once.
    ///
    /// # Errors
    /// Those of `fstat`, and those of [`look`](Self::look).
    pub fn prove(
        &self,
        file: &BlockFile,
        rest: Rest,
        watcher: Option<BorrowedFd<'_>>,
        lent: Option<&mut LentPages>,
    ) -> Result<Holder> {
        // Before the pages: a process without a description makes no new pin.
        let before = self.look_again(file, rest, watcher)?;
        if before.open != rest.open() {
            return Ok(if before.mapped { Holder::Mapped } else { Holder::Open });
        }
        let end = file.len()? / rest.page().bytes();
        let seen = self.look(file.as_fd(), end, rest, watcher)?;
        // What the walk has not found is nowhere that it may be.
        let found = u64::from(seen.pages) * rest.page().bytes();
        let unfound = file.allocated_bytes()?.abs_diff(found) / rest.page().bytes();
        let elsewhere = seen.behind.max(u32::try_from(unfound).unwrap_or(u32::MAX));
        if let Some(lent) = lent
            && seen.sum != lent.sum
            && !seen.mapped
            && seen.open == rest.open()
            && seen.held == 0
        {
            let strays = self.missing(file, rest, lent)?;
            if strays > 0 {
                return Ok(Holder::Pinned(strays));
            }
        }
        Ok(judge(&before, &seen, elsewhere, rest))
    }

    /// Notes which pages a file has that is about to be lent. 0.15 us for each.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn lent(&self, file: &BlockFile, rest: Rest) -> Result<LentPages> {
        let (mut pages, sum) = self.addresses(file.as_fd(), rest)?;
        pages.sort_unstable();
        Ok(LentPages { pages, sum })
    }

    /// How many pages were lent with a file, have left it, and are still in use.
    fn missing(&self, file: &BlockFile, rest: Rest, lent: &mut LentPages) -> Result<u32> {
        let (mut now, _) = self.addresses(file.as_fd(), rest)?;
        now.sort_unstable();
        let (there, gone): (Vec<_>, Vec<_>) =
            lent.pages.iter().partition(|page| now.binary_search(page).is_ok());
        let strays = self.strays(&gone)?;
        lent.pages = [there, strays.clone()].concat();
        lent.pages.sort_unstable();
        Ok(u32::try_from(strays.len()).unwrap_or(u32::MAX))
    }

    /// Searches for other users of `file`, by the one description of the caller's; the caller may
    /// map it. 1 us. Returns without waiting.
    ///
    /// # Errors
    /// As [`prove`](Self::prove).
    pub fn opened(&self, file: &BlockFile, rest: Rest) -> Result<Opened> {
        let seen = self.look_again(file, rest, None)?;
        Ok(if seen.open != rest.open() {
            Opened::Open
        } else if seen.names != rest.names() {
            Opened::Named
        } else {
            Opened::Nobody
        })
    }

    /// Looks at no page, again as long as a process has only the name.
    fn look_again(
        &self,
        file: &BlockFile,
        rest: Rest,
        watcher: Option<BorrowedFd<'_>>,
    ) -> Result<References> {
        let mut seen = self.look_at_name(file.as_fd(), rest, watcher)?;
        for _ in 1..MAX_NAME_READS {
            if seen.open != rest.open() || seen.names == rest.names() {
                break;
            }
            std::thread::yield_now();
            seen = self.look_at_name(file.as_fd(), rest, watcher)?;
        }
        Ok(seen)
    }
}

/// The verdict of two looks, with opens excluded in between: `elsewhere` pages of it are not where
/// it has its pages.
fn judge(before: &References, seen: &References, elsewhere: u32, rest: Rest) -> Holder {
    let is_named = |seen: &References| seen.names != rest.names();
    let inode = seen.inode;
    // All watches together have one reference of the inode.
    let expected = rest.inodes() + i32::from(inode.is_watched);
    let is_referred_to = rest.inodes() > 0 && inode.references != expected;
    match seen {
        // The caller's own mappings, too.
        _ if seen.mapped => Holder::Mapped,
        // Who was about to open it has done so.
        _ if seen.open != rest.open() => Holder::Open,
        _ if seen.held > 0 => Holder::Pinned(seen.held),
        _ if seen.poisoned > 0 => Holder::Poisoned(seen.poisoned),
        _ if elsewhere > 0 => Holder::Altered(elsewhere),
        _ if inode.is_marked() || is_referred_to => Holder::Marked,
        _ if is_named(before) || is_named(seen) => Holder::Named,
        _ => Holder::Nobody(Unheld(())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Inode;

    fn rest() -> Rest {
        Rest::restore("2097152 512 512 2 1 0 1").expect("a measure")
    }

    /// Two pages at rest.
    fn at_rest() -> References {
        let inode = Inode { references: 1, watches: 0, is_watched: false, has_locks: false };
        References {
            pages: 2,
            behind: 0,
            poisoned: 0,
            held: 0,
            first: 0,
            first_held: u64::MAX,
            lowest: 512,
            highest: 512,
            sum: 0,
            mapped: false,
            names: 2,
            open: (1, 0),
            inode,
        }
    }

    /// The verdict on a file that is at rest but for one change.
    fn said(change: impl Fn(&mut References)) -> String {
        let mut seen = at_rest();
        change(&mut seen);
        format!("{:?}", judge(&at_rest(), &seen, seen.behind, rest()))
    }

    // Promise P252.
    #[test]
    fn one_thing_that_is_not_at_rest_is_enough() {
        assert_eq!(said(|_| {}), "Nobody(Unheld(()))");
        assert_eq!(said(|seen| seen.mapped = true), "Mapped");
        assert_eq!(said(|seen| seen.open = (2, 0)), "Open");
        assert_eq!(said(|seen| seen.open = (1, 1)), "Open");
        assert_eq!(said(|seen| seen.held = 1), "Pinned(1)");
        assert_eq!(said(|seen| seen.poisoned = 1), "Poisoned(1)");
        assert_eq!(said(|seen| seen.behind = 1), "Altered(1)");
        assert_eq!(said(|seen| seen.names = 3), "Named");
        assert_eq!(said(|seen| seen.inode.watches = 1), "Marked");
        assert_eq!(said(|seen| seen.inode.has_locks = true), "Marked");
        assert_eq!(said(|seen| seen.inode.references = 2), "Marked", "a rule of Landlock's");
    }

    #[test]
    fn a_name_that_went_between_two_looks_may_have_been_opened() {
        let before = References { names: 3, ..at_rest() };
        assert!(matches!(judge(&before, &at_rest(), 0, rest()), Holder::Named));
    }

    #[test]
    fn provers_own_watch_is_an_inode_reference_and_no_mark() {
        let inode = Inode { references: 2, is_watched: true, ..at_rest().inode };
        let seen = References { inode, ..at_rest() };
        assert!(matches!(judge(&seen, &seen, 0, rest()), Holder::Nobody(_)));
        let inode = Inode { references: 3, ..inode };
        let seen = References { inode, ..seen };
        assert!(matches!(judge(&seen, &seen, 0, rest()), Holder::Marked), "and another's");
    }

    #[test]
    fn holders_are_waited_for_before_the_borrowers_marks_count() {
        let inode = Inode { watches: 1, ..at_rest().inode };
        let all = References { held: 1, poisoned: 1, behind: 1, names: 3, inode, ..at_rest() };
        assert!(matches!(judge(&all, &all, 1, rest()), Holder::Pinned(1)));
        let all = References { held: 0, ..all };
        assert!(matches!(judge(&all, &all, 1, rest()), Holder::Poisoned(1)));
        let all = References { poisoned: 0, ..all };
        assert!(matches!(judge(&all, &all, 1, rest()), Holder::Altered(1)));
        assert!(matches!(judge(&all, &all, 0, rest()), Holder::Marked));
    }

    #[test]
    fn a_measure_of_an_earlier_version_is_none() {
        assert_eq!(Rest::restore("2097152 512 512 2 1 0"), None);
        assert_eq!(rest().to_text(), "2097152 512 512 2 1 0 1");
    }
}
