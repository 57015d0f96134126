// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What may wait for a borrower, or takes long: done beside the daemon's one thread, in order for
//! each user, so that one who holds his file's locks holds up his own returns and nobody else.
//!
//! `fchown`, `fchmod`, `ftruncate` and `unlink` wait for a file's inode lock, which a borrower's
//! `fallocate` holds for as long as it takes: half a minute and more in a thread that hardly gets
//! any CPU time. So they are called here for every file that a borrower has had. And giving pages
//! back to the kernel takes 0.4 us for each, 50 ms for 256 GiB of 2 MiB pages.
//!
//! A lane has one thread while it has something to do, and a second longer. What is given to it
//! lives in the file system first: a crash in between costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use units::Uid;

/// Whose: an account's, or `None` for what no borrower can have.
pub(crate) type Lane = Option<Uid>;

/// The lane of names that a borrower has had and that are nobody's loan any more: whoever still has
/// such a file may hold it up, and loans wait for the lane of `None`.
pub(crate) const NOBODYS: Lane = Some(Uid(u32::MAX));

type Task = Box<dyn FnOnce() + Send>;

/// The most lanes of users at a time; those who come later share one.
const MOST: usize = 256;
/// The lane that they share.
const SHARED: Lane = Some(Uid(u32::MAX));
/// How long a thread waits for the next task before it ends.
const LINGER: Duration = Duration::from_secs(1);
/// How long the end of a daemon waits for what its users hold up.
const PATIENCE: Duration = Duration::from_secs(2);

/// An event on a user's file that takes longer wakes thousands who wait for it. Without any it
/// takes some microseconds.
const WAKES_MANY: Duration = Duration::from_millis(1);
/// For so many times as long the lane rests then: the kernel wakes them with interrupts off.
const REST: u32 = 9;
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Does in a lane what is an event (inotify(7)) on a file that its user may watch. After an event
/// that woke many waiters the lane rests: the user who has them woken waits, other users have CPUs.
pub(crate) fn event<T>(act: impl FnOnce() -> T) -> T {
    let begin = cpu_time();
    let done = act();
    let took = cpu_time().saturating_sub(begin);
    if took > WAKES_MANY {
        std::thread::sleep((took * REST).min(LONGEST_REST));
    }
    done
}

/// What this thread has had of a CPU: a thread that waits for one is no reason to rest.
fn cpu_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The tasks of each lane that has a thread.
type Queues = BTreeMap<Lane, VecDeque<Task>>;

#[derive(Debug)]
struct Counts {
    /// Tasks of no user's lane.
    ours: watch::Sender<usize>,
    /// Tasks of all lanes.
    all: watch::Sender<usize>,
}

struct Inner {
    queues: Mutex<Queues>,
    more: Condvar,
    counts: Counts,
}

/// The lanes. See the module's documentation.
pub(crate) struct Lanes(Arc<Inner>);

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lanes").field(&self.0.counts).finish()
    }
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    // Every change is one call of the map or a queue: a panic elsewhere leaves them whole.
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let counts = Counts { ours: watch::Sender::new(0), all: watch::Sender::new(0) };
        Self(Arc::new(Inner { queues: Mutex::default(), more: Condvar::new(), counts }))
    }

    /// Has a task done after those that its lane has already. Waits for nobody.
    pub(crate) fn submit(&self, lane: Lane, task: impl FnOnce() + Send + 'static) {
        let mut queues = lock(&self.0.queues);
        let is_new = !queues.contains_key(&lane);
        let lane = if is_new && lane.is_some() && queues.len() > MOST { SHARED } else { lane };
        self.0.counts.add(lane);
        let has_thread = queues.contains_key(&lane);
        queues.entry(lane).or_default().push_back(Box::new(task));
        drop(queues);
        if has_thread {
            self.0.more.notify_all();
            return;
        }
        let inner = Arc::clone(&self.0);
        let name = lane.map_or_else(|| "freeing".to_owned(), |uid| format!("user {uid}"));
        let started = std::thread::Builder::new().name(name).spawn(move || inner.work(lane));
        if let Err(error) = started {
            tracing::error!(%error, "a thread cannot be started: returned pages wait");
            // Looked at again by whoever waits for them: the files are where they were.
            let dropped = lock(&self.0.queues).remove(&lane).unwrap_or_default();
            dropped.iter().for_each(|_| self.0.counts.subtract(lane));
        }
    }

    /// Counts the tasks that no user holds up: wait until there are none.
    pub(crate) fn ours(&self) -> watch::Receiver<usize> {
        self.0.counts.ours.subscribe()
    }

    /// The same of all tasks, for who does not wait long.
    pub(crate) fn all(&self) -> watch::Receiver<usize> {
        self.0.counts.all.subscribe()
    }

    /// Whether there is anything to do.
    pub(crate) fn is_busy(&self) -> bool {
        *self.0.counts.all.borrow() > 0
    }

    /// Keeps a lane busy until what is returned is dropped.
    #[cfg(test)]
    pub(crate) fn hold_up(&self, lane: Lane) -> std::sync::mpsc::Sender<()> {
        let (release, released) = std::sync::mpsc::channel::<()>();
        self.submit(lane, move || released.recv().unwrap_or_default());
        release
    }

    /// Waits until nothing is left to do, at most so long.
    pub(crate) fn wait(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.is_busy() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Lanes {
    /// Blocks until every page is free that no borrower holds up.
    fn drop(&mut self) {
        while *self.0.counts.ours.borrow() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait(PATIENCE);
    }
}

impl Counts {
    fn add(&self, lane: Lane) {
        self.all.send_modify(|count| *count += 1);
        if lane.is_none() {
            self.ours.send_modify(|count| *count += 1);
        }
    }

    fn subtract(&self, lane: Lane) {
        self.all.send_modify(|count| *count -= 1);
        if lane.is_none() {
            self.ours.send_modify(|count| *count -= 1);
        }
    }
}

impl Inner {
    /// A lane's thread.
    fn work(&self, lane: Lane) {
        let mut idle_since = Instant::now();
        let mut queues = lock(&self.queues);
        loop {
            if let Some(task) = queues.get_mut(&lane).and_then(VecDeque::pop_front) {
                drop(queues);
                task();
                self.counts.subtract(lane);
                idle_since = Instant::now();
                queues = lock(&self.queues);
                continue;
            }
            let left = LINGER.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                queues.remove(&lane);
                return;
            }
            let waited = self.more.wait_timeout(queues, left);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_lane_rests_after_an_event_that_wakes_many() {
        let spin = |time| {
            let begin = cpu_time();
            while cpu_time() - begin < time {
                std::hint::spin_loop();
            }
        };
        let begin = Instant::now();
        event(|| spin(4 * WAKES_MANY));
        assert!(begin.elapsed() >= 4 * WAKES_MANY * (REST + 1), "{:?}", begin.elapsed());
        let begin = cpu_time();
        assert_eq!(event(|| 7), 7);
        assert!(cpu_time() - begin < WAKES_MANY, "any other costs nothing");
    }

    #[test]
    fn a_user_who_holds_its_lane_up_holds_up_nobody_else() {
        let lanes = Lanes::new();
        let release = lanes.hold_up(Some(Uid(1)));
        let (tell, told) = mpsc::channel();
        for lane in [None, Some(Uid(2)), Some(Uid(1))] {
            let tell = tell.clone();
            lanes.submit(lane, move || tell.send(lane).expect("the test waits"));
        }
        let mut done = [told.recv_timeout(SOON), told.recv_timeout(SOON)].map(Result::unwrap);
        done.sort_unstable();
        assert_eq!(done, [None, Some(Uid(2))]);
        assert!(told.try_recv().is_err(), "tasks of one lane are done in order");
        // A task is counted until its thread has come back from it.
        let end = Instant::now() + SOON;
        while *lanes.ours().borrow() > 0 {
            assert!(Instant::now() < end, "nobody's lane has nothing to do");
            std::thread::yield_now();
        }
        drop(release);
        assert_eq!(told.recv_timeout(SOON), Ok(Some(Uid(1))));
    }

    #[test]
    fn the_end_waits_for_what_nobody_holds_up_and_not_for_ever_for_what_a_user_does() {
        let lanes = Lanes::new();
        let _release = lanes.hold_up(Some(Uid(1)));
        let (tell, told) = mpsc::channel();
        lanes.submit(None, move || {
            std::thread::sleep(Duration::from_millis(20));
            tell.send(()).expect("the test listens");
        });
        drop(lanes);
        assert_eq!(told.try_recv(), Ok(()), "every page is free");
    }

    #[test]
    fn users_without_number_share_threads_and_all_are_served() {
        let lanes = Lanes::new();
        let (tell, told) = mpsc::channel();
        for uid in 0..2 * u32::try_from(MOST).unwrap() {
            let tell = tell.clone();
            lanes.submit(Some(Uid(uid)), move || tell.send(uid).expect("the test waits"));
        }
        for _ in 0..2 * MOST {
            told.recv_timeout(SOON).unwrap();
        }
        assert!(lock(&lanes.0.queues).len() <= MOST + 2);
    }
}
