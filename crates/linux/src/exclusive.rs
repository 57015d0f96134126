// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The proof that the caller alone holds a block: a write lease, taken and given back at once.
//!
//! `fcntl(F_SETLEASE, F_WRLCK)` succeeds only for the one open description of a file (fcntl(2)),
//! whatever mode the others have. A mapping holds its description, so it counts, also after its
//! process closed the descriptor, and through `fork`. The prover's own mapping does not count.
//! Tested in `tests/real/exclusive.rs` on tmpfs and on hugetlbfs of both page sizes, with Linux
//! 6.12 and 6.18. Costs 2 us.
//!
//! It misses:
//! - a duplicate of the prover's own descriptor (the same description): never hand one out;
//! - a descriptor opened with `O_PATH`, which can become a real one later if the file's mode lets
//!   its holder: [`BlockFile::take_access`] first;
//! - pages pinned by the kernel for I/O (vmsplice, io_uring, VFIO): those hold pages, not files.
//!
//! While the lease is held, for microseconds, an open of the file by another process waits, and the
//! kernel signals the prover. That signal is SIGIO by default, which would end the process. It is
//! set to SIGURG, which is ignored by default.

use std::os::fd::AsFd;

use crate::block_file::{BlockFile, name_of};
use crate::error::{Advise, Errno, ErrorContext, Result};
use crate::raw;

/// Who holds a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusivity {
    /// The prover's description is the only one, and no mapping of another exists.
    Sole,
    /// Another process has it open or mapped. The answer may be a moment late: the kernel drops the
    /// last reference after it reports `close`, `munmap` or the process's end. So ask again.
    Shared,
    /// This kernel or file system refuses leases: the state is unknown.
    Unsupported,
}

/// The answer to [`claim`].
#[derive(Debug)]
pub enum Claim<'a> {
    /// As [`Exclusivity::Sole`], for as long as the lease is held.
    Sole(WriteLease<'a>),
    /// As [`Exclusivity::Shared`].
    Shared,
    /// As [`Exclusivity::Unsupported`].
    Unsupported,
}

/// The write lease on a file. While it is held, opens of the file wait; dropping it gives it back.
#[derive(Debug)]
pub struct WriteLease<'a>(&'a BlockFile);

impl WriteLease<'_> {
    /// Gives it back, and says whether that went well.
    ///
    /// # Errors
    /// Those of `fcntl`.
    pub fn release(self) -> Result<()> {
        let file = self.0;
        std::mem::forget(self);
        unlock(file)
    }
}

impl Drop for WriteLease<'_> {
    fn drop(&mut self) {
        // The lease also ends with the description.
        drop(unlock(self.0));
    }
}

fn unlock(file: &BlockFile) -> Result<()> {
    let fd = file.as_fd();
    raw::set_lease(fd, libc::F_UNLCK)
        .or_call(|| format!("fcntl({}, F_SETLEASE, F_UNLCK)", name_of(fd)))
}

/// Asks whether `file` is the only description of its file in any process.
///
/// `Sole` is true at the moment of the call, and stays true while no other process is able to open
/// the file.
///
/// # Errors
/// EACCES if the file is another user's and the caller lacks `CAP_LEASE`.
pub fn prove(file: &BlockFile) -> Result<Exclusivity> {
    match claim(file)? {
        Claim::Sole(lease) => lease.release().map(|()| Exclusivity::Sole),
        Claim::Shared => Ok(Exclusivity::Shared),
        Claim::Unsupported => Ok(Exclusivity::Unsupported),
    }
}

/// The same, and holds the lease: opens of the file wait until it is given back.
///
/// # Errors
/// As [`prove`].
pub fn claim(file: &BlockFile) -> Result<Claim<'_>> {
    let fd = file.as_fd();
    raw::set_lease_signal(fd, libc::SIGURG)
        .or_call(|| format!("fcntl({}, F_SETSIG, SIGURG)", name_of(fd)))?;
    match raw::set_lease(fd, libc::F_WRLCK) {
        Ok(()) => Ok(Claim::Sole(WriteLease(file))),
        Err(Errno::AGAIN) => Ok(Claim::Shared),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOLCK) => Ok(Claim::Unsupported),
        Err(errno) => {
            Err(errno).or_call(|| format!("fcntl({}, F_SETLEASE, F_WRLCK)", name_of(fd))).advise(
                Errno::ACCESS,
                "the file must be the caller's own, or the caller have CAP_LEASE",
            )
        }
    }
}
