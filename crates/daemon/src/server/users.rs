// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is connected: how many connections each user may have, and whose turn it is.
//!
//! A user is an account: whoever a uid is subordinate to, or the uid. Root and the user that the
//! daemon runs as are *masters*: what others have open is nothing to them, so that an operator and
//! the daemon's own workers always get in.
//!
//! Calls take turns by user: of one user's calls one is begun for so many looks at who else has
//! news, however many connections that user has and however many calls it has sent ahead.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Mutex;
use tokio::task::yield_now;

/// The most connections of all users but masters, and as many again of masters, if the limit on
/// descriptors is no tighter. A connection takes one descriptor and about 10 KiB.
const MOST: usize = 4096;
/// Each kind has at most this part of all descriptors: half of them remain for loans.
const PART_OF_DESCRIPTORS: usize = 4;
/// A user that is no master has at most this part of the connections.
const PART_OF_CONNECTIONS: usize = 4;

/// How often is looked who else has news before a call of a user that has several waiting; else it
/// is once. From its connection to its answer a lone call takes as many looks, so that it waits for
/// one or two calls of a crowd. A look at nothing new costs 2 us.
const LOOKS: usize = 8;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Of all that are no masters; of masters as many again.
    pub(super) all: usize,
    /// Of one user that is no master.
    pub(super) user: usize,
}

impl Bounds {
    /// Those of a process that may have so many descriptors.
    pub(super) fn of(descriptors: u64) -> Self {
        let part = usize::try_from(descriptors).unwrap_or(usize::MAX) / PART_OF_DESCRIPTORS;
        let all = part.clamp(PART_OF_CONNECTIONS, MOST);
        Self { all, user: all / PART_OF_CONNECTIONS }
    }
}

/// Why there is no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The user has as many as it may.
    User(usize),
    /// All have.
    All(usize),
}

/// The users that have connections.
#[derive(Debug)]
pub(crate) struct Users {
    bounds: Bounds,
    masters: Cell<usize>,
    others: Cell<usize>,
    table: RefCell<BTreeMap<u32, Rc<User>>>,
}

#[derive(Debug, Default)]
struct User {
    connections: Cell<usize>,
    turn: Mutex<()>,
}

/// One connection's place; dropped, it is free.
#[derive(Debug)]
pub(crate) struct Place {
    users: Rc<Users>,
    user: Rc<User>,
    uid: u32,
    is_master: bool,
}

impl Users {
    pub(super) fn new(bounds: Bounds) -> Rc<Self> {
        let (masters, others) = (Cell::new(0), Cell::new(0));
        Rc::new(Self { bounds, masters, others, table: RefCell::default() })
    }

    /// All connections.
    pub(super) fn connections(&self) -> usize {
        self.masters.get() + self.others.get()
    }

    fn kind(&self, is_master: bool) -> &Cell<usize> {
        if is_master { &self.masters } else { &self.others }
    }

    /// A place for one more connection of a user.
    pub(super) fn enter(self: &Rc<Self>, uid: u32, is_master: bool) -> Result<Place, Full> {
        let kind = self.kind(is_master);
        if kind.get() >= self.bounds.all {
            return Err(Full::All(self.bounds.all));
        }
        let mut table = self.table.borrow_mut();
        let user = table.entry(uid).or_default();
        if !is_master && user.connections.get() >= self.bounds.user {
            return Err(Full::User(self.bounds.user));
        }
        kind.set(kind.get() + 1);
        user.connections.set(user.connections.get() + 1);
        Ok(Place { users: Rc::clone(self), user: Rc::clone(user), uid, is_master })
    }
}

impl Place {
    /// Waits for its user's turn: until the earlier calls of that user have begun, and everybody
    /// else with news has been served since. Nothing is held when it returns.
    pub(crate) async fn turn(&self) {
        let (_turn, looks) = match self.user.turn.try_lock() {
            Ok(turn) => (turn, 1),
            Err(_) if self.is_master => (self.user.turn.lock().await, 1),
            Err(_) => (self.user.turn.lock().await, LOOKS),
        };
        for _ in 0..looks {
            yield_now().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let kind = self.users.kind(self.is_master);
        kind.set(kind.get() - 1);
        let left = self.user.connections.get() - 1;
        self.user.connections.set(left);
        if left == 0 {
            self.users.table.borrow_mut().remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{LocalSet, spawn_local};

    const ROOT: u32 = 0;

    fn fill(users: &Rc<Users>, uid: u32) -> Vec<Place> {
        std::iter::from_fn(|| users.enter(uid, uid == ROOT).ok()).take(100).collect()
    }

    #[test]
    fn one_user_leaves_places_to_others_and_all_of_them_to_root() {
        let users = Users::new(Bounds { all: 8, user: 3 });
        let first = fill(&users, 1);
        assert_eq!((first.len(), users.enter(1, false).unwrap_err()), (3, Full::User(3)));
        let rest: Vec<_> = [2, 3, 4].iter().map(|uid| fill(&users, *uid)).collect();
        assert_eq!(rest.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 0]);
        assert_eq!(users.enter(5, false).unwrap_err(), Full::All(8));
        assert_eq!(fill(&users, ROOT).len(), 8, "root is not a user among others");
        drop((first, rest));
        assert_eq!((users.connections(), users.table.borrow().len()), (0, 0));
        assert_eq!(fill(&users, 1).len(), 3);
    }

    #[test]
    fn bounds_leave_half_of_the_descriptors_to_loans() {
        assert_eq!(Bounds::of(1 << 20), Bounds { all: 4096, user: 1024 });
        assert_eq!(Bounds::of(1024), Bounds { all: 256, user: 64 });
        assert_eq!(Bounds::of(0), Bounds { all: 4, user: 1 });
    }

    #[test]
    fn calls_sent_ahead_by_one_user_let_another_user_in_between() {
        let users = Users::new(Bounds { all: 100, user: 100 });
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        let calls = |uid, many: usize| {
            let (place, order) = (users.enter(uid, false).unwrap(), Rc::clone(&order));
            async move {
                for _ in 0..many {
                    place.turn().await;
                    order.borrow_mut().push(uid);
                }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let flood: Vec<_> = (0..50).map(|_| spawn_local(calls(1, 10))).collect();
            spawn_local(calls(2, 10)).await.unwrap();
            // Ten calls of another user: fifty connections of the first had no more turns.
            let flooded = order.borrow().iter().filter(|uid| **uid == 1).count();
            assert!((1..=10).contains(&flooded), "{flooded} calls of the flood came before");
            for task in flood {
                task.await.unwrap();
            }
        });
        assert_eq!(order.borrow().len(), 510);
    }
}
