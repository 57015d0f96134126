// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What pools of several sizes of blocks have learnt, in a file of the state directory, else of the
//! run directory: the next daemon begins with it, also after a boot, when all guests of a host
//! start at once. It is a hint: a start without it, or with one that cannot be read, begins with a
//! guess.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use book::{Book, Learnt};

use super::{Dirs, Shell};

/// The most learning that a crash forgets: the file is 4 KiB, and written in 50 us.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// The file, and what it says.
#[derive(Debug)]
pub(super) struct Learning {
    path: PathBuf,
    written: Vec<Learnt>,
    at: Option<Instant>,
    /// Writes at the moment: a process that lists the run directory keeps others from changing a
    /// name in it for the whole call.
    writing: Option<JoinHandle<()>>,
}

impl Learning {
    /// Has a book begin with what the daemon before it had learnt.
    pub(super) fn take_over(dirs: Dirs<'_>, book: &mut Book) -> Self {
        let path = dirs.state.unwrap_or(dirs.run).join("learnt");
        let before = dirs.run.join("learnt");
        // An earlier version kept it in the run directory.
        let is_moved = path != before && !path.exists();
        let written = match fs::read(if is_moved { &before } else { &path }) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "what was learnt cannot be read");
                Vec::new()
            }),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(%error, path = %path.display(), "what was learnt cannot be read");
                }
                Vec::new()
            }
        };
        let written: Vec<Learnt> = written;
        written.iter().cloned().for_each(|learnt| book.learn(learnt));
        let written = if is_moved { Vec::new() } else { written };
        Self { path, written, at: None, writing: None }
    }

    /// Writes it by a thread, one at a time.
    fn write(&mut self, learnt: Vec<Learnt>) -> std::io::Result<()> {
        let (path, text) = (self.path.clone(), serde_json::to_vec(&learnt)?);
        self.finish();
        let thread = std::thread::Builder::new().name("learnt".to_owned());
        self.writing = Some(thread.spawn(move || {
            if let Err(error) = crate::base::files::replace(&path, &text) {
                let path = path.display();
                tracing::warn!(%error, %path, "what was learnt cannot be written");
            }
        })?);
        self.written = learnt;
        Ok(())
    }

    fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits until it is written.
    fn finish(&mut self) {
        if self.writing.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes down what was learnt has panicked");
        }
    }
}

impl Shell {
    /// Saves the learning since the last save, `now` or from time to time.
    pub(crate) fn keep_learnt(&mut self, now: bool) {
        let is_early = || self.learning.at.is_some_and(|at| at.elapsed() < WRITE_INTERVAL);
        if !now && (is_early() || self.learning.is_writing()) {
            return;
        }
        let learnt: Vec<_> = self.book.learnt().collect();
        if learnt == self.learning.written {
            return if now {
                self.learning.finish()
            };
        }
        self.learning.at = Some(Instant::now());
        if let Err(error) = self.learning.write(learnt) {
            let path = self.learning.path.display();
            tracing::warn!(%error, %path, "what was learnt cannot be written");
        }
        if now {
            self.learning.finish();
        }
    }
}
