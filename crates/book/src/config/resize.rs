// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The range of sizes for the kernel's pool, and the limits on memory taken for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, Domain, Pages};

use super::{ConfigError, PoolConfig};

/// How long unused pages are kept: a guest's restart, a night's last job and the next.
const IDLE_PERIOD: Duration = Duration::from_secs(600);
/// The shortest time: a program that returns pages and asks for others finds them.
const MIN_IDLE_PERIOD: Duration = Duration::from_secs(1);

/// How far the daemon may change the size of the kernel's pool; of all of its pools of one node
/// and page size one says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSize {
    /// The minimum size of the kernel's pool, used and unused pages together.
    pub size_min: Pages,
    /// ... and makes it no larger than this; default: it leaves the kernel's pool alone.
    pub size_max: Option<Pages>,
    /// How long unneeded pages stay in the kernel's pool.
    pub size_idle: Duration,
    /// Memory of the node that stays available to programs without huge pages; default: one part in
    /// 16 of it.
    pub size_free: Option<Bytes>,
}

impl Default for PoolSize {
    fn default() -> Self {
        Self { size_min: Pages::ZERO, size_max: None, size_idle: IDLE_PERIOD, size_free: None }
    }
}

/// A time as it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) Duration);

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a time, as in \"10m\"")]
        enum Either {
            Text(String),
        }
        let Either::Text(text) = Either::deserialize(deserializer)?;
        let bad = |error| {
            serde::de::Error::custom(format!("`{text}` is not a time, as in 10m or 30s: {error}"))
        };
        humantime::parse_duration(&text).map(Self).map_err(bad)
    }
}

/// The keys as they are written, in pages.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) min: Option<Pages>,
    pub(super) max: Option<Pages>,
    pub(super) idle: Option<Time>,
    pub(super) free: Option<Bytes>,
}

impl PoolSize {
    pub(super) fn from_keys(keys: &Keys, domain: Domain) -> Result<Self, ConfigError> {
        let given = [
            ("size_min", keys.min.is_some()),
            ("size_idle", keys.idle.is_some()),
            ("size_free", keys.free.is_some()),
        ];
        if keys.max.is_none()
            && let Some((key, _)) = given.iter().find(|(_, is_given)| *is_given)
        {
            return Err(ConfigError::SizeWithoutMax(domain, key));
        }
        Ok(Self {
            size_min: keys.min.unwrap_or_default(),
            size_max: keys.max,
            size_idle: keys.idle.map_or(IDLE_PERIOD, |Time(idle)| idle),
            size_free: keys.free,
        })
    }

    /// Whether the daemon may change the size of the kernel's pool.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.size_max.is_some()
    }

    /// Checks the rules beyond types, for a pool with this number of pages wanted ready or free.
    pub(super) fn check(&self, pool: &PoolConfig) -> Result<(), ConfigError> {
        let Some(max) = self.size_max else { return Ok(()) };
        let domain = pool.key().domain();
        let size = pool.page_size;
        let too_small = |what, more: Pages| ConfigError::SizeMax {
            domain,
            max: max.bytes(size),
            what,
            more: more.bytes(size),
        };
        if self.size_min > max {
            return Err(too_small("size_min", self.size_min));
        }
        if pool.ready_high + pool.leave_free > max {
            let both = pool.ready_high + pool.leave_free;
            return Err(too_small("what is to be ready and to stay free", both));
        }
        if self.size_idle < MIN_IDLE_PERIOD {
            let idle = humantime::format_duration(self.size_idle).to_string();
            return Err(ConfigError::SizeIdle { domain, idle });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str) -> Result<PoolConfig, String> {
        text.parse::<PoolConfig>().map_err(|error| error.to_string())
    }

    // Promise P196.
    #[test]
    fn a_pool_without_the_keys_leaves_the_kernels_alone() {
        let config = pool("page_size=2M,ready=1G").expect("a good pool");
        assert!(!config.resize.is_on());
        assert_eq!(config.resize, PoolSize::default());
    }

    #[test]
    fn amounts_are_sizes_or_pages_and_times_have_a_unit() {
        let text = "page_size=2M,ready=1G,size_min=512,size_max=4G,size_idle=90s,size_free=2G";
        let resize = pool(text).expect("a good pool").resize;
        let expected = PoolSize {
            size_min: Pages(512),
            size_max: Some(Pages(2048)),
            size_idle: Duration::from_secs(90),
            size_free: Some(Bytes(2 << 30)),
        };
        assert_eq!(resize, expected);
    }

    #[test]
    fn impossible_values_are_refused_with_value_and_advice() {
        for (fields, parts) in [
            ("size_min=1G", &["size_min", "size_max"][..]),
            ("size_idle=1m", &["size_idle", "size_max"]),
            ("size_max=1G,size_min=2G", &["size_max 1G", "size_min is 2G"]),
            ("ready=2G,size_max=1G", &["size_max 1G", "ready", "2G", "raise"]),
            ("ready=1G,leave_free=2M,size_max=1G", &["stay free is 1.0G"]),
            ("size_max=1G,size_idle=0s", &["size_idle 0s", "1s"]),
            ("size_max=1G,size_idle=soon", &["`soon`", "10m"]),
            ("size_max=1G,size_idle=600", &["10m"]),
            ("size_max=3M", &["size_max: 3M is not a whole number of 2M pages"]),
            ("size_max=1G,size_free=much", &["`much`"]),
        ] {
            let error = pool(&format!("page_size=2M,{fields}")).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{fields}: {error}");
            }
        }
    }

    #[test]
    fn values_at_their_limits_are_good() {
        for fields in [
            "size_max=1G,size_min=1G",
            "ready=1022M,leave_free=2M,size_max=1G",
            "size_max=1G,size_idle=1s",
        ] {
            assert!(pool(&format!("page_size=2M,{fields}")).is_ok(), "{fields}");
        }
    }

    #[test]
    fn one_pool_of_a_node_and_page_size_sets_the_kernels_pool_size() {
        let one = |pages| pool(&format!("page_size=2M,pages_per_block={pages},size_max=1G"));
        let pools = [one(1).expect("good"), one(2).expect("good")];
        assert_eq!(super::super::check_apart(&pools[..1]), Ok(()));
        let error = super::super::check_apart(&pools).unwrap_err().to_string();
        assert!(error.contains("node 0 2M") && error.contains("one of them"), "{error}");
    }
}
