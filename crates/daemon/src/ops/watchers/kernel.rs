// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Being told by the kernel that its pool has changed.
//!
//! Three things per node and page size. The kernel limits all of them to one wakeup in 100 ms, and
//! none of them ever loses the last. The files `zeroed_hugepages` and `zeroable_hugepages` wake at
//! every change, for all watchers. A watch on the device at the low threshold serves the policy: no
//! other program can set it otherwise (`zeroed_low` is one number for all).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use linux::Roots;
use linux::kernel::files::{CountFile, Name};
use linux::kernel::{Device, WatchFor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use units::{Domain, Pages};

use super::polled::{Polled, register};
use crate::base::error::{Error, Result};
use crate::ops::Shared;

/// The least time between two looks for one reason, under any number of wakeups.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Who listens for what.
#[derive(Debug, Default)]
pub(crate) struct Events {
    domains: BTreeMap<Domain, Listener>,
}

/// Dropped, it ends the watch.
#[derive(Debug)]
struct Listener {
    tasks: Vec<JoinHandle<()>>,
    watch: Option<(Rc<AsyncFd<Polled<Device>>>, Pages)>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Events {
    /// Listens to every pool there is now, at its threshold of now. Nothing to do without a kernel
    /// that tells.
    pub(crate) fn tend(&mut self, shell: &Shared) {
        let lows = shell.borrow().book().notified_below();
        // A node that went away ends its tasks, and may come back.
        self.domains.retain(|_, listener| !listener.tasks.iter().any(JoinHandle::is_finished));
        for (domain, low) in lows {
            let roots = shell.borrow().roots().clone();
            let listener = self.domains.entry(domain).or_insert_with(|| {
                let files = [Name::Zeroed, Name::Zeroable];
                let tasks = files.map(|name| {
                    let file = CountFile::open(&roots, domain, name);
                    tokio::task::spawn_local(follow(Rc::clone(shell), file))
                });
                Listener { tasks: tasks.into(), watch: None }
            });
            if let Err(error) = listener.watch_below(shell, &roots, domain, low) {
                tracing::debug!(%error, "the threshold is looked at by timer");
            }
        }
    }
}

impl Listener {
    /// Has the device tell when fewer than `low` pages are zeroed and something can be done.
    fn watch_below(
        &mut self,
        shell: &Shared,
        roots: &Roots,
        domain: Domain,
        low: Pages,
    ) -> Result<()> {
        if self.watch.as_ref().map_or(Pages::ZERO, |(_, set)| *set) == low {
            return Ok(());
        }
        let fd = match self.watch.take() {
            Some((fd, _)) => fd,
            None => {
                let fd = Rc::new(register(Device::open(roots)?, Interest::READABLE)?);
                self.tasks.push(tokio::task::spawn_local(obey(Rc::clone(shell), Rc::clone(&fd))));
                fd
            }
        };
        let condition = WatchFor { min_zeroed: low, only_if_zeroable: true, min_interval_ms: 0 };
        let set = fd.get_ref().0.watch(domain, condition);
        // Not set, it is tried again.
        let low = if set.is_ok() { low } else { Pages::ZERO };
        self.watch = Some((fd, low));
        Ok(set?)
    }
}

/// Looks at the pool whenever one of its files says that it has changed.
async fn follow(shell: Shared, file: linux::Result<CountFile>) {
    let followed = async {
        let mut fd = register(file?, Interest::PRIORITY)?;
        loop {
            // Reading arms the file: what changes from here on wakes us.
            fd.get_mut().0.read()?;
            shell.borrow_mut().look_again();
            match fd.ready(Interest::PRIORITY).await {
                Ok(mut ready) => ready.clear_ready(),
                Err(source) => {
                    let what = "cannot wait for a file of the kernel's pool";
                    return Err::<(), Error>(Error::Runtime { what, source });
                }
            }
            sleep(MIN_POLL_INTERVAL).await;
        }
    };
    if let Err(error) = followed.await {
        tracing::debug!(%error, "changes of the kernel's pool are looked for by timer");
    }
}

/// Looks at the pool whenever its zeroed pages have fallen below the threshold.
async fn obey(shell: Shared, fd: Rc<AsyncFd<Polled<Device>>>) {
    loop {
        match fd.ready(Interest::READABLE).await {
            // The node has gone away, or the device.
            Ok(ready) if ready.ready().is_read_closed() || ready.ready().is_error() => return,
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => {
                tracing::debug!(%error, "a threshold is looked at by timer");
                return;
            }
        }
        shell.borrow_mut().look_again();
        shell.borrow().changes.wake();
        sleep(MIN_POLL_INTERVAL).await;
    }
}
