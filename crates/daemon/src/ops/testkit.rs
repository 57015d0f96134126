// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shell in the test's own process: over plain memory, on a machine with as many free pages as
//! the test says, with each look at the test's own hand.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::MutexGuard;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use book::block::{Reach, StateName};
use book::config::Config;
use book::{Asked, Refusal, Requester};
use linux::{Mapping, Roots};
use rustix::fs::{FallocateFlags, fallocate};
use testkit::child::alone;
use units::{BlockId, Domain, LeaseId, Node, Owner, PageSize, Pages, Uid};
use wire::{Hold, LendRequest};

use super::{Dirs, Granted, Handover, LoanStep, ReturnedBlocks, Shared, Shell};
use crate::base::user_queues::UserQueue;

pub(crate) const SIZE: PageSize = PageSize::MIB_2;
pub(crate) const HERE: Domain = Domain { node: Node(0), page_size: SIZE };

/// Longer than anything here takes, on a machine that has other work.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A shell, and what it is to hear from its user queues.
pub(crate) struct Bed {
    pub(crate) shell: Shared,
    pub(crate) returned: ReturnedBlocks,
    pub(crate) dir: tempfile::TempDir,
    config: String,
    // A test that asks for a file's users must be the only one to fork and to open.
    _alone: MutexGuard<'static, ()>,
}

impl Bed {
    /// With a pool of blocks of one page, which are cleared where they lie, and free memory without
    /// bound.
    pub(crate) fn new() -> Self {
        Self::with("", "pages_per_block = 1\nrecycle = \"in-place\"")
    }

    /// The same with a pool of these fields; `rest` is what else it is told.
    pub(crate) fn with(rest: &str, pool: &str) -> Self {
        let alone = alone();
        let dir = tempfile::tempdir_in("/dev/shm").expect("room");
        fs::create_dir(dir.path().join("proc")).expect("a new directory");
        let text = format!("{rest}\n[[pool]]\npage_size = \"2M\"\n{pool}\n[workers]\nmax = 0\n");
        let bed = Self::start(dir, text, alone);
        bed.has_free(1000);
        bed
    }

    fn start(dir: tempfile::TempDir, config: String, alone: MutexGuard<'static, ()>) -> Self {
        let roots = Roots { proc: dir.path().join("proc"), ..Roots::default() };
        let parsed = Config::from_toml(&config).expect("a configuration");
        let started = Shell::start(
            parsed,
            Dirs { run: &dir.path().join("run"), state: None },
            roots,
            true,
            [].into(),
        );
        let started = started.expect("a start");
        let shell = Rc::new(RefCell::new(started.shell));
        Self { shell, returned: started.returned, dir, config, _alone: alone }
    }

    /// Its daemon is gone in the midst of what it does, and another one takes over what there is.
    pub(crate) fn killed(self) -> Self {
        let Self { shell, dir, config, _alone: alone, .. } = self;
        drop(shell);
        Self::start(dir, config, alone)
    }

    /// From now on the machine has this number of pages free besides the shell's own.
    pub(crate) fn has_free(&self, pages: u64) {
        self.set_free_unobserved(pages);
        self.shell.borrow_mut().look_again();
    }

    /// The same, before the next look.
    pub(crate) fn set_free_unobserved(&self, pages: u64) {
        let text = format!("MemTotal: 0 kB\nMemFree: 0 kB\nMemAvailable: {} kB\n", pages * 2048);
        fs::write(self.dir.path().join("proc/meminfo"), text).expect("a file");
    }

    /// Has this number of blocks made ready.
    pub(crate) fn zero(&self, blocks: usize) {
        for _ in 0..blocks {
            let mut shell = self.shell.borrow_mut();
            let (taken, _watch) =
                shell.take_zeroing(Requester::User, None, None).expect("a pipe").expect("work");
            let file = taken.block.expect("a block of its own");
            let (pages, length) = (taken.order.pages, taken.order.pages.bytes(SIZE).0);
            let nothing = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for how in [nothing, FallocateFlags::empty()] {
                fallocate(&file, how, 0, length).expect("room");
            }
            drop(file);
            let seen = Some((Reach::Sole, pages));
            let state = shell.finish_zeroing(taken.order.job, pages, seen);
            assert_eq!(state, Some(StateName::Ready));
        }
    }

    /// Asks for a loan as user `uid`.
    pub(crate) fn ask(&self, request: LendRequest, uid: u32) -> Asked {
        self.shell.borrow_mut().ask(request, Uid(uid), Uid(uid), None).expect("a request")
    }

    pub(crate) fn try_lend(&self, request: &LendRequest) -> Result<Granted, Refusal> {
        let asked = self.ask(request.clone(), BORROWER);
        let answer = self.shell.borrow_mut().lend(&asked, (0, 0)).expect("no kernel in the way");
        answer.map(|answer| match answer {
            LoanStep::Granted(granted) => granted,
            LoanStep::Found(_) => panic!("{answer:?}"),
        })
    }

    /// A loan that its borrower has been sent.
    pub(crate) fn lend(&self, request: &LendRequest) -> Granted {
        let granted = self.try_lend(request).expect("a loan");
        self.shell.borrow_mut().sent(granted.handover.loan.lease);
        granted
    }

    /// A loan's borrower lets go of all that it has of it, and the loan ends.
    pub(crate) fn end(&self, granted: Granted) -> LeaseId {
        let lease = granted.handover.loan.lease;
        drop(granted);
        self.shell.borrow_mut().end_lease(lease);
        lease
    }

    /// Has all looked at that is returned, and the answers heard.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10 {
            self.wait_for_user_queues();
            let Ok(found) = self.returned.try_recv() else { return };
            self.shell.borrow_mut().settled(found);
        }
        panic!("blocks are looked at again and again");
    }

    /// The same until nothing is draining: what tells of the end of a mapping may be quicker than
    /// it.
    pub(crate) fn settle_all(&mut self) {
        let end = Instant::now() + WAIT_TIMEOUT;
        self.settle();
        while self.count(StateName::Draining) > 0 {
            assert!(Instant::now() < end, "something is draining");
            self.shell.borrow_mut().settle_some(9);
            self.settle();
        }
    }

    /// The same of blocks that are looked at once, as if that had come of it.
    pub(crate) fn settle_as(&mut self, reach: impl Fn() -> Reach) {
        self.wait_for_user_queues();
        while let Ok(mut found) = self.returned.try_recv() {
            found.reach = reach();
            self.shell.borrow_mut().settled(found);
        }
    }

    /// Waits until all user queues are idle.
    pub(crate) fn wait_for_user_queues(&self) {
        self.shell.borrow().store.user_queues().wait(WAIT_TIMEOUT);
    }

    pub(crate) fn has(&self, lease: LeaseId) -> bool {
        self.shell.borrow().book.has_lease(lease)
    }

    pub(crate) fn count(&self, state: StateName) -> usize {
        self.shell.borrow().book.in_state(state).count()
    }

    /// Keeps a user queue busy until the returned value is dropped.
    pub(crate) fn hold_up(&self, user_queue: UserQueue) -> Sender<()> {
        self.shell.borrow().store.user_queues().hold_up(user_queue)
    }

    /// Waits until the shared user queue is idle.
    pub(crate) fn wait_for_shared_queue(&self) {
        let ours = self.shell.borrow().queues().ours();
        let end = Instant::now() + WAIT_TIMEOUT;
        while *ours.borrow() > 0 {
            assert!(Instant::now() < end, "something is held up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn path(&self, block: BlockId) -> PathBuf {
        self.shell.borrow().path_of(block).expect("a file")
    }

    /// Writes a byte into a block behind the daemon's back.
    pub(crate) fn write(&self, block: BlockId, at: u64, byte: u8) {
        let file = fs::OpenOptions::new().write(true).open(self.path(block)).expect("a file");
        std::os::unix::fs::FileExt::write_at(&file, &[byte], at).expect("room");
    }

    /// A directory of the pool's: of files in a state or on their way out, or of leases.
    pub(crate) fn directory(&self, state: &str) -> PathBuf {
        self.dir.path().join("run/pages-2048kB").join(state)
    }

    /// The names in it.
    pub(crate) fn names(&self, state: &str) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("text")
        };
        fs::read_dir(self.directory(state)).expect("a directory").map(name).collect()
    }

    /// The one block in a state.
    pub(crate) fn only(&self, state: StateName) -> BlockId {
        let shell = self.shell.borrow();
        let blocks: Vec<_> = shell.book.in_state(state).map(book::block::Block::id).collect();
        assert_eq!(blocks.len(), 1, "{state}: {blocks:?}");
        blocks[0]
    }
}

/// Who borrows here.
pub(crate) const BORROWER: u32 = 7;

/// So many pages.
pub(crate) fn pages(count: u64) -> LendRequest {
    LendRequest::new(Pages(count).bytes(SIZE))
}

/// Maps a loan's first block.
pub(crate) fn map(granted: &Granted) -> Mapping {
    let Handover { loan, blocks, .. } = &granted.handover;
    let length = loan.parts[0].pages.bytes(SIZE).0;
    Mapping::map(&blocks[0], length, SIZE).expect("a mapping")
}

/// A page that belongs to an owner, with content kept for a minute.
pub(crate) fn owned() -> LendRequest {
    let owner: Owner = "guest".parse().expect("a name");
    LendRequest { owner: Some(owner), keep: Some(Duration::from_secs(60)), ..pages(1) }
}

/// A page that is lent for as long as it is open or mapped.
pub(crate) fn by_memory() -> LendRequest {
    LendRequest { hold: Hold::Memory, ..pages(1) }
}
