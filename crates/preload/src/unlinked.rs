// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files without a name on a mounted hugetlbfs: what a program has that was given a directory of
//! huge pages, made a file there, unlinked it and gave it a length. QEMU's `mem-path=DIR`, and so
//! libvirt, Proxmox and nova by default.
//!
//! Such a file is a memfd in all but name. It is served by its first mapping, when it is known
//! whether that is shared. If so, the lent file takes the descriptor's place, as a memfd's does
//! ([`crate::memfd`]). If it is private, the memory has nothing of the file but its page size: it
//! is what an anonymous mapping is ([`crate::anonymous`]), and the file stays empty, as it would.
//!
//! That is right only while nobody else has the file. It has no name and no second descriptor here;
//! since it was made this process has neither parted (fork, or its own start) nor passed a
//! descriptor on. When it was made its access time tells, which nothing changes before a first
//! mapping. What remains are descriptors that another process gets by itself (`pidfd_getfd`,
//! `/proc/PID/fd`), that `posix_spawn` leaves open in another program, or that are passed on
//! without the C library.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::daemon::{Ask, Lender};
use crate::exchange::{descriptors_of, mappings_of};
use crate::raw::{self, File};
use crate::say::say;
use crate::stays::Stays;
use crate::{config::config, memfd::Memfds};

/// When a file may last have become another process's as well, in nanoseconds of the clock that
/// files' times are taken from.
static PARTED: AtomicU64 = AtomicU64::new(u64::MAX);

/// From now on files that there are already may be in other hands.
pub(crate) fn parts() {
    PARTED.store(raw::coarse_time(), Ordering::Relaxed);
}

/// One without memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unlinked {
    file: File,
    pub(crate) page: u64,
    made: u64,
}

/// What a descriptor is, if it is of such a file. One call where it is none.
pub(crate) fn of(fd: c_int) -> Option<Unlinked> {
    let look = raw::look(fd).ok()?;
    if look.is_linked || look.blocks != 0 || look.file.bytes == 0 || !look.is_regular {
        return None;
    }
    let page = raw::huge_page_of(fd)?;
    Some(Unlinked { file: look.file, page, made: look.accessed })
}

impl Unlinked {
    /// Whether it is no memfd, and nobody else's.
    pub(crate) fn is_ours(&self, fd: c_int) -> bool {
        if raw::is_memfd(fd) {
            return false;
        }
        let ours = self.made > PARTED.load(Ordering::Relaxed)
            && raw::access_mode(fd) == Ok(libc::O_RDWR)
            && descriptors_of(self.file) == [fd]
            && mappings_of(self.file).is_ok_and(|pieces| pieces.is_empty());
        if !ours {
            let bytes = self.file.bytes;
            say(format_args!("a file of {bytes} bytes is not served: others may have it"));
        }
        ours
    }

    /// Whether a mapping from `offset` on is of all of it.
    pub(crate) fn is_all(&self, bytes: usize, offset: i64) -> bool {
        offset == 0 && (bytes as u64).checked_next_multiple_of(self.page) == Some(self.file.bytes)
    }

    /// Puts a lent file in its place, before its first mapping, which is shared. `last_hope`: the
    /// kernel has no pages for it.
    pub(crate) fn serve(
        &self,
        (lender, stays, memfds): (&mut Lender, &mut Stays, &mut Memfds),
        fd: c_int,
        last_hope: bool,
    ) -> bool {
        let bytes = self.file.bytes;
        let not = |why: &dyn std::fmt::Display| {
            say(format_args!("a file of {bytes} bytes is not served: {why}"));
            false
        };
        if !config().enabled {
            return not(&"this program is not in PREZERO_ONLY");
        }
        let ask = Ask { bytes, page: self.page, single: true, last_hope, node: None };
        let loan = match lender.lend(ask) {
            Ok(loan) => loan,
            Err(why) => return not(&why),
        };
        let ready = loan.ready_bytes();
        if ready.0 == 0 && !last_hope {
            return not(&"nothing is ready");
        }
        match memfds.take_place(stays, loan, fd, self.page) {
            Ok(()) => {
                say(format_args!("a file of {bytes} bytes is served: {ready} ready"));
                true
            }
            Err(error) => not(&error),
        }
    }
}
