// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deputies: workers that stand in for somebody who waits for zeroed pages.
//!
//! Who writes to a kernel's `zeroable_hugepages` zeroes in its own context. Here the writer sleeps
//! in a request to the daemon, so a worker process does it in the writer's place: before it asks
//! for its first block it joins the writer's control groups and takes over its CPUs, policy and
//! nice value (`--like`). The writer cannot go away meanwhile, not even killed, as its request is
//! not answered: its thread number is its own for as long as the deputy needs it.
//!
//! A deputy is told to stop by the end of its standard input. So it stops as well when the daemon
//! dies; and it does the page that it has begun, as a signal sent before it listens could not. One
//! that takes too long for that is not waited for, and if it asks for work afterwards, as one may
//! that had not even started, it gets none: what it zeroed would be in no writer's count.

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

/// The most deputies at a time of all users but root, and as many again of root; further writers
/// wait for one to end. Each is a process of 3 MiB, and more than one per CPU finish nothing
/// sooner.
const MOST: usize = 64;
/// The most of one user that is not root. Each has a block in its hands, for as long as the
/// writer's control group lets it: so many blocks can one user keep from everybody by having no CPU
/// time.
const MOST_OF_ONE: usize = 8;
/// How long a writer that was interrupted waits for its deputy to finish the page at hand. A page
/// of 1 GiB takes up to a quarter of it; a deputy whose group is throttled or frozen may take any
/// time, and finishes its page by itself then.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What a deputy is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The thread in whose place it works.
    pub(crate) thread: u32,
    /// Its user.
    pub(crate) user: u32,
    pub(crate) domain: Domain,
    /// The most pages; `u64::MAX` for all.
    pub(crate) pages: u64,
}

/// What it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pages: Pages,
    /// It was told to stop before everything was done.
    pub(crate) interrupted: bool,
}

/// Starts deputies.
#[derive(Debug)]
pub(crate) struct Deputies {
    command: Vec<OsString>,
    shell: Shared,
    places: Places,
}

/// Places of deputies. Root's are its own, so that nobody keeps an operator waiting.
#[derive(Debug)]
struct Places {
    all: Arc<Semaphore>,
    users: RefCell<BTreeMap<u32, Arc<Semaphore>>>,
    accounts: Accounts,
}

/// The user's, and that among all users.
type Place = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Places {
    fn new(accounts: Accounts) -> Self {
        Self { all: Arc::new(Semaphore::new(MOST)), users: RefCell::default(), accounts }
    }

    async fn take(&self, user: u32) -> std::result::Result<Place, AcquireError> {
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
        // Those whose deputies have all ended are nobody any more.
        users.retain(|_, places| Arc::strong_count(places) > 1);
        let most = if user == 0 { MOST } else { MOST_OF_ONE };
        Arc::clone(users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(most))))
    }
}

impl Deputies {
    /// `command` starts a worker; empty for none.
    pub(crate) fn new(command: Vec<OsString>, shell: &Shared) -> Rc<Self> {
        let accounts = Accounts::new(shell.borrow().roots().clone());
        Rc::new(Self { command, shell: Rc::clone(shell), places: Places::new(accounts) })
    }

    /// Zeroes in the place of a thread that waits for the result. Ends early when `stop` is sent or
    /// dropped, at the end of the page at hand.
    ///
    /// # Errors
    /// A deputy that could not be started, or that failed before it could say how far it got; its
    /// standard error, which is the daemon's, says how.
    pub(crate) async fn zero(
        &self,
        order: Wanted,
        mut stop: oneshot::Receiver<()>,
    ) -> Result<Ended> {
        let nothing = Ended { pages: Pages::ZERO, interrupted: true };
        let place = tokio::select! {
            place = self.places.take(order.user) => place,
            _ = &mut stop => return Ok(nothing),
        };
        let failed = |source| Error::Runtime { what: "cannot start a worker", source };
        let mut child = self.command(order)?.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let pid = child.id();
        tracing::debug!(pid, ?order, "started a deputy");
        let mut work = Box::pin(async move {
            // Until its end, also when nobody waits for it any more: it has a block as long.
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
                match timeout(STOP_PATIENCE, &mut work).await {
                    // Told to stop before it could ask for work, it may have found no daemon.
                    Ok(ended) => {
                        let report = ended.ok().and_then(|(status, text)| report(status, &text).ok());
                        return Ok(report.unwrap_or(nothing));
                    }
                    Err(_) => {
                        tracing::info!(?order, "a deputy takes its time to stop: not waited for");
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

    fn command(&self, Wanted { thread, domain, pages, .. }: Wanted) -> Result<Command> {
        let none = || Error::Deputy("this daemon has no command to start workers".to_owned());
        let (program, arguments) = self.command.split_first().ok_or_else(none)?;
        let invocation = Invocation {
            which: Which::of(domain.node, domain.page_size),
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

/// A deputy that nobody waits for any more, until it has ended.
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

fn report(status: ExitStatus, text: &str) -> Result<Ended> {
    let exit = status.code().and_then(Exit::from_code);
    match exit.and_then(|_| Summary::parse(text)) {
        Some(Summary { pages, interrupted, .. }) => Ok(Ended { pages: Pages(pages), interrupted }),
        None => Err(Error::Deputy(format!("it ended with {status}"))),
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
        let work = worker::Work { pages: 3, bytes: 12, ..worker::Work::default() };
        let some = serde_json::to_string(&Summary::new(&work, true)).unwrap();
        let some = some.as_str();
        let three = Ended { pages: Pages(3), interrupted: true };
        assert_eq!(ended(130, some), Some(three));
        assert_eq!(ended(5, some), Some(three));
        assert_eq!(ended(3, some), None, "there was no daemon");
        assert_eq!(ended(0, ""), None);
        assert!(report(ExitStatus::from_raw(9), some).is_err(), "killed");
    }

    #[test]
    fn one_users_deputies_leave_places_to_other_users_and_all_of_them_to_root() {
        let dir = tempfile::tempdir().unwrap();
        let subuid = dir.path().join("subuid");
        std::fs::write(&subuid, "7:100000:65536\n").unwrap();
        let places =
            Places::new(Accounts::of_file(Roots::default(), &subuid, Duration::from_secs(1)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            // Or tokio's own budget would be what is found.
            let now = |user| unconstrained(places.take(user)).now_or_never();
            let of = |user| std::iter::from_fn(|| now(user)).take(100).collect::<Vec<_>>();
            let first = of(1);
            assert_eq!((first.len(), now(1).is_none()), (MOST_OF_ONE, true));
            let others: Vec<_> = (2..20).map(of).collect();
            assert_eq!(others.iter().map(Vec::len).sum::<usize>(), MOST - MOST_OF_ONE);
            assert_eq!(of(0).len(), MOST, "root waits for itself only");
            drop((first, others));
            assert_eq!(of(1).len(), MOST_OF_ONE);
            let subordinates: Vec<_> = (100_000..100_020).map(of).collect();
            let taken = subordinates.iter().map(Vec::len).sum::<usize>();
            assert_eq!((taken, of(7).len()), (MOST_OF_ONE, 0), "they have their user's places");
        });
        places.of(7);
        assert!(places.users.borrow().len() <= 1, "users whose deputies have ended");
    }
}
