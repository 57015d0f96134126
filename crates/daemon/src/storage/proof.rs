// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who can reach a block: the looks at the kernel, and what they come to for the book.
//!
//! The state of a file at rest is measured at start for each page size, on a page of the daemon's
//! own; where none is free then, as soon as one is. Until then, and where the kernel hides pins,
//! only the lease says something, and blocks with `recycle = "auto"` recycle fresh.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use book::block::{Proof, Reach, Unheld};
use linux::unmap_events::UnmapEvents;
use linux::{BlockDir, BlockFile, Exclusivity, exclusive};
use pins::{Holder, LentPages, Opened, PinProbe, Rest};
use units::{BlockId, PageSize};

/// How long nothing is measured again after it failed: what lacks is a free page, mostly.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The measured file, in the directory of unneeded ones.
const NAME: &str = "rest";

/// What one page size looks like at rest.
#[derive(Debug)]
enum Measure {
    Known(Rest),
    Failed { why: String, at: Instant },
}

#[derive(Debug)]
struct Inner {
    probe: Result<PinProbe, String>,
    measures: Mutex<BTreeMap<PageSize, Measure>>,
    /// By what the daemon itself watches files.
    watcher: Option<Arc<UnmapEvents>>,
    /// Which pages blocks had when they were about to be lent: 8 bytes for each.
    lent: Mutex<BTreeMap<BlockId, Arc<Mutex<LentPages>>>>,
}

/// The looks. Clones share the measures.
#[derive(Debug, Clone)]
pub(crate) struct Proofs(Arc<Inner>);

/// What the book takes for a proof.
struct Proven(pins::Unheld);

impl Proof for Proven {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is changed in more than one step: a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proofs {
    /// Loads the program that looks; [`why_not`](Self::why_not) names the obstacle. `watcher` is
    /// the daemon's means of watching files.
    pub(crate) fn load(watcher: Option<Arc<UnmapEvents>>) -> Self {
        let probe = PinProbe::load().map_err(|error| error.to_string());
        if let Err(why) = &probe {
            tracing::warn!(%why, "auto recycles fresh");
        }
        // What the kernel's types took while the program was fitted to them: 5 MiB.
        linux::heap::trim();
        Self::new(probe, watcher)
    }

    fn new(probe: Result<PinProbe, String>, watcher: Option<Arc<UnmapEvents>>) -> Self {
        let (measures, lent) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { probe, measures, watcher, lent }))
    }

    /// The lease alone, for plain memory.
    pub(crate) fn leases_only() -> Self {
        Self::new(Err("plain memory has no huge pages to look at".to_owned()), None)
    }

    /// Whether a page size may be measured with more success than before.
    pub(crate) fn is_due(&self, size: PageSize) -> bool {
        match lock(&self.0.measures).get_mut(&size) {
            _ if self.0.probe.is_err() => false,
            Some(Measure::Failed { at, .. }) if at.elapsed() >= RETRY_INTERVAL => {
                *at = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Measures a page size, unless an earlier daemon has since the machine was booted and has left
    /// it in `run_dir`: most pages have an owner when a daemon is started again. Takes a page while
    /// that is zeroed.
    pub(crate) fn measure(&self, run_dir: &Path, dir: &BlockDir, state: &str, size: PageSize) {
        let Ok(probe) = &self.0.probe else { return };
        let left = run_dir.join(format!("rest-{}kB", size.kib()));
        let measured = match recalled(&left, size) {
            Some(rest) => Ok(rest),
            None => {
                let measured = measured(probe, dir, state, size);
                measured.inspect(|rest| remember(&left, *rest))
            }
        };
        let measure = match measured {
            Ok(rest) => {
                tracing::info!(page = %size, references = rest.references(), "pins are seen");
                Measure::Known(rest)
            }
            Err(why) => {
                tracing::warn!(page = %size, %why, "auto recycles fresh");
                Measure::Failed { why, at: Instant::now() }
            }
        };
        lock(&self.0.measures).insert(size, measure);
    }

    /// The page sizes with visible pins.
    pub(crate) fn sizes(&self) -> Vec<PageSize> {
        let measures = lock(&self.0.measures);
        let known = measures.iter().filter(|(_, m)| matches!(m, Measure::Known(_)));
        known.map(|(size, _)| *size).collect()
    }

    /// Why the pins of such pages are not seen, in one line.
    pub(crate) fn why_not(&self, size: PageSize) -> Option<String> {
        if let Err(why) = &self.0.probe {
            return Some(why.clone());
        }
        match lock(&self.0.measures).get(&size) {
            Some(Measure::Known(_)) => None,
            Some(Measure::Failed { why, .. }) => Some(why.clone()),
            None => Some(format!("no {size} page was looked at yet")),
        }
    }

    /// The means to look at files of that size, if pins of it are visible.
    fn seen(&self, size: PageSize) -> Option<(&PinProbe, Rest)> {
        match lock(&self.0.measures).get(&size) {
            Some(Measure::Known(rest)) => Some((self.0.probe.as_ref().ok()?, *rest)),
            _ => None,
        }
    }

    /// Who can reach the file of a block, which the caller has open once: every look that there is.
    /// 0.15 us for each page.
    pub(crate) fn reach(&self, block: BlockId, file: &BlockFile, size: PageSize) -> Reach {
        let Some((probe, rest)) = self.seen(size) else { return by_lease(file) };
        let watcher = self.0.watcher.as_ref().map(|watcher| watcher.as_fd());
        // The table is free while one of them is looked at: that may take long.
        let lent = lock(&self.0.lent).get(&block).map(Arc::clone);
        let mut lent = lent.as_ref().map(|lent| lock(lent));
        let holder = probe.prove(file, rest, watcher, lent.as_deref_mut());
        match holder {
            Ok(holder) => reach_by(holder, size),
            // Not knowing is not being sole, nor that the kernel cannot tell: the next look may.
            Err(error) => {
                tracing::warn!(%error, "could not ask who holds a block");
                Reach::Shared
            }
        }
    }

    /// Notes which pages a block has before it is lent. A page that leaves the file while its
    /// borrower pins it is missed at the return. 0.15 us for each; no-op where pins are not seen.
    pub(crate) fn record_lent(&self, block: BlockId, file: &BlockFile, size: PageSize) {
        let Some((probe, rest)) = self.seen(size) else { return };
        match probe.lent(file, rest) {
            Ok(lent) => drop(lock(&self.0.lent).insert(block, Arc::new(Mutex::new(lent)))),
            Err(error) => tracing::warn!(%error, %block, "pins outside of its file are not seen"),
        }
    }

    /// The block is gone.
    pub(crate) fn forget(&self, block: BlockId) {
        lock(&self.0.lent).remove(&block);
    }

    /// How many pages of a file have a memory error. 0.15 us for each page; 0 where pins are not
    /// seen.
    pub(crate) fn broken(&self, file: BorrowedFd<'_>, size: PageSize) -> u32 {
        let Some((probe, rest)) = self.seen(size) else { return 0 };
        probe.look(file, 0, rest, None).map_or(0, |seen| seen.poisoned)
    }

    /// The other users of a file that the caller has open once, and may map. 1 us; returns at once
    /// where pins are visible.
    pub(crate) fn opened(&self, file: &BlockFile, size: PageSize) -> Opened {
        let Some((probe, rest)) = self.seen(size) else {
            // Where no lease is granted nothing is recycled in place, nor held by its memory.
            return match by_lease(file) {
                Reach::Shared => Opened::Open,
                _ => Opened::Nobody,
            };
        };
        // Not knowing is not being sole; the next look may tell.
        probe.opened(file, rest).unwrap_or_else(|error| {
            tracing::warn!(%error, "could not ask who has a block open");
            Opened::Open
        })
    }
}

/// What a look comes to for the book.
fn reach_by(holder: Holder, page: PageSize) -> Reach {
    match holder {
        Holder::Nobody(unheld) => Reach::Nobody(Unheld::by(Proven(unheld))),
        Holder::Named => Reach::Sole,
        Holder::Pinned(_) => Reach::Pinned,
        Holder::Poisoned(pages) => {
            tracing::warn!(pages, %page, "memory errors: the block goes back to the kernel");
            Reach::Poisoned
        }
        Holder::Altered(pages) => {
            tracing::debug!(pages, %page, "pages lie behind the end of a returned file");
            Reach::Altered
        }
        Holder::Marked => Reach::Marked,
        Holder::Mapped => Reach::Mapped,
        Holder::Open => Reach::Shared,
    }
}

/// This boot of the machine, in one line.
fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

fn recalled(left: &Path, size: PageSize) -> Option<Rest> {
    let text = std::fs::read_to_string(left).ok()?;
    let rest = Rest::restore(text.strip_prefix(&boot()?)?)?;
    (rest.page() == size).then_some(rest)
}

fn remember(left: &Path, rest: Rest) {
    let Some(boot) = boot() else { return };
    if let Err(error) = crate::base::files::replace(left, (boot + &rest.to_text()).as_bytes()) {
        tracing::debug!(%error, "the next start measures again");
    }
}

fn measured(probe: &PinProbe, dir: &BlockDir, state: &str, size: PageSize) -> Result<Rest, String> {
    let reported = |error: linux::Error| error.to_string();
    // Left by a daemon that was killed right here.
    if dir.list(state).map_err(reported)?.iter().any(|name| name == NAME) {
        dir.unlink(state, NAME).map_err(reported)?;
    }
    let file = dir.create(state, NAME).map_err(reported)?;
    let rest = probe.measure(&file, size).map_err(|error| error.to_string());
    drop(file);
    dir.unlink(state, NAME).map_err(reported)?;
    rest
}

/// The users of a file according to the lease. 2 us, for any size of the file.
fn by_lease(file: &BlockFile) -> Reach {
    match exclusive::prove(file) {
        Ok(Exclusivity::Sole) => Reach::Sole,
        Ok(Exclusivity::Shared) => Reach::Shared,
        Ok(Exclusivity::Unsupported) => Reach::Unknown,
        // Not knowing is not being sole; the next look may tell.
        Err(error) => {
            tracing::warn!(%error, "could not ask who holds a block");
            Reach::Shared
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P251.
    #[test]
    fn effects_caused_by_a_borrower_can_be_known() {
        let page = PageSize::MIB_2;
        let held = [Holder::Pinned(1), Holder::Mapped, Holder::Open];
        let expected = [Reach::Pinned, Reach::Mapped, Reach::Shared];
        assert_eq!(
            held.map(|holder| reach_by(holder, page)),
            expected,
            "it is draining, and counts"
        );
        let cut = [Holder::Altered(1), Holder::Marked, Holder::Poisoned(1)];
        let expected = [Reach::Altered, Reach::Marked, Reach::Poisoned];
        assert_eq!(cut.map(|holder| reach_by(holder, page)), expected, "its file is cut");
        assert_eq!(reach_by(Holder::Named, page), Reach::Sole);
    }
}
