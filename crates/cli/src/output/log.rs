// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: lines on standard error, or entries of the journal.
//!
//! Logging never waits for the log's reader. A pipe, a socket or a terminal takes a limited amount
//! of unread text, and then its writer waits: a hung journal or a stopped terminal would stop the
//! daemon and with it every client. So a thread of its own writes, from a queue of limited length.
//! What the queue has no room for is counted, and the count is logged before the next event.
//!
//! Each event is one entry of the journal with its level, also where its message has several lines:
//! it goes there in the journal's own protocol, one datagram an event.
//!
//! `tracing-appender` has such a thread, too. It brings ten packages more, writes no line about
//! what it drops, and knows no levels of events. `tracing-journald` sends on the thread that logs,
//! where a hung journal blocks it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Where the journal takes entries.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
/// The most events that wait for the log's reader.
const MAX_QUEUED_EVENTS: usize = 4096;
/// How long the daemon's end waits for the log's reader.
const END_TIMEOUT: Duration = Duration::from_millis(100);

/// From now on messages at least as severe as `level` are logged, until the value is dropped.
///
/// # Errors
/// Those of starting a thread.
pub(crate) fn begin(level: LevelFilter) -> io::Result<LogWriter> {
    let output = Output {
        stderr: File::from(io::stderr().as_fd().try_clone_to_owned()?),
        journal: is_journal().then(UnixDatagram::unbound).transpose()?,
        socket: JOURNAL_SOCKET.to_owned(),
    };
    let is_journal = output.journal.is_some();
    let log = LogWriter::begin(output)?;
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().compact().with_target(false).with_max_level(level);
    if is_journal {
        // The journal has its own clock and its own levels.
        lines.without_time().with_level(false).with_ansi(false).with_writer(writer).init();
    } else {
        lines.with_ansi(super::is_watched()).with_writer(writer).init();
    }
    Ok(log)
}

/// Whether standard error goes to the journal: systemd names its file in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(stat) = fstat(io::stderr()) else { return false };
    stream.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// The way to the thread that writes.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    queue: SyncSender<Queued>,
    /// Events since the last one that the queue had room for.
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Queued {
    Event {
        level: Level,
        text: Vec<u8>,
        /// Events lost before it.
        lost: u64,
    },
    /// Everything before it is written: says so.
    End(SyncSender<()>),
}

impl LogWriter {
    fn begin(output: Output) -> io::Result<Self> {
        let (queue, queued) = sync_channel(MAX_QUEUED_EVENTS);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_all(&queued, &output))?;
        Ok(Self { queue, lost: Arc::default() })
    }

    fn push(&self, level: Level, text: &[u8]) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let event = Queued::Event { level, text: text.to_vec(), lost };
        if self.queue.try_send(event).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written, at most [`END_TIMEOUT`]. A reader that hangs keeps no
    /// daemon from its end.
    pub(crate) fn end(&self) {
        let (written, ended) = sync_channel(1);
        if self.queue.try_send(Queued::End(written)).is_ok() {
            let _ = ended.recv_timeout(END_TIMEOUT);
        }
    }
}

fn write_all(queued: &Receiver<Queued>, output: &Output) {
    for next in queued {
        match next {
            Queued::Event { level, text, lost } => {
                if lost > 0 {
                    let text = format!("events lost, as the log was not read: {lost}\n");
                    output.write(Level::WARN, text.as_bytes());
                }
                output.write(level, &text);
            }
            Queued::End(written) => drop(written.send(())),
        }
    }
}

/// Where events go.
#[derive(Debug)]
struct Output {
    /// Without the standard library's lock, which other threads take to complain.
    stderr: File,
    journal: Option<UnixDatagram>,
    /// Where the journal listens.
    socket: String,
}

impl Output {
    /// Writes an event, and waits for its reader. An event that cannot be written is dropped: a
    /// full disk or an ended reader must not end the daemon.
    fn write(&self, level: Level, text: &[u8]) {
        let Some(journal) = &self.journal else {
            drop(write_whole(&self.stderr, text));
            return;
        };
        if journal.send_to(&entry(level, text), &self.socket).is_err() {
            // Its stream takes lines, with a level at the beginning of each (sd-daemon(3)).
            let lines = String::from_utf8_lossy(text);
            let lines = lines.lines().map(|line| format!("<{}>{line}\n", priority(level)));
            drop(write_whole(&self.stderr, lines.collect::<String>().as_bytes()));
        }
    }
}

/// Writes all of it, also where the description is non-blocking, as it may be for others.
fn write_whole(file: &File, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match rustix::io::write(file, text) {
            Ok(written) => text = &text[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// An entry in the journal's native protocol. The message has its length before it, and so may have
/// several lines.
fn entry(level: Level, text: &[u8]) -> Vec<u8> {
    let text = text.trim_ascii_end();
    let fields = format!("PRIORITY={}\nSYSLOG_IDENTIFIER=prezero\nMESSAGE\n", priority(level));
    let length = (text.len() as u64).to_le_bytes();
    [fields.as_bytes(), &length, text, b"\n"].concat()
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// One event on its way to the queue.
pub(crate) struct Event<'a> {
    log: &'a LogWriter,
    level: Level,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Event { log: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        Event { log: self, level: *metadata.level() }
    }
}

impl Write for Event<'_> {
    /// Takes one event whole, which is how they come.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // Without a time the formatter begins with the space that would follow it.
        self.log.push(self.level, text.trim_ascii_start());
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::pty::OpenptFlags;

    use super::*;

    fn to(file: impl Into<OwnedFd>) -> Output {
        Output { stderr: File::from(file.into()), journal: None, socket: String::new() }
    }

    // Promise P204.
    #[test]
    fn unread_events_are_dropped_without_waiting_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = LogWriter::begin(to(writer)).unwrap();
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let begun = Instant::now();
        for _ in 0..3 * MAX_QUEUED_EVENTS {
            log.push(Level::INFO, &line);
        }
        log.end();
        assert!(begun.elapsed() < Duration::from_secs(5), "nothing waits for the reader");

        let reading = std::thread::spawn(move || {
            let mut read = String::new();
            reader.read_to_string(&mut read).map(|_| read)
        });
        let mut pushed = 3 * MAX_QUEUED_EVENTS;
        while log.lost.load(Ordering::Relaxed) > 0 {
            // Lost as well, until the queue has room for it.
            log.push(Level::INFO, &line);
            pushed += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(log);
        let read = reading.join().unwrap().unwrap();
        let (mut whole, mut lost) = (0, 0);
        for one in read.lines() {
            match one.strip_prefix("events lost, as the log was not read: ") {
                Some(count) => lost += count.parse::<usize>().unwrap(),
                None if line.starts_with(one.as_bytes()) && one.len() == 99 => whole += 1,
                None => panic!("neither an event nor a count: {one:?}"),
            }
        }
        assert!(lost > 1000, "{lost}");
        assert_eq!(whole + lost, pushed, "each event is written or counted");
    }

    // Promise P227 (years): A log stops no work where there is room for less than a line, as on a
    // terminal, or where others take the room first. The file stays for others as it is.
    #[test]
    fn stopped_terminal_or_socket_blocks_no_logger() {
        let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::unlockpt(&terminal).unwrap();
        let name = rustix::pty::ptsname(&terminal, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let (_unread, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        // As another program that has it may have set it.
        socket.set_nonblocking(true).unwrap();
        for output in [to(slave), to(socket)] {
            let log = LogWriter::begin(output).unwrap();
            let begun = Instant::now();
            while log.lost.load(Ordering::Relaxed) == 0 {
                log.push(Level::INFO, &[b'x'; 1000]);
                assert!(begun.elapsed() < Duration::from_secs(5), "nothing waits for the reader");
            }
            log.end();
            assert!(begun.elapsed() < Duration::from_secs(5), "nothing waits for the reader");
        }
    }

    // Promise P204.
    #[test]
    fn event_of_several_lines_is_one_entry_with_its_level() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket").display().to_string();
        let journal = UnixDatagram::bind(&socket).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let output =
            Output { journal: Some(UnixDatagram::unbound().unwrap()), socket, ..to(writer) };
        let log = LogWriter::begin(output).unwrap();
        log.push(Level::WARN, b"first\n<3>second\n");
        log.end();
        let mut entry = [0; 1000];
        let length = journal.recv(&mut entry).unwrap();
        let fields = b"PRIORITY=4\nSYSLOG_IDENTIFIER=prezero\nMESSAGE\n";
        let expected = [&fields[..], &15_u64.to_le_bytes(), b"first\n<3>second\n"].concat();
        assert_eq!(entry[..length], expected);
        // A journal that is gone leaves the stream, in which every line has the level.
        drop(journal);
        log.push(Level::ERROR, b"first\nsecond\n");
        log.end();
        drop(log);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "<3>first\n<3>second\n");
    }

    #[test]
    fn event_longer_than_a_pipe_arrives_whole() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = LogWriter::begin(to(writer)).unwrap();
        let text = "x".repeat(300_000);
        log.push(Level::INFO, text.as_bytes());
        drop(log);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert!(read == text, "300,000 times x");
    }
}
