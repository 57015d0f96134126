// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pressure: the share of time in which a runnable task had to wait for a CPU, or a task for memory
//! (the kernel's `accounting/psi.rst`; 4.20, and 5.13 for the `full` line of cpu).

use std::path::Path;

use crate::error::{Errno, Error, Result};
use crate::files;
use crate::roots::Roots;

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Per cent of the last 10 seconds.
    pub avg10_percent: f64,
    /// Per cent of the last minute.
    pub avg60_percent: f64,
    /// Per cent of the last 5 minutes.
    pub avg300_percent: f64,
    /// Microseconds since boot (or since the group was made).
    pub total_us: u64,
}

/// A pressure file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All non-idle tasks waited.
    pub full: Option<Stall>,
}

/// The machine's CPU pressure; `None` where the kernel has none (built without, or `psi=0`).
pub fn cpu(roots: &Roots) -> Result<Option<Pressure>> {
    read(&roots.proc.join("pressure/cpu"))
}

/// The machine's memory pressure; `None` where the kernel has none. A program that makes room for
/// huge pages by moving memory waits for memory, too, and counts.
pub fn memory(roots: &Roots) -> Result<Option<Pressure>> {
    read(&roots.proc.join("pressure/memory"))
}

fn read(path: &Path) -> Result<Option<Pressure>> {
    let text = match files::read_optional(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        // With psi=0 the files exist and answer this.
        Err(error) if error.errno() == Some(Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let line = |name| text.lines().find_map(|line| line.strip_prefix(name));
    let some = line("some ").ok_or_else(|| Error::malformed(path, "a line \"some\"", &text))?;
    let full = line("full ").map(|full| stall(path, full)).transpose()?;
    Ok(Some(Pressure { some: stall(path, some)?, full }))
}

fn stall(path: &Path, line: &str) -> Result<Stall> {
    let field = |name: &str| {
        line.split(' ')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            .ok_or_else(|| Error::malformed(path, "avg10=, avg60=, avg300= and total=", line))
    };
    let percent = |name| files::parse(path, "a percentage", field(name)?);
    Ok(Stall {
        avg10_percent: percent("avg10")?,
        avg60_percent: percent("avg60")?,
        avg300_percent: percent("avg300")?,
        total_us: files::parse(path, "microseconds", field("total")?)?,
    })
}
