// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ending system calls of other threads when a worker is to stop.
//!
//! The kernel ends the zeroing of a page at a signal, but a signal to a process reaches one of its
//! threads, most often the one that waits for the others. With pages of 1 GiB the rest would go on
//! for up to a quarter of a second each. So a thread of its own looks every [`POLL_INTERVAL`] while
//! the kernel zeroes a page. When the worker has to stop, it sends SIGURG to each thread that is
//! inside, again and again until all have left: one that is just about to enter would miss the
//! first.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use signal_hook::consts::SIGURG;

use crate::error::Result;
use crate::stop::Stop;

/// How often it looks: what it adds to the time that a stop takes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The threads that may have to be interrupted.
#[derive(Debug)]
pub(crate) struct Interrupts {
    inside: Arc<Inside>,
    looker: OnceLock<()>,
}

#[derive(Debug)]
struct Inside {
    stops: [Stop; 2],
    threads: Mutex<Vec<Pthread>>,
}

impl Inside {
    fn threads(&self) -> MutexGuard<'_, Vec<Pthread>> {
        // A list of numbers is whole after any panic.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupts {
    /// Nobody is inside. From now on SIGURG interrupts system calls, and has no other effect.
    pub(crate) fn new(stops: [Stop; 2]) -> Result<Self> {
        // By default it is ignored and interrupts nothing; the flag is unused.
        signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false)))?;
        let inside = Arc::new(Inside { stops, threads: Mutex::default() });
        Ok(Self { inside, looker: OnceLock::new() })
    }

    /// The calling thread may be interrupted until the result is dropped.
    pub(crate) fn enter(&self) -> InterruptGuard<'_> {
        self.looker.get_or_init(|| {
            let inside = Arc::downgrade(&self.inside);
            std::thread::spawn(move || look(&inside));
        });
        let thread = pthread_self();
        self.inside.threads().push(thread);
        InterruptGuard { inside: &self.inside, thread }
    }
}

/// Until it is dropped its thread may be interrupted.
#[derive(Debug)]
pub(crate) struct InterruptGuard<'a> {
    inside: &'a Inside,
    thread: Pthread,
}

impl Drop for InterruptGuard<'_> {
    fn drop(&mut self) {
        self.inside.threads().retain(|thread| *thread != self.thread);
    }
}

/// Looks until the worker has ended.
fn look(inside: &Weak<Inside>) {
    loop {
        std::thread::sleep(POLL_INTERVAL);
        let Some(inside) = inside.upgrade() else { return };
        if inside.stops.iter().any(Stop::is_set) {
            // Under the lock: a listed thread is still running.
            for thread in inside.threads().iter() {
                // It has left the call, or will.
                let _ = pthread_kill(*thread, Signal::SIGURG);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    // Promise P54.
    #[test]
    fn a_thread_inside_is_interrupted_when_a_stop_is_set() {
        let stop = Stop::default();
        let interrupts = Interrupts::new([stop.clone(), Stop::default()]).unwrap();
        let (entered, is_inside) = mpsc::channel();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let _inside = interrupts.enter();
                entered.send(()).unwrap();
                let day = rustix::time::Timespec { tv_sec: 86_400, tv_nsec: 0 };
                rustix::thread::nanosleep(&day)
            });
            is_inside.recv().unwrap();
            stop.set();
            let slept = sleeper.join().unwrap();
            assert!(
                matches!(slept, rustix::thread::NanosleepRelativeResult::Interrupted(_)),
                "{slept:?}"
            );
        });
    }
}
