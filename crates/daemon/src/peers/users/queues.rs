// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What waits to be served, a queue for each user: users take turns, however much of one waits.

use std::collections::{BTreeMap, VecDeque};

/// The queues of all users that have anything waiting.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    users: BTreeMap<u32, VecDeque<T>>,
    count: usize,
    /// The user that had the turn.
    last: u32,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { users: BTreeMap::new(), count: 0, last: 0 }
    }
}

impl<T> Queues<T> {
    pub(crate) fn put(&mut self, user: u32, item: T) {
        self.users.entry(user).or_default().push_back(item);
        self.count += 1;
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What waits of one user, in order.
    pub(crate) fn of(&self, user: u32) -> impl Iterator<Item = &T> {
        self.users.get(&user).into_iter().flatten()
    }

    /// The first in the queue of the user that has the turn.
    pub(crate) fn take(&mut self) -> Option<T> {
        let next = self.last.checked_add(1).and_then(|from| self.users.range(from..).next());
        let user = *next.or_else(|| self.users.iter().next())?.0;
        self.last = user;
        self.take_of(user, VecDeque::pop_front)
    }

    /// The last of the user with most.
    pub(crate) fn evict_last(&mut self) -> Option<T> {
        let user = *self.users.iter().max_by_key(|(_, queue)| queue.len())?.0;
        self.take_of(user, VecDeque::pop_back)
    }

    /// The one that is meant, if it still waits.
    pub(crate) fn find(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.users.values_mut().flatten().find(|item| is_meant(item))
    }

    fn take_of(
        &mut self,
        user: u32,
        take: impl FnOnce(&mut VecDeque<T>) -> Option<T>,
    ) -> Option<T> {
        let queue = self.users.get_mut(&user)?;
        let item = take(queue);
        if queue.is_empty() {
            self.users.remove(&user);
        }
        self.count -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(users: &[u32]) -> Queues<(u32, usize)> {
        let mut queues = Queues::default();
        users.iter().enumerate().for_each(|(at, user)| queues.put(*user, (*user, at)));
        queues
    }

    // Promise P247 (tree): Requests to the tree take turns by user. A signal reaches a request
    // that waits for its turn.
    #[test]
    fn users_take_turns_with_any_backlog() {
        let mut queues = queues(&[1, 1, 1, 1, u32::MAX, 2, 2]);
        let order: Vec<_> = std::iter::from_fn(|| queues.take()).map(|(user, _)| user).collect();
        assert_eq!(order, [1, 2, u32::MAX, 1, 2, 1, 1]);
        assert_eq!((queues.count(), queues.users.len()), (0, 0));
    }

    #[test]
    fn one_too_many_is_of_the_user_with_most() {
        let mut queues = queues(&[1, 1, 1, 2, 2, 3]);
        let order: Vec<_> = (0..3).map(|_| queues.evict_last().unwrap().0).collect();
        assert_eq!((order[0], queues.count()), (1, 3), "{order:?}");
        assert!(!order.contains(&3));
    }

    // Promise P247.
    #[test]
    fn waiting_request_is_found_and_keeps_its_place() {
        let mut queues = queues(&[1, 2, 1, 1]);
        assert_eq!(queues.find(|(_, at)| *at == 2), Some(&mut (1, 2)));
        assert_eq!(queues.find(|(_, at)| *at == 4), None);
        let of_one: Vec<_> = queues.of(1).map(|(_, at)| *at).collect();
        assert_eq!((of_one.as_slice(), queues.count()), (&[0, 2, 3][..], 4));
    }
}
