// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration: one TOML file, and single keys over it.

mod agent;
mod by_name;
mod drop_ins;
mod listen;
mod pool;
mod reading;
mod ready;
mod reserve;
mod resize;
mod set;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use units::{Bytes, Domain, Node, PageSize, Pages, PoolKey, Uid};
pub use wire::Recycle;

pub use agent::Agent;
pub use drop_ins::FileFault;
pub use listen::{BadListen, Listen};
pub(crate) use pool::check_apart;
pub use pool::{Amount, PoolConfig};
pub use reading::{did_you_mean, unknown};
use ready::Ready;
pub use ready::ReadyLearning;
pub use reserve::Reserve;
pub use resize::PoolSize;
pub use set::Set;

/// Why a configuration was refused; nothing of it takes effect.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Not TOML, an unknown field, or a value of the wrong kind; the message names the place.
    #[error("{0}")]
    Syntax(String),
    /// Two pools of one shape.
    #[error("pool {0} is configured twice: pools differ in node, page size or pages per block")]
    Twice(PoolKey),
    /// A pool of all sizes of blocks beside another.
    #[error("pool {0}: `ready` is for blocks of all sizes: leave the other pools of it away")]
    Mixed(Domain),
    /// `ready` beside what it stands for.
    #[error("pool {0}: `ready` stands for all of pages_per_block, ready_low and ready_high")]
    ReadyAndMore(Domain),
    /// Bytes that are no whole pages.
    #[error("{0}: {1}")]
    Pages(&'static str, units::ParseError),
    /// Two sizes of the kernel's pool.
    #[error("reserve: {1} pages of node {0} are reserved twice")]
    ReservedTwice(Node, PageSize),
    /// A pool with empty blocks.
    #[error("pool {0}: pages_per_block must be at least 1; write `ready` for blocks of all sizes")]
    EmptyBlock(Domain),
    /// A low threshold above the high one.
    #[error(
        "pool {pool}: ready_low {} is above ready_high {}",
        low.bytes(pool.page_size),
        high.bytes(pool.page_size)
    )]
    Thresholds {
        /// The pool.
        pool: PoolKey,
        /// Its low threshold, in pages.
        low: Pages,
        /// Its high threshold, in pages.
        high: Pages,
    },
    /// A high threshold that the pool may never reach.
    #[error(
        "pool {pool}: {} {} is above max {}, the most that it may own",
        if pool.is_mixed() { "ready" } else { "ready_high" },
        high.bytes(pool.page_size),
        max.bytes(pool.page_size)
    )]
    AboveMax {
        /// The pool.
        pool: PoolKey,
        /// Its high threshold, in pages.
        high: Pages,
        /// The most pages it may own.
        max: Pages,
    },
    /// A bound of the kernel's pool without the one that lets the daemon change it.
    #[error("pool {0}: {1} has no effect without size_max: set size_max, or remove {1}")]
    SizeWithoutMax(Domain, &'static str),
    /// Two sizes of one pool of the kernel's.
    #[error(
        "pools {0}: size_max is of the kernel's pool, which they share: leave it to one of them"
    )]
    SizeMaxTwice(Domain),
    /// A kernel's pool that could never be large enough.
    #[error("pool {domain}: size_max {max} is not enough, as {what} is {more}: raise it")]
    SizeMax {
        /// The kernel's pool.
        domain: Domain,
        /// The most that it may have.
        max: Bytes,
        /// What is more.
        what: &'static str,
        /// So much.
        more: Bytes,
    },
    /// Pages that are given back as soon as they are there.
    #[error("pool {domain}: size_idle {idle} is too short: write at least 1s")]
    SizeIdle {
        /// The kernel's pool.
        domain: Domain,
        /// For how long pages were to be kept.
        idle: String,
    },
    /// A pressure that is no percentage.
    #[error("pause_above_pressure is {0}: it is a percentage, from 1 to 100")]
    Pressure(u8),
    /// A mode with bits that mean nothing to the tree's files.
    #[error("tree.mode is 0o{0:o}: it has only read and write bits, as in 0o664")]
    TreeMode(u32),
}

/// Where ready pages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The kernel's own pool if this kernel knows which of its pages are zero, else `stock`.
    #[default]
    Auto,
    /// The daemon owns blocks of huge pages and keeps them ready. On any kernel.
    Stock,
    /// The kernel's own pool; the daemon does not start on a kernel with neither module nor series.
    Kernel,
}

impl FromStr for Provider {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "stock" => Ok(Self::Stock),
            "kernel" => Ok(Self::Kernel),
            other => Err(format!("`{other}` is no provider: write auto, stock or kernel")),
        }
    }
}

/// The daemon's own workers: place, number, and priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersConfig {
    /// The most of them at a time; 0 leaves all zeroing to `prezero zero`.
    pub max: u32,
    /// CPUs they may run on, as in `"0-3,8"`; default: those of the pool's node.
    pub cpus: Option<String>,
    /// Their nice value, -20 to 19.
    pub nice: i32,
    /// Whether they run under `SCHED_IDLE`: only on idle CPUs.
    pub sched_idle: bool,
    /// A cgroup directory to run in (v2, or v1 where that is mounted), made if it is missing;
    /// without a slash at its beginning one below the daemon's own.
    pub cgroup: Option<PathBuf>,
    /// Pause while the CPU's `some avg10` pressure (PSI) is above this percentage.
    pub pause_above_pressure: Option<u8>,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self {
            max: 1,
            cpus: None,
            nice: 19,
            sched_idle: true,
            cgroup: None,
            pause_above_pressure: None,
        }
    }
}

/// The control tree: the files that a kernel with our series has, on a stock kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TreeConfig {
    /// Whether there is one. Absent: `prezero serve` mounts it where it can, and says so where it
    /// cannot; an embedded daemon has none. `true`: a daemon that cannot mount it does not start.
    /// Over the kernel's own pool there is one only if `true`: that kernel has the files itself.
    pub enabled: Option<bool>,
    /// Where it is mounted, made if it is missing; default: `tree` in the run directory.
    pub path: Option<PathBuf>,
    /// The group, by name or number, that its files belong to; default: `zero_group`, else root's.
    /// Its members may write them, unless `mode` says otherwise.
    pub group: Option<String>,
    /// The mode of the files that can be written, as in `0o664`; default: `0o664` with a group,
    /// `0o644` without. The others have its read bits.
    pub mode: Option<u32>,
}

impl TreeConfig {
    /// Checks what types cannot say.
    fn check(&self) -> Result<(), ConfigError> {
        match self.mode {
            Some(mode) if mode & !0o666 != 0 => Err(ConfigError::TreeMode(mode)),
            _ => Ok(()),
        }
    }
}

/// Metrics for Prometheus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Where to serve them, to every process that can connect there; default: off.
    pub listen: Option<Listen>,
    /// Names of this machine by which they may be asked for at an address, beside addresses and
    /// `localhost`; default: none. A request by another name is refused.
    pub hosts: Vec<String>,
}

/// Everything the daemon is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where ready pages come from.
    pub provider: Provider,
    /// A group, by name or number: its members may borrow, as root may.
    pub lend_group: Option<String>,
    /// Further groups, by name or number, with members that may borrow, each with the most bytes
    /// that one member may hold, as in `postgres = "16G"`. A member of several groups gets the
    /// largest of their quotas; `quota` is that of `lend_group`.
    #[serde(with = "by_name")]
    pub lend_groups: BTreeMap<String, Bytes>,
    /// A group, by name or number: its members may zero and configure, as root may.
    pub zero_group: Option<String>,
    /// Whether workers of `zero_group` may have blocks in their hands that others borrow. They can
    /// read and write all that is lent then, as root can. Without it they zero through the control
    /// tree, where a delegated worker does it in their place and context.
    pub trust_zero_group: bool,
    /// The most bytes that one user may hold, kept content included; default: no bound.
    #[serde(with = "optional_text")]
    pub quota: Option<Bytes>,
    /// Quotas of single users by number, as in `1000 = "8G"`; they override `quota` and those of
    /// `lend_groups`.
    #[serde(with = "quota_map")]
    pub quota_of: BTreeMap<Uid, Bytes>,
    /// The longest that content may be kept for its owner, in seconds. A loan that asks for more is
    /// refused.
    pub keep_seconds_max: u64,
    /// Whether page tables are made in advance, for clients to share: blocks of 1 GiB and more of
    /// smaller pages then map at one fault per GiB.
    pub share_page_tables: bool,
    /// The nice value of the thread that answers calls, where the daemon may set it. The default is
    /// below 0, because 64 clients that ask at once would compete with it for the CPUs.
    pub nice: i8,
    /// The daemon's own workers.
    pub workers: WorkersConfig,
    /// The control tree.
    pub tree: TreeConfig,
    /// Loans by name.
    pub agent: Agent,
    /// Whether and where metrics are served.
    pub metrics: MetricsConfig,
    /// Pages that `prezero reserve` takes from free memory, at boot if it can; the daemon does not.
    pub reserve: Vec<Reserve>,
    /// The pools.
    #[serde(rename = "pool")]
    pub pools: Vec<PoolConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            provider: Provider::Auto,
            lend_group: None,
            lend_groups: BTreeMap::new(),
            zero_group: None,
            trust_zero_group: false,
            quota: None,
            quota_of: BTreeMap::new(),
            keep_seconds_max: 86_400,
            share_page_tables: true,
            nice: -10,
            workers: WorkersConfig::default(),
            tree: TreeConfig::default(),
            agent: Agent::default(),
            metrics: MetricsConfig::default(),
            reserve: Vec::new(),
            pools: Vec::new(),
        }
    }
}

mod optional_text {
    use super::{Bytes, Deserialize};
    use serde::{Deserializer, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(v: &Option<Bytes>, s: S) -> Result<S::Ok, S::Error> {
        match v {
            Some(bytes) => s.collect_str(&bytes.0),
            None => s.serialize_none(),
        }
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|t| t.parse().map_err(D::Error::custom)).transpose()
    }
}

mod quota_map {
    use super::{BTreeMap, Bytes, Deserialize, Uid};
    use serde::{Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<Uid, Bytes>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_map(map.iter().map(|(uid, bytes)| (uid.to_string(), bytes.0.to_string())))
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<Uid, Bytes>, D::Error> {
        let mut map = BTreeMap::new();
        for (uid, bytes) in BTreeMap::<String, String>::deserialize(d)? {
            let uid = uid
                .parse()
                .map_err(|_| D::Error::custom(format!("quota_of: `{uid}` is not a user number")))?;
            map.insert(Uid(uid), bytes.parse().map_err(D::Error::custom)?);
        }
        Ok(map)
    }
}

impl Config {
    /// Reads a configuration file's text.
    ///
    /// # Errors
    /// The first thing wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| reading::in_file(text, &error))?;
        config.check()?;
        Ok(config)
    }

    /// Checks what types cannot say.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (i, one) in self.reserve.iter().enumerate() {
            let same = |other: &Reserve| (other.node, other.page_size) == (one.node, one.page_size);
            if self.reserve[..i].iter().any(same) {
                return Err(ConfigError::ReservedTwice(one.node, one.page_size));
            }
        }
        let mut spread = self.clone();
        spread.spread(&[Node(0)]);
        check_apart(&spread.pools)?;
        self.tree.check()?;
        match self.workers.pause_above_pressure {
            Some(percent) if !(1..=100).contains(&percent) => Err(ConfigError::Pressure(percent)),
            _ => Ok(()),
        }
    }

    /// Makes a pool of no node one for each of these nodes. A table with a node stands there in
    /// place of one without, of the same page size.
    pub fn spread(&mut self, nodes: &[Node]) {
        let has_own = |pool: &&PoolConfig| !pool.every_node;
        let own: Vec<_> =
            self.pools.iter().filter(has_own).map(|pool| pool.key().domain()).collect();
        let on_nodes = |pool: PoolConfig| -> Vec<PoolConfig> {
            if !pool.every_node {
                return vec![pool];
            }
            let on = |node: &Node| PoolConfig { node: *node, every_node: false, ..pool.clone() };
            nodes.iter().map(on).filter(|pool| !own.contains(&pool.key().domain())).collect()
        };
        self.pools = std::mem::take(&mut self.pools).into_iter().flat_map(on_nodes).collect();
    }

    /// The most bytes that `uid` may hold, given the quota of its groups.
    #[must_use]
    pub fn quota_for(&self, uid: Uid, by_groups: Option<Bytes>) -> Option<Bytes> {
        self.quota_of.get(&uid).copied().or(by_groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
        lend_group = "kvm"
        lend_groups = { postgres = "16G" }
        quota = "64G"
        quota_of = { 1000 = "8G" }
        [workers]
        max = 4
        cpus = "0-3"
        cgroup = "/sys/fs/cgroup/prezero.slice"
        pause_above_pressure = 40
        [tree]
        path = "/run/zero"
        group = "kvm"
        mode = 0o660
        [[pool]]
        node = 1
        page_size = "1G"
        pages_per_block = 8
        ready_low = 8
        ready_high = 16
        max = 64
        leave_free = 2
        recycle = "in-place"
        [[pool]]
        page_size = "2M"
    "#;

    #[test]
    fn providers_are_said_as_in_the_file() {
        for (text, provider) in
            [("auto", Provider::Auto), ("stock", Provider::Stock), ("kernel", Provider::Kernel)]
        {
            assert_eq!(text.parse(), Ok(provider));
            let file = Config::from_toml(&format!("provider = \"{text}\"")).expect("a provider");
            assert_eq!(file.provider, provider);
        }
        assert!("Stock".parse::<Provider>().unwrap_err().contains("`Stock` is no provider"));
    }

    #[test]
    fn a_full_file_is_read_and_defaults_fill_the_rest() {
        let config = Config::from_toml(FULL).unwrap();
        assert_eq!(config.quota_for(Uid(1000), None), Some(Bytes(8 << 30)));
        assert_eq!(config.quota_for(Uid(1), config.quota), Some(Bytes(64 << 30)));
        assert_eq!(config.lend_groups["postgres"], Bytes(16 << 30));
        assert_eq!(config.workers.nice, 19);
        assert_eq!(config.pools[0].recycle, Recycle::InPlace);
        assert_eq!((config.tree.enabled, config.tree.mode), (None, Some(0o660)));
        assert_eq!(config.pools[1].low(), Pages::ZERO);
        assert_eq!(config.pools[1].pages_per_block, Pages(1));
    }

    // Promise P327 (operator): A pool without a node is one on each node with memory, except nodes
    // with a table of their own. `--check` warns of pools that nothing can fill.
    #[test]
    fn pool_without_a_node_is_one_for_each_node_without_its_own() {
        let text = "[[pool]]\npage_size = \"2M\"\nready = \"1G\"\n\
                    [[pool]]\nnode = 1\npage_size = \"2M\"\nready = \"4G\"\n\
                    [[pool]]\nnode = 0\npage_size = \"1G\"\n";
        let mut config = Config::from_toml(text).expect("a good file");
        config.spread(&[0, 1, 2].map(Node));
        let pools: Vec<_> = config
            .pools
            .iter()
            .map(|pool| (pool.node.0, pool.page_size.to_string(), pool.ready_high.0))
            .collect();
        let expected = [(0, "2M", 512), (2, "2M", 512), (1, "2M", 2048), (0, "1G", 0)];
        assert_eq!(pools, expected.map(|(node, size, ready)| (node, size.to_owned(), ready)));
        let spread = config.clone();
        config.spread(&[Node(5)]);
        assert_eq!(config, spread, "once is enough");
        let twice = "[[pool]]\npage_size = \"2M\"\n[[pool]]\npage_size = \"2M\"\n";
        assert!(Config::from_toml(twice).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn flags_and_file_say_the_same() {
        let flag: PoolConfig =
            "node=1,page_size=1G,pages_per_block=8,ready_low=8,ready_high=16,max=64,leave_free=2,recycle=in-place"
                .parse()
                .unwrap();
        assert_eq!(flag, Config::from_toml(FULL).unwrap().pools[0]);
    }

    #[test]
    fn each_broken_rule_is_refused_by_name() {
        let refused = |text: &str, part: &str| {
            let error = Config::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        refused("pol = 1", "pol");
        refused("[[pool]]\npage_size = \"3M\"", "3M");
        refused("[[pool]]\npage_size = \"2M\"\npages_per_block = 0", "at least 1");
        refused(
            "[[pool]]\npage_size = \"2M\"\nready_low = 2\nready_high = 1",
            "ready_low 4M is above ready_high 2M",
        );
        refused(
            "[[pool]]\npage_size = \"2M\"\nready_high = 2\nmax = 1",
            "ready_high 4M is above max 2M",
        );
        refused("[[pool]]\npage_size = \"2M\"\n[[pool]]\npage_size = \"2M\"", "twice");
        let twice = "[[reserve]]\npage_size = \"1G\"\npages = 1\n";
        refused(&twice.repeat(2), "1G pages of node 0");
        refused("[metrics]\nlisten = \"9464\"", "`9464`");
        refused("[workers]\npause_above_pressure = 101", "101");
        refused("[tree]\nmode = 0o755", "0o755");
        refused("quota_of = { bob = \"1G\" }", "bob");
        refused("lend_groups = { kvm = \"much\" }", "kvm: `much`");
        assert!("page_size".parse::<PoolConfig>().unwrap_err().to_string().contains("page_size"));
    }
}
