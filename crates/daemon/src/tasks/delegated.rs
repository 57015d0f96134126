// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delegated workers: they stand in for a writer that waits for zeroed pages.
//!
//! A writer to a kernel's `zeroable_hugepages` zeroes in its own context. Here the writer sleeps in
//! a request to the daemon, so a worker process does it in the writer's place. Before it asks for
//! its first block it joins the writer's control groups and takes over its CPUs, policy and nice
//! value (`--like`). The writer cannot go away meanwhile, not even killed, as its request is not
//! answered: its thread number is its own until the delegated worker ends.
//!
//! The end of its standard input stops a delegated worker. So it stops as well when the daemon
//! dies; and it finishes the begun page, as a signal sent before it listens could not. The daemon
//! does not wait for one that takes too long. If it asks for work afterwards, as one may that had
//! not even started, it gets none: its pages would be in no writer's count.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use units::{Domain, Pages};
use worker::{Exit, Invocation, PageLimit, Summary, Which};

use crate::base::error::{Error, Result};
use crate::ops::Shared;
use crate::peers::account::Accounts;

/// The most delegated workers at a time of all users but root, and as many again of root; further
/// writers wait for one to end. Each is a process of 3 MiB, and more than one per CPU finish
/// nothing sooner.
const MAX_DELEGATED_WORKERS: usize = 64;
/// The most of one user other than root. Each has a block in its hands, while the writer's control
/// group lets it run: one user without CPU time can keep this number of blocks from all others.
const MAX_DELEGATED_WORKERS_OF_USER: usize = 8;
/// How long an interrupted writer waits for its delegated worker to finish the page at hand. A page
/// of 1 GiB takes up to a quarter of it; a delegated worker with a throttled or frozen group may
/// take any time, and finishes its page by itself then.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a delegated worker is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZeroOrder {
    /// The thread that it stands in for.
    pub(crate) thread: u32,
    /// Its user.
    pub(crate) user: u32,
    pub(crate) domain: Domain,
    /// The most pages; `u64::MAX` for all.
    pub(crate) pages: u64,
}

/// What it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ZeroResult {
    pub(crate) pages: Pages,
    /// It was told to stop before everything was done.
    pub(crate) interrupted: bool,
}

/// Starts delegated workers.
#[derive(Debug)]
pub(crate) struct DelegatedWorkers {
    command: Vec<OsString>,
    shell: Shared,
    places: WorkerSlots,
}

/// Places of delegated workers. Root's are its own, so that an operator never waits.
#[derive(Debug)]
struct WorkerSlots {
    all: Arc<Semaphore>,
    users: RefCell<BTreeMap<u32, Arc<Semaphore>>>,
    accounts: Accounts,
}

/// The user's, and that among all users.
type WorkerSlot = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl WorkerSlots {
    fn new(accounts: Accounts) -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_DELEGATED_WORKERS)),
            users: RefCell::default(),
            accounts,
        }
    }

    async fn take(&self, user: u32) -> std::result::Result<WorkerSlot, AcquireError> {
        // Or one user would have as many places as it has subordinates (subuid(5)): all of them.
        let user = self.accounts.of_number(user);
        let own = self.of(user).acquire_owned().await?;
        let all = match user {
            0 => None,
            _ => Some(Arc::clone(&self.all).acquire_owned().await?),
        };
        Ok((own, all))
    }

    fn of(&self, user: u32) -> Arc<Semaphore> {
        let mut users = self.users.borrow_mut();
        // Users without running delegated workers are forgotten.
        users.retain(|_, places| Arc::strong_count(places) > 1);
        let most = if user == 0 { MAX_DELEGATED_WORKERS } else { MAX_DELEGATED_WORKERS_OF_USER };
        Arc::clone(users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(most))))
    }
}

impl DelegatedWorkers {
    /// `command` starts a worker; empty for none.
    pub(crate) fn new(command: Vec<OsString>, shell: &Shared) -> Rc<Self> {
        let accounts = Accounts::new(shell.borrow().roots().clone());
        Rc::new(Self { command, shell: Rc::clone(shell), places: WorkerSlots::new(accounts) })
    }

    /// Zeroes in the place of a thread that waits for the result. Ends early when `stop` is sent or
    /// dropped, at the end of the page at hand.
    ///
    /// # Errors
    /// A delegated worker that could not be started, or that failed before it could say how far it
    /// got; its standard error, which is the daemon's, says how.
    pub(crate) async fn zero(
        &self,
        order: ZeroOrder,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<ZeroResult> {
        let nothing = ZeroResult { pages: Pages::ZERO, interrupted: true };
        let place = tokio::select! {
            place = self.places.take(order.user) => place,
            _ = &mut stop => return Ok(nothing),
        };
        let failed = |source| Error::Runtime { what: "cannot start a worker", source };
        let mut child = self.command(order)?.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let pid = child.id();
        tracing::debug!(pid, ?order, "started a delegated worker");
        let mut work = Box::pin(async move {
            // Until its end, also without a waiting writer: it has a block as long.
            let _place = place;
            let mut text = String::new();
            if let Some(mut output) = output {
                output.read_to_string(&mut text).await?;
            }
            Ok((child.wait().await?, text))
        });
        let ended = tokio::select! {
            ended = &mut work => ended,
            _ = &mut stop => {
                drop(input);
                match timeout(STOP_TIMEOUT, &mut work).await {
                    // Told to stop before it could ask for work, it may have found no daemon.
                    Ok(ended) => {
                        let report = ended.ok().and_then(|(status, text)| report(status, &text).ok());
                        return Ok(report.unwrap_or(nothing));
                    }
                    Err(_) => {
                        tracing::info!(?order, "a delegated worker takes its time to stop: not waited for");
                        let abandoned = Abandoned::new(&self.shell, pid);
                        tokio::task::spawn_local(async move {
                            let _ended = work.await;
                            drop(abandoned);
                        });
                        return Ok(nothing);
                    }
                }
            }
        };
        let failed = |source| Error::Runtime { what: "lost sight of a worker", source };
        let (status, text) = ended.map_err(failed)?;
        report(status, &text)
    }

    fn command(&self, ZeroOrder { thread, domain, pages, .. }: ZeroOrder) -> Result<Command> {
        let none =
            || Error::DelegatedWorker("this daemon has no command to start workers".to_owned());
        let (program, arguments) = self.command.split_first().ok_or_else(none)?;
        let invocation = Invocation {
            which: Which::exact(domain.node, domain.page_size),
            threads: Some(1),
            pages: PageLimit::new((pages != u64::MAX).then_some(pages)),
            like: Some(thread),
            until_eof: true,
            ..Invocation::default()
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg("--json")
            .args(invocation.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        for variable in crate::base::manager::OWN_VARIABLES {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

/// A delegated worker without a waiting writer, until it has ended.
struct Abandoned {
    shell: Shared,
    pid: Option<u32>,
}

impl Abandoned {
    fn new(shell: &Shared, pid: Option<u32>) -> Self {
        if let Some(pid) = pid {
            shell.borrow_mut().workers.abandon(pid);
        }
        Self { shell: Rc::clone(shell), pid }
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            self.shell.borrow_mut().workers.forget(pid);
        }
    }
}

fn report(status: ExitStatus, text: &str) -> Result<ZeroResult> {
    let exit = status.code().and_then(Exit::from_code);
    match exit.and_then(|_| Summary::parse(text)) {
        Some(Summary { pages, interrupted, .. }) => {
            Ok(ZeroResult { pages: Pages(pages), interrupted })
        }
        None => Err(Error::DelegatedWorker(format!("it ended with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::now::NowOrNever as _;
    use linux::Roots;
    use std::os::unix::process::ExitStatusExt;
    use tokio::task::unconstrained;

    #[test]
    fn only_a_worker_that_did_what_could_be_done_has_a_report() {
        let ended = |code: i32, text: &str| report(ExitStatus::from_raw(code << 8), text).ok();
        let work = worker::WorkDone { pages: 3, bytes: 12, ..worker::WorkDone::default() };
        let some = serde_json::to_string(&Summary::new(&work, true)).unwrap();
        let some = some.as_str();
        let three = ZeroResult { pages: Pages(3), interrupted: true };
        assert_eq!(ended(130, some), Some(three));
        assert_eq!(ended(5, some), Some(three));
        assert_eq!(ended(3, some), None, "there was no daemon");
        assert_eq!(ended(0, ""), None);
        assert!(report(ExitStatus::from_raw(9), some).is_err(), "killed");
    }

    // Promise P49 (tree): Writers delay no writer of another user, and no user delays root: a
    // user, subordinates included, has 8 delegated workers at a time, all but root 64.
    #[test]
    fn one_users_workers_leave_slots_to_others_and_root() {
        let dir = tempfile::tempdir().unwrap();
        let subuid = dir.path().join("subuid");
        std::fs::write(&subuid, "7:100000:65536\n").unwrap();
        let places = WorkerSlots::new(Accounts::from_file(
            Roots::default(),
            &subuid,
            Duration::from_secs(1),
        ));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            // Or tokio's own budget would be the result.
            let now = |user| unconstrained(places.take(user)).now_or_never();
            let of = |user| std::iter::from_fn(|| now(user)).take(100).collect::<Vec<_>>();
            let first = of(1);
            assert_eq!((first.len(), now(1).is_none()), (MAX_DELEGATED_WORKERS_OF_USER, true));
            let others: Vec<_> = (2..20).map(of).collect();
            assert_eq!(
                others.iter().map(Vec::len).sum::<usize>(),
                MAX_DELEGATED_WORKERS - MAX_DELEGATED_WORKERS_OF_USER
            );
            assert_eq!(of(0).len(), MAX_DELEGATED_WORKERS, "root waits for itself only");
            drop((first, others));
            assert_eq!(of(1).len(), MAX_DELEGATED_WORKERS_OF_USER);
            let subordinates: Vec<_> = (100_000..100_020).map(of).collect();
            let taken = subordinates.iter().map(Vec::len).sum::<usize>();
            assert_eq!(
                (taken, of(7).len()),
                (MAX_DELEGATED_WORKERS_OF_USER, 0),
                "they have their user's places"
            );
        });
        places.of(7);
        assert!(places.users.borrow().len() <= 1, "users whose delegated workers have ended");
    }
}
