// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of requests: users take turns, as with their calls at the socket.
//!
//! The kernel has one queue for the whole tree: a user with 200 threads has 200 requests ahead of
//! another user's. So the daemon empties that queue and sorts the requests by user. Then it answers
//! one request, and lets its other tasks run before the next: a request takes a fifth of the time
//! of a call at the socket.

use std::rc::Rc;

use linux::Errno;
use tokio::task::yield_now;

use super::device::TreeDevice;
use super::session::Session;
use super::wire::{FuseRequest, Op};
use crate::peers::users::Queues;

/// Requests taken from the kernel's queue at a time, 3 us each.
const MAX_REQUESTS_PER_READ: usize = 64;
/// Requests that wait in the daemon; the others wait in the kernel.
const MAX_WAITING_REQUESTS: usize = 4096;
/// Memory of one user's requests that wait: a thousand reads, or thirty writes of the longest.
const MAX_WAITING_BYTES_OF_USER: usize = 256 << 10;

/// A request that waits for its user's turn.
struct Waiting {
    request: FuseRequest,
    /// Its caller got a signal meanwhile.
    is_interrupted: bool,
}

impl Session {
    /// Answers until the file system is unmounted.
    pub(super) async fn serve(self: Rc<Self>) {
        let mut buffer = TreeDevice::buffer();
        let mut waiting = Queues::default();
        loop {
            if waiting.count() == 0 {
                match self.device.receive(&mut buffer).await {
                    Ok(Some(message)) => self.take_in(message, &mut waiting),
                    Ok(None) => return tracing::info!("the control tree has been unmounted"),
                    Err(error) => return tracing::error!(%error, "the control tree is gone"),
                }
            }
            for _ in 0..MAX_REQUESTS_PER_READ {
                if waiting.count() >= MAX_WAITING_REQUESTS {
                    break;
                }
                let Some(message) = self.device.receive_now(&mut buffer) else { break };
                self.take_in(message, &mut waiting);
            }
            if let Some(Waiting { request, is_interrupted }) = waiting.take() {
                let unique = request.unique;
                self.answer(request);
                if is_interrupted {
                    self.interrupt(unique);
                }
            }
            yield_now().await;
        }
    }

    /// Has a request wait for its user's turn, or answers it: what only ends something goes first.
    fn take_in(self: &Rc<Self>, message: &[u8], waiting: &mut Queues<Waiting>) {
        let request = match FuseRequest::parse(message) {
            Ok(request) => request,
            Err((unique, errno)) => return self.device.reply(unique, Err(errno)),
        };
        match request.op {
            // Most requests are answered all the same, as in sysfs: only work is given up.
            Op::Interrupt { unique } => match waiting.find(|r| r.request.unique == unique) {
                Some(waits) => waits.is_interrupted = true,
                None => self.interrupt(unique),
            },
            Op::Init { .. } | Op::Forget | Op::Release { .. } => self.answer(request),
            _ => {
                let owner = self.permits.owner(request.caller);
                let bytes: usize = waiting.of(owner.account).map(|r| r.request.bytes()).sum();
                if owner.is_master || bytes + request.bytes() <= MAX_WAITING_BYTES_OF_USER {
                    waiting.put(owner.account, Waiting { request, is_interrupted: false });
                } else {
                    self.device.reply(request.unique, Err(Errno::AGAIN));
                }
            }
        }
    }
}
