// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages for a call that stays the kernel's and found none: for a file with a name, for a file that
//! grows piece by piece, for private memory.
//!
//! No loan can stand for such memory. The shim borrows what the call needs and punches the pages
//! out of the loan. They are free in the kernel's pool then, and the same call finds them. The loan
//! ends after the call: a daemon that sees pages free before may take them for its pool.

use std::os::fd::AsRawFd;

use client::Loan;

use crate::config::{config, is_off};
use crate::daemon::{Ask, Lender};
use crate::guard::{Guard, LOAN_LOCK_TIMEOUT, may_serve};
use crate::raw;
use crate::say::say;

const PUNCH: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Makes a call again with as many ready pages in the kernel's pool as there are for it; `None` if
/// there are none. `page`: the size of its pages, if it is about huge pages at all.
#[cold]
#[inline(never)]
pub(crate) fn retry<T>(
    bytes: u64,
    page: impl FnOnce() -> Option<u64>,
    again: impl FnOnce() -> T,
) -> Option<T> {
    if is_off() || !config().enabled || !may_serve() {
        return None;
    }
    let page = page()?;
    let mut guard = Guard::enter(LOAN_LOCK_TIMEOUT)?;
    let bytes = bytes.checked_next_multiple_of(page)?;
    let lent = free(&mut guard.state().lender, bytes, page);
    match lent {
        Ok(loan) => {
            let freed = loan.ready_bytes();
            say(format_args!(
                "{bytes} bytes are the kernel's to serve, which has too few free pages: {freed} \
                 ready ones are free for it now"
            ));
            let done = again();
            drop(loan);
            Some(done)
        }
        Err(why) => {
            say(format_args!(
                "{bytes} bytes are the kernel's to serve, which has too few free pages, and none \
                 are ready: {why}"
            ));
            None
        }
    }
}

/// Borrows, and gives the pages to the kernel.
fn free(lender: &mut Lender, bytes: u64, page: u64) -> Result<Loan, String> {
    let loan = lender.lend(Ask { bytes, page, single: false, last_hope: true, node: None })?;
    if loan.ready_bytes().0 == 0 {
        return Err("nothing is ready".to_owned());
    }
    for (fd, part) in loan.parts() {
        let bytes = i64::try_from(part.bytes.0).map_err(|_| "it is too long".to_owned())?;
        raw::fallocate(fd.as_raw_fd(), PUNCH, 0, bytes).map_err(|error| error.to_string())?;
    }
    Ok(loan)
}
