// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: lines on standard error, for a person or for the journal.
//!
//! Nobody waits for whoever reads it. A pipe or a socket takes some 64 KiB that are not read, and
//! then whoever writes waits: a journal that hangs, or a terminal that was stopped, would stop the
//! daemon and with it every client.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::PIPE_BUF;
use rustix::time::Timespec;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// From now on whatever is at least as bad as `level` is logged.
pub(crate) fn to_standard_error(level: LevelFilter) {
    let lines = tracing_subscriber::fmt().compact().with_target(false).with_max_level(level);
    // What is logged of a line that could not be written panics where it cannot be written either:
    // a full disk under the log, or a reader that has ended, would end the daemon.
    let lines = lines.log_internal_errors(false);
    let stderr = Lines::new(io::stderr());
    if is_journal() {
        // The journal has its own clock and its own levels.
        let lines = lines.without_time().with_level(false).with_ansi(false);
        lines.with_writer(Log { lines: stderr, is_journal: true }).init();
    } else {
        let lines = lines.with_ansi(super::is_watched());
        lines.with_writer(Log { lines: stderr, is_journal: false }).init();
    }
}

/// Whether standard error goes to the journal: systemd names its file in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines for a reader who may not read.
struct Lines<F> {
    file: F,
    /// Since the last one that was written.
    lost: Mutex<u64>,
}

impl<F: AsFd> Lines<F> {
    /// How long one line waits for the reader. Those after it wait for nothing, until one is
    /// written again. Standing in a burst of lines is no reason to lose any.
    const PATIENCE: Duration = Duration::from_millis(100);

    fn new(file: F) -> Self {
        Self { file, lost: Mutex::new(0) }
    }

    /// Writes a line that begins with `prefix`, or counts it as lost.
    fn write(&self, prefix: &str, line: &[u8]) -> io::Result<()> {
        // Until it is unlocked nobody else takes the room that was found.
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_room(if *lost == 0 { Self::PATIENCE } else { Duration::ZERO })? {
            *lost += 1;
            return Ok(());
        }
        if *lost > 0 {
            let told = format!("{prefix}nobody read the log, lines lost: {lost}\n");
            self.write_all(told.as_bytes())?;
            *lost = 0;
        }
        let whole = [prefix.as_bytes(), line].concat();
        // So much fits where there is room at all (pipe(7)).
        for part in whole.chunks(PIPE_BUF) {
            if !self.has_room(Self::PATIENCE)? {
                *lost += 1;
                break;
            }
            self.write_all(part)?;
        }
        Ok(())
    }

    /// Whether something can be written without waiting. What is no pipe, socket or terminal always
    /// can be.
    fn has_room(&self, patience: Duration) -> io::Result<bool> {
        let mut file = [PollFd::new(&self.file, PollFlags::OUT)];
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let ready = match poll(&mut file, Some(&patience)) {
            // A signal may be the one that ends the daemon: it is not kept waiting for long.
            Err(Errno::INTR) => poll(&mut file, Some(&Timespec::default()))?,
            ready => ready?,
        };
        Ok(ready > 0)
    }

    fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.file, bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Where events are written.
struct Log<F> {
    lines: Lines<F>,
    is_journal: bool,
}

struct Line<'a, F> {
    lines: &'a Lines<F>,
    /// Before its text.
    prefix: String,
}

impl<'a, F: AsFd + 'a> MakeWriter<'a> for Log<F> {
    type Writer = Line<'a, F>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { lines: &self.lines, prefix: String::new() }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        // The journal reads a line's level where it begins (sd-daemon(3)).
        let level = || format!("<{}>", priority(*metadata.level()));
        let prefix = if self.is_journal { level() } else { String::new() };
        Line { lines: &self.lines, prefix }
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<F: AsFd> Write for Line<'_, F> {
    /// Takes one event whole, which is how they come.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Without a time the formatter begins with the space that would follow it.
        self.lines.write(&self.prefix, line.trim_ascii_start()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_lost_without_waiting_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::new(&writer);
        let line = [b"x".repeat(99), b"\n".to_vec()].concat();
        let begun = Instant::now();
        // 64 KiB are 655 of them, or fewer where the kernel gives a pipe less.
        for _ in 0..2000 {
            lines.write("<6>", &line).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "one patience, not one a line");
        let lost = *lines.lost.lock().unwrap();
        assert!(lost > 1000, "{lost}");

        let mut read = vec![0; (2000 - usize::try_from(lost).unwrap()) * 103];
        reader.read_exact(&mut read).unwrap();
        lines.write("<4>", b"after it\n").unwrap();
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let told = format!("<4>nobody read the log, lines lost: {lost}\n<4>after it\n");
        assert_eq!(rest, told);
    }

    #[test]
    fn a_line_longer_than_a_pipe_takes_at_once_comes_whole_to_who_reads() {
        let (mut reader, writer) = io::pipe().unwrap();
        let line = "x".repeat(300_000);
        let read = std::thread::spawn(move || {
            let mut read = String::new();
            reader.read_to_string(&mut read).map(|_| read)
        });
        Lines::new(&writer).write("", line.as_bytes()).unwrap();
        drop(writer);
        assert!(read.join().unwrap().unwrap() == line, "300,000 times x");
    }
}
