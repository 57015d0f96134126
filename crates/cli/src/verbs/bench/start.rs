// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs from their start to the moment they can be used: the demo's QEMU starts.

use daemon::host::machine;

use super::Bench;
use super::figure::{Chart, Part, Row, Shape};
use crate::exit::Failure;
use crate::stage::qemu::Qemu;
use crate::stage::starts;

/// Software emulation works everywhere; a guest that is never run costs the same with KVM.
const ACCEL: &str = "tcg";

pub(super) fn measure(bench: &mut Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "start",
        "How long do a virtual machine and a JVM take to start, cold, preallocated, and with lent memory?",
        format!(
            "QEMU with {} of memory, from exec to its QMP greeting, by the wall clock; borrowing counted, filling the \
             pool beforehand not: it stands beside them. A JVM, where one is installed, to the end of -version with \
             AlwaysPreTouch, by itself and under the preload shim.",
            bench.size
        ),
    );
    let qemu = match Qemu::find(ACCEL) {
        Ok(qemu) => qemu,
        Err(lack) => {
            part.skip(lack);
            return Ok(part);
        }
    };
    // The largest that there are; 1 GiB pages are not to be had from fragmented memory.
    let mut found = None;
    for page in machine::huge_page_sizes(&bench.roots)?.into_iter().rev() {
        let done = bench
            .with_huge(page, bench.size, None, |plan, scene| starts::measure(plan, scene, &qemu))?;
        match done {
            Ok(starts) => {
                found = Some((page, starts));
                break;
            }
            Err(why) => part.skip(format!("{page} pages: {why}")),
        }
    }
    let Some((page, starts)) = found else { return Ok(part) };
    for (way, series) in [
        ("no huge pages, nothing preallocated", &starts.plain),
        ("QEMU preallocates, 1 thread", &starts.prealloc_1),
        ("QEMU preallocates, all threads", &starts.prealloc_all),
        ("lent by prezero", &starts.lent),
        ("(filling the pool before)", &starts.fill),
    ] {
        let labels = vec![("page", page.to_string()), ("way", way.to_owned())];
        part.rows.push(Row::new(labels).with("time", "s", series.values()));
    }
    part.notes.push(format!("QEMU {}, {}", starts.qemu, starts.accel));
    super::jvm::measure(bench, &mut part)?;
    // PostgreSQL maps its buffers at its start and touches them later: there is nothing to gain yet.
    part.charts.push(Chart {
        title: "Seconds to the QMP greeting",
        shape: Shape::Bars,
        what: "time",
        x: &["way"],
        series: &[],
        only: Vec::new(),
    });
    Ok(part)
}
