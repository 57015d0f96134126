// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU pressure, read beside the daemon's thread: `/proc/pressure` takes a lock with all its
//! readers, and a reader without CPU time holds it for long.

use linux::Roots;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

/// What the kernel said last.
#[derive(Debug)]
pub(super) struct PressureMeter {
    known: watch::Sender<Option<f64>>,
    reading: Option<JoinHandle<()>>,
}

impl PressureMeter {
    pub(super) fn new() -> Self {
        Self { known: watch::Sender::new(None), reading: None }
    }

    /// The percentage that was read last, and has another one read, for the next call. `None` until
    /// the first was read, and 0 where the kernel says none.
    pub(super) fn percent(&mut self, roots: &Roots) -> Option<f64> {
        if self.reading.as_ref().is_none_or(JoinHandle::is_finished) {
            let (roots, known) = (roots.clone(), self.known.clone());
            self.reading = Some(spawn_blocking(move || {
                let read = linux::psi::cpu(&roots).ok().flatten();
                known.send_replace(Some(read.map_or(0.0, |now| now.some.avg10_percent)));
            }));
        }
        *self.known.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pressure_of_a_call_is_the_previous_reading() {
        let tree = testkit::tree(&[(
            "proc/pressure/cpu",
            "some avg10=42.50 avg60=0.00 avg300=0.00 total=1\n",
        )]);
        let mut pressure = PressureMeter::new();
        assert_eq!(pressure.percent(&tree.roots()), None, "nothing is waited for");
        while pressure.percent(&tree.roots()).is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(pressure.percent(&tree.roots()), Some(42.5));
    }
}
