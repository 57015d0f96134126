// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draining: all that is not lent goes back to the kernel, and nothing is zeroed, until somebody
//! says otherwise. A file in the run directory says so to the next daemon; both end with the boot.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use units::{Bytes, Pages};
use wire::{Drained, Error, PoolStatus};

use super::Shell;

/// Whether the daemon is drained, and the file that says so.
#[derive(Debug)]
pub(super) struct Draining {
    marker: PathBuf,
    is_on: bool,
}

impl Draining {
    pub(super) fn of(run_dir: &Path) -> Self {
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
    /// Gives all back that nobody has and keeps it so, or goes on as configured. Pages are free
    /// when [`freeing`](Self::freeing) says so.
    ///
    /// # Errors
    /// Those of the file that says so to the next daemon; nothing is changed then.
    pub(crate) fn drain(&mut self, on: bool) -> Result<Drained, Error> {
        let marker = self.draining.marker.display().to_string();
        let failed = |error| Error::Failed { what: format!("{marker}: {error}") };
        if on != self.draining.is_on() {
            self.draining.set(on).map_err(failed)?;
            tracing::info!("{}", if on { "is drained" } else { "is drained no more" });
        }
        let given_back_bytes = if on { self.give_all_back().0 } else { 0 };
        self.wake();
        let pools = self.status().pools;
        let sum = |of: fn(&PoolStatus) -> u64| {
            pools.iter().map(|pool| of(pool).saturating_mul(pool.page_bytes)).sum()
        };
        Ok(Drained {
            given_back_bytes,
            lent_bytes: sum(|pool| pool.lent_pages),
            kept_bytes: sum(|pool| pool.kept_pages),
            lingering_bytes: sum(|pool| pool.lingering_pages),
        })
    }

    pub(super) fn give_all_back(&mut self) -> Bytes {
        let (bytes, _) = self.apply(|book| book.give_back(None, None, Pages(u64::MAX)));
        bytes
    }

    /// Waits until what was given back is the kernel's, on the caller's thread.
    pub(crate) fn wait_until_freed(&self, patience: Duration) {
        self.store.lanes().wait(patience);
    }
}
