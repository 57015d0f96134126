// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that may wait for a borrower, or take long: made beside the daemon's one thread, in order
//! for each user. So a user that holds his file's locks holds up only his own returns.
//!
//! `fchown`, `fchmod`, `ftruncate` and `unlink` wait for a file's inode lock. A borrower's
//! `fallocate` holds it for the whole call: half a minute and more in a thread that hardly gets any
//! CPU time. So they are called here for every file that a borrower has had. And giving pages back
//! to the kernel takes 0.4 us for each, 50 ms for 256 GiB of 2 MiB pages.
//!
//! A user queue has one thread while it has something to do, and a second longer. Its tasks are on
//! disk first: a crash in between costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use units::Uid;

/// The user of the tasks: an account, or `None` for files that no borrower can have.
pub(crate) type UserQueue = Option<Uid>;

/// The user queue of names that a borrower has had and that are no loan any more: a process that
/// still has the file may hold it up, while loans wait for the user queue of `None`.
pub(crate) const UNLENT_NAMES: UserQueue = Some(Uid(u32::MAX));

type Task = Box<dyn FnOnce() + Send>;

/// The most queues of users at a time; later users share one.
const MAX_USER_QUEUES: usize = 256;
/// The queue that they share.
const SHARED_QUEUE: UserQueue = Some(Uid(u32::MAX));
/// How long a thread waits for the next task before it ends.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the end of a daemon waits for what its users hold up.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// An event on a user's file that takes longer wakes thousands who wait for it. Without any it
/// takes some microseconds.
const MAX_EVENT_PERIOD: Duration = Duration::from_millis(1);
/// The user queue rests this multiple of the time: the kernel wakes the waiters with interrupts
/// off. So these wake-ups take less than a hundredth of a CPU.
const PAUSE_FACTOR: u32 = 99;
/// The longest rest.
const MAX_PAUSE_PERIOD: Duration = Duration::from_secs(1);

/// Makes a call that is an event (inotify(7)) on a file that its user may watch. After an event
/// that woke many waiters the user queue rests: the user of the waiters waits, other users have
/// CPUs.
pub(crate) fn event<T>(act: impl FnOnce() -> T) -> T {
    let begin = cpu_time();
    let done = act();
    let took = cpu_time().saturating_sub(begin);
    if took > MAX_EVENT_PERIOD {
        std::thread::sleep((took * PAUSE_FACTOR).min(MAX_PAUSE_PERIOD));
    }
    done
}

/// What this thread has had of a CPU: a thread that waits for one is no reason to rest.
fn cpu_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The tasks of a user queue that has a thread.
#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Wakes its thread, and no other queue's.
    more: Arc<Condvar>,
}

type Queues = BTreeMap<UserQueue, Queue>;

#[derive(Debug)]
struct Counts {
    /// Tasks of no user's queue.
    ours: watch::Sender<usize>,
    /// Tasks of all user queues.
    all: watch::Sender<usize>,
}

struct Inner {
    queues: Mutex<Queues>,
    counts: Counts,
}

/// The user queues. See the module's documentation.
pub(crate) struct UserQueues(Arc<Inner>);

impl std::fmt::Debug for UserQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("User queues").field(&self.0.counts).finish()
    }
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    // Every change is one call of the map or a queue: a panic elsewhere leaves them whole.
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UserQueues {
    pub(crate) fn new() -> Self {
        let counts = Counts { ours: watch::Sender::new(0), all: watch::Sender::new(0) };
        Self(Arc::new(Inner { queues: Mutex::default(), counts }))
    }

    /// Adds a task behind those of its user queue. Returns at once.
    pub(crate) fn submit(&self, user_queue: UserQueue, task: impl FnOnce() + Send + 'static) {
        self.0.submit(user_queue, Box::new(task));
    }

    /// Keeps descriptors until they are closed in that queue.
    pub(crate) fn closes(&self, user_queue: UserQueue, fds: Vec<OwnedFd>) -> ClosedInQueue {
        ClosedInQueue { fds, queues: Arc::clone(&self.0), user_queue }
    }

    /// Counts the tasks that no user holds up: wait until there are none.
    pub(crate) fn ours(&self) -> watch::Receiver<usize> {
        self.0.counts.ours.subscribe()
    }

    /// The same of all tasks, for callers with little time.
    pub(crate) fn all(&self) -> watch::Receiver<usize> {
        self.0.counts.all.subscribe()
    }

    /// Whether there is anything to do.
    pub(crate) fn is_busy(&self) -> bool {
        *self.0.counts.all.borrow() > 0
    }

    /// Keeps a user queue busy until the returned value is dropped.
    #[cfg(test)]
    pub(crate) fn hold_up(&self, user_queue: UserQueue) -> std::sync::mpsc::Sender<()> {
        let (release, released) = std::sync::mpsc::channel::<()>();
        self.submit(user_queue, move || released.recv().unwrap_or_default());
        release
    }

    /// Waits until all tasks are done, at most this long.
    pub(crate) fn wait(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.is_busy() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for UserQueues {
    /// Blocks until every page is free that no borrower holds up.
    fn drop(&mut self) {
        while *self.0.counts.ours.borrow() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait(SHUTDOWN_TIMEOUT);
    }
}

/// The daemon's copies of descriptors that a borrower gets. Dropped, each is closed in the
/// borrower's queue: if it is the last of its description, that is an event on the file.
pub(crate) struct ClosedInQueue {
    fds: Vec<OwnedFd>,
    queues: Arc<Inner>,
    user_queue: UserQueue,
}

impl ClosedInQueue {
    /// Takes the first descriptor, to close it at once.
    pub(crate) fn take_first(&mut self) -> Option<OwnedFd> {
        (!self.fds.is_empty()).then(|| self.fds.remove(0))
    }
}

impl std::ops::Deref for ClosedInQueue {
    type Target = [OwnedFd];

    fn deref(&self) -> &[OwnedFd] {
        &self.fds
    }
}

impl Drop for ClosedInQueue {
    fn drop(&mut self) {
        let fds = std::mem::take(&mut self.fds);
        let close = || fds.into_iter().for_each(|fd| event(|| drop(fd)));
        self.queues.submit(self.user_queue, Box::new(close));
    }
}

impl Counts {
    fn add(&self, user_queue: UserQueue) {
        self.all.send_modify(|count| *count += 1);
        if user_queue.is_none() {
            self.ours.send_modify(|count| *count += 1);
        }
    }

    fn subtract(&self, user_queue: UserQueue) {
        self.all.send_modify(|count| *count -= 1);
        if user_queue.is_none() {
            self.ours.send_modify(|count| *count -= 1);
        }
    }
}

impl Inner {
    fn submit(self: &Arc<Self>, user_queue: UserQueue, task: Task) {
        let mut queues = lock(&self.queues);
        let is_new = !queues.contains_key(&user_queue);
        let user_queue = if is_new && user_queue.is_some() && queues.len() > MAX_USER_QUEUES {
            SHARED_QUEUE
        } else {
            user_queue
        };
        self.counts.add(user_queue);
        let has_thread = queues.contains_key(&user_queue);
        let queue = queues.entry(user_queue).or_default();
        queue.tasks.push_back(task);
        let more = Arc::clone(&queue.more);
        drop(queues);
        if has_thread {
            more.notify_one();
            return;
        }
        let inner = Arc::clone(self);
        let name = user_queue.map_or_else(|| "freeing".to_owned(), |uid| format!("user {uid}"));
        let started = std::thread::Builder::new().name(name).spawn(move || inner.work(user_queue));
        if let Err(error) = started {
            tracing::error!(%error, "a thread cannot be started: returned pages wait");
            // Its waiters look again: the files are where they were.
            let dropped = lock(&self.queues).remove(&user_queue).unwrap_or_default();
            dropped.tasks.iter().for_each(|_| self.counts.subtract(user_queue));
        }
    }

    /// A user queue's thread.
    fn work(&self, user_queue: UserQueue) {
        let mut idle_since = Instant::now();
        let mut queues = lock(&self.queues);
        let more = queues.get(&user_queue).map(|queue| Arc::clone(&queue.more)).unwrap_or_default();
        loop {
            let queue = queues.get_mut(&user_queue);
            if let Some(task) = queue.and_then(|queue| queue.tasks.pop_front()) {
                drop(queues);
                task();
                self.counts.subtract(user_queue);
                idle_since = Instant::now();
                queues = lock(&self.queues);
                continue;
            }
            let left = IDLE_THREAD_TIMEOUT.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                queues.remove(&user_queue);
                return;
            }
            let waited = more.wait_timeout(queues, left);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn user_queue_pauses_after_an_event_that_wakes_many() {
        let spin = |time| {
            let begin = cpu_time();
            while cpu_time() - begin < time {
                std::hint::spin_loop();
            }
        };
        let begin = Instant::now();
        event(|| spin(4 * MAX_EVENT_PERIOD));
        assert!(
            begin.elapsed() >= 4 * MAX_EVENT_PERIOD * (PAUSE_FACTOR + 1),
            "{:?}",
            begin.elapsed()
        );
        let begin = cpu_time();
        assert_eq!(event(|| 7), 7);
        assert!(cpu_time() - begin < MAX_EVENT_PERIOD, "any other costs nothing");
    }

    // Promise P33.
    #[test]
    fn user_that_blocks_its_queue_delays_no_other_user() {
        let user_queues = UserQueues::new();
        let release = user_queues.hold_up(Some(Uid(1)));
        let (notify, reported) = mpsc::channel();
        for user_queue in [None, Some(Uid(2)), Some(Uid(1))] {
            let notify = notify.clone();
            user_queues
                .submit(user_queue, move || notify.send(user_queue).expect("the test waits"));
        }
        let mut done = [reported.recv_timeout(TEST_TIMEOUT), reported.recv_timeout(TEST_TIMEOUT)]
            .map(Result::unwrap);
        done.sort_unstable();
        assert_eq!(done, [None, Some(Uid(2))]);
        assert!(reported.try_recv().is_err(), "tasks of one user queue are done in order");
        // A task is counted until its thread has come back from it.
        let end = Instant::now() + TEST_TIMEOUT;
        while *user_queues.ours().borrow() > 0 {
            assert!(Instant::now() < end, "nobody's user queue has nothing to do");
            std::thread::yield_now();
        }
        drop(release);
        assert_eq!(reported.recv_timeout(TEST_TIMEOUT), Ok(Some(Uid(1))));
    }

    #[test]
    fn sent_descriptors_are_closed_in_their_users_queue() {
        let user_queues = UserQueues::new();
        let release = user_queues.hold_up(Some(Uid(1)));
        let (mut reader, writer) = std::io::pipe().unwrap();
        drop(user_queues.closes(Some(Uid(1)), vec![writer.into()]));
        let (notify, reported) = mpsc::channel();
        std::thread::spawn(move || {
            let end = std::io::Read::read(&mut reader, &mut [0]).expect("a pipe");
            notify.send(end).expect("the test waits");
        });
        assert!(reported.recv_timeout(Duration::from_millis(50)).is_err(), "it is open");
        drop(release);
        assert_eq!(reported.recv_timeout(TEST_TIMEOUT), Ok(0));
    }

    #[test]
    fn shutdown_waits_for_the_shared_queue_and_briefly_for_users() {
        let user_queues = UserQueues::new();
        let _release = user_queues.hold_up(Some(Uid(1)));
        let (notify, reported) = mpsc::channel();
        user_queues.submit(None, move || {
            std::thread::sleep(Duration::from_millis(20));
            notify.send(()).expect("the test listens");
        });
        drop(user_queues);
        assert_eq!(reported.try_recv(), Ok(()), "every page is free");
    }

    #[test]
    fn users_without_number_share_threads_and_all_are_served() {
        let user_queues = UserQueues::new();
        let (notify, reported) = mpsc::channel();
        for uid in 0..2 * u32::try_from(MAX_USER_QUEUES).unwrap() {
            let notify = notify.clone();
            user_queues.submit(Some(Uid(uid)), move || notify.send(uid).expect("the test waits"));
        }
        for _ in 0..2 * MAX_USER_QUEUES {
            reported.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        assert!(lock(&user_queues.0.queues).len() <= MAX_USER_QUEUES + 2);
    }
}
