// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Prometheus sees: one row of [`table`] per metric.
//!
//! The book's counts are read when a scraper asks, so that no second count can drift from them.
//! Only latencies, outcomes and reasons, which the book does not keep, are counted here as they
//! happen.

mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use book::{Loan, Refusal};
use nix::sys::resource::{UsageWho, getrusage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use units::{Bytes, PageSize, Pages};
use wire::Status;

use table::{Metric, MetricSource, TABLE};

/// Bucket bounds in seconds. A loan from ready memory takes some 30 us, one for an owner with
/// content that still drains up to 2 s.
const LEND_BUCKETS: [f64; 16] = [
    25e-6, 50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5,
];
/// The first bucket bound of loans' sizes, in bytes. Each further one is twice as large, to 1 TiB.
const MIN_SIZE_BUCKET: f64 = (2 << 20) as f64;
const SIZE_BUCKETS: u16 = 20;
/// Bucket bounds of loans' lifetimes: from probes of a tenth of a second to guests of a month.
const LIFETIME_BUCKETS: [f64; 15] = [
    0.1,
    1.0,
    5.0,
    15.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    7200.0,
    14_400.0,
    43_200.0,
    86_400.0,
    259_200.0,
    604_800.0,
    2_592_000.0,
];

/// The values of a label that has a fixed choice of them.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        enum $name { $($variant,)+ }

        impl $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
        }
    };
}

words! {
    /// What a loan found.
    LoanOutcome {
        Ready = "ready",
        PartlyReady = "partly_ready",
        NotReady = "not_ready",
        Kept = "kept",
    }
}

words! {
    /// Why a loan was refused.
    Reason {
        NotEnough = "not_enough",
        Quota = "quota",
        NoSuchPool = "no_such_pool",
        BadSize = "bad_size",
        Permission = "permission",
        OwnerDraining = "owner_draining",
        NameTaken = "name_taken",
        TooManyNames = "too_many_names",
        ScopeQuota = "scope_quota",
    }
}

words! {
    /// How reading the configuration again ended.
    Reload {
        Done = "done",
        Refused = "refused",
    }
}

words! {
    /// The sizes of loans with lifetimes that are counted together: up to that size, and above the
    /// class before.
    SizeClass {
        Small = "64M",
        Medium = "1G",
        Large = "16G",
        Huge = "256G",
        More = "more",
    }
}

impl SizeClass {
    fn new(bytes: Bytes) -> Self {
        match bytes.0.div_ceil(1 << 20) {
            ..=64 => Self::Small,
            65..=0x400 => Self::Medium,
            0x401..=0x4000 => Self::Large,
            0x4001..=0x4_0000 => Self::Huge,
            _ => Self::More,
        }
    }
}

impl Reason {
    /// `None` is a missing right.
    fn new(refusal: Option<&Refusal>) -> Self {
        match refusal {
            None => Self::Permission,
            Some(Refusal::Size(_)) => Self::BadSize,
            Some(Refusal::NoSuchPool) => Self::NoSuchPool,
            Some(Refusal::Quota { .. }) => Self::Quota,
            Some(Refusal::NotEnough { .. }) => Self::NotEnough,
            Some(Refusal::OwnerDraining) => Self::OwnerDraining,
            Some(Refusal::NameTaken | Refusal::NameBusy) => Self::NameTaken,
            Some(Refusal::TooManyNames) => Self::TooManyNames,
            Some(Refusal::ScopeQuota { .. }) => Self::ScopeQuota,
        }
    }
}

/// A counter for each word of a label, all of them present from the start.
#[derive(Debug)]
struct Tally {
    words: &'static [&'static str],
    counts: Vec<AtomicU64>,
}

impl Tally {
    fn new(words: &'static [&'static str]) -> Self {
        Self { words, counts: words.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// One more of the word with this index.
    fn add(&self, word: usize) {
        self.counts[word].fetch_add(1, Ordering::Relaxed);
    }

    fn samples(&self) -> Samples {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let words = self.words.iter().map(|word| vec![(*word).to_owned()]);
        words.zip(self.counts.iter().map(count)).collect()
    }
}

/// A histogram for each word of a label, all of them present from the start.
#[derive(Debug, Clone)]
struct Histograms {
    words: &'static [&'static str],
    of: Vec<Histogram>,
}

/// Events counted as they happen.
#[derive(Debug)]
pub(crate) struct Metrics {
    loans: Tally,
    refusals: Tally,
    reloads: Tally,
    lend: Histogram,
    sizes: Histogram,
    lifetimes: Histograms,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            loans: Tally::new(LoanOutcome::WORDS),
            refusals: Tally::new(Reason::WORDS),
            reloads: Tally::new(Reload::WORDS),
            lend: Histogram::new(LEND_BUCKETS),
            sizes: Histogram::new(exponential_buckets(MIN_SIZE_BUCKET, 2.0, SIZE_BUCKETS)),
            lifetimes: Histograms {
                words: SizeClass::WORDS,
                of: SizeClass::WORDS.iter().map(|_| Histogram::new(LIFETIME_BUCKETS)).collect(),
            },
        }
    }

    /// Counts a loan, granted `took` after it was requested.
    pub(crate) fn granted(&self, loan: &Loan, took: Duration) {
        let pages = |of: fn(&book::LoanPart) -> Pages| loan.parts.iter().map(of).sum();
        let (all, ready): (Pages, Pages) = (pages(|part| part.pages), pages(|part| part.ready));
        self.granted_of(loan.kept, ready, (all, loan.page_size), took);
    }

    /// The same for a loan that found `ready` of its `all` pages ready; the daemon may have filled
    /// the others since.
    pub(crate) fn granted_of(
        &self,
        kept: bool,
        ready: Pages,
        (all, page_size): (Pages, PageSize),
        took: Duration,
    ) {
        let outcome = match ready {
            _ if kept => LoanOutcome::Kept,
            ready if ready == all => LoanOutcome::Ready,
            Pages::ZERO => LoanOutcome::NotReady,
            _ => LoanOutcome::PartlyReady,
        };
        self.loans.add(outcome as usize);
        self.lend.observe(took.as_secs_f64());
        self.sizes.observe(real(all.bytes(page_size)));
    }

    /// Counts a loan that has ended.
    pub(crate) fn ended(&self, bytes: Bytes, lifetime: Duration) {
        let class = SizeClass::new(bytes) as usize;
        self.lifetimes.of[class].observe(lifetime.as_secs_f64());
    }

    /// Counts a loan, refused `took` after it was requested; `None` is a missing right.
    pub(crate) fn refused(&self, refusal: Option<&Refusal>, took: Duration) {
        self.refusals.add(Reason::new(refusal) as usize);
        self.lend.observe(took.as_secs_f64());
    }

    /// Counts a connection that was refused for a missing right.
    pub(crate) fn stranger(&self) {
        self.refusals.add(Reason::Permission as usize);
    }

    /// Counts a configuration that was read again.
    pub(crate) fn reloaded(&self, good: bool) {
        self.reloads.add(if good { Reload::Done } else { Reload::Refused } as usize);
    }

    /// Everything in Prometheus' text form (OpenMetrics 1.0). `running` is the CPU time used so far
    /// by workers that still run.
    pub(crate) fn text(&self, status: &Status, running: Duration, process: OwnProcess) -> String {
        let worker_cpu = ended_children() + running;
        let scrape = Scrape { status, metrics: self, worker_cpu, process };
        let mut registry = Registry::with_prefix("prezero");
        registry.register_collector(Box::new(Collected::new(&scrape)));
        let mut text = String::new();
        if encode(&mut text, &registry).is_err() {
            tracing::error!("metrics cannot be written");
        }
        text
    }
}

/// What the rows of the table read.
struct Scrape<'a> {
    status: &'a Status,
    metrics: &'a Metrics,
    worker_cpu: Duration,
    process: OwnProcess,
}

/// The daemon's process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnProcess {
    /// When it started, in seconds since 1970.
    pub(crate) started: u64,
    /// Its resident memory.
    pub(crate) resident: Bytes,
}

/// Values by the values of their labels, in the order of the row's labels.
type Samples = BTreeMap<Vec<String>, u64>;

/// The values of one row.
#[derive(Debug)]
enum Values {
    Gauge(Samples),
    Counter(Samples),
    Seconds(f64),
    Histogram(Histogram),
    Histograms(Histograms),
}

/// All rows with their values.
#[derive(Debug)]
struct Collected(Vec<(&'static Metric, Values)>);

impl Collected {
    fn new(scrape: &Scrape<'_>) -> Self {
        let values = |metric: &'static Metric| {
            let values = match metric.source {
                MetricSource::Gauge(read) => Values::Gauge(read(scrape)),
                MetricSource::Counter(read) => Values::Counter(read(scrape)),
                MetricSource::Seconds(read) => Values::Seconds(read(scrape).as_secs_f64()),
                MetricSource::Histogram(read) => Values::Histogram(read(scrape.metrics).clone()),
                MetricSource::Histograms(read) => Values::Histograms(read(scrape.metrics).clone()),
            };
            (metric, values)
        };
        Self(TABLE.iter().map(values).collect())
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, values) in &self.0 {
            let kind = match values {
                // A pool that is gone, or a size that is fixed, has no line.
                Values::Gauge(samples) if samples.is_empty() => continue,
                Values::Gauge(_) => MetricType::Gauge,
                Values::Counter(_) | Values::Seconds(_) => MetricType::Counter,
                Values::Histogram(_) | Values::Histograms(_) => MetricType::Histogram,
            };
            let (stem, unit) = match metric.name.rsplit_once('_') {
                Some((stem, "bytes")) => (stem, Some(Unit::Bytes)),
                Some((stem, "seconds")) => (stem, Some(Unit::Seconds)),
                _ => (metric.name, None),
            };
            let mut to = encoder.encode_descriptor(stem, metric.help, unit.as_ref(), kind)?;
            match values {
                Values::Gauge(samples) => each(&mut to, metric, samples, |to, value| {
                    to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))
                })?,
                Values::Counter(samples) => each(&mut to, metric, samples, |to, value| {
                    to.encode_counter(&value, NO_EXEMPLAR)
                })?,
                Values::Seconds(value) => to.encode_counter(value, NO_EXEMPLAR)?,
                Values::Histogram(histogram) => histogram.encode(to)?,
                Values::Histograms(histograms) => {
                    let mut names = metric.labels.iter().map(|label| label.name);
                    let name = names.next_back().unwrap_or_default();
                    for (word, histogram) in histograms.words.iter().zip(&histograms.of) {
                        histogram.encode(to.encode_family(&[(name, *word)])?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A size as a sample of a histogram.
#[expect(clippy::cast_precision_loss, reason = "a bucket needs no more than 53 bits")]
fn real(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 0], u64>> = None;

/// Writes each sample with its labels.
fn each(
    to: &mut MetricEncoder<'_>,
    metric: &Metric,
    samples: &Samples,
    write: impl Fn(&mut MetricEncoder<'_>, u64) -> fmt::Result,
) -> fmt::Result {
    for (values, value) in samples {
        if metric.labels.is_empty() {
            write(to, *value)?;
            continue;
        }
        let names = metric.labels.iter().map(|label| label.name);
        let labels: Vec<_> = names.zip(values.iter().map(String::as_str)).collect();
        write(&mut to.encode_family(&labels)?, *value)?;
    }
    Ok(())
}

/// CPU time of this process's children that have ended: its own workers and the delegated ones,
/// because it starts no other process.
fn ended_children() -> Duration {
    let time = |value: nix::sys::time::TimeVal| {
        let micros = value.tv_sec() * 1_000_000 + value.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    };
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map(|usage| time(usage.user_time()) + time(usage.system_time()))
        .unwrap_or_default()
}
