// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Having the kernel zero pages of its own pool.

use units::Pages;

use crate::error::Result;
use crate::interrupt::Interrupts;
use crate::job::{Done, InKernel};

/// The request of one step, at least a page: a look at `stopped` and the bar every few ms.
const STEP_BYTES: u64 = 8 << 20;

/// Zeroes up to `pages` pages in this thread. Asks `stopped` after every step and tells `tick` the
/// bytes as they are done. A signal ends a step within 64 KiB; the page that it cuts short is left
/// to the next worker.
///
/// # Errors
/// The kernel's; finished pages stay finished.
pub(crate) fn zero(
    task: InKernel,
    pages: u64,
    interrupts: &Interrupts,
    stopped: &dyn Fn() -> bool,
    tick: &dyn Fn(u64),
) -> Result<Done> {
    let page_bytes = task.job().page_size().bytes();
    let step = (STEP_BYTES / page_bytes).max(1);
    // Steps of small pages end before an interruption could arrive.
    let _inside = (page_bytes > STEP_BYTES).then(|| interrupts.enter());
    let mut done = 0;
    while done < pages && !stopped() {
        let now = task.zero(Pages(step.min(pages - done)))?;
        done += now.pages.0;
        tick(now.pages.0 * page_bytes);
        if !now.more {
            break;
        }
    }
    Ok(task.finish(Pages(done)))
}
