// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events without a call: leases and jobs that end, mappings that do, returned blocks that a user
//! queue has looked at, and, by [`kernel`], a pool of the kernel's that changes. The shell is told
//! each.

pub(crate) mod kernel;
mod polled;
#[cfg(test)]
mod tests;
mod unmap_events;

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use linux::DaemonEnd;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;
use units::{JobId, LeaseId};

use self::polled::{Polled, try_register};

use crate::ops::{ReturnedBlocks, Shared};
use crate::storage::leases::FoundLease;

/// How often what cannot be watched is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Ends a lease when its last holder is gone.
pub(crate) fn lease(shell: &Shared, lease: LeaseId, end: DaemonEnd) {
    let shell = Rc::clone(shell);
    tokio::task::spawn_local(async move {
        let end = match unheld(end).await {
            Ok(end) => end,
            // Short of memory, or of what its user may watch (epoll's max_user_watches): its pages
            // would be lent until a restart.
            Err((end, error)) => {
                tracing::warn!(%error, lease = lease.0, "a lease cannot be watched: looks at it now and then");
                seen_unheld(&end).await;
                end
            }
        };
        shell.borrow_mut().close_lease(lease, Some(end.into()));
    });
}

/// The same of leases of an earlier daemon, as their holders are found.
pub(crate) fn leases(shell: &Shared, mut later: UnboundedReceiver<FoundLease>) {
    let shell = Rc::clone(shell);
    tokio::task::spawn_local(async move {
        while let Some((id, end)) = later.recv().await {
            match end {
                Ok(Some(end)) => lease(&shell, id, end),
                Ok(None) => shell.borrow_mut().close_lease(id, None),
                Err(error) => tracing::error!(%error, lease = id.0, "a lease cannot be watched"),
            }
        }
    });
}

/// Waits until the other end of a lease has no holder. Returns this one, also after a failure.
async fn unheld(end: DaemonEnd) -> Result<DaemonEnd, (DaemonEnd, io::Error)> {
    let end = try_register(end, Interest::ERROR)?;
    loop {
        // The pipe has no reader any more: that, and nothing else, is an error of its write end.
        let failed = match end.ready(Interest::ERROR).await {
            Ok(ready) if ready.ready().is_error() => None,
            Ok(mut ready) => {
                ready.clear_ready();
                continue;
            }
            Err(error) => Some(error),
        };
        let Polled(end) = end.into_inner();
        return match failed {
            None => Ok(end),
            Some(error) => Err((end, error)),
        };
    }
}

/// The same by a look now and then.
async fn seen_unheld(end: &DaemonEnd) {
    while !end.has_ended().unwrap_or(false) {
        sleep(POLL_INTERVAL).await;
    }
}

/// Has blocks looked at when a description of them goes.
pub(crate) fn unmap_events(shell: &Shared) {
    tokio::task::spawn_local(unmap_events::apply(Rc::clone(shell)));
}

/// Gives a job up when its worker's end closes, unless it was reported.
pub(crate) fn job(shell: &Shared, job: JobId, ours: OwnedFd) {
    let shell = Rc::clone(shell);
    tokio::task::spawn_local(async move {
        if let Err(error) = closed(ours).await {
            tracing::error!(%error, %job, "a job cannot be watched");
        }
        shell.borrow_mut().lose_job(job);
    });
}

/// Waits until the other end of a job has no holder.
async fn closed(ours: OwnedFd) -> io::Result<()> {
    let ours = pipe::Receiver::from_owned_fd(ours)?;
    // Workers send nothing by a job: readable means that it ended. Bytes that a worker writes all
    // the same are thrown away.
    let mut nothing = [0_u8; 64];
    loop {
        ours.readable().await?;
        match ours.try_read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes what the user queues find out about returned blocks.
pub(crate) fn returned(shell: &Shared, mut returned: ReturnedBlocks) {
    let shell = Rc::clone(shell);
    tokio::task::spawn_local(async move {
        while let Some(block) = returned.recv().await {
            shell.borrow_mut().settled(block);
        }
    });
}
