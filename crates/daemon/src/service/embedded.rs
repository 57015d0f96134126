// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon inside another program.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::base::error::{Error, Result};
use crate::service::run::{Options, Until, event_loop, run};

/// A daemon on a thread of its own. Dropping it stops it; [`Embedded::stop`] says how that went.
#[derive(Debug)]
pub struct Embedded {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Embedded {
    /// Starts a daemon and waits until it listens.
    ///
    /// # Errors
    /// Those of starting.
    pub fn start(options: Options) -> Result<Self> {
        let socket = options.socket.clone();
        let (stop, stopped) = oneshot::channel();
        let (listens, listening) = mpsc::channel();
        let body = move || run(&event_loop()?, options, Until::Requested { stopped, listens });
        let thread = std::thread::Builder::new()
            .name("prezero".to_owned())
            .spawn(body)
            .map_err(|source| Error::Runtime { what: "cannot start a thread", source })?;
        if listening.recv().is_err() {
            return Err(thread.join().ok().and_then(Result::err).unwrap_or(Error::Gone));
        }
        Ok(Self { socket, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops it: every block file is removed and every mount is gone. What clients still map
    /// stays theirs until they let go.
    ///
    /// # Errors
    /// Files that are still there.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        drop(self.stop.take());
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| Error::Gone)?,
            None => Ok(()),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "an embedded daemon did not end well");
        }
    }
}
