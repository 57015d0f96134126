// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every metric: its name, labels, help and source, one row each.
//!
//! A name ends in its unit; counters get `_total` behind it. The tables of `docs/metrics.md` are
//! these rows, and a test compares them.

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use units::Bytes;
use wire::PoolStatus;

use super::{Metrics, Outcome, Reason, Reload, Samples, Scrape};

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    /// Without `prezero_` before it and `_total` behind it.
    pub(super) name: &'static str,
    pub(super) labels: &'static [Label],
    /// What `# HELP` and the documentation say.
    pub(super) help: &'static str,
    pub(super) source: Source,
}

/// A label, with its values where they are a fixed choice.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

/// Where the values come from.
#[derive(Debug)]
pub(super) enum Source {
    /// What is now.
    Gauge(fn(&Scrape<'_>) -> Samples),
    /// What has happened since the daemon's start.
    Counter(fn(&Scrape<'_>) -> Samples),
    /// The same, in seconds.
    Seconds(fn(&Scrape<'_>) -> Duration),
    Histogram(fn(&Metrics) -> &Histogram),
}
use Source::{Counter, Gauge, Seconds};

const NODE: Label = label("node", &[]);
const PAGE_SIZE: Label = label("page_size", &[]);
const PAGES_PER_BLOCK: Label = label("pages_per_block", &[]);
const STATES: &[&str] = &["zeroable", "zeroing", "ready", "lent", "kept", "lingering"];
const NONE: &[Label] = &[];
const POOL: &[Label] = &[NODE, PAGE_SIZE, PAGES_PER_BLOCK];
const KERNEL_POOL: &[Label] = &[NODE, PAGE_SIZE];

/// In the order of the documentation: what is, then what happened.
pub(super) static TABLE: [Metric; 23] = [
    row(
        "pages",
        &[NODE, PAGE_SIZE, PAGES_PER_BLOCK, label("state", STATES)],
        "Pages of a pool by state; zeroable counts pages that the pool may still take from the kernel",
        Gauge(pages),
    ),
    row("blocks", POOL, "Blocks of a pool in all states", Gauge(|s| pools(s, |p| p.blocks))),
    row(
        "ready_low_pages",
        POOL,
        "Background zeroing starts below",
        Gauge(|s| pools(s, |p| p.ready_low)),
    ),
    row(
        "ready_high_pages",
        POOL,
        "Background zeroing stops at",
        Gauge(|s| pools(s, |p| p.ready_high)),
    ),
    row(
        "kernel_free_pages",
        KERNEL_POOL,
        "Pages of the kernel's pool that are free and not promised to any process",
        Gauge(|s| kernel_pools(s, |p| Some(p.kernel_free_pages))),
    ),
    row(
        "reserve_pages",
        KERNEL_POOL,
        "Pages of the kernel's pool, in use or not, where reserve_max lets the daemon change its size",
        Gauge(|s| kernel_pools(s, |p| Some(p.elastic.as_ref()?.total_pages))),
    ),
    row(
        "reserve_grown_pages",
        KERNEL_POOL,
        "Pages that the daemon has added to the kernel's pool and not yet removed",
        Gauge(|s| kernel_pools(s, |p| Some(p.elastic.as_ref()?.grown_pages))),
    ),
    row(
        "user_held_bytes",
        &[label("uid", &[])],
        "Bytes that count against a user's quota: lent, lingering and kept, and what its files have beyond that",
        Gauge(|s| {
            s.status
                .users
                .iter()
                .map(|user| (vec![user.uid.to_string()], user.held_bytes))
                .collect()
        }),
    ),
    row(
        "page_size_bytes",
        &[PAGE_SIZE],
        "Bytes of one page, to multiply by",
        Gauge(|s| {
            s.status.pools.iter().map(|pool| (vec![page_size(pool)], pool.page_bytes)).collect()
        }),
    ),
    row("leases", NONE, "Loans that are out", Gauge(|s| one(s.status.loans.len() as u64))),
    row(
        "workers",
        NONE,
        "The daemon's own workers that run now",
        Gauge(|s| one(s.status.workers.into())),
    ),
    row(
        "paused",
        NONE,
        "1 while background zeroing waits for CPU pressure to fall",
        Gauge(|s| one(s.status.paused_by_pressure.into())),
    ),
    row(
        "build_info",
        &[label("version", &[]), label("provider", &[])],
        "Version and provider of the daemon; always 1",
        Gauge(|s| [(vec![s.status.version.clone(), s.status.provider.to_string()], 1)].into()),
    ),
    row(
        "loans",
        &[label("outcome", Outcome::WORDS)],
        "Loans granted, by what they found: all pages ready, some, none, or content kept for their owner",
        Counter(|s| s.metrics.loans.samples()),
    ),
    row(
        "refusals",
        &[label("reason", Reason::WORDS)],
        "Loans refused, by reason; the last three concern loans by name",
        Counter(|s| s.metrics.refusals.samples()),
    ),
    row(
        "lend_seconds",
        NONE,
        "Time from a request for a loan to its answer, refusals included",
        Source::Histogram(|m| &m.lend),
    ),
    row(
        "lent_ready_bytes",
        NONE,
        "Bytes lent that were ready",
        Counter(|s| one(s.status.counters.hit_bytes)),
    ),
    row(
        "lent_hole_bytes",
        NONE,
        "Bytes lent that the borrower's own faults fill",
        Counter(|s| one(s.status.counters.miss_bytes)),
    ),
    row(
        "zeroed_bytes",
        NONE,
        "Bytes that workers zeroed, those of prezero zero included",
        Counter(|s| one(s.status.counters.zeroed_bytes)),
    ),
    row(
        "worker_cpu_seconds",
        NONE,
        "CPU time of the daemon's own workers, to 10 ms while they run, and of delegated workers once they have ended",
        Seconds(|s| s.worker_cpu),
    ),
    row(
        "lost_workers",
        NONE,
        "Workers that ended without a report",
        Counter(|s| one(s.status.counters.lost_workers)),
    ),
    row(
        "given_back_bytes",
        NONE,
        "Bytes given back to the kernel's pool, for others or by prezero give-back",
        Counter(|s| one(s.status.counters.given_back_bytes)),
    ),
    row(
        "reloads",
        &[label("result", Reload::WORDS)],
        "Configurations read again: taken, or refused with nothing changed",
        Counter(|s| s.metrics.reloads.samples()),
    ),
];

const fn row(
    name: &'static str,
    labels: &'static [Label],
    help: &'static str,
    source: Source,
) -> Metric {
    Metric { name, labels, help, source }
}

const fn label(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values }
}

/// The value of a metric without labels.
fn one(value: u64) -> Samples {
    [(Vec::new(), value)].into()
}

/// As it is configured: `2M`, `1G`.
fn page_size(pool: &PoolStatus) -> String {
    Bytes(pool.page_bytes).to_string()
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
            pool.lingering_pages,
        ];
        const { assert!(STATES.len() == 6) };
        for (state, pages) in STATES.iter().zip(counts) {
            let mut labels = labels_of(pool);
            labels.push((*state).to_owned());
            samples.insert(labels, pages);
        }
    }
    samples
}
