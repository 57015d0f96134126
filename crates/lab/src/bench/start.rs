// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs from their start to the moment they can be used: the demo's QEMU starts, a JVM,
//! PostgreSQL.

use crate::machine;
use units::PageSize;

use super::{Bench, jvm, postgres};
use crate::figure::{Chart, Labels, Part, Row, Shape};
use crate::rig::qemu::Qemu;
use crate::rig::{Pool, starts};
use cli::exit::Failure;

/// Software emulation works everywhere; a guest that is never run costs the same with KVM.
const ACCEL: &str = "tcg";
pub(super) const QEMU: &str = "QEMU";
/// The names of ways that every program has.
pub(super) const KERNEL: &str = "the kernel's huge pages";
pub(super) const LENT: &str = "lent by prezero";

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "start",
        "How long do a virtual machine, a JVM and a database take to start, cold, preallocated, and with lent memory?",
        format!(
            "From exec, by the wall clock. QEMU with {} of memory, to its QMP greeting; borrowing counted, filling the \
             pool beforehand not: it stands beside them. A JVM with a heap of 1G to the end of -version with \
             AlwaysPreTouch. PostgreSQL to the moment it accepts connections \
             (time), when it has touched little of its buffers, and to the end of the first filling of half of them by \
             pg_prewarm out of the page cache (filled).",
            bench.size
        ),
    );
    qemu(bench, &mut part)?;
    jvm::measure(bench, &mut part)?;
    postgres::measure(bench, &mut part)?;
    for (program, what, title) in [
        (QEMU, "time", "QEMU: seconds to the QMP greeting"),
        (jvm::PROGRAM, "time", "JVM: seconds to the end of -version"),
        (postgres::PROGRAM, "time", "PostgreSQL: seconds until it accepts connections"),
        (postgres::PROGRAM, "filled", "PostgreSQL: seconds until half of its buffers are filled"),
    ] {
        if part.rows.iter().any(|row| row.label("program") == program) {
            part.charts.push(Chart {
                title,
                shape: Shape::Bars,
                what,
                x: &["way"],
                series: &[],
                only: vec![("program", program.to_owned())],
            });
        }
    }
    Ok(part)
}

/// What a program's memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Ordinary,
    Kernel,
    Lent,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "no huge pages",
            Self::Kernel => KERNEL,
            Self::Lent => LENT,
        }
    }

    pub(super) fn page(self, huge: PageSize) -> PageSize {
        if self == Self::Ordinary { PageSize::KIB_4 } else { huge }
    }
}

/// What was measured; `None`, said and counted, where there are no pages or another's program
/// failed.
pub(super) fn skip_if_failed<T>(
    part: &mut Part,
    program: &str,
    done: Result<Result<T, Failure>, String>,
) -> Result<Option<T>, Failure> {
    match done {
        Ok(Ok(measured)) => return Ok(Some(measured)),
        Ok(Err(failure)) if failure.exit.is_stop() => return Err(failure),
        Ok(Err(failure)) => part.skip(format!("{program}: {failure}")),
        Err(why) => part.skip(format!("{program}: {why}")),
    }
    Ok(None)
}

pub(super) fn labels(program: &str, page: PageSize, way: &str) -> Labels {
    vec![("program", program.to_owned()), ("page", page.to_string()), ("way", way.to_owned())]
}

/// Adds a row for each way, or says why not.
fn qemu(bench: &mut Bench, part: &mut Part) -> Result<(), Failure> {
    let qemu = match Qemu::find(ACCEL) {
        Ok(qemu) => qemu,
        Err(lack) => {
            part.skip(lack);
            return Ok(());
        }
    };
    // The largest that there are; 1 GiB pages are not to be had from fragmented memory.
    let mut found = None;
    for page in machine::huge_page_sizes(&bench.roots)?.into_iter().rev() {
        let pool = Pool::new(page, bench.size);
        let done = bench.with_huge(pool, |plan, scene| starts::measure(plan, scene, &qemu))?;
        match done {
            Ok(starts) => {
                found = Some((page, starts));
                break;
            }
            Err(why) => part.skip(format!("QEMU on {page} pages: {why}")),
        }
    }
    let Some((page, starts)) = found else { return Ok(()) };
    for (way, series) in [
        ("no huge pages, nothing preallocated", &starts.plain),
        ("QEMU preallocates, 1 thread", &starts.prealloc_1),
        ("QEMU preallocates, all threads", &starts.prealloc_all),
        (LENT, &starts.lent),
        ("(filling the pool before)", &starts.fill),
    ] {
        let row = Row::new(labels(QEMU, page, way));
        part.rows.push(row.with("time", "s", series.values()));
    }
    part.notes.push(format!("QEMU {}, {}", starts.qemu, starts.accel));
    Ok(())
}
