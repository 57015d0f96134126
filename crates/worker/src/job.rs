// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job: a block, or pages of the kernel's own pool, in this worker's hands until it reports.

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use linux::kernel::Device;
use linux::{BlockFile, Mapping, Roots, numa};
use units::{Bytes, Domain, JobId, Node, PageSize, Pages};
use wire::{Finished, TakeZeroing, ZeroBy};

use client::Client;

use crate::error::Result;

/// Work for a worker: a block to zero, or pages of the kernel's own pool. Dropping it without
/// [`Done::report`] gives it up; its finished pages are lost.
#[derive(Debug)]
pub struct Job {
    order: wire::Job,
    /// `None` where the kernel keeps the pages.
    file: Option<BlockFile>,
    /// Open for as long as the job runs: the daemon sees its end when the process dies.
    alive: OwnedFd,
}

/// What a job came to, to be told by [`Done::report`].
#[derive(Debug)]
pub struct Done {
    job: JobId,
    /// Until the report is answered: a job that ends silently counts as lost.
    _alive: OwnedFd,
    /// Pages from the block's start that are zero.
    pub pages: Pages,
    /// Whether that is all of them.
    pub all: bool,
}

/// A range that the worker must clear itself, and how far it got.
#[derive(Debug)]
pub struct InPlace {
    job: Job,
    mapping: Mapping,
}

/// A job by the way to do it.
#[derive(Debug)]
pub enum Task {
    /// The kernel makes and zeroes the pages: [`Allocate::run`], [`Allocate::share`].
    Allocate(Allocate),
    /// The worker clears a mapping: [`InPlace::extent`].
    InPlace(InPlace),
    /// The kernel zeroes pages of its own pool: [`InKernel::zero`].
    InKernel(InKernel),
}

/// Pages of the kernel's own pool, to be zeroed where they are.
#[derive(Debug)]
pub struct InKernel {
    job: Job,
    device: Device,
}

/// What one call of [`InKernel::zero`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroedNow {
    /// Pages that it has zeroed.
    pub pages: Pages,
    /// Whether there may be more: false when other workers have all jobs that are left.
    pub more: bool,
}

/// A job that the kernel does: [`run`](Self::run) by `fallocate` in one thread, which is what most
/// workers want, or [`share`](Self::share)d by the page faults of several, since `fallocate` locks
/// the whole file.
#[derive(Debug)]
pub struct Allocate(Job);

/// A block that several threads fill, each page by one of them.
#[derive(Debug)]
pub struct MappedJob {
    job: Job,
    mapping: Mapping,
}

impl Job {
    fn from_reply(order: wire::Job, fds: Vec<OwnedFd>) -> Result<Self> {
        let expected = if order.by == ZeroBy::Kernel { 1 } else { 2 };
        let wrong =
            || client::Error::Descriptors { method: "TakeZeroing", got: fds.len(), expected };
        let (block, job) = (order.block_fd.map(|fd| fd as usize), order.job_fd as usize);
        let last = block.map_or(job, |block| block.max(job));
        if block == Some(job) || last >= fds.len() || block.is_none() != (expected == 1) {
            return Err(wrong().into());
        }
        let mut fds: Vec<_> = fds.into_iter().map(Some).collect();
        let file = block.and_then(|block| fds[block].take()).map(BlockFile::from);
        let Some(alive) = fds[job].take() else {
            unreachable!("an index within the vector, not the block's");
        };
        Ok(Self { order, file, alive })
    }

    /// The block's pages, or how many of the kernel's pool to zero.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.order.pages
    }

    /// Pages from the start that were done before.
    #[must_use]
    pub fn first(&self) -> Pages {
        self.order.first_page
    }

    /// The size of its pages.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.order.page_size
    }

    /// The node on which its pages must lie.
    #[must_use]
    pub fn node(&self) -> Node {
        self.order.node
    }

    /// The job's number in the daemon's reports.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.order.job
    }

    /// The block's file, for workers that clear it by other means; `None` where the kernel keeps
    /// the pages.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Maps the block's first `pages`.
    fn map(&self, pages: Pages) -> Result<Mapping> {
        let file = self.file.as_ref().expect("a job on a block has its file");
        Ok(Mapping::map(file, self.bytes(pages), self.order.page_size)?)
    }

    fn bytes(&self, pages: Pages) -> u64 {
        pages.bytes(self.order.page_size).0
    }

    /// How to do it. For clearing in place this maps the block, for pages of the kernel's own pool
    /// it opens `/dev/hugepagectl`.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub fn begin(self) -> Result<Task> {
        match self.order.by {
            ZeroBy::Allocate => Ok(Task::Allocate(Allocate(self))),
            ZeroBy::Clear => {
                let mapping = self.map(self.order.pages)?;
                Ok(Task::InPlace(InPlace { job: self, mapping }))
            }
            ZeroBy::Kernel => {
                let device = Device::open_to_zero(&Roots::default())?;
                Ok(Task::InKernel(InKernel { job: self, device }))
            }
        }
    }

    /// How many of the first `pages` lie on the job's node, up to the first on another one.
    fn check_nodes(&self, pages: Pages) -> Result<Pages> {
        let order = &self.order;
        if pages == Pages::ZERO || order.page_size <= PageSize::KIB_4 {
            return Ok(pages);
        }
        let mapping = self.map(pages)?;
        let nodes = numa::nodes_of(&mapping, order.page_size)?;
        let stray = nodes.iter().position(|node| *node != order.node);
        Ok(stray.map_or(pages, |at| Pages(at as u64)))
    }

    fn done(self, pages: Pages) -> Done {
        // The file is closed before the report: the daemon proves that no process holds it.
        drop(self.file);
        let all = pages == self.order.pages;
        Done { job: self.order.job, _alive: self.alive, pages, all }
    }
}

impl Allocate {
    /// Allocates page by page on the job's node; `progress` gets the pages done so far and may
    /// stop it. Blocks for one page at most after that, or after a signal.
    ///
    /// Afterwards the pages' nodes are looked up: a page on another node counts as undone, and so
    /// do the pages behind it.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`], as `ENOSPC` when the node has no free page left; report it as a
    /// job with nothing done by dropping the job.
    pub fn run(self, progress: &mut dyn FnMut(Pages) -> ControlFlow<()>) -> Result<Done> {
        let Self(job) = self;
        let (page, order) = (job.order.page_size, &job.order);
        let (from, to) = (job.bytes(order.first_page), job.bytes(order.pages));
        numa::bind_thread_to(order.node)?;
        let file = job.file.as_ref().expect("a job on a block has its file");
        let allocated = file.allocate_pages(from..to, page, &mut |bytes| {
            progress(order.first_page + Bytes(bytes).whole_pages(page))
        });
        numa::reset_policy()?;
        let pages = order.first_page + Bytes(allocated?).whole_pages(page);
        job.check_nodes(pages).map(|pages| job.done(pages))
    }

    /// Maps the block, so that several threads can fill it. The kernel promises it all of its pages
    /// here, so that every later touch finds one.
    ///
    /// # Errors
    /// The job itself, when the pool has too few free pages for the whole block: [`run`](Self::run)
    /// takes what there is, and says what the kernel says.
    pub fn share(self) -> Result<MappedJob, Self> {
        let Self(job) = self;
        match job.map(job.order.pages) {
            Ok(mapping) => Ok(MappedJob { job, mapping }),
            Err(_) => Err(Self(job)),
        }
    }
}

impl MappedJob {
    /// The job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Has the kernel zero `pages` (numbered from the block's start, half-open) in the calling
    /// thread's context, from the job's node. Blocks for all of them, so ask for few at a time.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`], as `EFAULT` when the node has no free page left.
    ///
    /// # Panics
    /// If the pages are outside the block.
    pub fn fill(&self, pages: Range<u64>) -> Result<()> {
        let offset = |page: u64| usize::try_from(self.job.bytes(Pages(page)));
        let (Ok(start), Ok(end)) = (offset(pages.start), offset(pages.end)) else {
            panic!("{pages:?} is outside the block");
        };
        numa::bind_thread_to(self.job.order.node)?;
        let filled = self.mapping.populate_range(start..end);
        numa::reset_policy()?;
        Ok(filled?)
    }

    /// Unmaps the block after every thread is done; `pages` from its start are filled, without a
    /// gap. Pages behind a gap are given back, and so is the kernel's promise for the rest of the
    /// block. The promise is the file's and outlives the mapping: those pages would be lost to all,
    /// the block's next worker included.
    ///
    /// # Errors
    /// As [`Allocate::run`].
    pub fn finish(self, pages: Pages) -> Result<Done> {
        let Self { job, mapping } = self;
        drop(mapping);
        if let Some(file) = job.file.as_ref().filter(|_| pages < job.order.pages) {
            file.set_len(job.bytes(pages))?;
            file.set_len(job.bytes(job.order.pages))?;
        }
        job.check_nodes(pages).map(|pages| job.done(pages))
    }
}

impl InPlace {
    /// The job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The bytes to clear: from the first undone page to the end. Valid until [`InPlace::finish`];
    /// no other thread or process has them.
    #[must_use]
    pub fn extent(&self) -> (*mut u8, usize) {
        let skip = usize::try_from(self.job.bytes(self.job.order.first_page))
            .map_or(self.mapping.len(), |skip| skip.min(self.mapping.len()));
        (self.mapping.as_ptr().wrapping_add(skip), self.mapping.len() - skip)
    }

    /// Unmaps the block after `cleared` bytes of the extent were cleared.
    #[must_use]
    pub fn finish(self, cleared: usize) -> Done {
        let Self { job, mapping } = self;
        drop(mapping);
        let pages = job.order.first_page + Bytes(cleared as u64).whole_pages(job.order.page_size);
        job.done(pages)
    }
}

impl InKernel {
    /// The job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Zeroes up to `pages` pages in the calling thread, on its CPUs and charged to its cgroup.
    ///
    /// Blocks for all of them; a signal ends it within 64 KiB, and zeroed pages stay zeroed and are
    /// counted. Ask for few at a time to be able to stop between two.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub fn zero(&self, pages: Pages) -> Result<ZeroedNow> {
        let domain = Domain { node: self.job.node(), page_size: self.job.page_size() };
        let zeroed = self.device.zero(domain, pages)?;
        // Fewer pages than asked for without a signal: the pool was exhausted. After an
        // interruption the count is ambiguous, so the worker asks once more.
        let more = zeroed.interrupted || zeroed.pages > Pages::ZERO;
        Ok(ZeroedNow { pages: zeroed.pages, more })
    }

    /// Ends the job after `pages` pages were zeroed.
    #[must_use]
    pub fn finish(self, pages: Pages) -> Done {
        self.job.done(pages)
    }
}

impl Done {
    /// Reports the job's finished pages, all or part, which are kept.
    ///
    /// # Errors
    /// [`client::Error::Refused`] with [`wire::Error::NoSuchJob`] if the daemon gave the job up
    /// before.
    pub fn report(self, client: &mut Client) -> Result<Finished> {
        Ok(client.finish_zeroing(self.job, self.pages)?)
    }
}

/// Takes work from the daemon. `background` asks only for what the thresholds want.
///
/// # Errors
/// [`wire::Error::NothingToZero`] as [`client::Error::Refused`] when all work is done.
pub fn take_zeroing(client: &mut Client, request: &TakeZeroing) -> Result<Job> {
    let (order, fds) = client.take_zeroing(request)?;
    Job::from_reply(order, fds)
}
