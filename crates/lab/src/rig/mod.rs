// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rig: pages reserved, a daemon embedded, and all of it put back.
//!
//! A [`Rig`] is the machine's settings, a [`Scene`] is one page size on it. Both undo themselves
//! when they are dropped, the scene first: its daemon must let go of the pages before their pool
//! shrinks.
//!
//! `demo` and `bench` stand on it: [`qemu`], [`starts`] and [`postgres`] are what they start there.

pub(crate) mod child;
mod leftover;
mod plan;
mod pool;
pub(crate) mod postgres;
pub(crate) mod qemu;
mod reserve;
mod series;
pub(crate) mod starts;

pub(crate) use plan::Plan;
pub(crate) use pool::Pool;
pub(crate) use series::Series;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine;
use crate::prefault::Anonymous;
use book::config::{self, Config, PoolConfig};
use client::{Client, LendRequest, Loan};
use daemon::{Embedded, Options};
use linux::{Roots, hugetlb};
use reserve::Reservation;
use tempfile::TempDir;
use units::PoolKey;
use units::{Bytes, Node, PageSize, Pages};
use wire::PoolChange;

use cli::exit::{Exit, Failure};
use cli::output;
use cli::output::progress;
use worker::{Engine, Stop, Which};
use worker::{WorkDone, Worker};

/// Where the mounts and the note are: one place, so that a run finds what a killed one has left.
const RUN_DIR: &str = "/run/prezero-demo";
/// The sizes of the pools before, while they are changed.
const RESERVATION_RECORD: &str = "/run/prezero-demo.reserved";
/// How long the daemon may take to see that a loan is over.
const RETURN_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes touched between two looks at the wish to stop: 1 GiB takes up to 2 s where the machine has
/// yet to get the memory from its host.
const TOUCH_BYTES: u64 = 256 << 20;

/// How often room is made for pages that could not be reserved at once: the kernel's search for a
/// whole GiB fails on a single page that is in use at the moment, and succeeds a moment later.
const MAX_TRIES: u32 = 4;
/// Memory that making room leaves alone, so that no process is killed for it.
const SPARE_BYTES: u64 = 1 << 30;

/// What the memory is made of.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Huge pages of this node.
    Huge { node: Node },
    /// Plain memory, because there is nothing better.
    Plain { why: String },
}

impl Backing {
    /// Huge pages if this process may reserve them and the kernel has them.
    pub(crate) fn choose(roots: &Roots) -> Self {
        let plain = |why: &str| Self::Plain { why: why.into() };
        if !cli::machine::is_root() {
            return plain("not root");
        }
        match machine::huge_page_sizes(roots) {
            Ok(sizes) if !sizes.is_empty() => {
                Self::Huge { node: machine::roomiest_node(roots).unwrap_or(Node(0)) }
            }
            _ => plain("this kernel has none"),
        }
    }
}

/// The machine with its settings changed. Dropped, they are as before.
#[derive(Debug)]
pub(crate) struct Rig {
    roots: Roots,
    node: Node,
    run_dir: PathBuf,
    /// `None` for plain memory.
    reservation: Option<Reservation>,
    /// For plain memory.
    _scratch: Option<TempDir>,
}

impl Rig {
    pub(crate) fn open(roots: Roots, backing: Backing) -> Result<Self, Failure> {
        match backing {
            Backing::Huge { node } => {
                // The holder of the note owns the directory, too.
                let (reservation, left) =
                    Reservation::begin(roots.clone(), Path::new(RESERVATION_RECORD))?;
                leftover::remove(&roots, Path::new(RUN_DIR))?;
                for before in left {
                    let (page, node, total) = (before.page, before.node, before.total);
                    output::note(&format!(
                        "put back what a killed run had left: {total} pages of {page} on node {node}"
                    ));
                }
                let reservation = Some(reservation);
                Ok(Self { roots, node, run_dir: RUN_DIR.into(), reservation, _scratch: None })
            }
            Backing::Plain { why } => {
                output::note(&format!("no huge pages ({why}): showing it with plain memory"));
                // A tmpfs, where the machine has one that any user may use.
                let shm = Path::new("/dev/shm");
                let scratch =
                    if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }?;
                let run_dir = scratch.path().join("run");
                let scratch = Some(scratch);
                Ok(Self { roots, node: Node(0), run_dir, reservation: None, _scratch: scratch })
            }
        }
    }

    /// `stock` or `plain`.
    pub(crate) fn provider(&self) -> &'static str {
        if self.reservation.is_some() { "stock" } else { "plain" }
    }

    /// The sizes to show, smallest first.
    pub(crate) fn page_sizes(&self) -> Result<Vec<PageSize>, Failure> {
        match self.reservation {
            Some(_) => Ok(machine::huge_page_sizes(&self.roots)?),
            None => Ok(vec![PageSize::KIB_4]),
        }
    }

    /// Reserves the pool's pages, or as many of them as there are, and embeds a daemon that may own
    /// them. `None`, with a note, if it finds no page at all.
    pub(crate) fn set(&mut self, plan: &Plan, pool: Pool) -> Result<Option<Scene<'_>>, Failure> {
        let Pool { page, size, pages_per_block, lend_group } = pool;
        let wanted = Pages(size.0 / page.bytes());
        let mut pages = wanted;
        if let Some(reservation) = &mut self.reservation {
            let free = if wanted > Pages::ZERO {
                reserve(plan, &self.roots, reservation, (page, self.node, wanted))
            } else {
                Ok(Pages::ZERO)
            };
            plan.go_on()?;
            pages = match free {
                Ok(free) => Pages(wanted.0.min(free.0)),
                Err(error) => {
                    output::note(&format!("no {page} pages: {error}"));
                    Pages::ZERO
                }
            };
            if pages < wanted || pages == Pages::ZERO {
                output::note(&format!("{pages} of {wanted} pages of {page} could be reserved"));
            }
            if pages == Pages::ZERO {
                reservation.put_back()?;
                return Ok(None);
            }
            touch(plan, pages.bytes(page), page)?;
        }
        let key = PoolKey {
            node: self.node,
            page_size: page,
            pages_per_block: pages_per_block.unwrap_or(pages),
        };
        let pool = PoolConfig { max: Some(pages), ..PoolConfig::new(key) };
        let is_shared = lend_group.is_some();
        let mut config = Config { pools: vec![pool], lend_group, ..Config::default() };
        // Filling is asked for and measured, never done behind our back.
        config.workers.max = 0;
        // The demo and the benchmark use owned blocks, on any kernel.
        config.provider = config::Provider::Stock;
        let socket = self.run_dir.join("io.prezero");
        let daemon = Embedded::start(Options {
            socket: socket.clone(),
            run_dir: self.run_dir.clone(),
            config,
            plain: self.reservation.is_none(),
            roots: self.roots.clone(),
            ..Options::default()
        })?;
        if is_shared {
            // As /run/prezero is: who may borrow must reach the socket. What else is in it is
            // closed.
            fs::set_permissions(&self.run_dir, Permissions::from_mode(0o711))?;
        }
        let client = Client::connect(&socket)?;
        Ok(Some(Scene { rig: self, daemon: Some(daemon), client, socket, page, pages }))
    }

    /// Puts everything back, and says so if that fails.
    pub(crate) fn close(mut self) -> Result<(), Failure> {
        if let Some(reservation) = &mut self.reservation {
            reservation.put_back()?;
            leftover::remove(&self.roots, &self.run_dir)?;
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.reservation.is_some() {
            // After an error; what cannot be removed is removed by the next run.
            let _ = leftover::remove(&self.roots, &self.run_dir);
        }
    }
}

/// Grows a pool, making room as often as that helps.
///
/// Large pages need memory in one piece. Untouched memory of a virtual machine may still be
/// missing, and page cache and slab are in the way on a machine that has worked. So after a first
/// try, memory is used and freed once, and the caches are dropped.
fn reserve(
    plan: &Plan,
    roots: &Roots,
    reservation: &mut Reservation,
    (page, node, wanted): (PageSize, Node, Pages),
) -> Result<Pages, linux::Error> {
    let mut free = reservation.grow(page, node, wanted)?;
    for _ in 0..MAX_TRIES {
        if free >= wanted || plan.stop.is_set() {
            break;
        }
        let missing = Pages(wanted.0 - free.0).bytes(page);
        hugetlb::make_room(roots)?;
        let room = machine::available(roots)?.0.saturating_sub(SPARE_BYTES);
        // What does not fit is not touched; the caches are dropped all the same.
        if let Ok(memory) = Anonymous::map_transparent(Bytes(missing.0.min(room).max(4096)), true) {
            let bar = progress::bytes(missing.0, "making room");
            let len = missing.0.min(room);
            for start in (0..len).step_by(usize::try_from(TOUCH_BYTES).unwrap_or(usize::MAX)) {
                let end = start.saturating_add(TOUCH_BYTES).min(len);
                let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
                    break;
                };
                if plan.stop.is_set() || memory.populate(from..to).is_err() {
                    break;
                }
                bar.inc(end - start);
            }
            bar.finish_and_clear();
        }
        hugetlb::make_room(roots)?;
        free = reservation.grow(page, node, wanted)?;
    }
    Ok(free)
}

/// Puts the host's memory behind the reserved pages, if this is a virtual machine that has not used
/// them yet: the first touch would measure the host.
fn touch(plan: &Plan, bytes: Bytes, page: PageSize) -> Result<(), Failure> {
    let memory = Anonymous::map(bytes, page)?;
    let step = usize::try_from(TOUCH_BYTES.max(page.bytes())).unwrap_or(usize::MAX);
    let len = usize::try_from(bytes.0).unwrap_or(usize::MAX);
    let bar = progress::bytes(bytes.0, "touching");
    for start in (0..len).step_by(step) {
        plan.go_on()?;
        let end = start.saturating_add(step).min(len);
        memory.populate(start..end)?;
        bar.inc((end - start) as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

/// One page size: its pages reserved and a daemon that may own them. Dropped, its daemon is gone.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    rig: &'a mut Rig,
    /// `None` once it is stopped.
    daemon: Option<Embedded>,
    client: Client,
    socket: PathBuf,
    page: PageSize,
    pages: Pages,
}

impl Scene<'_> {
    pub(crate) fn page(&self) -> PageSize {
        self.page
    }

    /// Its pages, as a worker asks for them.
    pub(crate) fn which(&self) -> Which {
        Which::exact(self.rig.node, self.page)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.pages.bytes(self.page)
    }

    /// Whether the pages are huge.
    pub(crate) fn is_huge(&self) -> bool {
        self.rig.reservation.is_some()
    }

    /// Where its daemon listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// A directory for all other files.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.rig.run_dir
    }

    /// Zeroes the rest of the daemon's pool, with all threads, until all of it is ready.
    pub(crate) fn fill(&mut self, plan: &Plan) -> Result<WorkDone, Failure> {
        let bar = progress::bytes(self.bytes().0, "filling the pool");
        let worker = Worker {
            socket: &self.socket,
            which: self.which(),
            background: false,
            idle_timeout: Duration::ZERO,
            threads: plan.threads,
            limit: None,
            // These blocks are made, not cleared in place.
            engine: Engine::default(),
            at_least_one: false,
            stop: &plan.stop,
        };
        let work = worker.run(&|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let work = work?;
        plan.go_on()?;
        // This call's pages are only a part: blocks that were ready before stay so.
        let (ready, all) = (self.ready()?, self.bytes());
        if ready < all {
            return Err(Failure::new(
                Exit::NotEnough,
                format!("{ready} of {all} are ready: somebody else took pages meanwhile"),
            ));
        }
        Ok(work)
    }

    /// How blocks become zero again after a loan from now on: `auto`, `fresh` or `in-place`.
    pub(crate) fn recycle(&mut self, how: &str) -> Result<(), Failure> {
        let pools = self.client.status()?.pools;
        for pool in pools {
            self.client.configure(PoolChange {
                node: pool.node,
                page_size: pool.page_size,
                pages_per_block: pool.pages_per_block,
                recycle: Some(how.parse().map_err(Failure::usage)?),
                ..PoolChange::default()
            })?;
        }
        Ok(())
    }

    /// Waits until nothing is lent any more.
    pub(crate) fn settle(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.wait("the daemon still waits for returned memory", stop, |scene| {
            let pools = scene.client.status()?.pools;
            Ok(pools.iter().all(|pool| pool.lent_pages + pool.draining_pages == Pages(0)))
        })
    }

    /// Borrows all of it.
    pub(crate) fn lend(&mut self, single: bool) -> Result<Loan, Failure> {
        let mut request = LendRequest::new(self.bytes());
        request.page_size = Some(self.page);
        request.single = single;
        let loan = self.client.lend(&request)?;
        if loan.ready_bytes() < loan.bytes() {
            let (ready, bytes) = (loan.ready_bytes(), loan.bytes());
            return Err(Failure::failed(format!("{ready} of {bytes} were lent ready")));
        }
        Ok(loan)
    }

    /// Why blocks recycle fresh that are to recycle as is best.
    pub(crate) fn fresh_reason(&mut self) -> Result<Option<String>, Failure> {
        Ok(self.client.status()?.fresh_reason)
    }

    /// How much is ready now.
    pub(crate) fn ready(&mut self) -> Result<Bytes, Failure> {
        let pages = self.client.status()?.pools.iter().map(|pool| pool.ready_pages.0).sum();
        Ok(Pages(pages).bytes(self.page))
    }

    /// How much is lent now.
    pub(crate) fn lent(&mut self) -> Result<Bytes, Failure> {
        let pages = self.client.status()?.pools.iter().map(|pool| pool.lent_pages.0).sum();
        Ok(Pages(pages).bytes(self.page))
    }

    /// Waits until nothing is lent any more, then gives everything to the kernel's pool.
    pub(crate) fn release(&mut self, stop: &Stop) -> Result<(), Failure> {
        self.settle(stop)?;
        self.client.release(None, None, None)?;
        if !self.is_huge() {
            return Ok(());
        }
        self.wait("the kernel still waits for given back pages", stop, |scene| {
            let free = machine::free_pages(&scene.rig.roots, scene.page, scene.rig.node)?;
            Ok(free >= scene.pages)
        })
    }

    fn wait(
        &mut self,
        what: &str,
        stop: &Stop,
        mut done: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        while !done(self)? {
            if stop.is_set() {
                return Err(Failure::stopped(stop));
            }
            if begin.elapsed() > RETURN_TIMEOUT {
                return Err(Failure::failed(what));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Stops the daemon and puts the pool back.
    pub(crate) fn clear_away(mut self) -> Result<(), Failure> {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop()?;
        }
        if let Some(reservation) = &mut self.rig.reservation {
            reservation.put_back()?;
        }
        Ok(())
    }
}
