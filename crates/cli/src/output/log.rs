// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's log: lines on standard error, for a person or for the journal.

use std::io::{self, Stderr, Write};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// From now on whatever is at least as bad as `level` is logged.
pub(crate) fn to_standard_error(level: LevelFilter) {
    let lines = tracing_subscriber::fmt().compact().with_target(false).with_max_level(level);
    // What is logged of a line that could not be written panics where it cannot be written either:
    // a full disk under the log, or a reader that has ended, would end the daemon.
    let lines = lines.log_internal_errors(false);
    if is_journal() {
        // The journal has its own clock and its own levels.
        lines.without_time().with_level(false).with_ansi(false).with_writer(Journal).init();
    } else {
        lines.with_ansi(super::is_watched()).with_writer(io::stderr).init();
    }
}

/// Whether standard error goes to the journal: systemd names its file in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream.to_str() == Some(&format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Begins every line with its level as syslog numbers it (sd-daemon(3)).
struct Journal;

struct Line {
    level: Level,
    stderr: Stderr,
}

impl Journal {
    fn line(level: Level) -> Line {
        Line { level, stderr: io::stderr() }
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Self::line(Level::INFO)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Self::line(*metadata.level())
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

impl Write for Line {
    /// Takes one event whole, which is how they come.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut whole = format!("<{}>", priority(self.level)).into_bytes();
        whole.extend_from_slice(line.trim_ascii_start());
        self.stderr.write_all(&whole)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stderr.flush()
    }
}
