// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The varlink face: parameters in, one operation of [`Shell`](crate::shell::Shell), reply out.
//!
//! One service value per connection, because a connection is a peer with its rights.

use std::cell::RefCell;
use std::future::ready;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use book::config::PoolConfig;
use book::{Asked, Refusal, Who};
use futures_util::Stream;
use futures_util::stream::{once, unfold};
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use units::{Bytes, JobId, LeaseId, Node, Owner, PageSize, Pages, ParseError, PoolKey};
use wire::{
    Counters, Error, Finished, GivenBack, Job, LendRequest, Lent, LentPart, Level, LoanStatus,
    PoolChange, PoolStatus, Status, WatchReply, ZeroBy,
};
use zlink::Reply;

use crate::rights::Rights;
use crate::server::Place;
use crate::shell::Shell;

/// How long a loan waits for content that this owner's former self still maps. An exiting process
/// with hundreds of gigabytes takes seconds to unmap them.
const OWNER_PATIENCE: Duration = Duration::from_secs(2);
/// How long a loan that cannot be served waits for pages on their way: returned ones whose last
/// mapping is just going, and those in a worker's hands. A borrower that returns and borrows in a
/// circle would otherwise be refused what it had a moment ago.
const TRANSIT_PATIENCE: Duration = Duration::from_millis(500);
/// How long a status report waits for pages on their way to the kernel: 256 GiB of 2 MiB pages.
const STATUS_PATIENCE: Duration = Duration::from_millis(100);
/// The shortest time between two reports of one watch, unless the client asks for more.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// The daemon's state, shared by everything on its one thread.
pub(crate) type Shared = Rc<RefCell<Shell>>;

type WatchStream = Pin<Box<dyn Stream<Item = Result<Reply<WatchReply>, Error>>>>;

/// One connection.
#[derive(Debug)]
pub(crate) struct Service {
    shell: Shared,
    rights: Rights,
    place: Rc<Place>,
}

impl Service {
    pub(crate) fn new(shell: Shared, rights: Rights, place: Rc<Place>) -> Self {
        Self { shell, rights, place }
    }
}

fn bad(field: &str, reason: impl ToString) -> Error {
    Error::BadValue { field: field.to_owned(), reason: reason.to_string() }
}

fn page_size(bytes: Option<u64>) -> Result<Option<PageSize>, Error> {
    let check = |bytes| PageSize::try_from(bytes).map_err(|e: ParseError| bad("page_bytes", e));
    bytes.map(check).transpose()
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[zlink::service(
    interface = "io.prezero",
    types = [PoolStatus, LoanStatus, Counters, Status, Level, LentPart, ZeroBy, PoolChange],
    vendor = "prezero",
    product = "prezero",
    version = env!("CARGO_PKG_VERSION"),
    url = "https://crates.io/crates/prezero",
)]
impl Service {
    /// Everything there is to see. For everybody who may borrow.
    async fn get_status(&mut self) -> Result<Status, Error> {
        self.rights.may_lend()?;
        // A report in which pages are neither a block's nor free would be no report.
        let mut in_transit = self.shell.borrow().in_transit();
        if *in_transit.borrow() > 0 {
            drop(timeout(STATUS_PATIENCE, in_transit.wait_for(|tasks| *tasks == 0)).await);
            // Whoever else waited for the same does not make its report before others' calls.
            self.place.turn().await;
        }
        Ok(self.shell.borrow_mut().status())
    }

    /// Lends memory. Descriptors: the lease, then one per part.
    #[zlink(return_fds)]
    #[expect(clippy::too_many_arguments, reason = "a parameter each in the interface")]
    async fn lend(
        &mut self,
        bytes: u64,
        page_bytes: Option<u64>,
        node: Option<u32>,
        owner: Option<String>,
        keep_seconds: Option<u64>,
        single: Option<bool>,
        held_by_memory: Option<bool>,
    ) -> (Result<Lent, Error>, Vec<OwnedFd>) {
        let request = |owner: Option<Owner>, page_size| LendRequest {
            bytes: Bytes(bytes),
            page_size,
            node: node.map(Node),
            owner,
            keep: keep_seconds.map(Duration::from_secs),
            single: single.unwrap_or(false),
            held_by_memory: held_by_memory.unwrap_or(false),
        };
        let owner = owner.map(|name| name.parse().map_err(|e| bad("owner", e))).transpose();
        let request = owner.and_then(|owner| Ok(request(owner, page_size(page_bytes)?)));
        match lend(&self.shell, &self.rights, &self.place, request).await {
            Ok((reply, fds)) => (Ok(reply), fds),
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// Hands work to a worker. Descriptors: the block's file, unless `by` is `kernel`, and the job.
    #[zlink(return_fds)]
    async fn take_zeroing(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        background: Option<bool>,
    ) -> (Result<Job, Error>, Vec<OwnedFd>) {
        let who = if background == Some(true) { Who::Background } else { Who::User };
        match take_zeroing(&self.shell, &self.rights, node, page_bytes, who) {
            Ok((reply, fds)) => (Ok(reply), fds),
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// Takes a worker's report. The worker must have let go of the block's file before.
    async fn finish_zeroing(&mut self, job: u64, pages_done: u64) -> Result<Finished, Error> {
        may_work(&self.shell, &self.rights)?;
        let tables = self.shell.borrow().making_tables(JobId(job));
        let look = self.shell.borrow().look_at_report(JobId(job));
        // No answer is no proof.
        let seen = match look {
            Some(look) => look.await.ok(),
            None => None,
        };
        let state = self.shell.borrow_mut().finish_zeroing(JobId(job), Pages(pages_done), seen);
        let state = state.ok_or(Error::NoSuchJob { job })?;
        if let Some(tables) = tables {
            // The worker waits, so that no client has to: what it finds ready maps at once.
            tables.end().await;
        }
        Ok(Finished { state })
    }

    /// Gives ready and zeroable blocks back to the kernel: so many pages, or all.
    async fn give_back(
        &mut self,
        node: Option<u32>,
        page_bytes: Option<u64>,
        pages: Option<u64>,
    ) -> Result<GivenBack, Error> {
        self.rights.may_zero("give back")?;
        let page_size = page_size(page_bytes)?;
        let given = self.shell.borrow_mut().give_back(node.map(Node), page_size, pages.map(Pages));
        all_freed(&self.shell).await;
        Ok(GivenBack { bytes: given.0 })
    }

    /// Changes a pool's thresholds, or adds a pool.
    async fn configure(&mut self, change: PoolChange) -> Result<(), Error> {
        self.rights.may_zero("configure")?;
        if change.recycle.is_some() {
            self.rights.may_change_recycling()?;
        }
        configure(&self.shell, &change)
    }

    /// Reports levels: with `below`, whenever ready pages fall below it; else on every change. For
    /// everybody who may borrow.
    #[zlink(more)]
    async fn watch(
        &mut self,
        more: bool,
        node: Option<u32>,
        page_bytes: Option<u64>,
        below: Option<u64>,
        interval_ms: Option<u64>,
    ) -> impl Stream<Item = Result<Reply<WatchReply>, Error>> + Unpin {
        let interval =
            interval_ms.map_or(WATCH_INTERVAL, Duration::from_millis).max(WATCH_INTERVAL);
        if let Err(refused) = self.rights.may_lend() {
            return Box::pin(once(ready(Err(refused)))) as WatchStream;
        }
        watch(&self.shell, &self.place, Filter { node, page_bytes, below }, interval, more)
    }
}

async fn lend(
    shell: &Shared,
    rights: &Rights,
    place: &Place,
    request: Result<LendRequest, Error>,
) -> Result<(Lent, Vec<OwnedFd>), Error> {
    let begin = Instant::now();
    rights.may_lend().inspect_err(|_| shell.borrow().metrics.refused(None, begin.elapsed()))?;
    let request = request?;
    let seconds = request.keep.map(|keep| keep.as_secs());
    if request.owner.is_none() && seconds.is_some() {
        return Err(bad("keep_seconds", "needs an owner to keep content for"));
    }
    let longest = shell.borrow().config().keep_seconds_max;
    if seconds.is_some_and(|seconds| seconds > longest) {
        let reason = format!("is more than {longest}, the daemon's keep_seconds_max");
        return Err(bad("keep_seconds", reason));
    }
    let held_by_memory = request.held_by_memory;
    if held_by_memory && !shell.borrow().can_prove() {
        return Err(bad("held_by_memory", "this kernel does not tell who maps a block"));
    }
    let mut asked = Asked {
        request,
        uid: rights.uid(),
        account: rights.account(),
        quota: shell.borrow().config().quota_for(rights.account()),
        await_owner: true,
    };
    let patience = begin + OWNER_PATIENCE;
    let transit = begin + TRANSIT_PATIENCE;
    let mut changes = shell.borrow().changes();
    let mut waits = None;
    let granted = loop {
        changes.mark_unchanged();
        let granted = shell.borrow_mut().lend(&asked, rights.ids())?;
        let until = match granted {
            Err(Refusal::OwnerLingers) => patience,
            // Without us those pages would be free by now.
            Err(Refusal::NotEnough { .. })
                if Instant::now() < transit && shell.borrow().has_pages_in_transit() =>
            {
                transit
            }
            other => break other,
        };
        waits.get_or_insert_with(|| shell.borrow().waiting().begin());
        // Late is as good as in vain: the next attempt is the last then.
        drop(timeout_at(until, changes.changed()).await);
        place.turn().await;
        asked.await_owner = Instant::now() < patience;
    };
    drop(waits);
    let mut handover = granted.map_err(|refusal| {
        shell.borrow().metrics.refused(Some(&refusal), begin.elapsed());
        explain(shell, &asked, &refusal)
    })?;
    // Before anything that waits: the call may be dropped there, with its peer.
    if held_by_memory {
        shell.borrow_mut().hold_by_memory(handover.loan.lease);
    }
    tokio::task::spawn_local(watch_lease(Rc::clone(shell), handover.loan.lease, handover.watch));
    for fill in std::mem::take(&mut handover.fills) {
        let block = fill.block;
        let filled = tokio::task::spawn_blocking(|| fill.run()).await.unwrap_or_default();
        shell.borrow_mut().filled(block, filled);
        for part in handover.loan.parts.iter_mut().filter(|part| part.block == block) {
            part.ready = filled;
        }
    }
    if handover.loan.parts.iter().any(|part| part.ready < part.pages) {
        // The kernel promises a hole its pages when it is mapped: those that were taken from
        // unlent blocks must be free by then.
        all_freed(shell).await;
    }
    shell.borrow().metrics.granted(&handover.loan, begin.elapsed());
    let page_size = handover.loan.page_size;
    let part = |(at, part): (usize, &book::LoanPart)| LentPart {
        fd: index(at + 1),
        node: part.node.0,
        bytes: part.pages.bytes(page_size).0,
        ready_bytes: part.ready.bytes(page_size).0,
    };
    let reply = Lent {
        lease_fd: 0,
        lease: handover.loan.lease.0,
        page_bytes: page_size.bytes(),
        kept: handover.loan.kept,
        parts: handover.loan.parts.iter().enumerate().map(part).collect(),
    };
    let fds = std::iter::once(handover.lease).chain(handover.blocks).collect();
    Ok((reply, fds))
}

/// Waits until every page that was given back is free: milliseconds per GiB of 2 MiB pages.
async fn all_freed(shell: &Shared) {
    let mut freeing = shell.borrow().freeing();
    // An error is the thread's end, after which nothing is waited for.
    drop(freeing.wait_for(|files| *files == 0).await);
}

fn explain(shell: &Shared, asked: &Asked, refusal: &Refusal) -> Error {
    let shell = shell.borrow();
    let request = &asked.request;
    match refusal {
        Refusal::Size(error) => bad("bytes", error),
        Refusal::NoSuchPool => {
            let size = request.page_size.map_or("any".to_owned(), |s| s.to_string());
            let node = request.node.map_or("any node".to_owned(), |n| format!("node {n}"));
            let pools: Vec<_> = shell.pools().iter().map(ToString::to_string).collect();
            let configured = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
            Error::NoSuchPool { wanted: format!("{size} pages on {node}"), configured }
        }
        Refusal::Quota { held, quota } => Error::QuotaExceeded {
            uid: asked.account.0,
            held_bytes: held.0,
            quota_bytes: quota.0,
            asked_bytes: request.bytes.0,
        },
        Refusal::NotEnough { page_size, ready, free } => Error::NotEnough {
            asked_bytes: request.bytes.0,
            page_bytes: page_size.bytes(),
            ready_bytes: ready.0,
            free_bytes: free.0,
        },
        Refusal::OwnerLingers => Error::Failed { what: "the owner's content lingers".to_owned() },
    }
}

/// Waits until a lease's last holder is gone, and ends it.
pub(crate) async fn watch_lease(shell: Shared, lease: LeaseId, end: linux::DaemonEnd) {
    let ended = async {
        let end = pipe::Sender::from_owned_fd(end.into())?;
        // The pipe has no reader any more: that, and nothing else, is an error of its write end.
        while !end.ready(Interest::ERROR).await?.is_error() {}
        Ok::<(), std::io::Error>(())
    };
    match ended.await {
        Ok(()) => shell.borrow_mut().close_lease(lease),
        Err(error) => tracing::error!(%error, %lease, "a lease cannot be watched"),
    }
}

/// Over a kernel that keeps the zeroed pages itself no worker gets hold of any.
fn may_work(shell: &Shared, rights: &Rights) -> Result<(), Error> {
    if shell.borrow().hands_out_blocks() { rights.may_fill() } else { rights.may_zero("zero") }
}

fn take_zeroing(
    shell: &Shared,
    rights: &Rights,
    node: Option<u32>,
    page_bytes: Option<u64>,
    who: Who,
) -> Result<(Job, Vec<OwnedFd>), Error> {
    may_work(shell, rights)?;
    let page_size = page_size(page_bytes)?;
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|e| Error::Failed { what: format!("pipe2(O_CLOEXEC|O_NONBLOCK) = {e}") })?;
    let taken = shell.borrow_mut().take_zeroing(who, node.map(Node), page_size)?;
    let (order, block) = taken.ok_or(Error::NothingToZero)?;
    tokio::task::spawn_local(watch_job(Rc::clone(shell), order.job, ours));
    let reply = Job {
        block_fd: block.as_ref().map(|_| 0),
        job_fd: u32::from(block.is_some()),
        job: order.job.0,
        node: order.pool.node.0,
        page_bytes: order.pool.page_size.bytes(),
        pages: order.pages.0,
        first_page: order.first.0,
        by: order.by(),
    };
    Ok((reply, block.into_iter().chain([theirs]).collect()))
}

/// Waits until a worker's end of its job closes, and gives the job up unless it was reported.
async fn watch_job(shell: Shared, job: JobId, ours: OwnedFd) {
    let ended = async {
        let ours = pipe::Receiver::from_owned_fd(ours)?;
        // Nobody writes into a job: readable means that it ended. What a worker writes all the
        // same is thrown away.
        let mut nothing = [0_u8; 64];
        loop {
            ours.readable().await?;
            match ours.try_read(&mut nothing) {
                Ok(0) => return Ok::<(), std::io::Error>(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    if let Err(error) = ended.await {
        tracing::error!(%error, %job, "a job cannot be watched");
    }
    shell.borrow_mut().lose_job(job);
}

fn configure(shell: &Shared, change: &PoolChange) -> Result<(), Error> {
    let key = PoolKey {
        node: Node(change.node),
        page_size: PageSize::try_from(change.page_bytes).map_err(|e| bad("page_bytes", e))?,
        pages_per_block: Pages(change.pages_per_block),
    };
    let key = shell.borrow().canonical(key);
    let old = shell.borrow().pool(key).cloned();
    let mut pool = old.unwrap_or_else(|| PoolConfig::new(key));
    if let Some(low) = change.ready_low {
        pool.ready_low = Some(Pages(low));
    }
    if let Some(high) = change.ready_high {
        pool.ready_high = Pages(high);
    }
    if let Some(max) = change.max_pages {
        pool.max = Some(Pages(max));
    }
    if let Some(leave) = change.leave_free {
        pool.leave_free = Pages(leave);
    }
    if let Some(recycle) = &change.recycle {
        pool.recycle = recycle.parse().map_err(|e| bad("recycle", e))?;
    }
    shell.borrow_mut().configure(pool)
}

/// What a watch is about.
#[derive(Debug, Clone, Copy)]
struct Filter {
    node: Option<u32>,
    page_bytes: Option<u64>,
    below: Option<u64>,
}

impl Filter {
    /// Of `now`, what is worth a report after `before`.
    fn news(&self, before: &[Level], now: Vec<Level>) -> Vec<Level> {
        let fits = |level: &Level| {
            self.node.is_none_or(|n| n == level.node)
                && self.page_bytes.is_none_or(|b| b == level.page_bytes)
        };
        let low = |level: &Level| self.below.is_some_and(|below| level.ready_pages < below);
        let news = |level: &Level| {
            let old = before
                .iter()
                .find(|old| (old.node, old.page_bytes) == (level.node, level.page_bytes));
            match (self.below, old) {
                (Some(_), Some(old)) => low(level) && !low(old),
                (Some(_), None) => low(level),
                (None, Some(old)) => old != level,
                (None, None) => true,
            }
        };
        now.into_iter().filter(|level| fits(level) && news(level)).collect()
    }
}

fn watch(
    shell: &Shared,
    place: &Rc<Place>,
    filter: Filter,
    interval: Duration,
    more: bool,
) -> WatchStream {
    struct State {
        shell: Shared,
        place: Rc<Place>,
        changes: tokio::sync::watch::Receiver<u64>,
        before: Vec<Level>,
        next: Instant,
        done: bool,
    }
    let state = State {
        changes: shell.borrow().changes(),
        shell: Rc::clone(shell),
        place: Rc::clone(place),
        before: Vec::new(),
        next: Instant::now(),
        done: false,
    };
    let report = |levels| Reply::new(Some(WatchReply { levels }));
    Box::pin(unfold(state, move |mut state| async move {
        if state.done {
            return None;
        }
        if !more {
            // One reply: everything that fits, as it is.
            state.done = true;
            let all = Filter { below: None, ..filter };
            let levels = all.news(&[], state.shell.borrow().levels());
            return Some((Ok(report(levels).set_continues(Some(false))), state));
        }
        loop {
            // The rate limit comes before the look, so that the last state of a burst is seen.
            sleep_until(state.next).await;
            state.place.turn().await;
            state.changes.mark_unchanged();
            let now = state.shell.borrow().levels();
            let news = filter.news(&state.before, now.clone());
            state.before = now;
            state.next = Instant::now() + interval;
            if !news.is_empty() {
                return Some((Ok(report(news).set_continues(Some(true))), state));
            }
            if state.changes.changed().await.is_err() {
                return None;
            }
        }
    }))
}
