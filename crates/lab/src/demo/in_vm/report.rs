// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest said, and what that comes to.

use std::io::{self, Write};

use cli::output::table::{self, Align};
use cli::output::{Record, count};
use serde::Serialize;

/// One start of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Start {
    /// Pages that were zero when the program asked.
    pub(super) hits: u64,
    /// Pages that the kernel cleared for it.
    pub(super) misses: u64,
    pub(super) exit_status: i32,
    /// What it printed.
    pub(super) output: String,
}

/// A program, started on dirty pages and on zeroed ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Program {
    name: String,
    memory: &'static str,
    dirty: Start,
    zeroed: Start,
}

/// Everything that the guest said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    module: String,
    kernel: String,
    programs: Vec<Program>,
    dirty: u64,
}

/// What the programs of `init` ask the kernel for.
fn memory_of(program: &str) -> &'static str {
    match program {
        "busybox" => "a file with a name",
        "perl" => "a segment of System V",
        "qemu" => "memory of a guest, preallocated",
        _ => "",
    }
}

impl Found {
    /// Reads the lines of the second serial port.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        let mut first = None;
        for line in text.lines().map(str::trim_end) {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let unknown = || format!("the machine said {line:?}");
            match kind {
                "failed" => return Err(rest.to_owned()),
                "module" => {
                    let (module, kernel) = rest.split_once(' ').ok_or_else(unknown)?;
                    (found.module, found.kernel) = (module.to_owned(), kernel.to_owned());
                }
                "start" => {
                    let (name, state, start) = start(rest).ok_or_else(unknown)?;
                    match (state, first.take()) {
                        ("dirty", None) => first = Some(start),
                        ("zeroed", Some(dirty)) => found.programs.push(Program {
                            name: name.to_owned(),
                            memory: memory_of(name),
                            dirty,
                            zeroed: start,
                        }),
                        _ => return Err(unknown()),
                    }
                }
                "dirty" => found.dirty = rest.parse().map_err(|_| unknown())?,
                "end" => return Ok(found),
                _ => return Err(unknown()),
            }
        }
        Err("the machine ended before its programs had".to_owned())
    }
}

/// `NAME STATE HITS MISSES STATUS OUTPUT`
fn start(line: &str) -> Option<(&str, &str, Start)> {
    let mut words = line.splitn(6, ' ');
    let (name, state) = (words.next()?, words.next()?);
    let start = Start {
        hits: words.next()?.parse().ok()?,
        misses: words.next()?.parse().ok()?,
        exit_status: words.next()?.parse().ok()?,
        output: words.next().unwrap_or_default().to_owned(),
    };
    Some((name, state, start))
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    kernel: String,
    module: String,
    qemu: String,
    accel: String,
    programs: Vec<Program>,
    /// Zeroed pages in which the kernel found another byte before a program got them.
    dirty_pages: u64,
}

impl Report {
    pub(super) fn new(found: Found, qemu: &str, accel: &str) -> Self {
        let Found { module, kernel, programs, dirty } = found;
        let (qemu, accel) = (qemu.to_owned(), accel.to_owned());
        Self { kernel, module, qemu, accel, programs, dirty_pages: dirty }
    }

    /// The first thing that is not as it should be.
    pub(super) fn fault(&self) -> Option<String> {
        if self.programs.is_empty() {
            return Some("no program was started".to_owned());
        }
        if self.dirty_pages > 0 {
            return Some(format!(
                "{} marked as zero and were not",
                count(self.dirty_pages, "page")
            ));
        }
        self.programs.iter().find_map(|Program { name, dirty, zeroed, .. }| {
            let fault = if dirty.exit_status != 0 {
                format!("ended with status {} on dirty pages", dirty.exit_status)
            } else if (dirty.exit_status, &dirty.output) != (zeroed.exit_status, &zeroed.output) {
                "ended differently on zeroed pages".to_owned()
            } else if (dirty.hits, zeroed.misses) != (0, 0) || zeroed.hits != dirty.misses {
                "did not get exactly the pages that were zeroed".to_owned()
            } else {
                return None;
            };
            Some(format!("{name} {fault}"))
        })
    }
}

impl Record for Report {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        use Align::{Left, Right};
        let Self { kernel, module, qemu, accel, .. } = self;
        writeln!(out, "Linux {kernel} with prezero.ko {module}, in QEMU {qemu} ({accel})")?;
        let cleared = |start: &Start| start.misses.to_string();
        let rows: Vec<Vec<String>> = self
            .programs
            .iter()
            .map(|Program { name, memory, dirty, zeroed }| {
                let outcome =
                    if dirty.exit_status == zeroed.exit_status && dirty.output == zeroed.output {
                        dirty.output.clone()
                    } else {
                        format!("{} / {}", dirty.output, zeroed.output)
                    };
                let hits = zeroed.hits.to_string();
                vec![
                    name.clone(),
                    (*memory).to_owned(),
                    cleared(dirty),
                    cleared(zeroed),
                    hits,
                    outcome,
                ]
            })
            .collect();
        let head = [
            ("PROGRAM", Left),
            ("MEMORY", Left),
            ("CLEARED FOR IT", Right),
            ("CLEARED, POOL ZEROED", Right),
            ("HITS", Right),
            ("OUTCOME OF BOTH STARTS", Left),
        ];
        table::write(out, &head, &rows)?;
        writeln!(
            out,
            "the kernel read every zeroed page again before a program got it: {} dirty",
            self.dirty_pages
        )?;
        if self.accel == "tcg" {
            writeln!(out, "the machine was emulated, so no time is shown")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "module 0.1.0 6.12.117\r\n\
        start busybox dirty 0 32 0 64M: every byte is zero\r\n\
        start busybox zeroed 32 0 0 64M: every byte is zero\r\n\
        dirty 0\r\nend\r\n";

    fn fault(said: &str) -> Option<String> {
        Report::new(Found::read(said).unwrap(), "7.2", "tcg").fault()
    }

    #[test]
    fn pages_that_are_ready_and_the_same_outcome_are_no_fault() {
        assert_eq!(fault(SAID), None);
    }

    #[test]
    fn every_difference_is_a_fault_that_names_the_program() {
        for (from, to, expected) in [
            ("zeroed 32 0 0", "zeroed 31 1 0", "busybox did not get exactly"),
            ("dirty 0 32 0", "dirty 1 31 0", "busybox did not get exactly"),
            ("zeroed 32 0 0", "zeroed 33 0 0", "busybox did not get exactly"),
            ("zeroed 32 0 0 64M", "zeroed 32 0 0 63M", "busybox ended differently"),
            ("zeroed 32 0 0", "zeroed 32 0 1", "busybox ended differently"),
            ("dirty 0 32 0", "dirty 0 32 1", "busybox ended with status 1"),
            ("\ndirty 0", "\ndirty 2", "2 pages marked as zero"),
        ] {
            let fault = fault(&SAID.replace(from, to)).unwrap_or_default();
            assert!(fault.starts_with(expected), "{from} -> {to}: {fault}");
        }
        assert_eq!(fault("module 1 6\ndirty 0\nend\n").unwrap(), "no program was started");
    }

    #[test]
    fn a_machine_that_ends_early_or_fails_says_why() {
        assert_eq!(Found::read("failed no room\nend\n").unwrap_err(), "no room");
        assert!(
            Found::read(SAID.trim_end().trim_end_matches("end"))
                .unwrap_err()
                .contains("ended before")
        );
        let twice = SAID.replace("busybox zeroed", "busybox dirty");
        assert!(Found::read(&twice).unwrap_err().contains("the machine said"));
    }

    #[test]
    fn table_for_people_has_counts_and_no_time() {
        let mut out = Vec::new();
        let report = Report::new(Found::read(SAID).unwrap(), "7.2.22", "tcg");
        report.human(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\
Linux 6.12.117 with prezero.ko 0.1.0, in QEMU 7.2.22 (tcg)
PROGRAM  MEMORY              CLEARED FOR IT  CLEARED, POOL ZEROED  HITS  OUTCOME OF BOTH STARTS
busybox  a file with a name              32                     0    32  64M: every byte is zero
the kernel read every zeroed page again before a program got it: 0 dirty
the machine was emulated, so no time is shown
"
        );
    }
}
