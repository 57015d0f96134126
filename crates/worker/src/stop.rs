// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stopping on request: SIGINT, SIGTERM and SIGHUP set a flag, which long work looks at.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Whether it was asked to stop, and by which signal.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    /// The signal's number; 0 for any other reason.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// From now on the three signals set the flag instead of ending the process. A second one of
    /// the same kind ends it at once.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, Arc::clone(&stop.flag))?;
            // Before the flag: the number of a stop that is seen is there.
            let number = usize::try_from(signal).map_err(io::Error::other)?;
            flag::register_usize(signal, Arc::clone(&stop.signal), number)?;
            flag::register(signal, Arc::clone(&stop.flag))?;
        }
        Ok(stop)
    }

    /// From now on SIGUSR1 sets the flag: for measuring how long a signal takes to end work.
    pub fn on_user_signal() -> io::Result<Self> {
        let stop = Self::default();
        flag::register(SIGUSR1, Arc::clone(&stop.flag))?;
        Ok(stop)
    }

    /// From now on the end of standard input sets the flag, too. What comes before it is read and
    /// ignored.
    pub fn stop_at_end_of_input(&self) {
        let stop = self.clone();
        std::thread::spawn(move || {
            // Unreadable input counts as ended.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            stop.set();
        });
    }

    /// Takes the wish back.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::Relaxed);
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The number of the signal that asked for it.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        let number = i32::try_from(self.signal.load(Ordering::Relaxed)).ok()?;
        (self.is_set() && number != 0).then_some(number)
    }

    /// Asks to stop, as a signal would: how one thread's failure ends the others.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Asks to stop as the end of the terminal does, with or without its signal.
    pub fn hang_up(&self) {
        if let Ok(number) = usize::try_from(SIGHUP) {
            self.signal.store(number, Ordering::Relaxed);
        }
        self.set();
    }
}
