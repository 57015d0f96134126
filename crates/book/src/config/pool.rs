// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pool and its thresholds.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{Bytes, Domain, Node, PageSize, Pages, ParseError, PoolKey, as_text};
use wire::{PoolChange, Recycle};

use super::resize::{Keys, Time};
use super::{ConfigError, PoolSize, Ready, ReadyLearning, optional_text, reading};

/// How much, as people write it: `"16G"` is bytes, a plain number pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So many pages.
    Pages(Pages),
    /// So many bytes.
    Bytes(Bytes),
}

impl Amount {
    /// In pages of that size.
    ///
    /// # Errors
    /// For bytes that are no whole pages.
    pub fn pages(self, page_size: PageSize) -> Result<Pages, ParseError> {
        match self {
            Self::Pages(pages) => Ok(pages),
            Self::Bytes(Bytes(0)) => Ok(Pages::ZERO),
            Self::Bytes(bytes) => page_size.pages_in(bytes),
        }
    }
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.parse() {
            Ok(pages) => Ok(Self::Pages(Pages(pages))),
            Err(_) => text.parse().map(Self::Bytes),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pages(pages) => s.serialize_u64(pages.0),
            Self::Bytes(bytes) => s.collect_str(&bytes.0),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number of pages, or a size as in \"16G\"")]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(pages) => Ok(Self::Pages(Pages(pages))),
            Either::Text(text) => text.parse().map(Self::Bytes).map_err(serde::de::Error::custom),
        }
    }
}

/// One pool and its thresholds, in pages.
///
/// With `pages_per_block` 0 it has blocks of all sizes, as its loans ask for, and `ready_high` are
/// the pages that it is to have ready. In the file that is `ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct PoolConfig {
    /// The node.
    pub node: Node,
    /// Whether it is for every node with memory, in place of one: see [`Config::spread`].
    ///
    /// [`Config::spread`]: super::Config::spread
    pub every_node: bool,
    /// The page size.
    pub page_size: PageSize,
    /// The pages of one block.
    pub pages_per_block: Pages,
    /// Background workers start when fewer pages than this are ready; default: `ready_high`.
    pub ready_low: Option<Pages>,
    /// ... and stop when as many as this are; 0 leaves zeroing to `prezero zero`.
    pub ready_high: Pages,
    /// From what the amount is learnt, of which `ready_high` is the most then.
    pub learns: Option<ReadyLearning>,
    /// The most pages the pool may own, lent ones included; default: no bound but the kernel's.
    pub max: Option<Pages>,
    /// Pages that stay free in the kernel's pool.
    pub leave_free: Pages,
    /// How returned blocks become zero again.
    pub recycle: Recycle,
    /// How far the kernel's pool of its node and page size is made larger and smaller for it.
    pub resize: PoolSize,
}

/// A pool as the file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Absent: every node with memory.
    node: Option<Node>,
    /// As in `"2M"`.
    #[serde(with = "as_text")]
    page_size: PageSize,
    /// Bytes wanted ready, in blocks of the requested sizes.
    ready: Option<Ready>,
    pages_per_block: Option<Amount>,
    ready_low: Option<Amount>,
    ready_high: Option<Amount>,
    max: Option<Amount>,
    leave_free: Option<Amount>,
    #[serde(default)]
    recycle: Recycle,
    size_min: Option<Amount>,
    size_max: Option<Amount>,
    size_idle: Option<Time>,
    #[serde(default, with = "optional_text")]
    size_free: Option<Bytes>,
}

/// As `ready` or as a fixed shape, whichever it is, and with the keys of a kernel's pool that
/// changes only where one does: so it can be read again.
impl From<PoolConfig> for Written {
    fn from(pool: PoolConfig) -> Self {
        let is_fixed = !pool.key().is_mixed();
        let high = Amount::Pages(pool.ready_high);
        let resize = pool.resize.is_on().then_some(&pool.resize);
        Self {
            node: (!pool.every_node).then_some(pool.node),
            page_size: pool.page_size,
            ready: (!is_fixed).then_some(Ready { amount: high, learns: pool.learns }),
            pages_per_block: is_fixed.then_some(Amount::Pages(pool.pages_per_block)),
            ready_low: pool.ready_low.map(Amount::Pages),
            ready_high: is_fixed.then_some(high),
            max: pool.max.map(Amount::Pages),
            leave_free: Some(Amount::Pages(pool.leave_free)),
            recycle: pool.recycle,
            size_min: resize.map(|of| Amount::Pages(of.size_min)),
            size_max: pool.resize.size_max.map(Amount::Pages),
            size_idle: resize.map(|of| Time(of.size_idle)),
            size_free: resize.and_then(|of| of.size_free),
        }
    }
}

impl TryFrom<Written> for PoolConfig {
    type Error = ConfigError;

    fn try_from(written: Written) -> Result<Self, ConfigError> {
        let Written { node, page_size, ready, recycle, .. } = written;
        let (node, every_node) = (node.unwrap_or_default(), node.is_none());
        let in_pages = |key, amount: Option<Amount>| {
            let pages = amount.map(|amount| amount.pages(page_size)).transpose();
            pages.map_err(|error| ConfigError::Pages(key, error))
        };
        let learns = ready.and_then(|ready| ready.learns);
        let ready = in_pages("ready", ready.map(|ready| ready.amount))?;
        let pages_per_block = in_pages("pages_per_block", written.pages_per_block)?;
        let ready_low = in_pages("ready_low", written.ready_low)?;
        let ready_high = in_pages("ready_high", written.ready_high)?;
        let domain = Domain { node, page_size };
        if ready.is_some() && pages_per_block.or(ready_low).or(ready_high).is_some() {
            return Err(ConfigError::ReadyAndMore(domain));
        }
        if pages_per_block == Some(Pages::ZERO) {
            return Err(ConfigError::EmptyBlock(domain));
        }
        let keys = Keys {
            min: in_pages("size_min", written.size_min)?,
            max: in_pages("size_max", written.size_max)?,
            idle: written.size_idle,
            free: written.size_free,
        };
        let default = if ready.is_some() { Pages::ZERO } else { Pages(1) };
        Ok(Self {
            node,
            every_node,
            page_size,
            pages_per_block: pages_per_block.unwrap_or(default),
            ready_low,
            ready_high: ready.or(ready_high).unwrap_or_default(),
            learns,
            max: in_pages("max", written.max)?,
            leave_free: in_pages("leave_free", written.leave_free)?.unwrap_or_default(),
            recycle,
            resize: PoolSize::from_keys(&keys, domain)?,
        })
    }
}

impl PoolConfig {
    /// A pool of `key`'s shape with every default.
    #[must_use]
    pub fn new(key: PoolKey) -> Self {
        Self {
            node: key.node,
            every_node: false,
            page_size: key.page_size,
            pages_per_block: key.pages_per_block,
            ready_low: None,
            ready_high: Pages::ZERO,
            learns: None,
            max: None,
            leave_free: Pages::ZERO,
            recycle: Recycle::default(),
            resize: PoolSize::default(),
        }
    }

    /// The same with a client's changes; unchecked.
    #[must_use]
    pub fn with(mut self, change: &PoolChange) -> Self {
        self.ready_low = change.ready_low.or(self.ready_low);
        self.ready_high = change.ready_high.unwrap_or(self.ready_high);
        self.max = change.max_pages.or(self.max);
        self.leave_free = change.leave_free.unwrap_or(self.leave_free);
        self.recycle = change.recycle.unwrap_or(self.recycle);
        self
    }

    /// Whether this pool, of a command line, stands in place of `other`, of the file.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        let shape = |pool: &Self| (pool.page_size, pool.pages_per_block);
        let is_there = self.every_node || !other.every_node && self.node == other.node;
        shape(self) == shape(other) && is_there
    }

    /// Which pool it is.
    #[must_use]
    pub fn key(&self) -> PoolKey {
        PoolKey {
            node: self.node,
            page_size: self.page_size,
            pages_per_block: self.pages_per_block,
        }
    }

    /// Below how many ready pages background zeroing starts.
    #[must_use]
    pub fn low(&self) -> Pages {
        self.ready_low.unwrap_or(self.ready_high)
    }

    /// Checks what types cannot say.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ConfigError> {
        let pool = self.key();
        if pool.is_mixed() && self.ready_low.is_some() {
            return Err(ConfigError::ReadyAndMore(pool.domain()));
        }
        let (low, high) = (self.low(), self.ready_high);
        if low > high {
            return Err(ConfigError::Thresholds { pool, low, high });
        }
        self.resize.check(self)?;
        match self.max {
            Some(max) if high > max => Err(ConfigError::AboveMax { pool, high, max }),
            _ => Ok(()),
        }
    }
}

/// Checks pools, and that no two of them are for the same.
pub(crate) fn check_apart(pools: &[PoolConfig]) -> Result<(), ConfigError> {
    let (mut seen, mut domains, mut resize) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for pool in pools {
        pool.check()?;
        let key = pool.key();
        if !seen.insert(key) {
            return Err(ConfigError::Twice(key));
        }
        if pool.resize.is_on() && !resize.insert(key.domain()) {
            return Err(ConfigError::SizeMaxTwice(key.domain()));
        }
        let is_first = domains.insert(key.domain());
        let mixed = seen.contains(&PoolKey::mixed(key.domain()));
        if mixed && !is_first {
            return Err(ConfigError::Mixed(key.domain()));
        }
    }
    Ok(())
}

impl FromStr for PoolConfig {
    type Err = ConfigError;
    /// The fields of the file, as in `page_size=1G,pages_per_block=8,ready_high=16`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut toml = String::new();
        for field in text.split(',').filter(|f| !f.trim().is_empty()) {
            let Some((key, value)) = field.split_once('=') else {
                let shape = "write pools as FIELD=VALUE,..., as in page_size=1G,ready=8G";
                return Err(ConfigError::Syntax(format!("`{field}` is not a field: {shape}")));
            };
            let (key, value) = (key.trim(), value.trim());
            let quote = if value.parse::<u64>().is_ok() { "" } else { "\"" };
            toml += &format!("{key} = {quote}{value}{quote}\n");
        }
        let refused = |error: toml::de::Error| ConfigError::Syntax(reading::plain(error.message()));
        let pool: Self = toml::from_str(&toml).map_err(refused)?;
        pool.check()?;
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str) -> PoolConfig {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn bytes_say_the_same_as_pages() {
        let pages = "page_size=2M,pages_per_block=512,ready_low=512,ready_high=1024,max=2048,leave_free=256";
        let bytes =
            "page_size=2M,pages_per_block=1G,ready_low=1G,ready_high=2G,max=4G,leave_free=512M";
        assert_eq!(pool(pages), pool(bytes));
    }

    #[test]
    fn a_pool_of_bytes_has_blocks_of_all_sizes() {
        let config = pool("page_size=2M,ready=64G,leave_free=1G");
        assert!(config.key().is_mixed());
        assert_eq!((config.ready_high, config.leave_free), (Pages(32768), Pages(512)));
        assert!(config.every_node && !pool("node=0,page_size=2M").every_node);
        assert_eq!(config.key().to_string(), "node 0 2M");
    }

    /// A fuzzer found that one with `ready` was written so that it could not be read.
    #[test]
    fn a_pool_that_is_written_means_the_same_when_it_is_read() {
        for text in [
            "page_size=2M",
            "page_size=2M,ready=2",
            "page_size=2M,ready=64G,max=128G,leave_free=1G",
            "node=1,page_size=1G,pages_per_block=8,ready_low=8,ready_high=16,recycle=fresh",
            "page_size=2M,ready=1G,size_max=4G",
            "page_size=2M,ready_high=4,size_min=1G,size_max=4G,size_idle=90s,size_free=2G",
        ] {
            let pool = pool(text);
            let written = toml::to_string(&pool).unwrap();
            assert_eq!(toml::from_str(&written), Ok(pool), "{text}: {written}");
        }
    }

    #[test]
    fn conflicting_keys_are_refused_by_name() {
        for (text, part) in [
            ("page_size=2M,ready=64G,ready_high=1", "`ready` stands for"),
            ("page_size=2M,ready=64G,pages_per_block=1", "`ready` stands for"),
            ("page_size=2M,ready=3M", "ready: 3M is not a whole number of 2M pages"),
            ("page_size=2M,ready_high=16Q", "16Q"),
            ("page_size=2M,ready=64G,max=1G", "ready 64G is above max 1G"),
            ("page_size=2M,ready=day", "`day` is not a size"),
            ("page_size=2M,redy=4G", "`redy` is no key: did you mean `ready`?"),
            ("ready=4G", "`page_size` is missing"),
            ("page_size=2M,recycle=fersh", "did you mean `fresh`?"),
        ] {
            let error = text.parse::<PoolConfig>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let (all, one) = (pool("page_size=2M,ready=64G"), pool("page_size=2M,ready_high=1"));
        let domain = all.key().domain();
        for pools in [[all.clone(), one.clone()], [one, all.clone()]] {
            assert_eq!(check_apart(&pools), Err(ConfigError::Mixed(domain)));
        }
        assert_eq!(check_apart(&[all.clone(), all.clone()]), Err(ConfigError::Twice(all.key())));
        assert_eq!(check_apart(&[all, pool("page_size=1G,ready=64G")]), Ok(()));
    }
}
