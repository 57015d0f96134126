// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With which method and chunk this process clears in place.
//!
//! A forced choice counts first. Next comes the one measured on this CPU, which `prezero bench
//! calibrate` writes and any worker reads. Next comes a race at first use, in the worker's own
//! context, if a waiting person started the worker. Else it is the default of the CPU's vendor. A
//! worker of the daemon's skips the race, because it has to stay out of the way.

use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use clear::calibrate::{self, Choice, Cpu, defaults};
use clear::{Chunk, Clearer, Method};
use linux::Roots;

use crate::error::{Error, Result};
use crate::stop::Stop;

/// Where measured choices are, one line for each CPU model and microcode; a line may be edited
/// (`basis=forced`).
const CACHE: &str = "/var/cache/prezero/calibration";
/// How long the signal to stop may go unnoticed while a race runs.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a person insists on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forced {
    /// This method.
    pub method: Option<Method>,
    /// This chunk.
    pub chunk: Option<Chunk>,
}

/// The file of measured choices.
pub fn cache() -> PathBuf {
    PathBuf::from(CACHE)
}

/// Chooses when the first block has to be cleared in place: most workers have none.
#[derive(Debug, Default)]
pub struct Engine {
    forced: Forced,
    may_measure: bool,
    chosen: OnceLock<Clearer>,
}

impl Engine {
    /// An engine that may measure on an unknown CPU, where a person waits for the worker.
    ///
    /// # Errors
    /// A forced method that this CPU does not have.
    pub fn new(forced: Forced, may_measure: bool) -> Result<Self> {
        if let Some(method) = forced.method {
            Clearer::new(method, Chunk::DEFAULT)
                .map_err(|error| Error::Method(error.to_string()))?;
        }
        Ok(Self { forced, may_measure, chosen: OnceLock::new() })
    }

    /// One that was chosen already.
    pub fn from_clearer(clearer: Clearer) -> Self {
        Self { chosen: clearer.into(), ..Self::default() }
    }

    /// The clearer for blocks that stay untouched for a while. On an unknown CPU where it may
    /// measure, it blocks for a race of about half a second; less if `stop` is set.
    pub(crate) fn clearer(&self, stop: &Stop) -> Result<Clearer> {
        if let Some(clearer) = self.chosen.get() {
            return Ok(*clearer);
        }
        let cpu = Cpu::read(&Roots::default().proc)?;
        let Forced { method, chunk } = self.forced;
        let known = known(&cache(), cpu, self.may_measure && method.is_none(), stop);
        let setting = known.overridden(method, chunk).setting;
        let clearer = setting.clearer().map_err(|error| Error::Clearing(error.to_string()))?;
        tracing::debug!(%setting, "clearing in place");
        Ok(*self.chosen.get_or_init(|| clearer))
    }
}

/// The choice of the cache, of a race, or of the vendor.
fn known(cache: &Path, cpu: Cpu, may_measure: bool, stop: &Stop) -> Choice {
    let fallback = defaults::choice(&cpu);
    if !may_measure {
        let read = calibrate::Cache::load(cache).ok();
        return read.and_then(|cache| cache.get(&cpu)).unwrap_or(fallback);
    }
    let (notify, reported) = mpsc::channel();
    let path = cache.to_owned();
    // Never joined: a race cannot be stopped, and ends with the process.
    thread::spawn(move || {
        let measured = calibrate::choice(&path, &cpu, false);
        // After a signal the receiver is gone.
        drop(notify.send(measured));
    });
    while !stop.is_set() {
        match reported.recv_timeout(POLL_INTERVAL) {
            Ok(Ok(choice)) => return choice,
            Ok(Err(error)) => {
                tracing::debug!(%error, "clearing as the CPU's vendor would have it");
                return fallback;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return fallback,
        }
    }
    fallback
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> Cpu {
        Cpu::read(&Roots::default().proc).unwrap()
    }

    #[test]
    fn worker_clears_with_the_cached_choice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calibration");
        let mut cache = calibrate::Cache::load(&path).unwrap();
        let written = defaults::choice(&cpu())
            .overridden(Some(Method::Portable), Some(Chunk::from_bytes(1 << 20).unwrap()));
        cache.set(&cpu(), written);
        cache.save().unwrap();
        for may_measure in [false, true] {
            assert_eq!(known(&path, cpu(), may_measure, &Stop::default()), written);
        }
    }

    #[test]
    fn a_worker_in_the_background_does_not_measure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calibration");
        let choice = known(&path, cpu(), false, &Stop::default());
        assert_eq!(choice, defaults::choice(&cpu()));
        assert!(!path.exists());
    }

    #[test]
    fn a_stopped_worker_does_not_wait_for_a_race() {
        let stop = Stop::default();
        stop.set();
        let dir = tempfile::tempdir().unwrap();
        let choice = known(&dir.path().join("calibration"), cpu(), true, &stop);
        assert_eq!(choice, defaults::choice(&cpu()));
    }
}
