// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exported calls about memory.
//!
//! Each function looks first, without a lock and without a system call, whether the shim has any
//! part in the call. If not, the call goes to the function behind ([`crate::next`]).
//!
//! # Safety
//!
//! Each function has the contract of the call that it is named after, and passes that on.
#![expect(unsafe_code, reason = "functions with the C library's names and contracts")]

use libc::{c_int, c_long, c_uint, c_ulong, c_void, off64_t, size_t};

use crate::anonymous::{self, Request, is_for_huge_pages, is_private};
use crate::config::{config, is_off};
use crate::guard::{Guard, LENT_LOCK_TIMEOUT, LOAN_LOCK_TIMEOUT, State, guarded, may_serve};
use crate::lent_ranges::{self, Kind, Range};
use crate::next::{MADVISE, MBIND, MMAP, MMAP64, MREMAP, MUNMAP, Next};
use crate::raw::{self, Errno, Mapping, c_int_result, c_result};
use crate::watched_fds::{self, kind_of};
use crate::{handback, private, rebind};

/// MAP_FAILED is -1.
fn pointer(result: raw::Result<usize>) -> *mut c_void {
    std::ptr::without_provenance_mut(c_result(result).cast_unsigned())
}

fn failed(done: *mut c_void) -> bool {
    done == libc::MAP_FAILED
}

/// A C result as a `Result`.
fn result(done: c_int) -> raw::Result<usize> {
    usize::try_from(done).map_err(|_| Errno(raw::errno()))
}

/// The arguments of an `mmap`.
#[derive(Clone, Copy)]
struct Call {
    address: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
}

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off64_t) -> *mut c_void;

impl Call {
    /// Whether the shim has a part in it.
    fn concerns_shim(&self) -> bool {
        if self.flags & libc::MAP_ANONYMOUS != 0 {
            let is_wanted =
                is_for_huge_pages(self.flags) || anonymous::is_large(self.flags, self.bytes);
            return is_wanted && !is_off();
        }
        match kind_of(self.fd) {
            None => false,
            Some(watched_fds::Kind::Made) => watched_fds::has_seen_hugetlbfs(),
            Some(_) => true,
        }
    }

    /// # Safety
    /// As `mmap`.
    unsafe fn untouched(self, next: &Next<Mmap>) -> *mut c_void {
        let Self { address, bytes, prot, flags, fd, offset } = self;
        next.call(
            // SAFETY: the caller's contract.
            |mmap| unsafe { mmap(address, bytes, prot, flags, fd, offset) },
            // SAFETY: the caller's contract.
            || pointer(unsafe { raw::mmap(address.addr(), bytes, prot, flags, fd, offset) }),
        )
    }

    /// The size of its pages, if they are huge.
    fn huge_page(&self) -> Option<u64> {
        match self.flags & libc::MAP_ANONYMOUS {
            0 => raw::huge_page_of(self.fd),
            _ if is_for_huge_pages(self.flags) => {
                Some(anonymous::page_of(self.flags.cast_unsigned(), config().default_page))
            }
            _ => None,
        }
    }

    fn request(self, file_page: Option<u64>) -> Request {
        let Self { address, bytes, prot, flags, .. } = self;
        Request { address: address.addr(), bytes, prot, flags, file_page }
    }

    /// Serves the call, or prepares it; `None` leaves the call itself to the caller.
    /// `last_hope`: the kernel lacks the pages.
    ///
    /// # Safety
    /// As `mmap`.
    #[cold]
    #[inline(never)]
    unsafe fn serve(self, last_hope: bool) -> Option<*mut c_void> {
        if !may_serve() {
            return None;
        }
        let mut guard = Guard::enter(LOAN_LOCK_TIMEOUT)?;
        let State { lender, files, memfds, .. } = guard.state();
        let file_page = if self.flags & libc::MAP_ANONYMOUS != 0 {
            None
        } else {
            let page = memfds.page_of_all(self.fd, self.bytes, self.offset);
            if page.is_some() && self.flags & libc::MAP_NORESERVE != 0 {
                // Memory that a guest plugs later: it has no page yet, and may never have one.
                memfds.mapped_sparsely(self.fd);
                return None;
            }
            let shared = self.flags & libc::MAP_TYPE == libc::MAP_SHARED;
            if page.is_some() && shared {
                memfds.mapped(lender, files, self.fd, last_hope);
            }
            let as_anonymous = is_private(self.flags) && memfds.is_as_anonymous(self.fd);
            memfds.forget(self.fd);
            Some(page.filter(|_| as_anonymous)?)
        };
        // SAFETY: the caller's contract.
        unsafe { anonymous::map(lender, files, self.request(file_page), last_hope) }
            .map(std::ptr::without_provenance_mut)
    }

    /// # Safety
    /// As `mmap`.
    unsafe fn make(self, next: &Next<Mmap>) -> *mut c_void {
        let concerns_shim = self.concerns_shim();
        let errno = raw::errno();
        if concerns_shim {
            // SAFETY: the caller's contract.
            if let Some(served) = unsafe { self.serve(false) } {
                return served;
            }
        }
        // SAFETY: the caller's contract.
        let mut done = unsafe { self.untouched(next) };
        if failed(done) {
            if concerns_shim && raw::errno() == libc::ENOMEM && is_for_huge_pages(self.flags) {
                // The pages may be the daemon's. The program gets them, as without it.
                // SAFETY: the caller's contract.
                if let Some(served) = unsafe { self.serve(true) } {
                    raw::swap_errno(errno);
                    return served;
                }
            }
            if raw::errno() == libc::ENOMEM {
                // SAFETY: the caller's contract.
                let again = || unsafe { self.untouched(next) };
                done =
                    handback::retry(self.bytes as u64, || self.huge_page(), again).unwrap_or(done);
            }
            if failed(done) {
                return done;
            }
            raw::swap_errno(errno);
        }
        let range = Range::new(done.addr(), self.bytes);
        if self.flags & libc::MAP_FIXED != 0 {
            lent_ranges::remove(range);
        }
        let of_served = || kind_of(self.fd) == Some(watched_fds::Kind::Served);
        if concerns_shim && self.flags & libc::MAP_TYPE == libc::MAP_SHARED && of_served() {
            // A full table costs an exchange at `mbind`, and nothing else.
            let _ = lent_ranges::add(range, Kind::Shared);
        }
        done
    }
}

/// `mmap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { Call { address, bytes, prot, flags, fd, offset }.make(&MMAP) }
}

/// `mmap64`, the same where `off_t` has 64 bits.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { Call { address, bytes, prot, flags, fd, offset }.make(&MMAP64) }
}

/// `munmap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let range = Range::new(address.addr(), bytes);
    let was_lent = lent_ranges::is_in(range);
    let done = MUNMAP.call(
        // SAFETY: the caller's contract.
        |munmap| unsafe { munmap(address, bytes) },
        // SAFETY: the caller's contract.
        || c_int_result(unsafe { raw::munmap(address.addr(), bytes) }),
    );
    if was_lent && done == 0 {
        unmapped(range);
    }
    done
}

#[cold]
#[inline(never)]
fn unmapped(range: Range) {
    let of_segment = lent_ranges::first_of(range, Kind::Segment).is_some();
    lent_ranges::remove(range);
    if of_segment {
        guarded(LENT_LOCK_TIMEOUT, |state| state.segments.tidy());
    }
}

/// `mremap(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // Without these flags the caller passes no address, and the register has any value.
    let has_new = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let new = if has_new { new } else { std::ptr::null_mut() };
    let done = MREMAP.call(
        // SAFETY: the caller's contract.
        |mremap| unsafe { mremap(old, old_bytes, new_bytes, flags, new) },
        || {
            let (old, new) = (old.addr(), new.addr());
            // SAFETY: the caller's contract.
            pointer(unsafe { raw::mremap(old, old_bytes, new_bytes, flags, new) })
        },
    );
    if !failed(done) && lent_ranges::is_any() {
        moved(Range::new(old.addr(), old_bytes), Range::new(done.addr(), new_bytes));
    }
    done
}

#[cold]
#[inline(never)]
fn moved(old: Range, new: Range) {
    let kinds = [Kind::Private, Kind::Shared, Kind::Segment];
    let kind = kinds.into_iter().find(|kind| lent_ranges::first_of(old, *kind).is_some());
    lent_ranges::remove(old);
    lent_ranges::remove(new);
    if let Some(kind) = kind {
        // What leaves one entry finds room for one.
        let _ = lent_ranges::add(new, kind);
    }
}

/// `madvise(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let untouched = |address: *mut c_void, bytes: usize| {
        MADVISE.call(
            // SAFETY: the caller's contract.
            |madvise| unsafe { madvise(address, bytes, advice) },
            // SAFETY: the caller's contract.
            || c_int_result(unsafe { raw::madvise(address.addr(), bytes, advice) }),
        )
    };
    match private::range_of_advice(address.addr(), bytes, advice) {
        None => untouched(address, bytes),
        Some(range) => {
            let errno = raw::errno();
            let done = private::advise(range, advice, |part| {
                result(untouched(std::ptr::without_provenance_mut(part.start), part.bytes()))
            });
            raw::swap_errno(errno);
            c_int_result(done)
        }
    }
}

/// `mbind(2)`, which is libnuma's function.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mbind(
    address: *mut c_void,
    bytes: size_t,
    mode: c_int,
    nodes: *const c_ulong,
    most: size_t,
    flags: c_uint,
) -> c_long {
    let bare = |start: usize, bytes: usize, flags: c_uint| {
        raw::mbind(start, bytes, mode, nodes.addr(), most, flags)
    };
    let done = MBIND.call(
        // SAFETY: the caller's contract.
        |mbind| unsafe { mbind(address, bytes, mode, nodes, most, flags) },
        || c_result(bare(address.addr(), bytes, flags)) as c_long,
    );
    let range = Range::new(address.addr(), bytes);
    if done == 0 && lent_ranges::is_in(range) {
        guarded(LENT_LOCK_TIMEOUT, |state| {
            let again = |part: Mapping| {
                // The same call as before, which succeeded.
                let _ = bare(part.start, part.bytes(), 0);
            };
            // SAFETY: the caller's contract.
            unsafe { rebind::bound(state, range, &again) };
        });
    }
    done
}
