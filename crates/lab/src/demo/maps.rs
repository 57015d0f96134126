// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory without a program around it: populated by the kernel, or lent, mapped and touched.

use std::time::{Duration, Instant};

use crate::prefault;
use serde::Serialize;

use crate::rig::{Plan, Scene, Series};
use cli::exit::Failure;

/// Both ways with one page size. Times in seconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Maps {
    pub(super) page_bytes: u64,
    pub(super) bytes: u64,
    /// `mmap(MAP_POPULATE)` by one thread, which is all that one call can use.
    pub(super) populate: Series,
    /// Lend, map, and write one byte to every page.
    pub(super) lend: Series,
}

pub(super) fn measure(plan: &Plan, scene: &mut Scene<'_>) -> Result<Maps, Failure> {
    let (page, bytes) = (scene.page(), scene.bytes());
    let (mut populate, mut lend) = (Series::default(), Series::default());
    for _ in 0..plan.rounds {
        scene.fill(plan)?;
        lend.add(lend_map_touch(scene)?);
        scene.release(&plan.stop)?;
        populate.add(prefault::time_populate(bytes, page)?);
        plan.go_on()?;
    }
    Ok(Maps { page_bytes: page.bytes(), bytes: bytes.0, populate, lend })
}

fn lend_map_touch(scene: &mut Scene<'_>) -> Result<Duration, Failure> {
    let step = usize::try_from(scene.page().bytes()).unwrap_or(usize::MAX);
    let begin = Instant::now();
    let mut memory = scene.lend(false)?.map()?;
    for page in (0..memory.len()).step_by(step) {
        memory[page] = 1;
    }
    Ok(begin.elapsed())
}
