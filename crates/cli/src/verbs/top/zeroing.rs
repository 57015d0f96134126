// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zeroing on request of a key: `prezero zero`, in this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use units::Bytes;
use worker::context::allowed_cpus;
use worker::engine::Engine;
use worker::{Stop, Which};
use worker::{WorkDone, Worker};

use crate::exit::Failure;
use crate::output::{bytes_per_second, rate};

/// The work, until its result was taken. Dropped, it is stopped and waited for, so that what it did
/// is reported.
#[derive(Debug)]
pub(super) struct Zeroing {
    stop: Stop,
    bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<WorkDone, Failure>>>,
}

impl Zeroing {
    pub(super) fn start(socket: PathBuf, which: Which, limit: Option<u64>) -> Self {
        let (stop, bytes) = (Stop::default(), Arc::new(AtomicU64::new(0)));
        let (flag, sum) = (stop.clone(), Arc::clone(&bytes));
        let thread = std::thread::spawn(move || {
            let worker = Worker {
                socket: &socket,
                which,
                background: false,
                idle_timeout: std::time::Duration::ZERO,
                threads: allowed_cpus(),
                limit,
                engine: Engine::default(),
                at_least_one: false,
                stop: &flag,
            };
            let tick = |more| {
                sum.fetch_add(more, Ordering::Relaxed);
            };
            worker.run(&tick).map_err(Failure::from)
        });
        Self { stop, bytes, thread: Some(thread) }
    }

    /// Asks it to end within one page or chunk.
    pub(super) fn stop(&self) {
        self.stop.set();
    }

    /// The pages zeroed until now.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    /// How it ended, in one line; `None` while it goes on.
    pub(super) fn result(&mut self) -> Option<String> {
        let ended = self.thread.take_if(|thread| thread.is_finished())?;
        Some(match ended.join() {
            Ok(Ok(work)) => {
                let rate = rate(bytes_per_second(work.bytes, work.took));
                format!("zeroed {} at {rate}", Bytes(work.bytes))
            }
            Ok(Err(failure)) => format!("zeroing ended: {failure}"),
            Err(_) => "zeroing ended unexpectedly".to_owned(),
        })
    }
}

impl Drop for Zeroing {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            // Its result has no reader any more.
            let _ = thread.join();
        }
    }
}
