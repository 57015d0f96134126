// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An upper bound on the pages that all threads take together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages that may still be zeroed.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Option<AtomicU64>,
    turns: Mutex<()>,
}

impl Budget {
    /// `None` is no bound.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { left: limit.map(AtomicU64::new), turns: Mutex::default() }
    }

    /// The turn to take a block and its pages of the budget, held until both are taken. Two
    /// half-done blocks cannot be lent. Without a bound it returns at once.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let is_bounded = self.left.is_some();
        is_bounded.then(|| self.turns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up to `pages`; returns how many it got.
    pub(crate) fn draw(&self, pages: u64) -> u64 {
        let Some(left) = &self.left else { return pages };
        // Relaxed: the threads share the count alone.
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(pages))
        });
        before.unwrap_or_else(|unchanged| unchanged).min(pages)
    }

    /// Returns unneeded pages.
    pub(crate) fn put_back(&self, pages: u64) {
        if let Some(left) = &self.left {
            left.fetch_add(pages, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_limit_is_drawn() {
        let budget = Budget::new(Some(10));
        assert_eq!((budget.draw(4), budget.draw(7), budget.draw(1)), (4, 6, 0));
        budget.put_back(2);
        assert_eq!(budget.draw(5), 2);
        assert_eq!(Budget::new(None).draw(u64::MAX), u64::MAX);
    }

    #[test]
    fn threads_share_it() {
        let budget = Budget::new(Some(10_000));
        let drawn: u64 = std::thread::scope(|scope| {
            let draw = || (0..10_000).map(|_| budget.draw(1)).sum::<u64>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(drawn, 10_000);
    }
}
