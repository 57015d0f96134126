// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answering the kernel's requests, in the order of [`serving`](super::serving). A request that
//! zeroes goes on in a task of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use linux::Errno;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use units::{Counts, Domain, Pages};

use super::device::TreeDevice;
use super::item::{self, Access, FileKind, Item};
use super::notify::Notifiers;
use super::open::{FileOwner, Handles, Open, OpenDevice, OpenDirectory, OpenFile};
use super::permits::Permits;
use super::wire::{Caller, FuseRequest, Op, TreeReply};
use crate::ops::Shared;
use crate::tasks::delegated::{DelegatedWorkers, ZeroOrder, ZeroResult};

/// A file without news polls as this, in sysfs.
fn no_event() -> PollFlags {
    PollFlags::IN | PollFlags::RDNORM | PollFlags::OUT | PollFlags::WRNORM
}

fn item_of(number: u64) -> Result<Item, Errno> {
    Item::from_number(number).ok_or(Errno::STALE)
}

/// A mounted tree.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) device: TreeDevice,
    pub(super) shell: Shared,
    pub(super) delegated: Rc<DelegatedWorkers>,
    pub(super) permits: Permits,
    pub(super) access: Access,
    pub(super) state: RefCell<SessionState>,
    /// Somebody new listens.
    pub(super) listens: Notify,
    /// Zeroing has ended.
    pub(super) stopping: Cell<bool>,
}

/// What changes.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    /// How many files were looked up.
    lookups: u64,
    pub(super) handles: Handles,
    pub(super) notifiers: BTreeMap<Domain, Notifiers>,
    /// Requests that are answered later, and how to end them.
    later: BTreeMap<u64, Later>,
}

/// A request that is answered later.
#[derive(Debug)]
struct Later {
    owner: FileOwner,
    /// Ends it when dropped.
    stop: Option<oneshot::Sender<()>>,
}

/// The most of one ordinary user: each takes 1 KiB, and of writes eight are worked on.
const MAX_WAITING_WRITES_OF_USER: usize = 256;

impl SessionState {
    /// The notifiers of a domain, after they have taken in what its counts are.
    pub(super) fn notifiers(&mut self, domain: Domain, counts: Counts) -> &mut Notifiers {
        let notifiers =
            self.notifiers.entry(domain).or_insert_with(|| Notifiers::new(counts, Instant::now()));
        notifiers.record(counts);
        notifiers
    }

    /// Whether requests wait for zeroing.
    pub(super) fn is_zeroing(&self) -> bool {
        !self.later.is_empty()
    }

    fn interrupt_all(&mut self) {
        for later in self.later.values_mut() {
            drop(later.stop.take());
        }
    }
}

impl Session {
    /// The caller of an earlier request got a signal. Nothing is done if that is answered by now.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut state = self.state.borrow_mut();
        drop(state.later.get_mut(&unique).and_then(|later| later.stop.take()));
    }

    pub(super) fn answer(self: &Rc<Self>, request: FuseRequest) {
        let FuseRequest { unique, number, caller, op } = request;
        let result = match op {
            Op::Forget => return,
            Op::Interrupt { unique } => return self.interrupt(unique),
            Op::Write { handle, data } => match self.write(unique, caller, handle, &data) {
                Ok(None) => return,
                Ok(Some(reply)) => Ok(reply),
                Err(errno) => Err(errno),
            },
            Op::Ioctl { handle, number, data } => {
                match self.ioctl(unique, caller, handle, number, data) {
                    Ok(None) => return,
                    Ok(Some(reply)) => Ok(reply),
                    Err(errno) => Err(errno),
                }
            }
            Op::Init { flags } => Ok(TreeReply::init(flags)),
            Op::Lookup { name } => self.lookup(number, &name),
            Op::GetAttr => self.attr(number),
            Op::SetAttr { valid } => self.set_attr(number, valid),
            Op::Open { flags } => self.open(caller, number, flags),
            Op::OpenDir => self.open_directory(caller, number),
            Op::Read { handle, offset, size } => self.read(handle, offset, size),
            Op::ReadDir { handle, offset, size } => self.read_directory(handle, offset, size),
            Op::Release { handle } => {
                self.state.borrow_mut().handles.remove(handle);
                Ok(TreeReply::empty())
            }
            Op::StatFs => Ok(TreeReply::stat_fs()),
            Op::Poll { handle, waiter, wake } => self.poll(handle, wake.then_some(waiter)),
            // As sysfs, which has no such operations on directories.
            Op::Create => Err(Errno::ACCESS),
            Op::Rename => Err(Errno::PERM),
            Op::Unknown => Err(Errno::NOSYS),
        };
        self.device.reply(unique, result);
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<TreeReply, Errno> {
        let mut state = self.state.borrow_mut();
        let children = item_of(parent)?.children(&self.shell.borrow().domains());
        let (_, item) =
            children.into_iter().find(|(child, _)| child.as_bytes() == name).ok_or(Errno::NOENT)?;
        state.lookups += 1;
        let number = item.number(state.lookups);
        Ok(TreeReply::entry(number, item.attr(&self.access)))
    }

    fn attr(&self, number: u64) -> Result<TreeReply, Errno> {
        Ok(TreeReply::attr(item_of(number)?.attr(&self.access)))
    }

    /// The owners of the files are configured; truncation (`>`) and times are accepted and mean
    /// nothing.
    fn set_attr(&self, number: u64, valid: u32) -> Result<TreeReply, Errno> {
        use polyfuse_kernel::{FATTR_GID, FATTR_MODE, FATTR_UID};
        if valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
            return Err(Errno::PERM);
        }
        self.attr(number)
    }

    fn open(&self, caller: Caller, number: u64, flags: i32) -> Result<TreeReply, Errno> {
        let open = match item_of(number)? {
            Item::File(domain, kind) => {
                let flags = OFlags::from_bits_retain(flags.cast_unsigned());
                let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
                if writes && !kind.can_be_written() {
                    // Also for root, as in sysfs.
                    return Err(Errno::ACCESS);
                }
                let (text, seen, waiter) = (Vec::new(), 0, None);
                Open::File(OpenFile { domain, kind, text, end: 0, seen, waiter })
            }
            Item::Device => Open::Device(OpenDevice::default()),
            _ => return Err(Errno::ISDIR),
        };
        Ok(TreeReply::open(
            self.state.borrow_mut().handles.add(self.permits.owner(caller), open)?,
            true,
        ))
    }

    fn open_directory(&self, caller: Caller, number: u64) -> Result<TreeReply, Errno> {
        let open = Open::Directory(OpenDirectory { item: item_of(number)?, entries: Vec::new() });
        Ok(TreeReply::open(
            self.state.borrow_mut().handles.add(self.permits.owner(caller), open)?,
            false,
        ))
    }

    fn read_directory(&self, handle: u64, offset: u64, size: usize) -> Result<TreeReply, Errno> {
        let mut state = self.state.borrow_mut();
        let directory = state.handles.directory(handle)?;
        if offset == 0 {
            directory.entries = directory.item.children(&self.shell.borrow().domains());
        }
        let mut reply = TreeReply::empty();
        let rest = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, item)) in (1..).zip(&directory.entries).skip(rest) {
            let kind = (item.ino(), item.mode(&self.access));
            if !reply.push_entry(kind, name, next, size) {
                break;
            }
        }
        Ok(reply)
    }

    fn read(&self, handle: u64, offset: u64, size: usize) -> Result<TreeReply, Errno> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let file = state.handles.file(handle)?;
        let (domain, kind) = (file.domain, file.kind);
        // As in sysfs, who goes on where the last read ended gets the same text's rest.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset == 0 || offset != file.end {
            let now = self.shell.borrow_mut().domain(domain).ok_or(Errno::NODEV)?;
            let notifiers = state.notifiers(domain, now);
            let (seen, value) = match kind {
                FileKind::Zeroable => (notifiers.zeroable.arm(), now.zeroable.0),
                FileKind::Zeroed => (notifiers.zeroed.arm(), now.ready.0),
                // Changes of it stay unreported.
                FileKind::Low => (1, notifiers.low()),
            };
            let file = state.handles.file(handle)?;
            file.seen = seen;
            file.text = format!("{value}\n").into_bytes();
            self.listens.notify_one();
        }
        let file = state.handles.file(handle)?;
        let start = offset.min(file.text.len());
        let end = start.saturating_add(size).min(file.text.len());
        file.end = offset.max(end);
        Ok(TreeReply::data(&file.text[start..end]))
    }

    /// `Ok(None)`: it is answered later.
    fn write(
        self: &Rc<Self>,
        unique: u64,
        caller: Caller,
        handle: u64,
        data: &[u8],
    ) -> Result<Option<TreeReply>, Errno> {
        let (domain, kind) = {
            let mut state = self.state.borrow_mut();
            let file = state.handles.file(handle)?;
            (file.domain, file.kind)
        };
        let (length, text) = item::taken(data);
        match kind {
            FileKind::Zeroable => {
                let pages = item::parse_pages_or_max(text).ok_or(Errno::INVAL)?;
                let session = Rc::clone(self);
                let zero = async move |stopped| match session
                    .zeroed(caller, domain, pages, stopped)
                    .await?
                {
                    ZeroResult { interrupted: true, .. } => Err(Errno::INTR),
                    ZeroResult { .. } => Ok(TreeReply::written(length)),
                };
                self.later(unique, caller, zero).map(|()| None)
            }
            FileKind::Low => {
                let low = item::parse_pages(text).ok_or(Errno::INVAL)?;
                let now = self.shell.borrow_mut().domain_lately(domain).ok_or(Errno::NODEV)?;
                self.state.borrow_mut().notifiers(domain, now).set_low(low);
                self.listens.notify_one();
                Ok(Some(TreeReply::written(length)))
            }
            FileKind::Zeroed => Err(Errno::IO),
        }
    }

    /// Answers a request when `work` is done, which ends early once what it is given is told so.
    ///
    /// # Errors
    /// EAGAIN if the caller's account has [`MAX_WAITING_WRITES_OF_USER`] of them.
    pub(super) fn later<F: Future<Output = Result<TreeReply, Errno>> + 'static>(
        self: &Rc<Self>,
        unique: u64,
        caller: Caller,
        work: impl FnOnce(oneshot::Receiver<()>) -> F,
    ) -> Result<(), Errno> {
        let owner = self.permits.owner(caller);
        let mut state = self.state.borrow_mut();
        let own = state.later.values().filter(|later| later.owner == owner).count();
        if own >= MAX_WAITING_WRITES_OF_USER && !owner.is_master {
            return Err(Errno::AGAIN);
        }
        let (stop, stopped) = oneshot::channel();
        state.later.insert(unique, Later { owner, stop: Some(stop) });
        let (session, work) = (Rc::clone(self), work(stopped));
        tokio::task::spawn_local(async move {
            let mut result = work.await;
            if session.stopping.get() && result.is_err() {
                // As the kernel says when it takes a node away. After EINTR a shell writes again.
                result = Err(Errno::NODEV);
            }
            session.device.reply(unique, result);
            session.state.borrow_mut().later.remove(&unique);
        });
        Ok(())
    }

    /// Zeroes no more, and ends what zeroes, with the work so far kept.
    pub(super) fn stop_zeroing(&self) {
        self.stopping.set(true);
        self.state.borrow_mut().interrupt_all();
    }

    /// Zeroes in the caller's place until that is done or a signal has ended it.
    pub(super) async fn zeroed(
        &self,
        caller: Caller,
        domain: Domain,
        pages: u64,
        stopped: oneshot::Receiver<()>,
    ) -> Result<ZeroResult, Errno> {
        if self.stopping.get() {
            return Err(Errno::NODEV);
        }
        let now = self.shell.borrow_mut().domain(domain).ok_or(Errno::NODEV)?;
        if pages == 0 || now.zeroable == Pages::ZERO {
            return Ok(ZeroResult { pages: Pages::ZERO, interrupted: false });
        }
        if caller.thread == 0 {
            tracing::warn!(uid = caller.uid, "cannot zero for a process of another pid namespace");
            return Err(Errno::PERM);
        }
        let wanted = ZeroOrder { thread: caller.thread, user: caller.uid, domain, pages };
        self.delegated.zero(wanted, stopped).await.map_err(|error| {
            tracing::error!(%error, ?wanted, "a delegated worker failed");
            Errno::IO
        })
    }

    /// What watches of the domain look at, with the kernel's free pages or without.
    pub(super) fn counts_for(&self, domain: Domain, with_free: bool) -> Option<Counts> {
        let mut shell = self.shell.borrow_mut();
        let seen = shell.domain_lately(domain)?;
        if !with_free {
            return Some(seen);
        }
        let free = match shell.domain_in_kernel(domain) {
            Ok(now) => now?.free,
            Err(error) => {
                tracing::warn!(%error, "cannot see the kernel's pages");
                // Shortages of it stay unreported.
                Pages(u64::MAX)
            }
        };
        Some(Counts { free, ..seen })
    }

    /// The operations possible on an open file now; wake `waiter` when that changes.
    fn poll(&self, handle: u64, waiter: Option<u64>) -> Result<TreeReply, Errno> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let events = match state.handles.get(handle)? {
            Open::File(file) => {
                file.waiter = waiter.or(file.waiter);
                let notifiers = state.notifiers.get(&file.domain);
                let notified = match file.kind {
                    FileKind::Zeroable => {
                        notifiers.map_or(1, |notifiers| notifiers.zeroable.notified())
                    }
                    FileKind::Zeroed => {
                        notifiers.map_or(1, |notifiers| notifiers.zeroed.notified())
                    }
                    FileKind::Low => 1,
                };
                let event = PollFlags::PRI | PollFlags::ERR;
                if notified == file.seen { no_event() } else { no_event() | event }
            }
            Open::Device(device) => {
                device.waiter = waiter.or(device.waiter);
                match &device.watch {
                    Some((domain, watch)) => {
                        let now = self.counts_for(*domain, watch.min_free > 0);
                        match watch.is_ready(now.ok_or(Errno::NODEV)?) {
                            true => PollFlags::IN | PollFlags::RDNORM,
                            false => PollFlags::empty(),
                        }
                    }
                    None => PollFlags::empty(),
                }
            }
            Open::Directory(_) => no_event(),
        };
        Ok(TreeReply::poll(events.bits().into()))
    }
}
