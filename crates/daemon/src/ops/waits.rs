// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What calls wait for, and how long: the content of the borrower's own former self, pages on
//! their way from one hand to another, pages that the kernel is to free or to give.
//!
//! [`Shell`](crate::ops::Shell) never waits. Here is everything that does, on behalf of one peer
//! ([`Place`]): who waited for something that many wait for takes its turn again before it goes on.

use std::rc::Rc;
use std::time::Duration;

use book::block::StateName;
use book::{Asked, HeldByName, Refusal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use units::{JobId, LeaseId, LoanName, Pages};
use wire::{Error, Status};

use crate::ops::watchers;
use crate::ops::{Answer, Granted, Handover, Lease, Shared};
use crate::peers::users::Place;
use crate::storage::kernel::Fill;

/// How long a loan waits for content that this owner's former self still maps. An exiting process
/// with hundreds of gigabytes takes seconds to unmap them.
const FOR_OWNER: Duration = Duration::from_secs(2);
/// How long a loan that cannot be served waits for pages on their way: returned ones whose last
/// mapping is just going, and those in a worker's hands, where there are enough of them. A borrower
/// that returns and borrows in a circle would otherwise be refused what it had a moment ago.
const FOR_TRANSIT: Duration = Duration::from_millis(500);
/// How long a status report waits for pages on their way to the kernel: 256 GiB of 2 MiB pages.
const FOR_STATUS: Duration = Duration::from_millis(100);
/// The same for what users may hold up: one that does, all the time, held up each report.
const FOR_USERS: Duration = Duration::from_millis(5);
/// How long taking memory away waits for it to be free.
const FOR_REVOKED: Duration = Duration::from_secs(1);

/// What came of asking for a loan.
#[derive(Debug)]
pub(crate) enum Lent {
    /// A new loan, for its borrower's hands.
    Descriptors(Handover),
    /// A new loan, which its name holds.
    Named {
        /// The loan.
        held: HeldByName,
        /// So many pages were ready.
        ready: Pages,
        /// Whether it has what its owner left.
        kept: bool,
    },
    /// The loan by that name, which was there.
    Found(HeldByName),
}

/// A loan, with its pages. The call may be dropped with its peer wherever it waits. The daemon
/// watches the end of a loan by descriptor from its grant on; a loan by name ends within a page: it
/// is there when its agent was told, or for an instant that the agent's next `Return` undoes.
///
/// # Errors
/// What the kernel refused; within, what the book did.
pub(crate) async fn lend(
    shell: &Shared,
    place: &Place,
    asked: &mut Asked,
    borrower: (u32, u32),
) -> Result<Result<Lent, Refusal>, Error> {
    let begin = Instant::now();
    let mut granted = match until_granted(shell, place, asked, borrower, begin).await? {
        Ok(Answer::Granted(granted)) => granted,
        Ok(Answer::Found(held)) => return Ok(Ok(Lent::Found(held))),
        Err(Refusal::NameBusy) => return Ok(Err(Refusal::NameBusy)),
        Err(refusal) => {
            shell.borrow().metrics.refused(Some(&refusal), begin.elapsed());
            return Ok(Err(refusal));
        }
    };
    if let Some(watch) = granted.watch.take() {
        watchers::lease(shell, granted.handover.loan.lease, watch);
    }
    let _dropped = granted.stop.clone().drop_guard();
    let is_named = matches!(granted.handover.lease, Lease::Name);
    let made = made_ready(Rc::clone(shell), granted, asked.request.whole);
    // The lease of a loan by name is in no hands whose end would end it: its making outlives its
    // caller, to end it.
    let lent = if is_named {
        let gone = |_| Error::Failed { what: "the daemon ends".to_owned() };
        tokio::task::spawn_local(made).await.map_err(gone)?
    } else {
        made.await
    }?;
    let metrics = &shell.borrow().metrics;
    match &lent {
        Lent::Descriptors(handover) => metrics.granted(&handover.loan, begin.elapsed()),
        Lent::Named { held, ready, kept } => {
            metrics.granted_of(*kept, *ready, held.pages, begin.elapsed());
        }
        Lent::Found(_) => {}
    }
    Ok(Ok(lent))
}

/// Asks until it is granted, or there is nothing left to wait for.
async fn until_granted(
    shell: &Shared,
    place: &Place,
    asked: &mut Asked,
    borrower: (u32, u32),
    begin: Instant,
) -> Result<Result<Answer, Refusal>, Error> {
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

/// Waits for a change, and for its turn. Late is as good as in vain: the next attempt is the last
/// then, and one that waited for what its owner left goes on without that.
async fn wait_until(
    until: Instant,
    changes: &mut watch::Receiver<u64>,
    place: &Place,
    asked: &mut Asked,
    begin: Instant,
) {
    drop(timeout_at(until, changes.changed()).await);
    place.turn().await;
    asked.await_owner = Instant::now() < begin + FOR_OWNER;
}

/// Until when a loan that was refused may be granted yet.
fn worth_waiting(
    shell: &Shared,
    asked: &Asked,
    refusal: &Refusal,
    begin: Instant,
) -> Option<Instant> {
    match refusal {
        Refusal::OwnerLingers => Some(begin + FOR_OWNER),
        // Without us those pages would be free by now.
        Refusal::NotEnough { .. } => {
            let until = begin + FOR_TRANSIT;
            let waits = Instant::now() < until && shell.borrow().may_come(&asked.request);
            waits.then_some(until)
        }
        Refusal::NameBusy => {
            let until = begin + FOR_OWNER;
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

/// Gets a loan's files their pages, all of them if it is to be `whole`, and puts its name on it, if
/// it is to have one.
async fn made_ready(shell: Shared, mut granted: Granted, whole: bool) -> Result<Lent, Error> {
    let filled = fill(&shell, &mut granted, whole).await;
    // From here to the rename nothing waits: what was cancelled by now never has its name.
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
        shell.borrow_mut().note_whole(&granted);
    }
    match granted.handover.lease {
        Lease::Descriptor(_) => Ok(Lent::Descriptors(granted.handover)),
        Lease::Name => {
            let (ready, kept) = (granted.ready(), granted.handover.loan.kept);
            let held = shell.borrow_mut().hold_by_name(granted)?;
            shell.borrow().changes.wake();
            Ok(Lent::Named { held, ready, kept })
        }
    }
}

/// Gets a loan's files their pages, or some of them where its making is cancelled.
async fn fill(shell: &Shared, granted: &mut Granted, whole: bool) -> Result<(), Error> {
    for fill in std::mem::take(&mut granted.fills) {
        let block = fill.block;
        let filled = run(fill, &granted.stop).await;
        shell.borrow_mut().filled(block, filled);
        let parts = granted.handover.loan.parts.iter_mut();
        parts.filter(|part| part.block == block).for_each(|part| part.ready = filled);
    }
    if granted.handover.loan.parts.iter().any(|part| part.ready < part.pages) {
        // The kernel promises a hole its pages when it is mapped, and they are taken when it is
        // filled: those of unlent blocks must be free by then.
        tokio::select! {
            () = all_freed(shell) => {}
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

/// Has a file take its pages from the kernel's pool. Cancelled, it takes no more than the page at
/// hand.
async fn run(fill: Fill, stop: &CancellationToken) -> Pages {
    let stop = stop.clone();
    tokio::task::spawn_blocking(move || fill.run(&stop)).await.unwrap_or(Pages::ZERO)
}

/// Ends a loan by its name; `discard` keeps nothing of it. One that is being made ends within a
/// page, and nothing of it is kept. `None`: there is none; `Some(false)`: it is still being made.
pub(crate) async fn return_by_name(
    shell: &Shared,
    name: &LoanName,
    discard: bool,
) -> Result<Option<bool>, Error> {
    let until = Instant::now() + FOR_OWNER;
    let mut changes = shell.borrow().changes.subscribe();
    let mut stopped: Option<LeaseId> = None;
    loop {
        changes.mark_unchanged();
        let found = shell.borrow().book().named(name);
        match (found, stopped) {
            // Another call may have begun it anew since, which is not what was returned.
            (Some(found), Some(lease)) if found.lease != lease => return Ok(Some(true)),
            (Some(found), _) if found.is_pending => {
                shell.borrow().stop_making(found.lease);
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

/// Waits until every page that was given back is free: milliseconds per GiB of 2 MiB pages.
pub(crate) async fn all_freed(shell: &Shared) {
    let mut freeing = shell.borrow().queues().ours();
    // An error is the thread's end, after which nothing is waited for.
    drop(freeing.wait_for(|files| *files == 0).await);
}

/// Waits until pages that were taken away are free, unless their users hold that up.
pub(crate) async fn revoked(shell: &Shared) {
    let mut in_transit = shell.borrow().queues().all();
    drop(timeout(FOR_REVOKED, in_transit.wait_for(|tasks| *tasks == 0)).await);
}

/// Everything there is to see, once no page is neither a block's nor free.
pub(crate) async fn status(shell: &Shared, place: &Place) -> Status {
    let mut in_transit = shell.borrow().queues().all();
    if *in_transit.borrow() > 0 {
        drop(timeout(FOR_STATUS, all_freed(shell)).await);
        drop(timeout(FOR_USERS, in_transit.wait_for(|tasks| *tasks == 0)).await);
        // Whoever else waited for the same does not make its report before others' calls.
        place.turn().await;
    }
    shell.borrow_mut().status()
}

/// Books what a worker reports. Looks first who can reach the block, and waits in the end for its
/// page tables: the worker waits, so that no client has to. `None` for a job that is unknown.
pub(crate) async fn finish(shell: &Shared, job: JobId, done: Pages) -> Option<StateName> {
    let tables = shell.borrow().making_tables(job);
    let look = shell.borrow().look_at_report(job);
    // No answer is no proof.
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
