// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: lines on standard error, for a person or for the journal.
//!
//! Logging never waits for the log's reader. A pipe, a socket or a terminal takes a limited amount
//! of unread text, and then its writer waits: a hung journal or a stopped terminal would stop the
//! daemon and with it every client. A check for room says little: on a terminal it may be less than
//! a line, and a worker may take it first. So the log goes to an open file description of our own
//! in non-blocking mode: the given one is shared with the shell and the workers.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::pipe::PIPE_BUF;
use rustix::time::Timespec;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// From now on messages at least as severe as `level` are logged.
pub(crate) fn to_standard_error(level: LevelFilter) {
    let lines = tracing_subscriber::fmt().compact().with_target(false).with_max_level(level);
    // A line that could not be written must stay silent about it: a second failing write would
    // panic, and a full disk or an ended reader would end the daemon.
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
    let Ok(stat) = fstat(io::stderr()) else { return false };
    stream.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines for a reader who may not read.
struct Lines<F> {
    file: F,
    way: Way,
    behind: Mutex<Behind>,
}

/// How to write without waiting.
enum Way {
    /// To this: the same pipe or terminal, by a description of our own.
    Own(OwnedFd),
    /// To the socket, with a flag for each call.
    Socket,
    /// Directly: other kinds of files wait for no reader.
    Plain,
}

impl Way {
    fn to(file: impl AsFd) -> Self {
        let file = file.as_fd();
        let kind = fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind == Ok(FileType::Socket) {
            return Self::Socket;
        }
        if kind != Ok(FileType::Fifo) && !file.is_terminal() {
            return Self::Plain;
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        // A pipe without a reader, another user's terminal: only a look for room is left.
        open(path, flags, Mode::empty()).map_or(Self::Plain, Self::Own)
    }
}

/// What the reader has missed.
#[derive(Debug, Default)]
struct Behind {
    /// Lines since the last one that was written whole.
    lost: u64,
    /// Whether the last one was written in part.
    is_cut: bool,
}

impl<F: AsFd> Lines<F> {
    /// How long one line waits for the reader. Those after it wait for nothing, until one is
    /// written again. Standing in a burst of lines is no reason to lose any.
    const LINE_TIMEOUT: Duration = Duration::from_millis(100);
    /// How long to wait where there is room, but not enough.
    const RETRY_INTERVAL: Duration = Duration::from_millis(1);

    fn new(file: F) -> Self {
        let way = Way::to(&file);
        Self { file, way, behind: Mutex::default() }
    }

    /// Writes a line that begins with `prefix`, or counts it as lost.
    fn write(&self, prefix: &str, line: &[u8]) -> io::Result<()> {
        // Lines are written one by one.
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Vec::new();
        if behind.is_cut {
            text.push(b'\n');
        }
        if behind.lost > 0 {
            let lost = behind.lost;
            text.extend(format!("{prefix}nobody read the log, lines lost: {lost}\n").as_bytes());
        }
        let reported = text.len();
        text.extend_from_slice(prefix.as_bytes());
        text.extend_from_slice(line);
        let timeout = if behind.lost == 0 { Self::LINE_TIMEOUT } else { Duration::ZERO };
        let written = self.write_parts(&text, timeout)?;
        if written > reported {
            behind.lost = 0;
        }
        if written < text.len() {
            behind.lost += 1;
        }
        if let Some(last) = text[..written].last() {
            behind.is_cut = *last != b'\n';
        }
        Ok(())
    }

    /// Writes as much as the reader takes. After the first `timeout` each further part has its
    /// own.
    fn write_parts(&self, text: &[u8], timeout: Duration) -> io::Result<usize> {
        let mut written = 0;
        // This much fits into a pipe with any room, and arrives in one piece (pipe(7)).
        for part in text.chunks(PIPE_BUF) {
            let timeout = if written == 0 { timeout } else { Self::LINE_TIMEOUT };
            let some = self.write_part(part, Instant::now() + timeout)?;
            written += some;
            if some < part.len() {
                break;
            }
        }
        Ok(written)
    }

    fn write_part(&self, part: &[u8], end: Instant) -> io::Result<usize> {
        let mut written = 0;
        while written < part.len() && self.has_room(end)? {
            match self.write_some(&part[written..]) {
                Ok(some) => written += some,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if Instant::now() < end => sleep(Self::RETRY_INTERVAL),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(written)
    }

    /// Whether something can be written without waiting. A file that is no pipe, socket or terminal
    /// always can.
    fn has_room(&self, end: Instant) -> io::Result<bool> {
        let mut file = [PollFd::new(&self.file, PollFlags::OUT)];
        let timeout = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let ready = match poll(&mut file, Some(&timeout)) {
            // A signal may be the one that ends the daemon: it is not kept waiting for long.
            Err(Errno::INTR) => poll(&mut file, Some(&Timespec::default()))?,
            ready => ready?,
        };
        Ok(ready > 0)
    }

    fn write_some(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        match &self.way {
            Way::Own(file) => rustix::io::write(file, bytes),
            Way::Socket => send(&self.file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Way::Plain => rustix::io::write(&self.file, bytes),
        }
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
    use std::io::{BufRead, Read};

    use super::*;

    const LINE: [u8; 100] = {
        let mut line = [b'x'; 100];
        line[99] = b'\n';
        line
    };

    /// Writes the lines, and says how many were lost.
    fn lost_of<F: AsFd>(lines: &Lines<F>, prefix: &str, many: usize) -> usize {
        let begun = Instant::now();
        for _ in 0..many {
            lines.write(prefix, &LINE).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "one timeout, not one a line");
        usize::try_from(lines.behind.lock().unwrap().lost).unwrap()
    }

    // Promise P204.
    #[test]
    fn unread_lines_are_dropped_without_waiting_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::new(writer);
        // 64 KiB are 655 of them, or fewer where the kernel gives a pipe less.
        let lost = lost_of(&lines, "<6>", 2000);
        assert!(lost > 1000, "{lost}");

        let mut read = vec![0; (2000 - lost) * 103];
        reader.read_exact(&mut read).unwrap();
        lines.write("<4>", b"after it\n").unwrap();
        drop(lines);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let reported = format!("<4>nobody read the log, lines lost: {lost}\n<4>after it\n");
        assert_eq!(rest, reported);
    }

    // Promise P227 (years): A log stops no work where there is room for less than a line, as on a
    // terminal, or where others take the room first. The file stays for others as it is.
    #[test]
    fn slow_terminal_or_socket_blocks_no_writer() {
        let size = portable_pty::PtySize::default();
        let terminal = portable_pty::native_pty_system().openpty(size).unwrap();
        let name = terminal.master.tty_name().unwrap();
        let slave = std::fs::File::options().read(true).write(true).open(name).unwrap();
        let before = rustix::fs::fcntl_getfl(&slave).unwrap();
        let lines = Lines::new(&slave);
        let lost = lost_of(&lines, "", 2000);
        assert!(lost > 0, "a terminal that nobody reads takes no 200 kB");
        assert_eq!(rustix::fs::fcntl_getfl(&slave).unwrap(), before, "it is others' as well");

        let mut screen = io::BufReader::new(terminal.master.try_clone_reader().unwrap());
        let read = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while seen.last().is_none_or(|line| line != "after it") {
                let mut line = String::new();
                screen.read_line(&mut line).unwrap();
                seen.push(line.trim_end().to_owned());
            }
            seen
        });
        while lines.behind.lock().unwrap().lost > 0 {
            sleep(Duration::from_millis(10));
            lines.write("", b"on\n").unwrap();
        }
        lines.write("", b"after it\n").unwrap();
        let seen = read.join().unwrap();
        let whole = str::from_utf8(&LINE[..99]).unwrap();
        let is_notified = |line: &&String| line.starts_with("nobody read the log, lines lost: ");
        assert!(seen.iter().any(|line| is_notified(&line)), "{seen:?}");
        // One line may have come in part, before that.
        let odd = seen.iter().filter(|line| !is_notified(line) && *line != "on" && *line != whole);
        let odd: Vec<_> = odd.filter(|line| *line != "after it").collect();
        assert!(odd.len() <= 1 && odd.iter().all(|line| whole.starts_with(*line)), "{odd:?}");

        let (_unread, socket) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(lost_of(&Lines::new(&socket), "", 20_000) > 0);
    }

    #[test]
    fn line_longer_than_a_pipe_buffer_arrives_whole() {
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
