// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A panic in the midst of the allocator ends the program, and does not wait for the allocator.
//!
//! The shim's hook, in a process with an allocator that panics with its own lock held.
//!
//! # Safety
//!
//! The allocator is the system's, behind a lock.
#![expect(unsafe_code, reason = "an allocator that panics")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "../src/defect.rs"]
mod defect;

/// What the shim's own file of that name is to it.
mod raw {
    use std::io::Write as _;

    pub(crate) fn write(fd: i32, bytes: &[u8]) {
        assert_eq!(fd, libc::STDERR_FILENO);
        // Not buffered, and so without allocating.
        let _ = std::io::stderr().write_all(bytes);
    }
}

/// Locked for each allocation, as the shim's is.
static LOCK: Mutex<()> = Mutex::new(());
static BROKEN: AtomicBool = AtomicBool::new(false);

struct Allocator;

// SAFETY: the system's own, behind a lock.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _held = LOCK.lock();
        if BROKEN.load(Ordering::Relaxed) {
            panic!("a chunk {} is in two lists", 7);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _held = LOCK.lock();
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const CHILD: &str = "PREZERO_TEST_DEFECT";

// Promise P110 (programs): A panic inside of the shim is said in one line and aborts, also in the
// midst of its allocator.
#[test]
fn a_panic_of_the_allocator_is_said_and_aborts() {
    if std::env::var_os(CHILD).is_some() {
        defect::install();
        BROKEN.store(true, Ordering::Relaxed);
        drop(Vec::<u8>::with_capacity(100));
        return;
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "a_panic_of_the_allocator_is_said_and_aborts"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program");
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("our own child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("our own child");
            panic!("it waits for its own lock");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("our own child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("prezero: a defect of the shim at"), "{said}");
    assert!(said.contains("tests/defect.rs") && said.contains("in two lists"), "{said}");
}
