// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU to its QMP greeting, in every way, and the rate at which the pool is filled.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::qemu::{Memory, Qemu};
use super::{Plan, Scene, Series};
use cli::exit::Failure;
use cli::inherited::Inherited;

/// All starts, by way. Times in seconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Starts {
    pub(crate) qemu: String,
    pub(crate) accel: String,
    pub(crate) page_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) threads: usize,
    /// No huge pages, nothing preallocated.
    pub(crate) plain: Series,
    /// Preallocated by QEMU with one thread.
    pub(crate) prealloc_1: Series,
    /// ... and with all.
    pub(crate) prealloc_all: Series,
    /// Lent: borrowing included.
    pub(crate) lent: Series,
    /// Filling the pool with all threads.
    pub(crate) fill: Series,
}

/// Measures `plan.rounds` rounds of each.
pub(crate) fn measure(plan: &Plan, scene: &mut Scene<'_>, qemu: &Qemu) -> Result<Starts, Failure> {
    let mut starts = Starts {
        qemu: qemu.version().to_owned(),
        accel: qemu.accel().to_owned(),
        page_bytes: scene.page().bytes(),
        bytes: scene.bytes().0,
        threads: plan.threads,
        plain: Series::default(),
        prealloc_1: Series::default(),
        prealloc_all: Series::default(),
        lent: Series::default(),
        fill: Series::default(),
    };
    let page = scene.page();
    // QEMU's own files come from the disk the first time: that start is not counted.
    start(plan, scene, qemu, Memory::Untouched)?;
    for _ in 0..plan.rounds {
        starts.fill.add(scene.fill(plan)?.took);
        starts.plain.add(start(plan, scene, qemu, Memory::Untouched)?);
        starts.lent.add(start_lent(plan, scene, qemu)?);
        scene.release(&plan.stop)?;
        for (threads, series) in
            [(1, &mut starts.prealloc_1), (plan.threads, &mut starts.prealloc_all)]
        {
            series.add(start(plan, scene, qemu, Memory::Prealloc { page, threads })?);
        }
        plan.go_on()?;
    }
    Ok(starts)
}

fn start(
    plan: &Plan,
    scene: &Scene<'_>,
    qemu: &Qemu,
    memory: Memory<'_>,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let running = qemu.start(scene.bytes(), memory, None, &plan.stop)?;
    let took = begin.elapsed();
    running.quit(&plan.stop)?;
    Ok(took)
}

fn start_lent(plan: &Plan, scene: &mut Scene<'_>, qemu: &Qemu) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let memory = Inherited::new(scene.lend(true)?)?;
    let running = qemu.start(scene.bytes(), Memory::File(&memory.path()), None, &plan.stop)?;
    let took = begin.elapsed();
    running.quit(&plan.stop)?;
    Ok(took)
}
