// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connected users: how many connections each may have, and the turns.
//!
//! A user is an account: the user that has a uid as subordinate, or the uid. Root and the user that
//! the daemon runs as are *masters*: other users' connections never limit them, so that an operator
//! and the daemon's own workers always get in.
//!
//! When all places are taken, the user with most makes room for a user with less, by the connection
//! that has been idle longest. Four users with a quarter each would otherwise keep out all others,
//! as would ten that keep theirs for later. A loan needs no connection once it is granted.
//!
//! Calls take turns by user: one call of a user is begun for several looks at who else has news,
//! however many connections that user has and however many calls it has sent ahead. A turn is
//! reading as well as answering: both wake the watchers of the peer's socket, which can be a
//! hundred thousand epoll sets of the peer's. So a user is charged with the CPU time of its
//! connections, for any purpose, and rests after long calls ([`charged`]). Once a call on one of
//! its sockets took long, they are read, written and closed beside the daemon's thread
//! ([`Place::aside`]), where only that user waits for it.

mod queues;
#[cfg(test)]
mod tests;

pub(crate) use queues::Queues;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use units::Uid;

use crate::base::user_queues::UserQueues;

/// The most connections of all users but masters, and as many again of masters, if the limit on
/// descriptors is no tighter. A connection takes one descriptor and about 10 KiB.
const MAX_CONNECTIONS: usize = 4096;
/// Each kind has at most this part of all descriptors: half of them remain for loans.
const MAX_DESCRIPTORS_SHARE: usize = 4;
/// An ordinary user has at most this part of the connections.
const MAX_CONNECTIONS_SHARE: usize = 4;

/// How often is looked who else has news before a call of a user that has several waiting; else it
/// is once. From its connection to its answer a lone call takes as many looks, so that it waits for
/// one or two calls of a crowd. A look at nothing new costs 2 us.
const MAX_NEWS_CHECKS: usize = 8;

/// A step of a connection that takes longer is followed by a rest of its user. A call takes 0.1 ms;
/// one reply to a socket with 120,000 watchers took 12.
const SLOW_CALL_PERIOD: Duration = Duration::from_millis(1);
/// A user with long steps has one part in this number of the daemon's time.
const MAX_SLOW_TIME_SHARE: u32 = 10;
/// For this long after a long call on a user's socket the next is made beside the daemon's thread:
/// with rests alone, and 120,000 watchers, others waited up to 60 ms for one call in ten. A user
/// with 3 million holds up others for 0.2 s, once in that time.
const SLOW_SOCKET_PERIOD: Duration = Duration::from_secs(600);

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Of all ordinary users; of masters as many again.
    pub(crate) all: usize,
    /// Of one ordinary user.
    pub(crate) user: usize,
}

impl Bounds {
    /// The limits of a process that may have this number of descriptors.
    pub(crate) fn new(descriptors: u64) -> Self {
        let part = usize::try_from(descriptors).unwrap_or(usize::MAX) / MAX_DESCRIPTORS_SHARE;
        let all = part.clamp(MAX_CONNECTIONS_SHARE, MAX_CONNECTIONS);
        Self { all, user: all / MAX_CONNECTIONS_SHARE }
    }
}

/// Why there is no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The user has as many as it may.
    User(usize),
    /// All are taken, and no user has more than this one.
    All(usize),
}

/// The users that have connections.
#[derive(Debug)]
pub(crate) struct Users {
    bounds: Bounds,
    masters: Cell<usize>,
    others: Cell<usize>,
    ended: Cell<usize>,
    made_room: Cell<usize>,
    /// Numbers for what connections do, in order.
    clock: Cell<u64>,
    /// By account and whether it is a master: a subordinate of the daemon's own user is none.
    table: RefCell<BTreeMap<(u32, bool), Rc<User>>>,
    /// Where calls on sockets are made that wake many.
    user_queues: UserQueues,
}

#[derive(Debug, Default)]
struct User {
    is_master: bool,
    /// By their last request, or their arrival. Ends the oldest when one has to go.
    connections: RefCell<BTreeMap<u64, Rc<Notify>>>,
    turn: Mutex<()>,
    /// When the rest after its long steps is over.
    rested: Cell<Option<Instant>>,
    /// Until when its sockets are taken to wake many.
    crowded: Cell<Option<Instant>>,
}

/// One connection's place; dropped, it is free.
#[derive(Debug)]
pub(crate) struct Place {
    users: Rc<Users>,
    user: Rc<User>,
    uid: u32,
    /// Its number among its user's, unless it had to make room.
    at: Cell<u64>,
    wanted: Rc<Notify>,
}

impl Users {
    pub(crate) fn new(bounds: Bounds) -> Rc<Self> {
        Rc::new(Self {
            bounds,
            masters: Cell::new(0),
            others: Cell::new(0),
            ended: Cell::new(0),
            made_room: Cell::new(0),
            clock: Cell::new(0),
            table: RefCell::default(),
            user_queues: UserQueues::new(),
        })
    }

    /// How many connections have ended since the last call.
    pub(crate) fn take_ended(&self) -> usize {
        self.ended.take()
    }

    /// How many connections had to make room since the last call.
    pub(crate) fn take_made_room(&self) -> usize {
        self.made_room.take()
    }

    /// Forgets users that have rested and have closed all connections.
    pub(crate) fn forget_rested(&self) {
        self.table.borrow_mut().retain(|_, user| user.count() > 0 || user.is_known());
    }

    fn kind(&self, is_master: bool) -> &Cell<usize> {
        if is_master { &self.masters } else { &self.others }
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// A place for one more connection of a user.
    pub(crate) fn enter(self: &Rc<Self>, uid: u32, is_master: bool) -> Result<Place, Full> {
        let known = self.table.borrow().get(&(uid, is_master)).map(Rc::clone);
        let user = known.unwrap_or_else(|| Rc::new(User { is_master, ..User::default() }));
        let is_full = self.kind(is_master).get() >= self.bounds.all;
        if !is_master && user.count() >= self.bounds.user {
            return Err(Full::User(self.bounds.user));
        }
        if is_full && (is_master || !self.make_room(user.count())) {
            return Err(Full::All(self.bounds.all));
        }
        self.table.borrow_mut().insert((uid, is_master), Rc::clone(&user));
        let kind = self.kind(is_master);
        kind.set(kind.get() + 1);
        let (at, wanted) = (self.tick(), Rc::new(Notify::new()));
        user.connections.borrow_mut().insert(at, Rc::clone(&wanted));
        Ok(Place { users: Rc::clone(self), user, uid, at: Cell::new(at), wanted })
    }

    /// Closes one connection of the busiest user to admit a user with fewer, if that one stays
    /// below it. Returns `false` if no user qualifies. Masters give none.
    fn make_room(&self, count: usize) -> bool {
        let table = self.table.borrow();
        let others = table.values().filter(|user| !user.is_master);
        let most = others.max_by_key(|user| user.count()).filter(|most| most.count() > count + 1);
        let last = most.and_then(|most| most.connections.borrow_mut().pop_first());
        let Some((_, wanted)) = last else { return false };
        wanted.notify_one();
        self.others.set(self.others.get() - 1);
        self.made_room.set(self.made_room.get() + 1);
        true
    }
}

fn is_ahead(at: &Cell<Option<Instant>>) -> bool {
    at.get().is_some_and(|at| at > Instant::now())
}

impl User {
    fn rests(&self) -> bool {
        is_ahead(&self.rested)
    }

    fn wakes_many(&self) -> bool {
        is_ahead(&self.crowded)
    }

    fn count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Whether it would come back as another user if it were forgotten.
    fn is_known(&self) -> bool {
        self.rests() || self.wakes_many()
    }

    async fn rest(&self) {
        // Again, as other connections of the user go on meanwhile with what needs no turn.
        while let Some(at) = self.rested.get().filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
        }
    }

    /// Records a step with this CPU time.
    fn charge(&self, spent: Duration) {
        let rest = rest_after(spent);
        if !rest.is_zero() {
            let now = Instant::now();
            let begin = self.rested.get().map_or(now, |at| at.max(now));
            self.rested.set(Some(begin + rest));
        }
    }

    /// Records a call on one of its sockets with this CPU time.
    fn record_call(&self, spent: Duration) {
        if spent >= SLOW_CALL_PERIOD {
            self.crowded.set(Some(Instant::now() + SLOW_SOCKET_PERIOD));
        }
    }
}

/// Work beside the daemon's thread. Dropped, it is done all the same.
#[derive(Debug)]
pub(crate) struct Aside<T> {
    done: oneshot::Receiver<(T, Duration)>,
    user: Rc<User>,
}

impl<T> Aside<T> {
    /// Waits for it, and charges its user. Can be cancelled and waited for again.
    ///
    /// # Errors
    /// A thread for it is missing.
    pub(crate) async fn done(&mut self) -> io::Result<T> {
        let done = (&mut self.done).await;
        let (value, spent) = done.map_err(|_| io::Error::other("no thread for a user's socket"))?;
        self.user.charge(spent);
        self.user.record_call(spent);
        Ok(value)
    }
}

/// How long a user rests after a step with this CPU time.
pub(crate) fn rest_after(spent: Duration) -> Duration {
    if spent >= SLOW_CALL_PERIOD { spent * (MAX_SLOW_TIME_SHARE - 1) } else { Duration::ZERO }
}

/// CPU time of this thread: what others take meanwhile is not its user's.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Charges the user of a place with the CPU time that `work` takes. Masters are not charged.
pub(crate) async fn charged<F: Future>(place: &Place, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        let begin = cpu_time();
        let polled = work.as_mut().poll(context);
        if !place.user.is_master {
            place.user.charge(cpu_time().saturating_sub(begin));
        }
        polled
    })
    .await
}

impl Place {
    /// Waits until a user with less needs the place. For one waiter at a time; can be cancelled and
    /// waited for again.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Notes that it asks for something.
    fn touch(&self) {
        let mut connections = self.user.connections.borrow_mut();
        if let Some(wanted) = connections.remove(&self.at.get()) {
            self.at.set(self.users.tick());
            connections.insert(self.at.get(), wanted);
        }
    }

    /// Waits for its user's turn: until the earlier calls of that user have begun, the user has
    /// rested, and every other user with news has been served since. Nothing is held when it
    /// returns.
    pub(crate) async fn turn(&self) {
        self.touch();
        let (_turn, looks) = match self.user.turn.try_lock() {
            Ok(turn) => (turn, 1),
            Err(_) if self.user.is_master => (self.user.turn.lock().await, 1),
            Err(_) => (self.user.turn.lock().await, MAX_NEWS_CHECKS),
        };
        self.user.rest().await;
        for _ in 0..looks {
            yield_now().await;
        }
    }

    /// Whether calls on its user's sockets must be made [aside](Self::aside).
    pub(crate) fn wakes_many(&self) -> bool {
        self.user.wakes_many()
    }

    /// Makes a call on its user's socket, and notes whether it takes long. A master's may.
    pub(crate) fn here<T>(&self, call: impl FnOnce() -> T) -> T {
        let begin = cpu_time();
        let value = call();
        if !self.user.is_master {
            self.user.record_call(cpu_time().saturating_sub(begin));
        }
        value
    }

    /// Makes a call that waits for no other user by a thread of its user's, after those before it.
    pub(crate) fn aside<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Aside<T> {
        let (notify, done) = oneshot::channel();
        self.users.user_queues.submit(Some(Uid(self.uid)), move || {
            let begin = cpu_time();
            let value = call();
            // Later waits end at once.
            drop(notify.send((value, cpu_time().saturating_sub(begin))));
        });
        Aside { done, user: Rc::clone(&self.user) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Else it made room, and is no longer counted.
        if self.user.connections.borrow_mut().remove(&self.at.get()).is_some() {
            let kind = self.users.kind(self.user.is_master);
            kind.set(kind.get() - 1);
        }
        self.users.ended.set(self.users.ended.get() + 1);
        // A user that comes back must not come back rested. The one that had to make room may end
        // after its user has come anew.
        let mut table = self.users.table.borrow_mut();
        let key = (self.uid, self.user.is_master);
        let is_own = table.get(&key).is_some_and(|user| Rc::ptr_eq(user, &self.user));
        if is_own && self.user.count() == 0 && !self.user.is_known() {
            table.remove(&key);
        }
    }
}
