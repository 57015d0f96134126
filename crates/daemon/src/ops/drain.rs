// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draining: the daemon releases all unlent memory and zeroes nothing, until a call ends that. A
//! file in the run directory tells the next daemon. Both end with the boot.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use units::{Bytes, Pages};
use wire::{Drained, Error, PoolStatus};

use super::Shell;

/// Whether the daemon is drained, and the file that records it.
#[derive(Debug)]
pub(super) struct DrainMode {
    marker: PathBuf,
    is_on: bool,
}

impl DrainMode {
    pub(super) fn new(run_dir: &Path) -> Self {
        let marker = run_dir.join("drained");
        Self { is_on: marker.exists(), marker }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    fn set(&mut self, on: bool) -> std::io::Result<()> {
        match on {
            true => crate::base::files::replace(&self.marker, b"")?,
            false => match fs::remove_file(&self.marker) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        self.is_on = on;
        Ok(())
    }
}

impl Shell {
    /// Releases all unlent memory and keeps it so, or goes on as configured.
    /// [`queues`](Self::queues) tells when the pages are free.
    ///
    /// # Errors
    /// Those of the file that records it. Then nothing is changed.
    pub(crate) fn drain(&mut self, on: bool) -> Result<Drained, Error> {
        let marker = self.drain_mode.marker.display().to_string();
        let failed = |error| Error::Failed { what: format!("{marker}: {error}") };
        if on != self.drain_mode.is_on() {
            self.drain_mode.set(on).map_err(failed)?;
            tracing::info!("{}", if on { "is drained" } else { "is drained no more" });
        }
        let released_bytes = if on { self.release_all() } else { Bytes(0) };
        self.changes.wake();
        let pools = self.status().pools;
        let sum = |of: fn(&PoolStatus) -> Pages| {
            pools.iter().map(|pool| of(pool).bytes(pool.page_size)).sum()
        };
        Ok(Drained {
            released_bytes,
            lent_bytes: sum(|pool| pool.lent_pages),
            kept_bytes: sum(|pool| pool.kept_pages),
            draining_bytes: sum(|pool| pool.draining_pages),
        })
    }

    pub(super) fn release_all(&mut self) -> Bytes {
        let (bytes, _) = self.apply(|book| book.release(None, None, Pages(u64::MAX)));
        bytes
    }
}
