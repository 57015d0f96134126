// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one lock, and what holds while it is held.
//!
//! Whoever has the [`Guard`] is alone in the shim, is interrupted by no signal that can be blocked
//! (whose handler could call `mmap` again), is cancelled at no call, and may use the shim's
//! allocator. Waiting for it is bounded; a caller that does not get it makes the untouched call.
//!
//! While the process forks the lock is nobody's to wait for: the thread that forks may itself be
//! waiting, in somebody's handler of `pthread_atfork`, for a lock whose holder is in one of these
//! calls. Whoever comes then makes the untouched call at once; what private memory promises is kept
//! without the lock ([`crate::private`]). But the next fork waits for those who pass so: it copies
//! what they may be about to unmap, and a plain read of that ended a program by SIGSEGV.
//!
//! The lock knows its holder's process and thread. A child of a plain `clone` inherits a lock whose
//! holder does not exist there, and memory that may be half changed: it never gets the lock, so the
//! shim is out of its way for good.
//!
//! # Safety
//!
//! [`State`] lies in a static cell. The only way to it is through a `&mut Guard`, of which there is
//! at most one in the process: the lock's.
#![expect(unsafe_code, reason = "a static cell behind a lock of its own")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::daemon::Lender;
use crate::fork::Fork;
use crate::memfd::Memfds;
use crate::raw;
use crate::segment::Segments;
use crate::stays::Stays;

/// A loan's holder has it for at most its timeout; others may wait for two in a row.
pub(crate) const WAIT: Duration = Duration::from_millis(250);
/// What had better not be left undone waits longer: for a fork that copies.
pub(crate) const WAIT_LONG: Duration = Duration::from_secs(60);

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

static LOCK: AtomicU32 = AtomicU32::new(FREE);
static HOLDER_PROCESS: AtomicU32 = AtomicU32::new(0);
static HOLDER_THREAD: AtomicU32 = AtomicU32::new(0);
/// Whether the holder keeps the lock over a fork, and what it then restores.
static FORKING: AtomicBool = AtomicBool::new(false);
/// Calls that are being made without the lock because of a fork.
static PASSING: AtomicU32 = AtomicU32::new(0);
static KEPT_SIGNALS: AtomicU64 = AtomicU64::new(0);
static KEPT_CANCELLATION: AtomicI32 = AtomicI32::new(0);
static STATE: Cell = Cell(UnsafeCell::new(State::new()));

struct Cell(UnsafeCell<State>);

// SAFETY: see the module: whoever reaches the value holds the lock.
unsafe impl Sync for Cell {}

/// All that the shim remembers, in parts: whoever works with one is handed that one.
pub(crate) struct State {
    pub(crate) lender: Lender,
    pub(crate) stays: Stays,
    pub(crate) fork: Fork,
    pub(crate) memfds: Memfds,
    pub(crate) segments: Segments,
}

impl State {
    const fn new() -> Self {
        Self {
            lender: Lender::new(),
            stays: Stays::new(),
            fork: Fork::new(),
            memfds: Memfds::new(),
            segments: Segments::new(),
        }
    }
}

/// A call that passes by a fork; the next one waits until this is dropped.
struct Passing(());

impl Passing {
    /// Whether the process forks, so that a call is to pass.
    fn begin() -> Option<Self> {
        PASSING.fetch_add(1, Ordering::SeqCst);
        let passing = Self(());
        // Looked at after it is counted: the fork's end, and the next one's look at the count, come
        // after that, or nobody passes.
        FORKING.load(Ordering::SeqCst).then_some(passing)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // Not below 0: in a child that a handler made in the middle of such a call it is 0 already.
        let less = |passing: u32| passing.checked_sub(1);
        let _ = PASSING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// How somebody goes on who wanted the lock.
pub(crate) struct Entered {
    /// With it, or without.
    pub(crate) guard: Option<Guard>,
    _passing: Option<Passing>,
}

/// The lock, held.
pub(crate) struct Guard {
    signals: u64,
    cancellation: libc::c_int,
    /// A call that succeeds leaves the program's `errno` alone, whatever happened behind it.
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
const NOT_NOW: libc::c_int = 1;

impl Guard {
    /// Takes the lock, waiting at most so long. `None` if that was not enough, if this very thread
    /// has it, if the process forks, or if its holder is not of this process.
    pub(crate) fn enter(patience: Duration) -> Option<Self> {
        Self::enter_or_pass(patience).guard
    }

    /// The same for what is done without the lock, too, and takes memory away.
    pub(crate) fn enter_or_pass(patience: Duration) -> Entered {
        let mut passing = None;
        let guard = Self::enter_if(patience, Some(&mut passing));
        Entered { guard, _passing: passing }
    }

    /// The same for a fork, which waits for another thread's, and for those who passed that by.
    pub(crate) fn enter_for_fork(patience: Duration) -> Option<Self> {
        let guard = Self::enter_if(patience, None)?;
        // Not for ever: this may be a handler's fork in the middle of such a call.
        let deadline = Instant::now() + WAIT;
        while PASSING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            raw::nap(Duration::from_micros(20));
        }
        Some(guard)
    }

    /// `passing` says that somebody goes on without the lock while the process forks.
    fn enter_if(patience: Duration, passing: Option<&mut Option<Passing>>) -> Option<Self> {
        // Signals first: a handler between the two would find the lock held by its own thread.
        let signals = raw::signal_mask(!SYNCHRONOUS, false);
        let guard =
            Self { signals, cancellation: set_cancellation(NOT_NOW), errno: raw::swap_errno(0) };
        if lock(patience, passing) {
            HOLDER_PROCESS.store(raw::process(), Ordering::Relaxed);
            HOLDER_THREAD.store(raw::thread(), Ordering::Relaxed);
            return Some(guard);
        }
        guard.restore();
        std::mem::forget(guard);
        None
    }

    /// What is remembered.
    pub(crate) fn state(&mut self) -> &mut State {
        // SAFETY: the guard is the lock, borrowed mutably for as long as the reference lives.
        unsafe { &mut *STATE.0.get() }
    }

    /// Whether this thread holds the lock.
    pub(crate) fn is_mine() -> bool {
        LOCK.load(Ordering::Relaxed) != FREE
            && HOLDER_PROCESS.load(Ordering::Relaxed) == raw::process()
            && HOLDER_THREAD.load(Ordering::Relaxed) == raw::thread()
    }

    /// Keeps the lock over a fork, for [`Guard::kept`].
    pub(crate) fn keep(self) {
        KEPT_SIGNALS.store(self.signals, Ordering::Relaxed);
        KEPT_CANCELLATION.store(self.cancellation, Ordering::Relaxed);
        FORKING.store(true, Ordering::SeqCst);
        // Who waits already looks again, and goes.
        raw::futex_wake(&LOCK, true);
        std::mem::forget(self);
    }

    /// The lock that this thread kept, in the parent or, being the one thread there is, in the
    /// child; `None` if it kept none.
    pub(crate) fn kept(in_child: bool) -> Option<Self> {
        if in_child {
            // Whoever passed by is not here.
            PASSING.store(0, Ordering::SeqCst);
            // The parent's numbers are in there. The lock is free, or another thread's, which is
            // not here: or it is this thread's, which is the one that forked.
            if LOCK.load(Ordering::Relaxed) == FREE || !FORKING.load(Ordering::Relaxed) {
                return None;
            }
            HOLDER_PROCESS.store(raw::process(), Ordering::Relaxed);
            HOLDER_THREAD.store(raw::thread(), Ordering::Relaxed);
        } else if !Self::is_mine() {
            return None;
        }
        FORKING.store(false, Ordering::SeqCst);
        Some(Self {
            signals: KEPT_SIGNALS.load(Ordering::Relaxed),
            cancellation: KEPT_CANCELLATION.load(Ordering::Relaxed),
            errno: raw::swap_errno(0),
        })
    }

    fn restore(&self) {
        set_cancellation(self.cancellation);
        raw::swap_errno(self.errno);
        raw::signal_mask(self.signals, true);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Nobody, before it is free: whoever gets it next says who it is.
        HOLDER_THREAD.store(0, Ordering::Relaxed);
        HOLDER_PROCESS.store(0, Ordering::Relaxed);
        if LOCK.swap(FREE, Ordering::Release) == AWAITED {
            raw::futex_wake(&LOCK, false);
        }
        self.restore();
    }
}

fn lock(patience: Duration, mut passing: Option<&mut Option<Passing>>) -> bool {
    if LOCK.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return true;
    }
    if Guard::is_mine() {
        return false;
    }
    let deadline = Instant::now() + patience;
    while LOCK.swap(AWAITED, Ordering::Acquire) != FREE {
        let holder = HOLDER_PROCESS.load(Ordering::Relaxed);
        if let Some(passing) = passing.as_deref_mut() {
            *passing = Passing::begin();
            if passing.is_some() {
                return false;
            }
        }
        // 0 is one that has just got it and not yet said so.
        if holder != 0 && holder != raw::process() {
            return false;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        raw::futex_wait(&LOCK, AWAITED, left);
    }
    true
}
