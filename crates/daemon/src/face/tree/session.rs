// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answering the kernel's requests, one after another; those that zero go on in tasks of their own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use linux::{Errno, Roots};
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use units::{Counts, Domain, Pages};

use super::device::Device;
use super::item::{self, Access, Item, Kind};
use super::notify::Notifiers;
use super::open::{Handles, Open, OpenDevice, OpenDirectory, OpenFile};
use super::wire::{Caller, Op, Reply, Request};
use crate::deputy::{Deputies, Ended, Wanted};
use crate::rights::SharedGroups;
use crate::shell::Shared;

/// File numbers begin here; those of directories, which are their inode numbers, are below.
const FIRST_FILE: u64 = 1 << 48;

/// What a file that has nothing to tell polls as, in sysfs.
fn no_event() -> PollFlags {
    PollFlags::IN | PollFlags::RDNORM | PollFlags::OUT | PollFlags::WRNORM
}

/// A mounted tree.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) device: Device,
    pub(super) shell: Shared,
    pub(super) deputies: Rc<Deputies>,
    pub(super) groups: SharedGroups,
    pub(super) roots: Roots,
    pub(super) access: Access,
    pub(super) state: RefCell<State>,
    /// Somebody new listens.
    pub(super) listens: Notify,
    /// Nothing more is zeroed.
    pub(super) stopping: Cell<bool>,
}

/// What changes.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Items by the numbers that the kernel knows.
    numbers: BTreeMap<u64, Item>,
    last_number: u64,
    pub(super) handles: Handles,
    pub(super) notifiers: BTreeMap<Domain, Notifiers>,
    /// Requests that zero, and how to end them.
    zeroing: BTreeMap<u64, Option<oneshot::Sender<()>>>,
}

impl State {
    fn item(&self, number: u64) -> Result<Item, Errno> {
        match number {
            item::ROOT => Ok(Item::Root),
            _ => self.numbers.get(&number).copied().ok_or(Errno::STALE),
        }
    }

    /// A number for the kernel to know an item by.
    ///
    /// Every look-up of a file gives a new one, so that every open file has an inode of its own:
    /// the kernel holds the inode's lock while it waits for a write to be answered, and whoever
    /// else opened the same file with `>` would sleep for the same lock, where no signal reaches
    /// it.
    fn number(&mut self, item: Item) -> u64 {
        let number = if item.is_directory() {
            item.ino()
        } else {
            self.last_number += 1;
            FIRST_FILE + self.last_number
        };
        self.numbers.insert(number, item);
        number
    }

    fn forget(&mut self, number: u64) {
        if number >= FIRST_FILE {
            self.numbers.remove(&number);
        }
    }

    /// The notifiers of a domain, after they have taken in what its counts are.
    pub(super) fn notifiers(&mut self, domain: Domain, counts: Counts) -> &mut Notifiers {
        let notifiers =
            self.notifiers.entry(domain).or_insert_with(|| Notifiers::new(counts, Instant::now()));
        notifiers.note(counts);
        notifiers
    }

    /// Whether requests wait for zeroing.
    pub(super) fn is_zeroing(&self) -> bool {
        !self.zeroing.is_empty()
    }

    fn interrupt_all(&mut self) {
        for stop in self.zeroing.values_mut() {
            drop(stop.take());
        }
    }
}

impl Session {
    /// Answers until the file system is unmounted.
    pub(super) async fn serve(self: Rc<Self>) {
        let mut buffer = Device::buffer();
        loop {
            match self.device.receive(&mut buffer).await {
                Ok(Some(message)) => match Request::parse(message) {
                    Ok(request) => self.answer(request),
                    Err((unique, errno)) => self.device.reply(unique, Err(errno)),
                },
                Ok(None) => return tracing::info!("the control tree has been unmounted"),
                Err(error) => return tracing::error!(%error, "the control tree is gone"),
            }
        }
    }

    fn answer(self: &Rc<Self>, request: Request<'_>) {
        let Request { unique, number, caller, op } = request;
        let result = match op {
            Op::Forget(numbers) => {
                let mut state = self.state.borrow_mut();
                return numbers.into_iter().for_each(|number| state.forget(number));
            }
            Op::Interrupt { unique } => {
                // Those that don't zero are answered by now.
                let mut state = self.state.borrow_mut();
                drop(state.zeroing.get_mut(&unique).and_then(Option::take));
                return;
            }
            Op::Write { handle, data } => match self.write(unique, caller, handle, data) {
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
            Op::Init { flags } => Ok(Reply::init(flags)),
            Op::Lookup { name } => self.lookup(number, name),
            Op::GetAttr => self.attr(number),
            Op::SetAttr { valid } => self.set_attr(number, valid),
            Op::Open { flags } => self.open(number, flags),
            Op::OpenDir => self.open_directory(number),
            Op::Read { handle, offset, size } => self.read(handle, offset, size),
            Op::ReadDir { handle, offset, size } => self.read_directory(handle, offset, size),
            Op::Release { handle } => {
                self.state.borrow_mut().handles.remove(handle);
                Ok(Reply::empty())
            }
            Op::StatFs => Ok(Reply::stat_fs()),
            Op::Poll { handle, waiter, wake } => self.poll(handle, wake.then_some(waiter)),
            // As sysfs, whose directories have no such operations.
            Op::Create => Err(Errno::ACCESS),
            Op::Rename => Err(Errno::PERM),
            Op::Unknown => Err(Errno::NOSYS),
        };
        self.device.reply(unique, result);
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<Reply, Errno> {
        let mut state = self.state.borrow_mut();
        let children = state.item(parent)?.children(&self.shell.borrow().domains());
        let (_, item) =
            children.into_iter().find(|(child, _)| child.as_bytes() == name).ok_or(Errno::NOENT)?;
        let number = state.number(item);
        Ok(Reply::entry(number, item.attr(&self.access)))
    }

    fn attr(&self, number: u64) -> Result<Reply, Errno> {
        let item = self.state.borrow().item(number)?;
        Ok(Reply::attr(item.attr(&self.access)))
    }

    /// Whose files they are is configured; truncation (`>`) and times are accepted and mean
    /// nothing.
    fn set_attr(&self, number: u64, valid: u32) -> Result<Reply, Errno> {
        use polyfuse_kernel::{FATTR_GID, FATTR_MODE, FATTR_UID};
        if valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
            return Err(Errno::PERM);
        }
        self.attr(number)
    }

    fn open(&self, number: u64, flags: i32) -> Result<Reply, Errno> {
        let mut state = self.state.borrow_mut();
        let open = match state.item(number)? {
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
        Ok(Reply::open(state.handles.add(open), true))
    }

    fn open_directory(&self, number: u64) -> Result<Reply, Errno> {
        let mut state = self.state.borrow_mut();
        let item = state.item(number)?;
        let open = Open::Directory(OpenDirectory { item, entries: Vec::new() });
        Ok(Reply::open(state.handles.add(open), false))
    }

    fn read_directory(&self, handle: u64, offset: u64, size: usize) -> Result<Reply, Errno> {
        let mut state = self.state.borrow_mut();
        let directory = state.handles.directory(handle)?;
        if offset == 0 {
            directory.entries = directory.item.children(&self.shell.borrow().domains());
        }
        let mut reply = Reply::empty();
        let rest = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, item)) in (1..).zip(&directory.entries).skip(rest) {
            let kind = (item.ino(), item.mode(&self.access));
            if !reply.push_entry(kind, name, next, size) {
                break;
            }
        }
        Ok(reply)
    }

    fn read(&self, handle: u64, offset: u64, size: usize) -> Result<Reply, Errno> {
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
                Kind::Zeroable => (notifiers.zeroable.arm(), now.zeroable.0),
                Kind::Zeroed => (notifiers.zeroed.arm(), now.ready.0),
                // Nobody is told when it changes.
                Kind::Low => (1, notifiers.low()),
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
        Ok(Reply::data(&file.text[start..end]))
    }

    /// `Ok(None)`: it is answered later.
    fn write(
        self: &Rc<Self>,
        unique: u64,
        caller: Caller,
        handle: u64,
        data: &[u8],
    ) -> Result<Option<Reply>, Errno> {
        let (domain, kind) = {
            let mut state = self.state.borrow_mut();
            let file = state.handles.file(handle)?;
            (file.domain, file.kind)
        };
        let (length, text) = item::taken(data);
        match kind {
            Kind::Zeroable => {
                let pages = item::parse_pages_or_max(text).ok_or(Errno::INVAL)?;
                self.zero(unique, caller, domain, pages, move |report| match report {
                    Ended { interrupted: true, .. } => Err(Errno::INTR),
                    Ended { .. } => Ok(Reply::written(length)),
                });
                Ok(None)
            }
            Kind::Low => {
                let low = item::parse_pages(text).ok_or(Errno::INVAL)?;
                let now = self.shell.borrow_mut().domain_lately(domain).ok_or(Errno::NODEV)?;
                self.state.borrow_mut().notifiers(domain, now).set_low(low);
                self.listens.notify_one();
                Ok(Some(Reply::written(length)))
            }
            Kind::Zeroed => Err(Errno::IO),
        }
    }

    /// Zeroes in the caller's place, and answers it when that is done or a signal has ended it.
    pub(super) fn zero(
        self: &Rc<Self>,
        unique: u64,
        caller: Caller,
        domain: Domain,
        pages: u64,
        reply: impl FnOnce(Ended) -> Result<Reply, Errno> + 'static,
    ) {
        let (stop, stopped) = oneshot::channel();
        self.state.borrow_mut().zeroing.insert(unique, Some(stop));
        let session = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let mut result = session.zeroed(caller, domain, pages, stopped).await.and_then(reply);
            if session.stopping.get() && result.is_err() {
                // As the kernel says when it takes a node away. After EINTR a shell writes again.
                result = Err(Errno::NODEV);
            }
            session.device.reply(unique, result);
            session.state.borrow_mut().zeroing.remove(&unique);
        });
    }

    /// Zeroes no more, and ends what zeroes, with the work so far kept.
    pub(super) fn stop_zeroing(&self) {
        self.stopping.set(true);
        self.state.borrow_mut().interrupt_all();
    }

    async fn zeroed(
        &self,
        caller: Caller,
        domain: Domain,
        pages: u64,
        stopped: oneshot::Receiver<()>,
    ) -> Result<Ended, Errno> {
        if self.stopping.get() {
            return Err(Errno::NODEV);
        }
        let now = self.shell.borrow_mut().domain(domain).ok_or(Errno::NODEV)?;
        if pages == 0 || now.zeroable == Pages::ZERO {
            return Ok(Ended { pages: Pages::ZERO, interrupted: false });
        }
        if caller.thread == 0 {
            tracing::warn!(uid = caller.uid, "cannot zero for a process of another pid namespace");
            return Err(Errno::PERM);
        }
        let wanted = Wanted { thread: caller.thread, user: caller.uid, domain, pages };
        self.deputies.zero(wanted, stopped).await.map_err(|error| {
            tracing::error!(%error, ?wanted, "a deputy failed");
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
                // Nobody is told that they run low for it.
                Pages(u64::MAX)
            }
        };
        Some(Counts { free, ..seen })
    }

    /// What can be done with an open file now; `waiter` is to be woken when that changes.
    fn poll(&self, handle: u64, waiter: Option<u64>) -> Result<Reply, Errno> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let events = match state.handles.get(handle)? {
            Open::File(file) => {
                file.waiter = waiter.or(file.waiter);
                let notifiers = state.notifiers.get(&file.domain);
                let notified = match file.kind {
                    Kind::Zeroable => {
                        notifiers.map_or(1, |notifiers| notifiers.zeroable.notified())
                    }
                    Kind::Zeroed => notifiers.map_or(1, |notifiers| notifiers.zeroed.notified()),
                    Kind::Low => 1,
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
        Ok(Reply::poll(events.bits().into()))
    }
}
