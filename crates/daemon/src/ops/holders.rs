// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The holders of memory: the processes that asked for loans, and the processes that have blocks of
//! them.
//!
//! All of it is looked up in `/proc` on request, on threads beside the daemon's: `/proc` takes
//! locks that others hold. A process that began after a loan reuses the number of an ended one, and
//! did not ask for the loan.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::Roots;
use linux::holders::{Search, search};
use linux::process::{self, Process};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::sleep;
use units::{Bytes, Domain, LeaseId, Pages, Uid};
use wire::{BlockHolder, Error, Held, Holders, Lent, Status};

use crate::ops::Shared;
use crate::peers::borrowers::LentFile;
use crate::peers::rights::Rights;

/// The size from which a loan is worth a line of the log.
const MIN_LOGGED_LOAN: Bytes = Bytes(1 << 30);
/// A loan that is over by then is not; and a program that borrows for another, as `prezero lend`
/// does, is that other one.
const LOG_DELAY_PERIOD: Duration = Duration::from_secs(1);
/// For how long holders are looked for: half of what a client waits for its answer.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks up the processes that have asked for loans, unless that is being done or was a moment ago:
/// any number of requests make one look at a time and use a fifth of one CPU. Goes on if the caller
/// is gone.
async fn look(shell: &Shared) {
    let Some(pids) = shell.borrow_mut().peers.borrowers.begin_lookup() else { return };
    let shell = Rc::clone(shell);
    let looked = spawn_local(async move {
        let (begin, roots) = (Instant::now(), shell.borrow().roots().clone());
        let each = move || -> BTreeMap<u32, Process> {
            pids.into_iter()
                .filter_map(|pid| Some((pid, process::describe(&roots, pid)?)))
                .collect()
        };
        let known = spawn_blocking(each).await.unwrap_or_default();
        shell.borrow_mut().peers.borrowers.end_lookup(known, begin.elapsed());
    });
    drop(looked.await);
}

/// Fills in the processes of a report's loans, within `rights`.
pub(crate) async fn describe(shell: &Shared, rights: &Rights, mut status: Status) -> Status {
    if !rights.may_see_others() {
        let own = rights.account();
        status.users.retain(|user| user.uid == own);
        for loan in status.loans.iter_mut().filter(|loan| loan.account != own) {
            loan.pid = None;
        }
    }
    if status.loans.iter().any(|loan| loan.pid.is_some()) {
        look(shell).await;
        let shell = shell.borrow();
        for loan in status.loans.iter_mut().filter(|loan| loan.pid.is_some()) {
            let Some(process) = shell.peers.borrowers.process(loan.lease) else {
                continue;
            };
            loan.command = Some(process.command.clone());
            loan.cgroup.clone_from(&process.cgroup);
        }
    }
    status
}

/// Notes who asked for a loan, and writes a line about a large one, unless it is over in a moment.
pub(crate) fn record(shell: &Shared, rights: &Rights, lent: &Lent) {
    shell.borrow_mut().record_borrower(lent.lease, rights.peer().pid);
    let bytes: Bytes = lent.parts.iter().map(|part| part.bytes).sum();
    if bytes < MIN_LOGGED_LOAN {
        return;
    }
    let ready: Bytes = lent.parts.iter().map(|part| part.ready_bytes).sum();
    let (shell, lease, uid) = (Rc::clone(shell), lent.lease, rights.uid());
    let page = Bytes(lent.page_size.bytes());
    spawn_local(async move {
        sleep(LOG_DELAY_PERIOD).await;
        let others = {
            let mut shell = shell.borrow_mut();
            if shell.peers.borrowers.pid(lease).is_none() {
                return;
            }
            let Some(others) = shell.peers.borrowers.log_budget() else { return };
            others
        };
        look(&shell).await;
        let shell = shell.borrow();
        let pid = shell.peers.borrowers.pid(lease).unwrap_or_default();
        let process = shell.peers.borrowers.process(lease);
        let command = process.as_ref().map_or("", |process| &process.command);
        let cgroup = process.as_ref().and_then(|process| process.cgroup.as_deref()).unwrap_or("");
        let lease = lease.0;
        tracing::info!(lease, %bytes, %page, %ready, %uid, pid, command, cgroup, others, "a large loan");
    });
}

static IS_SEARCHING: AtomicBool = AtomicBool::new(false);

/// That a search goes on, until it is dropped.
struct Searching;

impl Searching {
    fn begin() -> Option<Self> {
        (!IS_SEARCHING.swap(true, Ordering::AcqRel)).then_some(Self)
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        IS_SEARCHING.store(false, Ordering::Release);
    }
}

/// The holders of the blocks of one loan, or of all. Waits at most [`SEARCH_TIMEOUT`] and a
/// process.
///
/// # Errors
/// [`Error::NoSuchLease`], and [`Error::Failed`] while another search goes on.
pub(crate) async fn find(shell: &Shared, lease: Option<LeaseId>) -> Result<Holders, Error> {
    let files = shell.borrow().lent_files(lease);
    if let Some(lease) = lease.filter(|_| files.is_empty()) {
        return Err(Error::NoSuchLease { lease });
    }
    let failed = |what: &str| Error::Failed { what: what.to_owned() };
    let searching = Searching::begin()
        .ok_or_else(|| failed("another search for holders goes on: ask again in a moment"))?;
    let roots = shell.borrow().roots().clone();
    let look = move || {
        let _searching = searching;
        let identities: Vec<_> = files.iter().map(|file| file.identity.clone()).collect();
        let found = search(&roots, &identities, Instant::now() + SEARCH_TIMEOUT);
        report(&roots, &files, &found)
    };
    spawn_blocking(look).await.map_err(|_| failed("the search for holders ended early"))
}

/// The findings, a line for each process, loan, node and way of holding.
fn report(roots: &Roots, files: &[LentFile], found: &Search) -> Holders {
    let mut processes: BTreeMap<u32, Option<Process>> = BTreeMap::new();
    let mut lines: BTreeMap<(Option<LeaseId>, bool, Domain, u32, Held), Pages> = BTreeMap::new();
    let mut add = |file: &LentFile, pid: u32, how: Held| {
        let line = lines.entry((file.lease, file.draining, file.domain, pid, how)).or_default();
        *line += file.pages;
    };
    let mut know =
        |pid: u32| processes.entry(pid).or_insert_with(|| process::describe(roots, pid)).clone();
    for holding in &found.holdings {
        let how = if holding.maps { Held::Maps } else { Held::Opens };
        add(&files[holding.file], holding.pid, how);
    }
    for file in files.iter().filter(|file| file.is_pinned) {
        let borrower = file.uid.map(|uid| uid.0);
        for pid in &found.pinners {
            // Root's may have pinned any user's.
            if know(*pid).is_some_and(|p| Some(p.uid) == borrower || p.uid == 0) {
                add(file, *pid, Held::Pins);
            }
        }
    }
    let holders = lines.into_iter().filter_map(|((lease, draining, domain, pid, how), pages)| {
        // One that has ended since holds no memory.
        let process = know(pid)?;
        Some(BlockHolder {
            lease,
            draining,
            node: domain.node,
            page_size: domain.page_size,
            pages,
            pid,
            uid: Uid(process.uid),
            command: process.command,
            cgroup: process.cgroup,
            how,
        })
    });
    Holders { holders: holders.collect(), complete: found.complete }
}
