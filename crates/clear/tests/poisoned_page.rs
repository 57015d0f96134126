// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An unwritable page: a file cut shorter than its mapping answers every store past its end with
//! SIGBUS.
//!
//! # Safety
//!
//! Each test owns its file and its mapping. Faulting on purpose is the point.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#![expect(unsafe_code, reason = "maps a file and lets go of its end")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::{NonNull, null_mut};

use prezero_clear::parallel::{Share, clear_shares};
use prezero_clear::{Cause, Chunk, Clearer, Extent, Method, Outcome, guard};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: usize = 4096;
const PAGES: usize = 16;
const SIGBUS: i32 = 7;

/// What threads take from a queue at a time, up to an address that is a multiple of it.
const BATCH: usize = 2 << 20;

/// A mapping of 16 pages of a file that has only the first `backed` of them.
struct Cut {
    start: NonNull<u8>,
    /// What its place was chosen in.
    reserved: NonNull<u8>,
    _file: File,
}

impl Cut {
    const RESERVED: usize = 3 * BATCH;

    fn new(backed: usize) -> Self {
        Self::with_border(backed, 0)
    }

    /// A mapping with its first `before` pages in another batch than the rest: where the kernel
    /// puts mappings, 15 of 512 are such.
    fn with_border(backed: usize, before: usize) -> Self {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len((PAGES * PAGE) as u64).expect("grow");
        let none = ProtFlags::empty();
        // SAFETY: a new mapping at an address of the kernel's choice is disjoint from all others.
        let reserved =
            unsafe { mmap_anonymous(null_mut(), Self::RESERVED, none, MapFlags::PRIVATE) };
        let reserved = NonNull::new(reserved.expect("mmap").cast::<u8>()).expect("not at 0");
        let border = reserved.addr().get().next_multiple_of(BATCH) + BATCH;
        let start = border - before * PAGE - reserved.addr().get();
        // SAFETY: between one and two batches from the start of the three that were reserved.
        let start = unsafe { reserved.add(start) };
        // SAFETY: replaces pages that were reserved for this alone.
        let mapped = unsafe {
            mmap(
                start.as_ptr().cast(),
                PAGES * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &file,
                0,
            )
        };
        mapped.expect("mmap");
        file.set_len((backed * PAGE) as u64).expect("cut");
        Self { start, reserved, _file: file }
    }

    fn extent(&mut self) -> Extent<'_> {
        // SAFETY: mapped for as long as `self` lives and borrowed with it; the guard covers the
        // missing pages.
        unsafe { Extent::from_raw_parts(self.start, PAGES * PAGE) }
    }

    fn page_of(&self, address: usize) -> usize {
        (address - self.start.addr().get()) / PAGE
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // SAFETY: the mappings made for this alone; all borrows have ended.
        unsafe { munmap(self.reserved.as_ptr().cast(), Self::RESERVED) }.expect("munmap");
    }
}

fn recovering() -> impl Iterator<Item = Method> {
    Method::available().filter(|method| method.recovers())
}

#[test]
fn every_method_reports_the_first_missing_page() {
    guard::install().unwrap();
    for method in recovering() {
        for backed in [0, 1, 7, 15] {
            for (chunk, chunk_pages) in
                [(Chunk::from_bytes(2 * PAGE).unwrap(), 2), (Chunk::WHOLE, PAGES)]
            {
                let mut cut = Cut::new(backed);
                let clearer = Clearer::new(method, chunk).unwrap();
                let outcome = clearer.clear(cut.extent(), |_| ControlFlow::Continue(()));
                let Outcome::Poisoned { fault, cleared_bytes, .. } = outcome else {
                    panic!("{method} {outcome:?}")
                };
                assert_eq!(fault.cause, Cause::Unbacked, "{method}");
                assert_eq!(cut.page_of(fault.address), backed, "{method}");
                assert_eq!(cleared_bytes, backed / chunk_pages * chunk_pages * PAGE, "{method}");
            }
        }
    }
}

#[test]
fn every_method_completes_where_no_page_is_missing() {
    guard::install().unwrap();
    for method in recovering() {
        let mut cut = Cut::new(PAGES);
        let clearer = Clearer::new(method, Chunk::WHOLE).unwrap();
        let outcome = clearer.clear(cut.extent(), |_| ControlFlow::Continue(()));
        assert!(matches!(outcome, Outcome::Complete(_)), "{method} {outcome:?}");
    }
}

#[test]
fn unaligned_heads_and_tails_recover_too() {
    guard::install().unwrap();
    for method in recovering() {
        let clearer = Clearer::new(method, Chunk::WHOLE).unwrap();
        let mut cut = Cut::new(3);
        // The head, 5 bytes, lies in the first missing page; then the tail, 7 bytes, does.
        for (from, len) in [(4 * PAGE - 5, 2 * PAGE), (2 * PAGE, PAGE + 7)] {
            let extent = cut.extent().split_at(from).1.split_at(len).0;
            let outcome = clearer.clear(extent, |_| ControlFlow::Continue(()));
            let Outcome::Poisoned { fault, .. } = outcome else { panic!("{method} {outcome:?}") };
            assert_eq!(cut.page_of(fault.address), 3, "{method}");
        }
    }
}

#[test]
fn threads_fail_independently() {
    guard::install().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..50 {
                    for method in recovering() {
                        let backed = (thread * 5 + round) % (PAGES + 1);
                        let mut cut = Cut::new(backed);
                        let clearer = Clearer::new(method, Chunk::WHOLE).unwrap();
                        match clearer.clear(cut.extent(), |_| ControlFlow::Continue(())) {
                            Outcome::Complete(_) => assert_eq!(backed, PAGES),
                            Outcome::Poisoned { fault, .. } => {
                                assert_eq!(cut.page_of(fault.address), backed)
                            }
                            stopped @ Outcome::Stopped { .. } => panic!("{stopped:?}"),
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn share_with_a_missing_page_ends_alone_and_counts_its_batches() {
    guard::install().unwrap();
    // Page 11, which is missing, in the second batch, at its begin, and in the first.
    for (before, cleared_pages) in [(4, 4), (11, 11), (12, 0), (15, 0), (0, 0)] {
        let (mut cut, mut whole) = (Cut::with_border(11, before), Cut::with_border(PAGES, before));
        let shares = [&mut cut, &mut whole].map(|memory| Share {
            extent: memory.extent(),
            threads: NonZeroUsize::MIN,
            cpus: Vec::new(),
        });
        let page = NonZeroUsize::new(PAGE).unwrap();
        let clearer = Clearer::default();
        let outcomes =
            clear_shares(&clearer, page, shares.into(), |_| ControlFlow::Continue(())).unwrap();
        let [Outcome::Poisoned { fault, cleared_bytes, .. }, Outcome::Complete(zeroed)] =
            &outcomes[..]
        else {
            panic!("{before} {outcomes:?}")
        };
        assert_eq!(*cleared_bytes, cleared_pages * PAGE, "{before}");
        assert_eq!(zeroed.len(), PAGES * PAGE, "{before}");
        let address = fault.address;
        drop(outcomes);
        assert_eq!(cut.page_of(address), 11, "{before}");
    }
}

/// Runs one of the tests below in a process of its own, and tells how that ended.
fn run_alone(test: &str) -> ExitStatus {
    let exe = std::env::current_exe().expect("the test's own path").into_os_string();
    // Under an emulator the child needs it too: what cargo runs tests of another architecture with.
    let runner = std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").ok();
    let runner = runner
        .iter()
        .filter(|_| cfg!(target_arch = "aarch64"))
        .flat_map(|line| line.split_whitespace());
    let mut words = runner.map(Into::into).chain([exe]);
    let mut child = Command::new(words.next().expect("at least the test"));
    child.args(words);
    child.args(["--exact", test, "--nocapture"]).env("PREZERO_TEST_MAY_DIE", "1");
    child.output().expect("the child").status
}

fn signal_of(test: &str) -> Option<i32> {
    run_alone(test).signal()
}

fn is_child() -> bool {
    std::env::var_os("PREZERO_TEST_MAY_DIE").is_some()
}

#[test]
fn a_fault_outside_the_store_loops_still_kills() {
    if is_child() {
        guard::install().unwrap();
        let cut = Cut::new(0);
        // SAFETY: mapped; the fault is what this process is for.
        unsafe { cut.start.as_ptr().write_volatile(1) };
        return;
    }
    assert_eq!(signal_of("a_fault_outside_the_store_loops_still_kills"), Some(SIGBUS));
}

#[test]
fn without_the_guard_a_missing_page_kills() {
    if is_child() {
        let mut cut = Cut::new(0);
        let _ = Clearer::default().clear(cut.extent(), |_| ControlFlow::Continue(()));
        return;
    }
    assert_eq!(signal_of("without_the_guard_a_missing_page_kills"), Some(SIGBUS));
}

#[test]
fn signal_sent_by_a_process_still_kills() {
    if is_child() {
        // The language's own handler, found by the guard, would swallow the first one.
        // SAFETY: the default disposition needs no handler.
        unsafe { libc::signal(SIGBUS, libc::SIG_DFL) };
        guard::install().unwrap();
        // SAFETY: nothing is broken by a signal that ends the process.
        unsafe { libc::raise(SIGBUS) };
        return;
    }
    assert_eq!(signal_of("signal_sent_by_a_process_still_kills"), Some(SIGBUS));
}

#[test]
fn earlier_handler_is_called_for_other_faults() {
    extern "C" fn earlier(
        _signal: i32,
        info: *mut libc::siginfo_t,
        _context: *mut core::ffi::c_void,
    ) {
        // SAFETY: a valid siginfo, by SA_SIGINFO.
        let code = unsafe { (*info).si_code };
        // SAFETY: ending the process is allowed in a handler.
        unsafe { libc::_exit(40 + code) };
    }
    if is_child() {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut core::ffi::c_void) = earlier;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a handler of the type that SA_SIGINFO asks for.
        assert_eq!(unsafe { libc::sigaction(SIGBUS, &raw const action, null_mut()) }, 0);
        guard::install().unwrap();
        let mut cut = Cut::new(1);
        let outcome = Clearer::default().clear(cut.extent(), |_| ControlFlow::Continue(()));
        assert!(matches!(outcome, Outcome::Poisoned { .. }), "ours is handled: {outcome:?}");
        let missing = cut.extent().split_at(2 * PAGE).1.as_ptr();
        // SAFETY: mapped; the fault is what this process is for.
        unsafe { missing.write_volatile(1) };
        return;
    }
    let status = run_alone("earlier_handler_is_called_for_other_faults");
    assert_eq!(status.code(), Some(42), "BUS_ADRERR is 2: {status:?}");
}
