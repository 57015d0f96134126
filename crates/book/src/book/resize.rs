// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inputs for the size of the kernel's pool: unused pages, wanted pages, and the pages that the
//! book can give back so that the pool can shrink.

use std::collections::BTreeMap;

use units::{BlockId, Domain, Pages, PoolKey};

use super::{Asked, Book, Effect};
use crate::block::{Block, StateName, UNLENT};
use crate::config::{PoolConfig, PoolSize};

impl Book {
    /// The configured pools that are in their own sizes, or in the one that was told.
    fn explicit_pools(&self) -> impl Iterator<Item = &PoolConfig> {
        let fixed = self.pools.values().filter(|pool| pool.configured).map(|pool| &pool.config);
        let fixed = fixed.filter(|config| !self.is_mixed(config.key().domain()));
        fixed.chain(self.mixes.values().map(|mix| &mix.config))
    }

    /// The domains in which the daemon may resize the kernel's pool, and the limits.
    #[must_use]
    pub fn pool_sizes(&self) -> BTreeMap<Domain, PoolSize> {
        let resize = self.explicit_pools().filter(|config| config.resize.is_on());
        resize.map(|config| (config.key().domain(), config.resize.clone())).collect()
    }

    /// Pages in unlent blocks, and pages that workers have in hand or were promised.
    #[must_use]
    pub fn idle(&self, domain: Domain) -> Pages {
        let in_hand = self.blocks.total(domain, &[StateName::Zeroing]).pages;
        self.blocks.total(domain, &UNLENT).memory + in_hand
    }

    /// Lent blocks with missing pages: their borrowers' faults take them, or have taken them.
    pub fn unbacked(&self, domain: Domain) -> impl Iterator<Item = &Block> {
        let here = move |b: &&Block| b.pool().domain() == domain && b.missing() > Pages::ZERO;
        self.in_state(StateName::Lent).filter(here)
    }

    /// Pages wanted ready, and pages wanted free.
    #[must_use]
    pub fn wanted(&self, domain: Domain) -> Pages {
        let here = || self.explicit_pools().filter(|config| config.key().domain() == domain);
        let ready: Pages = here().map(|config| self.wanted_ready(config)).sum();
        ready + here().map(|config| config.leave_free).max().unwrap_or_default()
    }

    /// Ready pages of a full pool.
    fn wanted_ready(&self, config: &PoolConfig) -> Pages {
        let key = config.key();
        let taken = |key: PoolKey| {
            let states = [StateName::Lent, StateName::Kept, StateName::Draining];
            states.into_iter().map(|state| self.pages_in(key, state)).sum::<Pages>()
        };
        let (taken, block) = match key.is_mixed() {
            true => (self.sum_of(key.domain(), taken), Pages(1)),
            false => (taken(key), key.pages_per_block),
        };
        // Blocks are whole.
        let high = block * config.ready_high.0.div_ceil(block.0);
        config.max.map_or(high, |max| max.saturating_sub(taken).min(high))
    }

    /// Frees unneeded blocks (dirty ones first, then ready ones above the target) until `pages`
    /// pages beyond `leave_free` are free in the kernel's pool, or no unneeded block is left.
    pub fn free_up(&mut self, domain: Domain, pages: Pages) -> Vec<Effect> {
        let leave = self.explicit_pools().filter(|config| config.key().domain() == domain);
        let leave = leave.map(|config| config.leave_free).max().unwrap_or_default();
        let missing = (pages + leave).saturating_sub(self.available(domain));
        if missing == Pages::ZERO {
            return Vec::new();
        }
        let here = |b: &&Block| b.pool().domain() == domain;
        let sorted = |state| {
            let blocks = self.in_state(state).filter(here).map(|b| (b.memory(), b.pool(), b.id()));
            let mut blocks: Vec<_> = blocks.collect();
            blocks.sort_unstable();
            blocks
        };
        let dirty = sorted(StateName::Zeroable).into_iter().map(|(.., id)| id);
        let mut spared = self.ready_beyond(domain);
        let reported = |key| if self.is_mixed(domain) { PoolKey::mixed(domain) } else { key };
        let beyond = sorted(StateName::Ready).into_iter().filter_map(|(pages, key, id)| {
            let spared = spared.get_mut(&reported(key))?;
            let left = spared.0.checked_sub(pages.0)?;
            *spared = Pages(left);
            Some(id)
        });
        let unneeded: Vec<BlockId> = dirty.chain(beyond).collect();
        self.remove_some(missing, unneeded).1
    }

    /// What each pool has ready beyond what it is to have.
    fn ready_beyond(&self, domain: Domain) -> BTreeMap<PoolKey, Pages> {
        let here = self.explicit_pools().filter(|config| config.key().domain() == domain);
        let beyond = here.map(|config| {
            let key = config.key();
            let ready = match key.is_mixed() {
                true => self.sum_of(domain, |key| self.ready(key)),
                false => self.ready(key),
            };
            (key, ready.saturating_sub(self.wanted_ready(config)))
        });
        beyond.collect()
    }

    /// Where a larger kernel's pool could serve a loan that was refused for lack of pages of this
    /// size, and how many missing pages it takes there.
    #[must_use]
    pub fn growth_needed(&self, asked: &Asked, sizes: &[Domain]) -> Option<(Domain, Pages)> {
        let request = &asked.request;
        let fits = |domain: &&Domain| domain.fits(request.node, request.page_size);
        // A request without a page size can use any size that divides its length.
        let fits = |domain: &&Domain| {
            fits(domain) && request.bytes.0.is_multiple_of(domain.page_size.bytes())
        };
        let spare = |domain: &&Domain| self.available(**domain) + self.idle(**domain);
        let domain = *sizes.iter().filter(fits).max_by_key(spare)?;
        let need = request.bytes.whole_pages(domain.page_size);
        let elsewhere = match request.single {
            true => Pages::ZERO,
            false => {
                let others = self.domains().filter(|d| *d != domain && fits(&d));
                let others = others.filter(|d| d.page_size == domain.page_size);
                others.map(|d| self.room(d, &[])).sum()
            }
        };
        Some((domain, need.saturating_sub(elsewhere)))
    }
}
