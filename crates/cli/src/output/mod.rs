// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that is printed: records to standard output, notes to standard error.
//!
//! A record has one set of fields and two forms: what [`Record::human`] writes, and JSON of the
//! very same fields. Field names carry their unit, as on the wire.

pub(crate) mod loans;
pub(crate) mod log;
pub(crate) mod pools;
pub mod progress;
pub(crate) mod provider;
pub mod table;
pub(crate) mod terminal;
pub(crate) mod text;
mod units;

pub use units::{bytes_per_second, count, rate, seconds};

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

/// Something that a verb prints.
pub trait Record: Serialize {
    /// The form for people.
    fn human(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Form {
    /// Print records as JSON instead of text
    #[arg(long)]
    pub json: bool,
}

impl Form {
    /// Prints one record that is the whole answer.
    pub fn print(self, record: &impl Record) -> io::Result<()> {
        self.write(record, &mut io::stdout().lock(), true)
    }

    /// Prints one record of a stream: JSON on one line.
    pub fn print_next(self, record: &impl Record) -> io::Result<()> {
        self.write(record, &mut io::stdout().lock(), false)
    }

    fn write(self, record: &impl Record, out: &mut dyn Write, pretty: bool) -> io::Result<()> {
        match (self.json, pretty) {
            (false, _) => {
                terminal::with_columns(terminal::columns_of(&io::stdout()), || record.human(out))?;
            }
            (true, true) => {
                serde_json::to_writer_pretty(&mut *out, record)?;
                writeln!(out)?;
            }
            (true, false) => {
                serde_json::to_writer(&mut *out, record)?;
                writeln!(out)?;
            }
        }
        out.flush()
    }
}

/// One line on standard error, signed; on a terminal broken between words.
pub fn note(line: &str) {
    let columns = terminal::columns_of(&io::stderr());
    complain(&text::wrap(&format!("prezero: {line}"), columns, 2).join("\n"));
}

/// One line on standard error.
pub(crate) fn complain(line: &str) {
    // With standard error gone there is no place to report it.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether standard error is a terminal, so that bars and live text make sense.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// The human form as text, for tests.
#[cfg(test)]
pub(crate) fn text(record: &impl Record) -> String {
    text_within(record, None)
}

/// The human form on a terminal of that width.
#[cfg(test)]
pub(crate) fn text_within(record: &impl Record, columns: Option<usize>) -> String {
    let mut out = Vec::new();
    terminal::with_columns(columns, || record.human(&mut out)).expect("a vector takes everything");
    String::from_utf8(out).expect("text")
}
