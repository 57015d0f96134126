// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What calls wait for, and how long: the content that the borrower left, pages in transit, and
//! pages that the kernel frees or allocates.
//!
//! [`Shell`](crate::ops::Shell) never waits. All waits are here, each on behalf of one peer
//! ([`Place`]). After a wait that many calls share, each call takes its turn again.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use book::block::StateName;
use book::{Asked, HeldByName, Refusal, Requester};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use units::{JobId, LeaseId, LoanName, Node, Pages};
use wire::{Error, Status, TakeZeroing};

use crate::ops::watchers;
use crate::ops::{Granted, Handover, Lease, LoanStep, Shared, TakenJob};
use crate::peers::users::Place;
use crate::storage::kernel::Fill;

/// How long a loan waits for content that its owner's previous process still maps. An exiting
/// process with hundreds of gigabytes takes seconds to unmap them.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unserved loan waits for pages in transit: returned pages before their last unmap,
/// and pages of workers, where they suffice. Without it, a borrower that returns and borrows in a
/// loop would be refused the memory that it had a moment ago.
const LOAN_WAIT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a status report waits for pages in transit to the kernel: 256 GiB of 2 MiB pages.
const STATUS_TIMEOUT: Duration = Duration::from_millis(100);
/// The same for pages that users delay: a user that always does would delay every report.
const USER_QUEUES_TIMEOUT: Duration = Duration::from_millis(5);
/// How long a revocation waits for its memory to be free.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// A loan, as its hold hands it to the borrower.
#[derive(Debug)]
pub(crate) enum HeldLoan {
    /// A new loan, with the descriptors for its borrower.
    Descriptors(Handover),
    /// A new loan that its name holds.
    Named {
        /// The loan.
        held: HeldByName,
        /// Pages that were ready.
        ready: Pages,
        /// Whether it has the content that its owner left.
        kept: bool,
    },
    /// The existing loan of that name.
    Found(HeldByName),
}

impl HeldLoan {
    /// The loan that a name holds, and whether it is new.
    pub(crate) fn by_name(&self) -> Option<(&HeldByName, bool)> {
        match self {
            Self::Descriptors(_) => None,
            Self::Named { held, .. } => Some((held, true)),
            Self::Found(held) => Some((held, false)),
        }
    }
}

/// A loan, with its pages. The peer's end drops the call at any wait. From the grant on, the daemon
/// watches the lease of a loan by descriptor. A loan by name with a dropped call ends within a
/// page, or the agent's next `Return` ends it: a name may have been put on it at that instant.
///
/// # Errors
/// The kernel's errors; inside, the refusal of the book.
pub(crate) async fn lend(
    shell: &Shared,
    place: &Place,
    asked: &mut Asked,
    borrower: (u32, u32),
) -> Result<Result<HeldLoan, Refusal>, Error> {
    let begin = Instant::now();
    let mut granted = match until_granted(shell, place, asked, borrower, begin).await? {
        Ok(LoanStep::Granted(granted)) => granted,
        Ok(LoanStep::Found(held)) => return Ok(Ok(HeldLoan::Found(held))),
        Err(Refusal::NameBusy) => return Ok(Err(Refusal::NameBusy)),
        Err(refusal) => {
            let mut shell = shell.borrow_mut();
            shell.metrics.refused(Some(&refusal), begin.elapsed());
            shell.incidents.refused(asked, &refusal);
            return Ok(Err(refusal));
        }
    };
    if let Some(watch) = granted.watch.take() {
        watchers::lease(shell, granted.handover.loan.lease, watch);
    }
    let _dropped = granted.stop.clone().drop_guard();
    let is_named = matches!(granted.handover.lease, Lease::Name);
    let made = made_ready(Rc::clone(shell), granted, asked.request.whole);
    // A loan by name lacks a lease descriptor that could end it by its close. So its making
    // outlives the call, and ends it.
    let lent = if is_named {
        let gone = |_| Error::Failed { what: "the daemon ends".to_owned() };
        tokio::task::spawn_local(made).await.map_err(gone)?
    } else {
        made.await
    }?;
    let metrics = &shell.borrow().metrics;
    match &lent {
        HeldLoan::Descriptors(handover) => metrics.granted(&handover.loan, begin.elapsed()),
        HeldLoan::Named { held, ready, kept } => {
            metrics.granted_of(*kept, *ready, held.pages, begin.elapsed());
        }
        HeldLoan::Found(_) => {}
    }
    Ok(Ok(lent))
}

/// Asks until the loan is granted, or no wait can help.
async fn until_granted(
    shell: &Shared,
    place: &Place,
    asked: &mut Asked,
    borrower: (u32, u32),
    begin: Instant,
) -> Result<Result<LoanStep, Refusal>, Error> {
    let mut changes = shell.borrow().changes.subscribe();
    let mut waits = None;
    loop {
        changes.mark_unchanged();
        let answer = shell.borrow_mut().lend(asked, borrower)?;
        let Some(until) =
            answer.as_ref().err().and_then(|no| worth_waiting(shell, asked, no, begin))
        else {
            return Ok(answer);
        };
        waits.get_or_insert_with(|| shell.borrow().peers.waiting.begin());
        wait_until(until, &mut changes, place, asked, begin).await;
    }
}

/// Waits for a change, and for its turn. After the deadline one attempt follows, which goes on
/// without the content that its owner left.
async fn wait_until(
    until: Instant,
    changes: &mut watch::Receiver<u64>,
    place: &Place,
    asked: &mut Asked,
    begin: Instant,
) {
    drop(timeout_at(until, changes.changed()).await);
    place.turn().await;
    asked.await_owner = Instant::now() < begin + OWNER_TIMEOUT;
}

/// The deadline for another attempt after a refusal.
fn worth_waiting(
    shell: &Shared,
    asked: &Asked,
    refusal: &Refusal,
    begin: Instant,
) -> Option<Instant> {
    match refusal {
        Refusal::OwnerDraining => Some(begin + OWNER_TIMEOUT),
        // Without prezero these pages would be free by now.
        Refusal::NotEnough { .. } => {
            let until = begin + LOAN_WAIT_TIMEOUT;
            let waits = Instant::now() < until && shell.borrow().may_come(&asked.request);
            waits.then_some(until)
        }
        Refusal::NameBusy => {
            let until = begin + OWNER_TIMEOUT;
            (Instant::now() < until).then_some(until)
        }
        Refusal::Size(_)
        | Refusal::NoSuchPool
        | Refusal::Quota { .. }
        | Refusal::NameTaken
        | Refusal::TooManyNames
        | Refusal::ScopeQuota { .. } => None,
    }
}

/// Gets a loan's files their pages, all pages for a `whole` loan. Then puts a name on the loan, if
/// a name is to hold it.
async fn made_ready(shell: Shared, mut granted: Granted, whole: bool) -> Result<HeldLoan, Error> {
    let filled = fill(&shell, &mut granted, whole).await;
    // From here to the rename there is no wait: a cancelled loan never gets its name.
    let filled = match filled {
        Ok(()) if granted.stop.is_cancelled() => Err(Error::Failed {
            what: "nobody waits for the loan any more: its agent hung up, or its name was returned"
                .to_owned(),
        }),
        filled => filled,
    };
    if let Err(error) = filled {
        shell.borrow_mut().drop_granted(granted);
        return Err(error);
    }
    if whole {
        shell.borrow_mut().record_whole(&granted);
    }
    match granted.handover.lease {
        Lease::Descriptor(_) => Ok(HeldLoan::Descriptors(granted.handover)),
        Lease::Name => {
            let (ready, kept) = (granted.ready(), granted.handover.loan.kept);
            let held = shell.borrow_mut().hold_by_name(granted)?;
            shell.borrow().changes.wake();
            Ok(HeldLoan::Named { held, ready, kept })
        }
    }
}

/// Gets a loan's files their pages. A cancelled loan gets some of them.
async fn fill(shell: &Shared, granted: &mut Granted, whole: bool) -> Result<(), Error> {
    for fill in std::mem::take(&mut granted.fills) {
        let block = fill.block;
        let filled = run(fill, &granted.stop).await;
        shell.borrow_mut().filled(block, filled);
        let parts = granted.handover.loan.parts.iter_mut();
        parts.filter(|part| part.block == block).for_each(|part| part.ready = filled);
    }
    if granted.handover.loan.parts.iter().any(|part| part.ready < part.pages) {
        // The kernel promises unbacked pages when they are mapped, and takes them when they are
        // filled. The pages of released blocks must be free by then.
        tokio::select! {
            () = wait_until_all_freed(shell) => {}
            () = granted.stop.cancelled() => return Ok(()),
        }
    }
    if whole {
        let fills = shell.borrow().fill_whole(granted)?;
        for filled in fills {
            let gone = |_| Error::Failed { what: "the thread that fills is gone".to_owned() };
            let failed = |error: linux::Error| Error::Failed { what: error.to_string() };
            filled.await.map_err(gone)?.map_err(failed)?;
        }
    }
    Ok(())
}

/// Has a file take its pages from the kernel's pool. A cancelled fill ends with the current page.
async fn run(fill: Fill, stop: &CancellationToken) -> Pages {
    let stop = stop.clone();
    tokio::task::spawn_blocking(move || fill.run(&stop)).await.unwrap_or(Pages::ZERO)
}

/// Ends a loan by its name; `discard` drops its content. A loan that is being made ends within a
/// page, without content. `None`: there is no such loan; `Some(false)`: it is still being made.
pub(crate) async fn return_by_name(
    shell: &Shared,
    name: &LoanName,
    discard: bool,
) -> Result<Option<bool>, Error> {
    let until = Instant::now() + OWNER_TIMEOUT;
    let mut changes = shell.borrow().changes.subscribe();
    let mut stopped: Option<LeaseId> = None;
    loop {
        changes.mark_unchanged();
        let found = shell.borrow().book().named(name);
        match (found, stopped) {
            // Another call may have begun a new loan of that name, which this call must not end.
            (Some(found), Some(lease)) if found.lease != lease => return Ok(Some(true)),
            (Some(found), _) if found.is_pending => {
                shell.borrow().cancel_fill(found.lease);
                stopped = Some(found.lease);
            }
            (Some(_), _) => return shell.borrow_mut().return_by_name(name, discard),
            (None, stopped) => return Ok(stopped.map(|_| true)),
        }
        if Instant::now() >= until {
            return Ok(Some(false));
        }
        drop(timeout_at(until, changes.changed()).await);
    }
}

/// Waits until all released pages are free: milliseconds per GiB of 2 MiB pages.
pub(crate) async fn wait_until_all_freed(shell: &Shared) {
    let mut freeing = shell.borrow().queues().ours();
    // The sender is gone only when its thread has ended: then there is no wait.
    drop(freeing.wait_for(|files| *files == 0).await);
}

/// Waits until revoked pages are free, unless their users delay that.
pub(crate) async fn revoked(shell: &Shared) {
    let mut in_transit = shell.borrow().queues().all();
    drop(timeout(REVOKE_TIMEOUT, in_transit.wait_for(|tasks| *tasks == 0)).await);
}

/// The status, after pages in transit have arrived.
pub(crate) async fn status(shell: &Shared, place: &Place) -> Status {
    let mut in_transit = shell.borrow().queues().all();
    if *in_transit.borrow() > 0 {
        drop(timeout(STATUS_TIMEOUT, wait_until_all_freed(shell)).await);
        drop(timeout(USER_QUEUES_TIMEOUT, in_transit.wait_for(|tasks| *tasks == 0)).await);
        // Another call that waited for the same pages must not report before calls of other peers.
        place.turn().await;
    }
    shell.borrow_mut().status()
}

/// Hands work to a worker, and returns the daemon's end of the job to watch. Where there is none it
/// waits for pages to zero, at most for the request's `wait_ms`. `None`: there is none by then, or
/// the worker is to stop.
pub(crate) async fn take_zeroing(
    shell: &Shared,
    place: &Place,
    request: TakeZeroing,
    pid: Option<u32>,
) -> Result<Option<(TakenJob, OwnedFd)>, Error> {
    let TakeZeroing { node, page_size, background, wait_ms } = request;
    let who = if background { Requester::Background } else { Requester::User };
    let wait = Duration::from_millis(wait_ms.unwrap_or(0)).min(TakeZeroing::MAX_WAIT);
    let until = Instant::now() + wait;
    let mut changes = shell.borrow().changes.subscribe();
    let must_stop = || pid.is_some_and(|pid| shell.borrow().workers.is_abandoned(pid));
    loop {
        if must_stop() {
            return Ok(None);
        }
        let taken = shell.borrow_mut().take_zeroing(who, node, page_size)?;
        if taken.is_some() || Instant::now() >= until {
            return Ok(taken);
        }
        let _idle = IdleWorker::new(shell, pid, node);
        loop {
            changes.mark_unchanged();
            let changed = timeout_at(until, changes.changed()).await;
            if !matches!(changed, Ok(Ok(()))) || must_stop() {
                return Ok(None);
            }
            if shell.borrow_mut().has_zeroing(who, node, page_size) {
                break;
            }
        }
        place.turn().await;
    }
}

/// A worker that waits for pages to zero, until it is dropped.
struct IdleWorker {
    shell: Shared,
    pid: Option<u32>,
}

impl IdleWorker {
    fn new(shell: &Shared, pid: Option<u32>, node: Option<Node>) -> Self {
        shell.borrow_mut().workers.set_idle(pid, node, true);
        Self { shell: Rc::clone(shell), pid }
    }
}

impl Drop for IdleWorker {
    fn drop(&mut self) {
        self.shell.borrow_mut().workers.set_idle(self.pid, None, false);
    }
}

/// Books a worker's report. First checks which processes reach the block, and waits at the end for
/// its page tables, so that no client has to. `None` for an unknown job.
pub(crate) async fn finish(shell: &Shared, job: JobId, done: Pages) -> Option<StateName> {
    let tables = shell.borrow().tables_in_progress(job);
    let look = shell.borrow().look_at_report(job);
    // Without an answer there is no proof.
    let seen = match look {
        Some(look) => look.await.ok(),
        None => None,
    };
    let state = shell.borrow_mut().finish_zeroing(job, done, seen)?;
    if let Some(tables) = tables {
        tables.end().await;
    }
    Some(state)
}

#[cfg(test)]
mod tests;
