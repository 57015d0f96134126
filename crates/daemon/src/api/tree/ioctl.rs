// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of `hugepagectl`, in the order of checks that the kernel series has.

use std::rc::Rc;
use std::time::Duration;

use linux::Errno;
use linux::hugepagectl::{
    Argument, IoctlNumber, Query, WATCH_INTERVAL_DEFAULT_MS, WATCH_INTERVAL_MAX_MS, WATCH_ZEROABLE,
    Watch, Zero,
};
use linux::meminfo::base_page;
use tokio::sync::oneshot;
use tokio::time::Instant;
use units::Domain;

use super::item::domain_of;
use super::notify;
use super::permits::Permit;
use super::session::Session;
use super::wire::{Caller, TreeReply};
use crate::tasks::delegated::ZeroResult;

impl Session {
    /// `Ok(None)`: it is answered later.
    pub(super) fn ioctl(
        self: &Rc<Self>,
        unique: u64,
        caller: Caller,
        handle: u64,
        number: u32,
        data: Vec<u8>,
    ) -> Result<Option<TreeReply>, Errno> {
        self.state.borrow_mut().handles.device(handle)?;
        let nr = IoctlNumber::parse(number)?.nr();
        if nr == Query::NR {
            return self.query(Query::read(&data)?).map(Some);
        }
        if nr != Zero::NR && nr != Watch::NR {
            return Err(Errno::NOTTY);
        }
        let permit = match self.permits.to_zero(caller) {
            Permit::Refused => return Err(Errno::PERM),
            Permit::Given if nr == Watch::NR => {
                return self.watch(handle, Watch::read(&data)?).map(Some);
            }
            permit => permit,
        };
        let session = Rc::clone(self);
        let work = async move |mut stopped: oneshot::Receiver<()>| {
            if let Permit::Asked(reported) = permit {
                tokio::select! {
                    is_permitted = reported => if is_permitted != Ok(true) { return Err(Errno::PERM) },
                    _ = &mut stopped => return Err(Errno::INTR),
                }
            }
            match nr {
                Watch::NR => session.watch(handle, Watch::read(&data)?),
                _ => session.zero_by_ioctl(caller, Zero::read(&data)?, stopped).await,
            }
        };
        self.later(unique, caller, work).map(|()| None)
    }

    fn domain(&self, node: i32, page_shift: u32) -> Result<Domain, Errno> {
        let domain = domain_of(node, page_shift).ok_or(Errno::NODEV)?;
        let known = self.shell.borrow().domains().contains(&domain);
        known.then_some(domain).ok_or(Errno::NODEV)
    }

    fn query(&self, query: Query) -> Result<TreeReply, Errno> {
        if query.flags != 0 {
            return Err(Errno::INVAL);
        }
        let domain = self.domain(query.node, query.page_shift)?;
        let now = self.shell.borrow_mut().domain_in_kernel(domain).map_err(|error| {
            tracing::warn!(%error, "cannot see the kernel's pages");
            Errno::IO
        })?;
        let now = now.ok_or(Errno::NODEV)?;
        let memory =
            self.shell.borrow_mut().observed.node_memory(domain.node).map_err(|error| {
                tracing::warn!(%error, "cannot see the node's memory");
                Errno::IO
            })?;
        let base = base_page().bytes();
        let answer = Query {
            node_total: memory.total_bytes / base,
            node_free: memory.free_bytes / base,
            ..query.answered(&now)
        };
        Ok(TreeReply::ioctl(answer.written()))
    }

    async fn zero_by_ioctl(
        &self,
        caller: Caller,
        zero: Zero,
        stopped: oneshot::Receiver<()>,
    ) -> Result<TreeReply, Errno> {
        if zero.flags != 0 {
            return Err(Errno::INVAL);
        }
        let domain = self.domain(zero.node, zero.page_shift)?;
        match self.zeroed(caller, domain, zero.pages, stopped).await? {
            ZeroResult { pages, interrupted: true } if pages.0 == 0 => Err(Errno::INTR),
            ZeroResult { pages, .. } => {
                Ok(TreeReply::ioctl(Zero { zeroed: pages.0, ..zero }.written()))
            }
        }
    }

    fn watch(&self, handle: u64, watch: Watch) -> Result<TreeReply, Errno> {
        let known = watch.flags & !WATCH_ZEROABLE == 0 && watch.reserved == 0;
        if !known || watch.min_interval_ms > WATCH_INTERVAL_MAX_MS {
            return Err(Errno::INVAL);
        }
        let domain = self.domain(watch.node, watch.page_shift)?;
        let interval = match watch.min_interval_ms {
            0 => WATCH_INTERVAL_DEFAULT_MS,
            milliseconds => milliseconds,
        };
        let level = notify::LevelWatch {
            min_zeroed: watch.min_zeroed,
            only_zeroable: watch.flags & WATCH_ZEROABLE != 0,
            min_free: watch.min_free,
            interval: Duration::from_millis(interval.into()),
            pending: false,
            not_before: Instant::now(),
        };
        let mut state = self.state.borrow_mut();
        let device = state.handles.device(handle)?;
        let watches = watch.min_zeroed > 0 || watch.min_free > 0;
        device.watch = watches.then_some((domain, level));
        // Who polls already has to look at the new condition.
        if let Some(waiter) = device.waiter.take() {
            self.device.wake(waiter);
        }
        self.listens.notify_one();
        Ok(TreeReply::ioctl(watch.written()))
    }
}
