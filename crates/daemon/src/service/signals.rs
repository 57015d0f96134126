// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals: some end a daemon, others make it read its configuration, in any state that its starter
//! left them in.
//!
//! A blocked mask and an ignored signal outlive `execve` (signal(7)): `nohup` ignores SIGHUP, a
//! supervisor that reads a signalfd blocks what it reads there.

use nix::sys::signal::SigSet;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::base::error::{Error, Result};
use crate::service::control::Control;

/// SIGHUP as it is noticed from a daemon's start: it would end one by default, and a reload may
/// come before the daemon serves.
#[derive(Debug)]
pub(crate) struct Signals {
    hangup: Signal,
}

impl Signals {
    /// Takes over the inherited state, before anything else starts. SIGTERM and SIGINT end a start
    /// as they end any program, so a hanging start can be ended.
    ///
    /// # Errors
    /// A descriptor for the signals is missing.
    pub(crate) fn for_start() -> Result<Self> {
        SigSet::empty().thread_set_mask().map_err(|errno| failed(std::io::Error::from(errno)))?;
        Ok(Self { hangup: hear(SignalKind::hangup())? })
    }

    /// Waits for the end, and reads the configuration again at each SIGHUP until then.
    pub(crate) async fn end(self, control: &Control, serves: impl FnOnce()) -> Result<()> {
        let mut terminate = hear(SignalKind::terminate())?;
        let mut interrupt = hear(SignalKind::interrupt())?;
        serves();
        tokio::select! {
            () = control.reload_at(self.hangup) => {}
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
        }
        Ok(())
    }
}

/// Has the kernel keep what children end with: where SIGCHLD is ignored it keeps nothing
/// (waitpid(2)), and a worker that has cleared a page looks like one that was lost.
///
/// # Errors
/// A descriptor for the signals is missing.
pub(crate) fn keep_children() -> Result<()> {
    // The handler stays for good, and other listeners for children in this process keep theirs.
    hear(SignalKind::child()).map(drop)
}

fn hear(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(failed)
}

fn failed(source: std::io::Error) -> Error {
    Error::Runtime { what: "cannot wait for signals", source }
}
