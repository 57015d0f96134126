// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every metric: its name, labels, help and source, one row each.
//!
//! A name ends in its unit; counters get `_total` behind it. The tables of
//! `docs/reference/metrics.md` are these rows, and a test compares them.

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use wire::PoolStatus;

use super::{Histograms, LoanOutcome, Metrics, Reason, Reload, Samples, Scrape, SizeClass};

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    /// Without `prezero_` before it and `_total` behind it.
    pub(super) name: &'static str,
    pub(super) labels: &'static [Label],
    /// What `# HELP` and the documentation say.
    pub(super) help: &'static str,
    pub(super) source: MetricSource,
}

/// A label, with its values where they are a fixed choice.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) name: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "the documentation's table has them"))]
    pub(super) values: &'static [&'static str],
}

/// Where the values come from.
#[derive(Debug)]
pub(super) enum MetricSource {
    /// What is now.
    Gauge(fn(&Scrape<'_>) -> Samples),
    /// Events since the daemon's start.
    Counter(fn(&Scrape<'_>) -> Samples),
    /// The same, in seconds.
    Seconds(fn(&Scrape<'_>) -> Duration),
    Histogram(fn(&Metrics) -> &Histogram),
    /// One for each value of the row's label.
    Histograms(fn(&Metrics) -> &Histograms),
}

const NODE: Label = label("node", &[]);
const PAGE_SIZE: Label = label("page_size", &[]);
const PAGES_PER_BLOCK: Label = label("pages_per_block", &[]);
const STATES: &[&str] = &["zeroable", "zeroing", "ready", "lent", "kept", "draining"];
const NONE: &[Label] = &[];
const POOL: &[Label] = &[NODE, PAGE_SIZE, PAGES_PER_BLOCK];
const KERNEL_POOL: &[Label] = &[NODE, PAGE_SIZE];

const STATE: &[Label] = &[NODE, PAGE_SIZE, PAGES_PER_BLOCK, label("state", STATES)];
const SIZE: &[Label] = &[PAGE_SIZE];
const UID: &[Label] = &[label("uid", &[])];
const BUILD: &[Label] = &[label("version", &[]), label("provider", &[])];
const OUTCOME: &[Label] = &[label("outcome", LoanOutcome::WORDS)];
const REASON: &[Label] = &[label("reason", Reason::WORDS)];
const HEALTH: &[Label] = &[label("state", WORDS)];
const WORDS: &[&str] = &["healthy", "degraded", "paused", "drained"];
const CAUSE: &[Label] = &[label("cause", CAUSES)];
const CAUSES: &[&str] = &[
    "drained", "pressure", "workers", "reload", "stranger", "quota", "shortage", "blocks", "node",
    "pool", "taken", "resize", "fresh", "listener", "files",
];
const UP_TO: &[Label] = &[label("up_to", SizeClass::WORDS)];
const RESULT: &[Label] = &[label("result", Reload::WORDS)];

macro_rules! metrics {
    ($($kind:ident $name:literal $labels:ident $help:literal => $source:expr;)*) => {
        pub(super) static TABLE: &[Metric] = &[$(
            Metric { name: $name, labels: $labels, help: $help, source: MetricSource::$kind($source) },
        )*];
    };
}

// In the order of the documentation: states, then events.
metrics! {
    Gauge "pages" STATE "Pages of a pool by state; zeroable counts pages that the pool may still take from the kernel" => pages;
    Gauge "blocks" POOL "Blocks of a pool in all states" => |s| pools(s, |p| p.blocks);
    Gauge "ready_low_pages" POOL "Background zeroing starts below" => |s| pools(s, |p| p.ready_low.0);
    Gauge "ready_high_pages" POOL "Background zeroing stops at" => |s| pools(s, |p| p.ready_high.0);
    Gauge "kernel_free_pages" KERNEL_POOL "Pages of the kernel's pool that are free and not promised to any process"
        => |s| kernel_pools(s, |p| Some(p.kernel_free_pages.0));
    Gauge "pool_size_pages" KERNEL_POOL "Pages of the kernel's pool, in use or not, where size_max lets the daemon change its size"
        => |s| kernel_pools(s, |p| Some(p.resize.as_ref()?.total_pages.0));
    Gauge "pool_size_added_pages" KERNEL_POOL "Pages that the daemon has added to the kernel's pool and not yet removed"
        => |s| kernel_pools(s, |p| Some(p.resize.as_ref()?.added_pages.0));
    Gauge "user_held_bytes" UID "Bytes that count against a user's quota: lent, draining and kept, and what its files have beyond that"
        => |s| s.status.users.iter().map(|user| (vec![user.uid.to_string()], user.held_bytes.0)).collect();
    Gauge "page_size_bytes" SIZE "Bytes of one page, to multiply by"
        => |s| s.status.pools.iter().map(|pool| (vec![page_size(pool)], pool.page_size.bytes())).collect();
    Gauge "leases" NONE "Loans that are out" => |s| one(s.status.loans.len() as u64);
    Gauge "workers" NONE "The daemon's own workers that run now" => |s| one(s.status.workers.into());
    Gauge "paused" NONE "1 while background zeroing waits for CPU pressure to fall" => |s| one(s.status.paused_by_pressure.into());
    Gauge "drained" NONE "1 while it keeps nothing ready, because it was drained" => |s| one(s.status.drained.into());
    Gauge "fresh" NONE "1 where pools clear returned memory anew that would clear it in place if pins could be seen"
        => |s| one(s.status.fresh_reason.is_some().into());
    Gauge "resize_halted" KERNEL_POOL "1 while the kernel's pool is smaller than wanted, or held down by another program"
        => |s| kernel_pools(s, |p| Some((p.resize.as_ref()?.short_because.is_some() || p.resize.as_ref()?.held_pages.is_some()).into()));
    Gauge "health" HEALTH "1 for the word that prezero status has for the service, 0 for the others" => health;
    Gauge "ailments" CAUSE "1 for each cause that keeps the service from its best: prezero doctor has the remedy" => ailments;
    Gauge "start_time_seconds" NONE "When the daemon started, in seconds since 1970" => |s| one(s.process.started);
    Gauge "resident_memory_bytes" NONE "Memory of the daemon's own that is resident" => |s| one(s.process.resident.0);
    Gauge "build_info" BUILD "Version and provider of the daemon; always 1"
        => |s| [(vec![s.status.version.clone(), s.status.provider.to_string()], 1)].into();
    Counter "loans" OUTCOME "Loans granted, by what they found: all pages ready, some, none, or content kept for their owner"
        => |s| s.metrics.loans.samples();
    Counter "refusals" REASON "Loans refused, by reason; permission counts refused connections, too; the last three concern loans by name" => |s| s.metrics.refusals.samples();
    Histogram "lend_seconds" NONE "Time from a request for a loan to its answer, refusals included" => |metrics| &metrics.lend;
    Histogram "loan_bytes" NONE "Sizes of the loans granted" => |metrics| &metrics.sizes;
    Histograms "loan_seconds" UP_TO "Lifetimes of loans that have ended, by their size: up to that, and above the class before; loans from before the daemon's start are left out"
        => |metrics| &metrics.lifetimes;
    Counter "lent_ready_bytes" NONE "Bytes lent that were ready" => |s| one(s.status.counters.lent_ready_bytes.0);
    Counter "lent_unbacked_bytes" NONE "Bytes lent that the borrower's own faults fill" => |s| one(s.status.counters.lent_unbacked_bytes.0);
    Counter "zeroed_bytes" NONE "Bytes that workers zeroed, those of prezero zero included" => |s| one(s.status.counters.zeroed_bytes.0);
    Seconds "worker_cpu_seconds" NONE "CPU time of the daemon's own workers, to 10 ms while they run, and of delegated workers once they have ended"
        => |s| s.worker_cpu;
    Counter "lost_workers" NONE "Workers that ended without a report" => |s| one(s.status.counters.lost_workers);
    Counter "released_bytes" NONE "Bytes given back to the kernel's pool, for others or by prezero release"
        => |s| one(s.status.counters.released_bytes.0);
    Counter "reloads" RESULT "Configurations read again: taken, or refused with nothing changed" => |s| s.metrics.reloads.samples();
}

const fn label(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values }
}

/// The value of a metric without labels.
fn one(value: u64) -> Samples {
    [(Vec::new(), value)].into()
}

fn health(scrape: &Scrape<'_>) -> Samples {
    let word = scrape.status.health.word();
    WORDS.iter().map(|state| (vec![(*state).to_owned()], u64::from(*state == word))).collect()
}

/// Every cause, so that an alert sees each of them begin.
fn ailments(scrape: &Scrape<'_>) -> Samples {
    let has =
        |cause: &str| scrape.status.ailments.iter().any(|ailment| ailment.cause.word() == cause);
    CAUSES.iter().map(|cause| (vec![(*cause).to_owned()], u64::from(has(cause)))).collect()
}

/// As it is configured: `2M`, `1G`.
fn page_size(pool: &PoolStatus) -> String {
    pool.page_size.to_string()
}

/// The values of [`POOL`].
fn labels_of(pool: &PoolStatus) -> Vec<String> {
    vec![pool.node.to_string(), page_size(pool), pool.pages_per_block.to_string()]
}

/// A value of each pool.
fn pools(scrape: &Scrape<'_>, value: fn(&PoolStatus) -> u64) -> Samples {
    scrape.status.pools.iter().map(|pool| (labels_of(pool), value(pool))).collect()
}

/// A value of each node and page size, which the pools of both have in common.
fn kernel_pools(scrape: &Scrape<'_>, value: fn(&PoolStatus) -> Option<u64>) -> Samples {
    let labels = |pool: &PoolStatus| vec![pool.node.to_string(), page_size(pool)];
    scrape.status.pools.iter().filter_map(|pool| Some((labels(pool), value(pool)?))).collect()
}

/// Each pool's pages in each of [`STATES`].
fn pages(scrape: &Scrape<'_>) -> Samples {
    let mut samples = Samples::new();
    for pool in &scrape.status.pools {
        let counts = [
            pool.zeroable_pages,
            pool.zeroing_pages,
            pool.ready_pages,
            pool.lent_pages,
            pool.kept_pages,
            pool.draining_pages,
        ];
        const { assert!(STATES.len() == 6) };
        for (state, pages) in STATES.iter().zip(counts) {
            let mut labels = labels_of(pool);
            labels.push((*state).to_owned());
            samples.insert(labels, pages.0);
        }
    }
    samples
}
