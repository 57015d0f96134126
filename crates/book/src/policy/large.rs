// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which large blocks would have served the loans of late best. Pure, and in whole numbers.
//!
//! # Theory of operation
//!
//! There is room for a few large blocks, while many sizes are requested: 64 GiB ready cannot have
//! one each of guests of 8, 16, 24, 32, 48 and 64 GiB. The best choice depends on how often each
//! size comes, on the other sizes, and on how well a block of another size serves: a larger one is
//! trimmed, a smaller one grows by an unbacked part. No formula covers this. So the last loans are
//! replayed, by the book's lending rules, against sets of blocks that grow by one block at a time,
//! as long as one more makes more bytes ready. The rest of the pool, in small blocks, counts as a
//! liquid.
//!
//! Each loan records the pages zeroed since the loan before, so that a storm finds in the replay as
//! little as it found. [`MAX_KNOWN_LOANS`] loans against some [`MAX_SIZES`] sizes are replayed in
//! 0.1 ms.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use units::{PageSize, Pages};

use super::piece;

/// The number of loans in the history.
const MAX_KNOWN_LOANS: usize = 64;
/// The most sizes that large blocks may have, besides powers of two.
const MAX_SIZES: usize = 12;
/// The number of loans between two choices.
const CHOICE_INTERVAL: u32 = 8;
/// A loan of more than one part in this number of the pool is large, as is one of several pieces.
const LARGE_PART: u64 = 64;
/// The weight of the real order against the same loans all at once.
const ALONE_WEIGHT: u64 = 2;
/// A block of one part in this number of the small blocks is there most of the time.
const FILE_PART: u64 = 8;
/// Other blocks must be better by one part in this number of the requested bytes, as a change
/// throws zeroed pages away.
const WORTH_PART: u64 = 128;

/// One loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Loan {
    pages: Pages,
    /// Whether it was to be one file.
    single: bool,
    /// What small loans had taken since the one before.
    small: Pages,
    /// What had become ready since then.
    zeroed: Pages,
}

/// The large loans of late, and the blocks that they are served from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Large {
    lately: VecDeque<Loan>,
    /// What small loans have taken since the last large one.
    small: Pages,
    /// Pages that have become ready since then.
    zeroed: Pages,
    /// The blocks, the smallest first.
    blocks: Vec<Pages>,
    /// Loans since they were chosen.
    since: u32,
}

/// Above how many pages a loan is large.
fn least(ready: Pages, page_size: PageSize) -> Pages {
    Pages((ready.0 / LARGE_PART).max(1)).min(piece(page_size))
}

impl Large {
    /// The initial guess for a pool of `pages` pages: one of each power of two up to a quarter of
    /// it, and as much in small loans.
    pub(super) fn guess(ready: Pages, page_size: PageSize) -> Self {
        let mut large = Self::default();
        let mut size = Pages(ready.0.checked_ilog2().map_or(0, |bits| (1 << bits) / 4));
        while size > least(ready, page_size) {
            large.lately.push_back(Loan { pages: size, single: true, small: size, zeroed: ready });
            size = Pages(size.0 / 2);
        }
        large.choose(ready, page_size);
        large
    }

    /// Whether loans in one file of that size have blocks of their own.
    pub(super) fn is_of_files(&self, size: Pages) -> bool {
        self.blocks.contains(&size) || self.lately.iter().any(|l| l.single && l.pages == size)
    }

    /// Its blocks.
    pub(super) fn blocks(&self) -> &[Pages] {
        &self.blocks
    }

    /// Records a granted loan and the pages that became ready since the one before. Returns whether
    /// it is a large one.
    pub(super) fn record(
        &mut self,
        pages: Pages,
        single: bool,
        zeroed: Pages,
        ready: Pages,
        page_size: PageSize,
    ) -> bool {
        self.zeroed += zeroed;
        if pages <= least(ready, page_size) {
            self.small += pages;
            return false;
        }
        let (small, zeroed) = (std::mem::take(&mut self.small), std::mem::take(&mut self.zeroed));
        self.lately.push_back(Loan { pages, single, small, zeroed });
        if self.lately.len() > MAX_KNOWN_LOANS {
            self.lately.pop_front();
        }
        self.since += 1;
        true
    }

    /// Chooses the blocks anew if enough was learnt since.
    pub(super) fn choose_again(&mut self, ready: Pages, page_size: PageSize) {
        if self.since >= CHOICE_INTERVAL || self.blocks.iter().copied().sum::<Pages>() > ready {
            self.choose(ready, page_size);
        }
    }

    fn choose(&mut self, ready: Pages, page_size: PageSize) {
        self.since = 0;
        let sizes = self.sizes(ready, page_size);
        let asked: u64 = self.lately.iter().map(|loan| loan.pages.0 + loan.small.0).sum();
        let worth = (ALONE_WEIGHT + 1) * asked / WORTH_PART;
        // In their order, and all at once: sizes that always came alone come in a storm one day.
        let score = |blocks: &[Pages]| {
            let as_they_came = |loan: &Loan| loan.zeroed;
            let (alone, storms) = (
                self.replay(blocks, ready, page_size, as_they_came),
                self.replay(blocks, ready, page_size, |_| Pages::ZERO),
            );
            ALONE_WEIGHT * alone + storms
        };
        let (mut best, mut reached) = (Vec::new(), score(&[]));
        loop {
            let more = sizes.iter().filter_map(|size| {
                let mut more = best.clone();
                more.push(*size);
                more.sort_unstable();
                (more.iter().copied().sum::<Pages>() <= ready).then(|| (score(&more), more))
            });
            let Some((one, blocks)) = more.max_by_key(|(one, _)| *one) else { break };
            if one <= reached {
                break;
            }
            (best, reached) = (blocks, one);
        }
        let total = |blocks: &[Pages]| blocks.iter().copied().sum::<Pages>();
        let today = score(&self.blocks);
        let is_leaner = reached >= today && total(&best) < total(&self.blocks);
        if total(&self.blocks) > ready || reached > today + worth || is_leaner {
            self.blocks = best;
        }
    }

    /// The sizes that large blocks may have: the most frequent sizes of files, and powers of two.
    fn sizes(&self, ready: Pages, page_size: PageSize) -> Vec<Pages> {
        let mut asked: BTreeMap<Pages, u64> = BTreeMap::new();
        for loan in self.lately.iter().filter(|loan| loan.single && loan.pages <= ready) {
            *asked.entry(loan.pages).or_default() += loan.pages.0;
        }
        let mut asked: Vec<_> = asked.into_iter().map(|(size, weight)| (weight, size)).collect();
        asked.sort_unstable();
        let asked = asked.into_iter().rev().take(MAX_SIZES).map(|(_, size)| size);
        let least = least(ready, page_size).0;
        let powers = (0..u64::BITS - 1).map(|bit| 1 << bit);
        let powers = powers.filter(|power| *power > least && *power <= ready.0 / 2).map(Pages);
        let mut sizes: Vec<_> = asked.chain(powers).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// How many pages would have been ready with these blocks, the smallest first, and the rest of
    /// the pool in small ones.
    fn replay(
        &self,
        blocks: &[Pages],
        ready: Pages,
        page_size: PageSize,
        zeroed: impl Fn(&Loan) -> Pages,
    ) -> u64 {
        let mut pool = Replay {
            sizes: blocks,
            here: vec![true; blocks.len()],
            liquid: ready.saturating_sub(blocks.iter().copied().sum()),
            credit: Pages(ready.0 / super::CREDIT_PART),
            ready,
            missing: VecDeque::new(),
            zeroed: Pages::ZERO,
        };
        // Of a file the liquid serves as much as its largest block has.
        let piece = piece(page_size).min(Pages(pool.liquid.0 / FILE_PART));
        let (mut score, mut asked) = (Pages::ZERO, Pages::ZERO);
        for loan in &self.lately {
            // A storm ends with the pool.
            let is_over = asked >= ready;
            asked = if is_over { Pages::ZERO } else { asked + loan.small + loan.pages };
            pool.refill(if is_over { ready } else { zeroed(loan) });
            score += pool.pour(loan.small);
            pool.earn(loan.small + loan.pages);
            score += if loan.single {
                pool.lend_file(loan.pages, piece)
            } else {
                pool.lend_several(loan.pages)
            };
        }
        score.0
    }
}

/// What a loan took.
enum Taken {
    Block(usize),
    Liquid(Pages),
}

/// A pool while loans are replayed.
struct Replay<'a> {
    sizes: &'a [Pages],
    /// Which of them are ready.
    here: Vec<bool>,
    liquid: Pages,
    credit: Pages,
    ready: Pages,
    missing: VecDeque<Taken>,
    /// Zeroed pages that are in no block yet.
    zeroed: Pages,
}

impl Replay<'_> {
    fn refill(&mut self, zeroed: Pages) {
        self.zeroed += zeroed;
        while let Some(taken) = self.missing.front_mut() {
            match taken {
                Taken::Liquid(pages) => {
                    let some = self.zeroed.min(*pages);
                    self.liquid += some;
                    self.zeroed = self.zeroed.saturating_sub(some);
                    *pages = pages.saturating_sub(some);
                    if *pages > Pages::ZERO {
                        return;
                    }
                }
                Taken::Block(at) => {
                    let Some(left) = self.zeroed.0.checked_sub(self.sizes[*at].0) else { return };
                    self.zeroed = Pages(left);
                    self.here[*at] = true;
                }
            }
            self.missing.pop_front();
        }
        // All is ready: nothing more is zeroed.
        self.zeroed = Pages::ZERO;
    }

    fn earn(&mut self, lent: Pages) {
        self.credit = (self.credit + Pages(lent.0 / super::CREDIT_PART)).min(self.ready);
    }

    fn pour(&mut self, pages: Pages) -> Pages {
        let some = self.liquid.min(pages);
        self.liquid = self.liquid.saturating_sub(some);
        self.missing.push_back(Taken::Liquid(some));
        some
    }

    fn take(&mut self, at: usize) {
        self.here[at] = false;
        self.missing.push_back(Taken::Block(at));
    }

    fn ready(&self) -> impl DoubleEndedIterator<Item = (usize, Pages)> {
        let sizes = self.sizes.iter().zip(&self.here).enumerate();
        sizes.filter(|(_, (_, here))| **here).map(|(at, (size, _))| (at, *size))
    }

    /// The smallest block of more than `left` pages with a rest that may be thrown away, for a loan
    /// of `need`.
    fn trim(&mut self, left: Pages, need: Pages) -> bool {
        let Some((at, size)) = self.ready().find(|(_, size)| *size >= left) else { return false };
        let waste = size.saturating_sub(left);
        if waste > need || waste > self.credit {
            return false;
        }
        self.credit = self.credit.saturating_sub(waste);
        self.take(at);
        true
    }

    fn lend_file(&mut self, need: Pages, piece: Pages) -> Pages {
        if self.trim(need, need) {
            return need;
        }
        let smaller = self.ready().rev().find(|(_, size)| *size < need);
        match smaller {
            Some((at, size)) => {
                self.take(at);
                size
            }
            None => self.pour(piece.min(need)),
        }
    }

    fn lend_several(&mut self, need: Pages) -> Pages {
        if self.liquid >= need {
            return self.pour(need);
        }
        let mut left = need;
        loop {
            let Some((at, size)) = self.ready().rev().find(|(_, size)| *size <= left) else {
                break;
            };
            self.take(at);
            left = left.saturating_sub(size);
        }
        left = left.saturating_sub(self.pour(left));
        if left > Pages::ZERO && self.trim(left, need) {
            left = Pages::ZERO;
        }
        need.saturating_sub(left)
    }
}

#[cfg(test)]
mod tests;
