// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory without a program around it: populated by the kernel, or lent, mapped and touched.

use std::time::{Duration, Instant};

use crate::prefault;
use nix::sys::resource::{UsageWho, getrusage};
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
    /// The most page faults of one such round. One for each GiB where the daemon has made page
    /// tables that mappings share, else one for each page.
    pub(super) lend_faults: u64,
}

impl Maps {
    /// Whether huge pages that could share page tables, a GiB at a time, took a fault each.
    pub(super) fn lacks_shared_tables(&self) -> bool {
        let pages = self.bytes / self.page_bytes;
        let could_share = (2 << 20..1 << 30).contains(&self.page_bytes) && self.bytes >= 1 << 30;
        could_share && self.lend_faults >= pages
    }
}

pub(super) fn measure(plan: &Plan, scene: &mut Scene<'_>) -> Result<Maps, Failure> {
    let (page, bytes) = (scene.page(), scene.bytes());
    let (mut populate, mut lend) = (Series::default(), Series::default());
    let mut lend_faults = 0;
    for _ in 0..plan.rounds {
        scene.fill(plan)?;
        let before = faults();
        lend.add(lend_map_touch(scene)?);
        lend_faults = lend_faults.max(faults().saturating_sub(before));
        scene.release(&plan.stop)?;
        populate.add(prefault::time_populate(bytes, page)?);
        plan.go_on()?;
    }
    Ok(Maps { page_bytes: page.bytes(), bytes: bytes.0, populate, lend, lend_faults })
}

/// Page faults of this thread so far that needed no disk.
fn faults() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| u64::try_from(usage.minor_page_faults()).unwrap_or(0))
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
