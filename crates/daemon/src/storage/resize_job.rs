// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One change of the size of the kernel's pool, on a thread of its own.
//!
//! To add pages the kernel may have to move memory out of their way, a second for a GiB, and the
//! writer of `nr_hugepages` waits for it. So pages are added in steps of at most [`STEP`]. Before
//! each step the thread checks whether memory is still plentiful, whether another program has
//! changed the size meanwhile, and whether the daemon still wants it. The end of the process ends
//! it within a page.
//!
//! The file takes a size, not a difference. A write by another program between a look and a step is
//! overwritten: microseconds, and it loses no page of any program.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use book::policy::{MemoryLeft, ResizeStep, Scarce, affordable};
use linux::{Roots, hugetlb, meminfo, psi};
use tokio::sync::oneshot;
use units::{Bytes, Domain, Pages};

/// Pages added between two looks.
const STEP: Bytes = Bytes(128 << 20);
/// Pages taken away between two looks, in 0.4 us each.
const STEP_BACK: Bytes = Bytes(1 << 30);
/// One part in this number of a node's memory stays available by default.
const FREE_PART: u64 = 16;

/// The next change.
#[derive(Debug)]
pub(crate) struct ResizeOrder {
    pub(crate) domain: Domain,
    pub(crate) change: ResizeStep,
    /// Memory of the node that stays available.
    pub(crate) free: Option<Bytes>,
    pub(crate) nice: i32,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct ResizeOutcome {
    pub(crate) done: Pages,
    /// The reason for a partial result.
    pub(crate) short: Option<Shortfall>,
}

/// Why a change came to less than it was to.
#[derive(Debug)]
pub(crate) enum Shortfall {
    /// Memory is to stay available, or others wait for it.
    Scarce(Scarce),
    /// The kernel found no more pages in one piece.
    Scattered,
    /// Pages that were free are in use now.
    Taken,
    /// Another program changed the size.
    Others,
    /// The daemon does not want it any more.
    Stopped,
    /// A file could not be read or written.
    Failed(linux::Error),
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scarce(Scarce::Memory(available)) => {
                write!(f, "{available} of memory are available, as much as is to stay so")
            }
            Self::Scarce(Scarce::Pressure(percent)) => {
                write!(f, "programs wait for memory {percent:.0} % of the time")
            }
            Self::Scattered => f.write_str("the kernel finds no more free memory in one piece"),
            Self::Taken => f.write_str("programs have taken the pages meanwhile"),
            Self::Others => f.write_str("somebody else changes the size of the kernel's pool"),
            Self::Stopped => f.write_str("it is not wanted any more"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl From<linux::Error> for Shortfall {
    fn from(error: linux::Error) -> Self {
        Self::Failed(error)
    }
}

/// A change that goes on. Dropped, it ends after the step at hand.
#[derive(Debug)]
pub(crate) struct ResizeJob {
    pub(crate) change: ResizeStep,
    pub(crate) since: Instant,
    stop: Arc<AtomicBool>,
    reported: oneshot::Receiver<ResizeOutcome>,
}

impl ResizeJob {
    /// Begins it; `tell` is called after each step, and when it is over.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn begin(
        order: ResizeOrder,
        roots: Roots,
        notify: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (done, reported) = oneshot::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (change, stopped) = (order.change, Arc::clone(&stop));
        std::thread::Builder::new().name("resizing".to_owned()).spawn(move || {
            // The daemon's own nice value is for who answers clients.
            if let Err(error) = linux::sched::set_nice(order.nice) {
                tracing::debug!(%error, "the kernel's pool is resized as the daemon runs");
            }
            let go_on = || {
                notify();
                !stopped.load(Ordering::Relaxed)
            };
            let outcome = order.carry_out(&roots, go_on);
            // The daemon may have ended.
            drop(done.send(outcome));
            notify();
        })?;
        Ok(Self { change, since: Instant::now(), stop, reported })
    }

    /// Has it end after the step at hand.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// What came of it, once it is over.
    pub(crate) fn outcome(&mut self) -> Option<ResizeOutcome> {
        match self.reported.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            // The thread panicked: what it did shows at the next look as others' doing.
            Err(oneshot::error::TryRecvError::Closed) => {
                Some(ResizeOutcome { done: Pages::ZERO, short: Some(Shortfall::Stopped) })
            }
        }
    }
}

impl Drop for ResizeJob {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ResizeOrder {
    fn carry_out(&self, roots: &Roots, go_on: impl Fn() -> bool) -> ResizeOutcome {
        let mut done = Pages::ZERO;
        let over = match self.change {
            ResizeStep::Grow(pages) => self.grow(roots, pages, &mut done, go_on),
            ResizeStep::Shrink(pages) => self.shrink(roots, pages, &mut done, go_on),
            ResizeStep::Wait(_) => Ok(()),
        };
        ResizeOutcome { done, short: over.err() }
    }

    fn configured(&self, roots: &Roots) -> linux::Result<Pages> {
        let Domain { node, page_size } = self.domain;
        hugetlb::configured(roots, page_size, Some(node)).map(Pages)
    }

    fn set(&self, roots: &Roots, total: Pages) -> linux::Result<()> {
        let Domain { node, page_size } = self.domain;
        hugetlb::set_total(roots, page_size, Some(node), total.0).map(drop)
    }

    fn grow(
        &self,
        roots: &Roots,
        pages: Pages,
        done: &mut Pages,
        go_on: impl Fn() -> bool,
    ) -> Result<(), Shortfall> {
        let Domain { node, page_size } = self.domain;
        let free = match self.free {
            Some(free) => free,
            None => Bytes(meminfo::node_memory(roots, node)?.total_bytes / FREE_PART),
        };
        let step = STEP.whole_pages(page_size).max(Pages(1));
        let mut total = self.configured(roots)?;
        while *done < pages {
            if !go_on() {
                return Err(Shortfall::Stopped);
            }
            let memory = MemoryLeft {
                available: meminfo::available_on(roots, node)?,
                pressure: psi::memory(roots)?.map(|pressure| pressure.some.avg10_percent),
            };
            let left = pages.saturating_sub(*done).min(step);
            let left = affordable(left, page_size, free, &memory).map_err(Shortfall::Scarce)?;
            if self.configured(roots)? != total {
                return Err(Shortfall::Others);
            }
            self.set(roots, total + left)?;
            let now = self.configured(roots)?;
            let more = now.saturating_sub(total).min(left);
            *done += more;
            total += more;
            if more < left {
                return Err(Shortfall::Scattered);
            }
        }
        Ok(())
    }

    /// Takes only free and unpromised pages: the kernel would make those in use vanish when they
    /// are freed.
    fn shrink(
        &self,
        roots: &Roots,
        pages: Pages,
        done: &mut Pages,
        go_on: impl Fn() -> bool,
    ) -> Result<(), Shortfall> {
        let Domain { node, page_size } = self.domain;
        let step = STEP_BACK.whole_pages(page_size).max(Pages(1));
        while *done < pages {
            if !go_on() {
                return Err(Shortfall::Stopped);
            }
            let here = hugetlb::counters(roots, page_size, Some(node))?;
            let all = hugetlb::counters(roots, page_size, None)?;
            let free = Pages(here.free.min(all.unreserved_free()));
            let less = pages.saturating_sub(*done).min(step).min(free);
            if less == Pages::ZERO {
                return Err(Shortfall::Taken);
            }
            let before = Pages(here.configured());
            self.set(roots, before.saturating_sub(less))?;
            let now = hugetlb::counters(roots, page_size, Some(node))?;
            let taken = Pages(now.surplus.saturating_sub(here.surplus));
            if taken > Pages::ZERO {
                // A program got them just now, and keeps them.
                self.set(roots, Pages(now.configured()) + taken)?;
            }
            *done += before.saturating_sub(self.configured(roots)?).min(less);
            if taken > Pages::ZERO {
                return Err(Shortfall::Taken);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use units::{Node, PageSize};

    const DOMAIN: Domain = Domain { node: Node(0), page_size: PageSize::MIB_2 };

    /// A machine with a kernel that takes any size, with this much memory available.
    struct Machine {
        _dir: tempfile::TempDir,
        roots: Roots,
        pool: PathBuf,
    }

    impl Machine {
        fn new(total: u64, free: u64, available: &str) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let (sys, proc) = (dir.path().join("sys"), dir.path().join("proc"));
            let pool = sys.join("devices/system/node/node0/hugepages/hugepages-2048kB");
            let all = sys.join("kernel/mm/hugepages/hugepages-2048kB");
            for pool in [&pool, &all] {
                fs::create_dir_all(pool).expect("our own");
                for (name, value) in [("nr", total), ("free", free), ("surplus", 0), ("resv", 0)] {
                    let file = pool.join(format!("{name}_hugepages"));
                    fs::write(file, value.to_string()).expect("our own");
                }
            }
            fs::create_dir_all(proc.join("pressure")).expect("our own");
            let available: Bytes = available.parse().expect("a size");
            let kib = available.0 >> 10;
            let text = format!("MemTotal: 64000 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB\n");
            fs::write(proc.join("meminfo"), text).expect("our own");
            let roots = Roots { sys, proc, ..Roots::default() };
            Self { _dir: dir, roots, pool }
        }

        fn total(&self) -> String {
            fs::read_to_string(self.pool.join("nr_hugepages")).expect("our own")
        }

        fn press(&self, percent: &str) {
            let text = format!("some avg10={percent} avg60=0 avg300=0 total=0\n");
            fs::write(self.roots.proc.join("pressure/memory"), text).expect("our own");
        }

        fn done(&self, change: ResizeStep, go_on: impl Fn() -> bool) -> (u64, String) {
            let free = Some(Bytes(1 << 30));
            let order = ResizeOrder { domain: DOMAIN, change, free, nice: 19 };
            let ResizeOutcome { done, short } = order.carry_out(&self.roots, go_on);
            (done.0, short.map(|short| short.to_string()).unwrap_or_default())
        }
    }

    #[test]
    fn a_pool_grows_until_memory_that_is_to_stay_free_is_reached() {
        // The machine's memory does not become less by it: each step may take as much.
        let machine = Machine::new(3, 0, "1152M");
        assert_eq!(machine.done(ResizeStep::Grow(Pages(200)), || true), (200, String::new()));
        assert_eq!(machine.total(), "203");
        let machine = Machine::new(3, 0, "1G");
        let (done, why) = machine.done(ResizeStep::Grow(Pages(200)), || true);
        assert_eq!((done, machine.total().as_str()), (0, "3"));
        assert!(why.contains("1G of memory are available"), "{why}");
    }

    // Promise P199.
    #[test]
    fn a_pool_does_not_grow_while_programs_wait_for_memory() {
        let machine = Machine::new(3, 0, "8G");
        machine.press("12.50");
        let (done, why) = machine.done(ResizeStep::Grow(Pages(8)), || true);
        assert_eq!((done, machine.total().as_str()), (0, "3"));
        assert!(why.contains("12 % of the time"), "{why}");
        machine.press("9.99");
        assert_eq!(machine.done(ResizeStep::Grow(Pages(8)), || true).0, 8);
    }

    #[test]
    fn a_stop_and_another_s_write_end_growth_after_a_step() {
        let machine = Machine::new(0, 0, "8G");
        let (done, why) = machine.done(ResizeStep::Grow(Pages(500)), || machine.total() != "128");
        assert_eq!((done, machine.total().as_str()), (128, "128"));
        assert!(why.contains("not wanted"), "{why}");
        let others = || {
            if machine.total() == "256" {
                fs::write(machine.pool.join("nr_hugepages"), "7").expect("our own");
            }
            true
        };
        let (done, why) = machine.done(ResizeStep::Grow(Pages(500)), others);
        assert_eq!((done, machine.total().as_str()), (128, "7"));
        assert!(why.contains("somebody else"), "{why}");
    }

    #[test]
    fn no_more_pages_go_than_are_free() {
        let machine = Machine::new(30, 10, "8G");
        // The free count of files does not follow: one step takes all free pages.
        let stop_after_one = || machine.total() == "30";
        let (done, _) = machine.done(ResizeStep::Shrink(Pages(25)), stop_after_one);
        assert_eq!((done, machine.total().as_str()), (10, "20"));
        let machine = Machine::new(30, 0, "8G");
        let (done, why) = machine.done(ResizeStep::Shrink(Pages(25)), || true);
        assert_eq!((done, machine.total().as_str()), (0, "30"));
        assert!(why.contains("taken"), "{why}");
    }
}
