// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which sizes of blocks a pool should have ready that was only told how many bytes, learnt from
//! the loans that were asked for. Pure, and in whole numbers: the same loans give the same answer.
//!
//! # Theory of operation
//!
//! A loan in one file is served best by a block of exactly its size; one in several blocks by any
//! that add up to it. [`Large`] chooses large blocks. For the remaining bytes [`Demand`] counts,
//! for files, each requested size, and for the others the powers of two that add up to them, none
//! above a *piece*: 1 GiB, above which one mapping gains nothing over several.
//!
//! A count fades as bytes are lent, not as loans are: a thousand probes of one page leave the
//! knowledge about blocks of 512. At first there is a guess: one of each power of two, and pieces.
//! It fades likewise.
//!
//! [`Demand::targets`] has as many blocks of each size as come at once: of a size with mean `m` in
//! the window, `m + z * sqrt(m)`, with the same `z` for all sizes, as large as the bytes allow. A
//! rare size so gets its one block before a frequent small one gets its hundredth. The window is a
//! quarter of the bytes: pools that are refilled faster than they are emptied need one of
//! everything before they need many of anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{PageSize, Pages};

use super::large::Large;

/// The weight of one loan.
const LOAN_WEIGHT: u64 = 1 << 20;
/// Counts fade by 1/e with this multiple of the pool's bytes lent.
const FADE_FACTOR: u64 = 16;
/// The window is the pool's bytes divided by this number.
const WINDOW_PART: u64 = 4;
/// The most sizes of files that are counted: the most frequent ones. Hosts have a few flavours.
const MAX_FILE_SIZES: usize = 32;
/// The largest block of a loan in several, in bytes: page tables are shared by the GiB.
const MAX_PIECE_BYTES: u64 = 1 << 30;
/// One in the fixed point in which targets are computed.
const FIXED_POINT_ONE: u64 = 1 << 10;

/// Recent requests. See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// Weights of loans in one file, by size.
    #[serde(with = "by_size")]
    files: BTreeMap<Pages, u64>,
    /// Weights of what loans in several blocks are made of, by size.
    #[serde(with = "by_size")]
    pieces: BTreeMap<Pages, u64>,
    large: Large,
}

/// As a list: keys of a table would have to be text.
mod by_size {
    use super::{BTreeMap, Deserialize, Pages, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<Pages, u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Pages, u64>, D::Error> {
        let list = Vec::<(Pages, u64)>::deserialize(deserializer)?;
        Ok(list.into_iter().filter(|(size, _)| *size > Pages::ZERO).collect())
    }
}

/// The largest block that loans in several blocks are made of.
#[must_use]
pub fn piece(page_size: PageSize) -> Pages {
    Pages((MAX_PIECE_BYTES / page_size.bytes()).max(1))
}

/// The powers of two that add up to `pages`, none above `most`, and how many of each.
fn powers(pages: Pages, most: Pages) -> impl Iterator<Item = (Pages, u64)> {
    let (whole, rest) = (pages.0 / most.0, pages.0 % most.0);
    let bits = (0..u64::BITS).map(|bit| 1 << bit).filter(move |power| rest & power != 0);
    std::iter::once((most, whole))
        .chain(bits.map(|power| (Pages(power), 1)))
        .filter(|(_, n)| *n > 0)
}

impl Demand {
    /// The initial guess for a pool of `pages` pages.
    #[must_use]
    pub fn guess(ready: Pages, page_size: PageSize) -> Self {
        let large = Large::guess(ready, page_size);
        let mut left = ready.saturating_sub(large.blocks().iter().copied().sum());
        let mut pieces = BTreeMap::new();
        let mut add = |size, n| *pieces.entry(size).or_default() += n * LOAN_WEIGHT / 2;
        let mut size = left.0.checked_ilog2().map_or(0, |bits| 1 << bits) / 4;
        while size > 0 {
            let pages = Pages(size).min(piece(page_size));
            add(pages, 1);
            left = left.saturating_sub(pages);
            size /= 2;
        }
        powers(left, piece(page_size)).for_each(|(size, n)| add(size, n));
        Self { files: BTreeMap::new(), pieces, large }
    }

    /// Records a loan of `pages`, `single` if it had to be one file, of a pool with a target of
    /// `ready` pages; `zeroed` pages were zeroed since the loan before.
    pub fn record(
        &mut self,
        pages: Pages,
        single: bool,
        zeroed: Pages,
        ready: Pages,
        page_size: PageSize,
    ) {
        let span = u128::from(ready.0.max(1)) * u128::from(FADE_FACTOR);
        for weights in [&mut self.files, &mut self.pieces] {
            for weight in weights.values_mut() {
                let fades = u128::from(*weight) * u128::from(pages.0) / span;
                *weight = weight.saturating_sub(u64::try_from(fades).unwrap_or(u64::MAX));
            }
            weights.retain(|_, weight| *weight > 0);
        }
        let is_large = self.large.record(pages, single, zeroed, ready, page_size);
        if !single {
            for (size, n) in powers(pages, piece(page_size)) {
                let weight = self.pieces.entry(size).or_default();
                *weight = weight.saturating_add(n.saturating_mul(LOAN_WEIGHT));
            }
            return;
        }
        if is_large {
            return;
        }
        *self.files.entry(pages).or_default() += LOAN_WEIGHT;
        if self.files.len() > MAX_FILE_SIZES
            && let Some(rarest) = self.files.iter().min_by_key(|(_, w)| **w).map(|(s, _)| *s)
        {
            self.files.remove(&rarest);
        }
    }

    /// Whether loans in one file come in that size.
    #[must_use]
    pub fn is_for_files(&self, size: Pages) -> bool {
        self.files.contains_key(&size) || self.large.is_of_files(size)
    }

    /// Applies the learnt counts, from time to time: 0.1 ms.
    pub fn choose(&mut self, ready: Pages, page_size: PageSize) {
        self.large.choose_again(ready, page_size);
    }

    /// How many blocks of each size to have ready: together no more than `ready` pages, and less
    /// only where nothing smaller fits.
    #[must_use]
    pub fn targets(&self, ready: Pages, page_size: PageSize) -> BTreeMap<Pages, u64> {
        let large = self.large.blocks();
        let left = ready.saturating_sub(large.iter().copied().sum());
        let mut targets = self.small_targets(left, page_size);
        for size in large {
            *targets.entry(*size).or_default() += 1;
        }
        targets
    }

    fn small_targets(&self, ready: Pages, page_size: PageSize) -> BTreeMap<Pages, u64> {
        let mut weights = self.pieces.clone();
        for (size, weight) in &self.files {
            *weights.entry(*size).or_default() += weight;
        }
        weights.retain(|size, _| *size <= ready);
        let all: u128 = weights.iter().map(|(s, w)| u128::from(s.0) * u128::from(*w)).sum();
        let window = u128::from(ready.0 / WINDOW_PART);
        // The mean of each size in the window, and its square root.
        let sizes: Vec<_> = weights
            .into_iter()
            .map(|(size, weight)| {
                let mean = window * u128::from(weight) * u128::from(FIXED_POINT_ONE) / all.max(1);
                let mean = u64::try_from(mean)
                    .unwrap_or(u64::MAX / FIXED_POINT_ONE)
                    .min(u64::MAX / FIXED_POINT_ONE);
                (size, mean, (mean * FIXED_POINT_ONE).isqrt())
            })
            .collect();
        let blocks = |z: i64| {
            let of = |(size, mean, root): &(Pages, u64, u64)| {
                let n =
                    mean.saturating_add_signed(z.saturating_mul(i64(*root)) / i64(FIXED_POINT_ONE));
                (*size, (n + FIXED_POINT_ONE / 2) / FIXED_POINT_ONE)
            };
            sizes.iter().map(of).filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
        };
        let total = |targets: &BTreeMap<Pages, u64>| -> Pages {
            targets.iter().map(|(size, n)| *size * *n).sum()
        };
        // The largest z that fits.
        let (mut low, mut high) = (-64 * i64(FIXED_POINT_ONE), 64 * i64(FIXED_POINT_ONE));
        while low + 1 < high {
            let middle = i64::midpoint(low, high);
            if total(&blocks(middle)) <= ready { low = middle } else { high = middle }
        }
        let mut targets = blocks(low);
        if total(&targets) > ready {
            targets.clear();
        }
        // The rest that is too small for one more block of the next size: any sizes that fit, the
        // largest first, unrequested sizes left out.
        let mut left = ready.saturating_sub(total(&targets));
        let pieces = sizes.iter().rev().filter(|(size, ..)| *size <= piece(page_size));
        for size in pieces.map(|(size, ..)| *size) {
            let n = left.0 / size.0;
            if n > 0 {
                *targets.entry(size).or_default() += n;
                left = left.saturating_sub(size * n);
            }
        }
        for (size, n) in powers(left, piece(page_size)) {
            *targets.entry(size).or_default() += n;
        }
        targets
    }
}

fn i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 512;
    const PAGE: PageSize = PageSize::MIB_2;

    fn record(demand: &mut Demand, pages: Pages, single: bool, ready: Pages) {
        demand.record(pages, single, ready, ready, PAGE);
        demand.choose(ready, PAGE);
    }

    fn total(targets: &BTreeMap<Pages, u64>) -> Pages {
        targets.iter().map(|(size, n)| *size * *n).sum()
    }

    #[test]
    fn without_history_there_is_one_of_each_power_of_two_and_pieces() {
        let targets = Demand::guess(Pages(64 * GIB), PAGE).targets(Pages(64 * GIB), PAGE);
        assert_eq!(total(&targets), Pages(64 * GIB));
        for power in [1, 2, 64, GIB, 8 * GIB] {
            assert!(targets.contains_key(&Pages(power)), "{power} pages: {targets:?}");
        }
        assert!(targets[&Pages(GIB)] > 8, "{targets:?}");
    }

    #[test]
    fn a_record_of_blocks_of_nothing_is_not_taken_over() {
        let of = |pieces: [&[u64]; 2]| {
            let mut known = toml::Table::try_from(Demand::default()).expect("numbers");
            known.insert("pieces".to_owned(), toml::Value::try_from(pieces).expect("pairs"));
            known.try_into::<Demand>().expect("a record")
        };
        assert_eq!(of([&[0, 5], &[4, 7]]).pieces, [(Pages(4), 7)].into());
    }

    #[test]
    fn file_sizes_are_learnt_exactly_and_outlast_a_storm_of_probes() {
        let ready = Pages(128 * GIB);
        let mut demand = Demand::guess(ready, PAGE);
        for _ in 0..20 {
            for gib in [8, 24, 64] {
                record(&mut demand, Pages(gib * GIB), true, ready);
            }
        }
        let targets = demand.targets(ready, PAGE);
        for gib in [8, 24, 64] {
            assert!(targets.contains_key(&Pages(gib * GIB)), "{gib}G: {targets:?}");
        }
        for _ in 0..10_000 {
            record(&mut demand, Pages(1), false, ready);
        }
        let after = demand.targets(ready, PAGE);
        assert!(after.contains_key(&Pages(64 * GIB)), "{after:?}");
        assert!(after[&Pages(1)] > 0);
    }

    #[test]
    fn vanished_sizes_are_forgotten() {
        let ready = Pages(64 * GIB);
        let mut demand = Demand::guess(ready, PAGE);
        (0..10).for_each(|_| record(&mut demand, Pages(24 * GIB), true, ready));
        assert!(demand.targets(ready, PAGE).contains_key(&Pages(24 * GIB)));
        (0..400).for_each(|_| record(&mut demand, Pages(8 * GIB), true, ready));
        let targets = demand.targets(ready, PAGE);
        assert!(!targets.contains_key(&Pages(24 * GIB)), "{targets:?}");
        assert!(targets[&Pages(8 * GIB)] >= 6, "{targets:?}");
    }

    #[test]
    fn rest_of_large_blocks_is_guessed_in_powers_of_two() {
        let guess = Demand::guess(Pages(16), PAGE);
        assert_eq!(guess.large.blocks().iter().copied().sum::<Pages>(), Pages(6));
        // Of the other 10, 2 + 1, and 4 + 2 + 1 to fill them.
        let half = LOAN_WEIGHT / 2;
        let pieces = [(1, 2 * half), (2, 2 * half), (4, half)];
        assert_eq!(guess.pieces, pieces.map(|(size, weight)| (Pages(size), weight)).into());
    }

    #[test]
    fn a_count_fades_by_the_bytes_that_are_lent() {
        let ready = Pages(16);
        let mut demand = Demand::default();
        demand.record(Pages(4), false, Pages::ZERO, ready, PAGE);
        demand.record(Pages(16), false, Pages::ZERO, ready, PAGE);
        // One part in FADE_FACTOR for as many bytes as the pool has.
        let faded = LOAN_WEIGHT - LOAN_WEIGHT / FADE_FACTOR;
        assert_eq!(demand.pieces, [(Pages(4), faded), (Pages(16), LOAN_WEIGHT)].into());
    }

    #[test]
    fn most_frequent_file_sizes_are_counted() {
        let ready = Pages(1 << 20);
        let mut demand = Demand::default();
        let most = MAX_FILE_SIZES as u64;
        for size in (1..=most).chain(2..=most) {
            demand.record(Pages(size), true, Pages::ZERO, ready, PAGE);
        }
        assert_eq!(demand.files.len(), MAX_FILE_SIZES);
        demand.record(Pages(most + 1), true, Pages::ZERO, ready, PAGE);
        assert_eq!(demand.files.len(), MAX_FILE_SIZES);
        assert!(!demand.is_for_files(Pages(1)), "it came once, and longest ago");
        assert!((2..=most + 1).all(|size| demand.is_for_files(Pages(size))));
    }

    #[test]
    fn targets_are_window_means_and_as_many_roots_as_fit() {
        let pieces = [(Pages(1), 100 * LOAN_WEIGHT), (Pages(16), 4 * LOAN_WEIGHT)].into();
        let mut demand = Demand { pieces, ..Demand::default() };
        // Of 64 pages, 39.0 loans of one page and 1.56 of 16: with z = 7.15 that is 84 and 10, and
        // with more of it 11 and 261 pages. The 12 pages that are left are too few for one of 16.
        let targets = [(Pages(1), 84 + 12), (Pages(16), 10)].into();
        assert_eq!(demand.targets(Pages(256), PAGE), targets);
        // Files and pieces of one size count together.
        demand.pieces = [(Pages(1), 100 * LOAN_WEIGHT), (Pages(16), LOAN_WEIGHT)].into();
        demand.files = [(Pages(16), 3 * LOAN_WEIGHT)].into();
        assert_eq!(demand.targets(Pages(256), PAGE), targets);
        // One that is larger than all there is wants nothing.
        demand.pieces.insert(Pages(512), LOAN_WEIGHT);
        assert_eq!(demand.targets(Pages(256), PAGE), targets);
    }

    proptest! {
        #[test]
        fn targets_fill_the_bytes_and_never_more(
            ready in 0u64..200_000,
            gib in any::<bool>(),
            loans in proptest::collection::vec((1u64..300_000, any::<bool>()), 0..60),
        ) {
            let page = if gib { PageSize::GIB_1 } else { PAGE };
            let ready = Pages(ready);
            let mut demand = Demand::guess(ready, page);
            for (pages, single) in loans {
                demand.record(Pages(pages), single, ready, ready, page);
                demand.choose(ready, page);
            }
            let targets = demand.targets(ready, page);
            prop_assert_eq!(total(&targets), ready);
            prop_assert!(targets.iter().all(|(size, n)| *size > Pages::ZERO && *n > 0));
            let files = |size: &Pages| demand.is_for_files(*size);
            let largest = Pages(ready.0 / 2).max(piece(page));
            prop_assert!(targets.keys().all(|s| *s <= largest || files(s)), "{:?}", targets);
            let text = toml::to_string(&demand).expect("it can be written");
            prop_assert_eq!(toml::from_str::<Demand>(&text).expect("and read"), demand);
        }
    }
}
