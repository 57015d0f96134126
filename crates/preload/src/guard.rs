// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one lock, and what holds while a thread has it.
//!
//! The thread with the [`Guard`] is alone in the shim. No signal that can be blocked interrupts it
//! (a handler could call `mmap` again), no call cancels it, and it may use the shim's allocator.
//! Waiting for the lock is bounded. A caller that times out makes the untouched call, and nothing
//! was served yet.
//!
//! *Fork*: the forking thread takes the lock before the fork, so that the child finds the state in
//! order, and releases it on both sides. A child of a plain `clone` may inherit a lock of a
//! thread that it lacks: it times out, and the kernel serves it.
//!
//! *Seccomp*: once the program has a filter the lock is closed ([`crate::seccomp`]).
//!
//! # Safety
//!
//! [`State`] lies in a static cell. The only way to it is a `&mut Guard`, and at most one exists in
//! the process: the lock's.
#![expect(unsafe_code, reason = "a static cell behind a lock of its own")]

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::daemon::Lender;
use crate::lent_files::LentFiles;
use crate::memfd::Memfds;
use crate::raw;
use crate::seccomp;
use crate::segment::Segments;

/// For a new loan: the holder has the lock for at most its own timeout, and others may wait for
/// two holders in a row.
pub(crate) const LOAN_LOCK_TIMEOUT: Duration = Duration::from_millis(250);
/// For calls about memory that is lent already, which the kernel would answer differently.
pub(crate) const LENT_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

static LOCK: AtomicU32 = AtomicU32::new(FREE);
/// Whether the lock was ever taken. A fork of any other program passes without a system call.
static IS_USED: AtomicBool = AtomicBool::new(false);
static FORK_SIGNALS: AtomicU64 = AtomicU64::new(0);
static FORK_CANCELLATION: AtomicI32 = AtomicI32::new(0);
static STATE: StateCell = StateCell(UnsafeCell::new(State::new()));

thread_local! {
    /// Whether this thread has the lock. Without a destructor: a look at it allocates nothing.
    static IS_MINE: Cell<bool> = const { Cell::new(false) };
}

struct StateCell(UnsafeCell<State>);

// SAFETY: see the module: the one thread that reaches the value holds the lock.
unsafe impl Sync for StateCell {}

/// All that the shim remembers, in parts. A function gets the parts that it works with.
pub(crate) struct State {
    pub(crate) lender: Lender,
    pub(crate) files: LentFiles,
    pub(crate) memfds: Memfds,
    pub(crate) segments: Segments,
}

impl State {
    const fn new() -> Self {
        Self {
            lender: Lender::new(),
            files: LentFiles::new(),
            memfds: Memfds::new(),
            segments: Segments::new(),
        }
    }
}

/// The lock, held.
pub(crate) struct Guard {
    signals: u64,
    cancellation: libc::c_int,
    /// A call that succeeds leaves the program's `errno` as it was.
    errno: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Signals that the thread itself causes, which cannot wait: SIGILL, SIGTRAP, SIGBUS, SIGFPE,
/// SIGSEGV, SIGSYS.
const SYNCHRONOUS: u64 = bit(4) | bit(5) | bit(7) | bit(8) | bit(11) | bit(31);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

fn set_cancellation(state: libc::c_int) -> libc::c_int {
    let mut old = 0;
    // SAFETY: takes a state of the C library's and a pointer to a live int.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: libc::c_int = 1;

impl Guard {
    /// Takes the lock. `None` after `timeout`, if this very thread has it, and under a filter.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter(timeout: Duration) -> Option<Self> {
        if seccomp::is_filtered() || IS_MINE.get() {
            return None;
        }
        // Signals first: a handler in between would find the lock held by its own thread.
        let signals = raw::signal_mask(!SYNCHRONOUS, false);
        let cancellation = set_cancellation(CANCEL_DISABLE);
        let guard = Self { signals, cancellation, errno: raw::swap_errno(0) };
        if lock(timeout) {
            IS_MINE.set(true);
            IS_USED.store(true, Ordering::Relaxed);
            return Some(guard);
        }
        guard.restore();
        std::mem::forget(guard);
        None
    }

    /// The state.
    pub(crate) fn state(&mut self) -> &mut State {
        // SAFETY: the guard is the lock, borrowed mutably for as long as the reference lives.
        unsafe { &mut *STATE.0.get() }
    }

    fn restore(&self) {
        set_cancellation(self.cancellation);
        raw::swap_errno(self.errno);
        raw::signal_mask(self.signals, true);
    }
}

/// Takes the lock for a fork, in a program that has used it. Handlers that were registered earlier
/// run after this: where one of them waits for a thread that waits for this lock, that thread's
/// timeout ends the wait.
pub(crate) fn before_fork() {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(guard) = Guard::enter(LOAN_LOCK_TIMEOUT) {
        FORK_SIGNALS.store(guard.signals, Ordering::Relaxed);
        FORK_CANCELLATION.store(guard.cancellation, Ordering::Relaxed);
        std::mem::forget(guard);
    }
}

/// Releases it, in the parent and in the child.
pub(crate) fn after_fork() {
    // A fork inside of a guarded call does not exist, so a lock of this thread is the fork's.
    if IS_MINE.get() {
        drop(Guard {
            signals: FORK_SIGNALS.load(Ordering::Relaxed),
            cancellation: FORK_CANCELLATION.load(Ordering::Relaxed),
            errno: raw::swap_errno(0),
        });
    }
}

/// Whether a request may be served here and now. Its first system call is none once the program
/// has a filter; and a signal stack of a few KiB has no room for a loan.
pub(crate) fn may_serve() -> bool {
    !seccomp::is_filtered() && !raw::is_on_alternate_stack()
}

/// Runs `body` behind the lock; `None` if it times out.
pub(crate) fn guarded<T>(timeout: Duration, body: impl FnOnce(&mut State) -> T) -> Option<T> {
    let mut guard = Guard::enter(timeout)?;
    Some(body(guard.state()))
}

impl Drop for Guard {
    fn drop(&mut self) {
        IS_MINE.set(false);
        if LOCK.swap(FREE, Ordering::Release) == AWAITED {
            raw::futex_wake(&LOCK);
        }
        self.restore();
    }
}

fn lock(timeout: Duration) -> bool {
    if LOCK.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return true;
    }
    let deadline = Instant::now() + timeout;
    while LOCK.swap(AWAITED, Ordering::Acquire) != FREE {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        raw::futex_wait(&LOCK, AWAITED, left);
    }
    true
}
