// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changing the pools while blocks are lent.

use std::collections::BTreeSet;

use units::{Pages, PoolKey};

use super::{Book, Effect, Pool};
use crate::block::Block;
use crate::config::{ConfigError, PoolConfig, Recycle, check_apart};

impl Pool {
    /// A pool that is unwanted (any more): it makes no new blocks, and disappears with its last
    /// one.
    pub(super) fn unwanted(key: PoolKey) -> Self {
        // Returned blocks go back to the kernel, with or without a proof.
        let recycle = Recycle::Fresh;
        let config = PoolConfig { max: Some(Pages::ZERO), recycle, ..PoolConfig::new(key) };
        Self { config, refilling: false, configured: false }
    }
}

impl Book {
    /// Changes one pool's thresholds, or adds a pool.
    ///
    /// # Errors
    /// Those of [`PoolConfig::check`]; nothing is changed then.
    pub fn configure(&mut self, config: PoolConfig) -> Result<(), ConfigError> {
        config.check()?;
        let key = self.canonical(config.key());
        let config = PoolConfig { pages_per_block: key.pages_per_block, ..config };
        self.check_mix(key)?;
        if key.is_mixed() {
            self.mix(config);
            return Ok(());
        }
        let refilling = self.pools.get(&key).is_some_and(|pool| pool.refilling);
        self.pools.insert(key, Pool { config, refilling, configured: true });
        Ok(())
    }

    /// Has these pools from now on and no others.
    ///
    /// A pool that is missing from the list gives its unlent blocks back at once. Its lent, kept
    /// and zeroing blocks follow as they come back, by [`Book::relieve`].
    ///
    /// # Errors
    /// Those of [`Book::new`]; nothing is changed then.
    pub fn reconfigure(&mut self, pools: Vec<PoolConfig>) -> Result<Vec<Effect>, ConfigError> {
        let pools = self.supply.arranged(pools)?;
        check_apart(&pools)?;
        let wanted: BTreeSet<_> = pools.iter().map(PoolConfig::key).collect();
        self.mixes.retain(|domain, _| wanted.contains(&PoolKey::mixed(*domain)));
        for (key, pool) in &mut self.pools {
            if !wanted.contains(key) && !self.mixes.contains_key(&key.domain()) {
                *pool = Pool::unwanted(*key);
            }
        }
        for config in pools {
            self.configure(config)?;
        }
        Ok(self.dissolve())
    }

    /// Gives back the unlent blocks of unwanted pools, and forgets empty pools.
    pub(super) fn dissolve(&mut self) -> Vec<Effect> {
        let unwanted: BTreeSet<_> =
            self.pools.iter().filter(|(_, pool)| !pool.configured).map(|(key, _)| *key).collect();
        if unwanted.is_empty() {
            return Vec::new();
        }
        let of_unwanted = |key: PoolKey| unwanted.contains(&key);
        let (_, effects) = self.remove_unlent(Pages(u64::MAX), &[], of_unwanted);
        let held: BTreeSet<_> = self.blocks.iter().map(Block::pool).collect();
        self.pools.retain(|key, pool| pool.configured || held.contains(key));
        effects
    }
}
