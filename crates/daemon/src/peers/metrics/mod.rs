// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Prometheus sees. `docs/reference/metrics.md` says what each metric is for.
//!
//! What the book counts is read from it when somebody asks, so that no second count can drift from
//! it; only what the book does not know, latencies and reasons, is counted here as it happens.

mod labels;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use book::{Loan, Refusal};
use nix::sys::resource::{UsageWho, getrusage};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use units::{Bytes, Pages};
use wire::Status;

use labels::{
    BuildInfo, Outcome, PageSizeLabel, PoolLabels, Reason, Result, Shape, StateLabels, UserLabels,
};

type FloatCounter = Counter<f64, AtomicU64>;

/// A loan from ready memory takes some 30 us, one for an owner whose content lingers up to 2 s.
const LEND_BUCKETS: [f64; 14] =
    [25e-6, 50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.1, 0.25, 0.5, 2.5];

/// Every metric. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    build: Family<BuildInfo, Gauge>,
    pages: Family<StateLabels, Gauge>,
    blocks: Family<PoolLabels, Gauge>,
    ready_low: Family<PoolLabels, Gauge>,
    ready_high: Family<PoolLabels, Gauge>,
    kernel_free: Family<Shape, Gauge>,
    reserve: Family<Shape, Gauge>,
    reserve_grown: Family<Shape, Gauge>,
    page_bytes: Family<PageSizeLabel, Gauge>,
    user_held: Family<UserLabels, Gauge>,
    leases: Gauge,
    workers: Gauge,
    paused: Gauge,
    loans: Family<Outcome, Counter>,
    refusals: Family<Reason, Counter>,
    lend: Histogram,
    ready_bytes: Counter,
    hole_bytes: Counter,
    zeroed: Counter,
    cpu: FloatCounter,
    lost: Counter,
    given_back: Counter,
    reloads: Family<Result, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("prezero"),
            build: Family::default(),
            pages: Family::default(),
            blocks: Family::default(),
            ready_low: Family::default(),
            ready_high: Family::default(),
            kernel_free: Family::default(),
            reserve: Family::default(),
            reserve_grown: Family::default(),
            page_bytes: Family::default(),
            user_held: Family::default(),
            leases: Gauge::default(),
            workers: Gauge::default(),
            paused: Gauge::default(),
            loans: Family::default(),
            refusals: Family::default(),
            lend: Histogram::new(LEND_BUCKETS),
            ready_bytes: Counter::default(),
            hole_bytes: Counter::default(),
            zeroed: Counter::default(),
            cpu: FloatCounter::default(),
            lost: Counter::default(),
            given_back: Counter::default(),
            reloads: Family::default(),
        };
        metrics.register();
        metrics
    }

    /// One line each: name, help, metric. Counters get `_total`, units their name at the end.
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register(
            "build_info",
            "Version and provider of the daemon; always 1",
            self.build.clone(),
        );
        r.register("pages", "Pages of a pool by state", self.pages.clone());
        r.register("blocks", "Blocks of a pool in all states", self.blocks.clone());
        r.register("ready_low_pages", "Background zeroing starts below", self.ready_low.clone());
        r.register("ready_high_pages", "Background zeroing stops at", self.ready_high.clone());
        r.register(
            "kernel_free_pages",
            "Free pages of the kernel's pool",
            self.kernel_free.clone(),
        );
        let help = "Pages of the kernel's pool, where its size changes";
        r.register("reserve_pages", help, self.reserve.clone());
        let help = "Pages that the daemon has added to the kernel's pool";
        r.register("reserve_grown_pages", help, self.reserve_grown.clone());
        r.register("page_size_bytes", "Bytes of a page of that size", self.page_bytes.clone());
        let help = "Bytes that count against a user's quota: lent, lingering, kept and added";
        r.register_with_unit("user_held", help, Unit::Bytes, self.user_held.clone());
        r.register("leases", "Loans that are out", self.leases.clone());
        r.register("workers", "The daemon's own workers that run", self.workers.clone());
        r.register("paused", "1 while zeroing waits for CPU pressure to fall", self.paused.clone());
        r.register("loans", "Loans granted, by what they found", self.loans.clone());
        r.register("refusals", "Loans refused, by reason", self.refusals.clone());
        let (seconds, bytes) = (Unit::Seconds, Unit::Bytes);
        let help = "Time from a request for a loan to its answer, refusals included";
        r.register_with_unit("lend", help, seconds.clone(), self.lend.clone());
        let help = "Bytes lent that were ready";
        r.register_with_unit("lent_ready", help, bytes.clone(), self.ready_bytes.clone());
        let help = "Bytes lent that the borrower's own faults fill";
        r.register_with_unit("lent_hole", help, bytes.clone(), self.hole_bytes.clone());
        let help = "Bytes that workers have zeroed";
        r.register_with_unit("zeroed", help, bytes.clone(), self.zeroed.clone());
        let help = "CPU time of the daemon's own workers";
        r.register_with_unit("worker_cpu", help, seconds, self.cpu.clone());
        r.register("lost_workers", "Workers that ended without a report", self.lost.clone());
        let help = "Bytes given back to the kernel's pool for others";
        r.register_with_unit("given_back", help, bytes, self.given_back.clone());
        r.register("reloads", "Configurations read again, by result", self.reloads.clone());
    }

    /// A loan was granted after so long.
    pub(crate) fn granted(&self, loan: &Loan, took: Duration) {
        let pages = |of: fn(&book::LoanPart) -> Pages| loan.parts.iter().map(of).sum();
        let (all, ready): (Pages, Pages) = (pages(|part| part.pages), pages(|part| part.ready));
        self.granted_of(loan.kept, ready, all, took);
    }

    /// The same of one that had so many ready of `all` its pages, whatever the daemon has made of
    /// it since.
    pub(crate) fn granted_of(&self, kept: bool, ready: Pages, all: Pages, took: Duration) {
        let outcome = match ready {
            _ if kept => Outcome::KEPT,
            ready if ready == all => Outcome::READY,
            Pages::ZERO => Outcome::NOT_READY,
            _ => Outcome::PARTLY_READY,
        };
        self.loans.get_or_create(&outcome).inc();
        self.lend.observe(took.as_secs_f64());
    }

    /// A loan was refused after so long; `None` is for want of rights.
    pub(crate) fn refused(&self, refusal: Option<&Refusal>, took: Duration) {
        self.refusals.get_or_create(&Reason::of(refusal)).inc();
        self.lend.observe(took.as_secs_f64());
    }

    /// The configuration was read again.
    pub(crate) fn reloaded(&self, good: bool) {
        self.reloads.get_or_create(&Result::of(good)).inc();
    }

    /// Everything in Prometheus' text form (OpenMetrics 1.0). `running` is the CPU time that
    /// workers have used which have not ended yet.
    pub(crate) fn text(&self, status: &Status, running: Duration) -> String {
        self.pools(status);
        self.build.clear();
        self.build.get_or_create(&BuildInfo::of(status)).set(1);
        self.user_held.clear();
        for user in &status.users {
            set(&self.user_held.get_or_create(&UserLabels { uid: user.uid }), user.held_bytes);
        }
        set(&self.leases, status.loans.len() as u64);
        set(&self.workers, status.workers.into());
        set(&self.paused, status.paused_by_pressure.into());
        let counters = &status.counters;
        for (metric, value) in [
            (&self.ready_bytes, counters.hit_bytes),
            (&self.hole_bytes, counters.miss_bytes),
            (&self.zeroed, counters.zeroed_bytes),
            (&self.lost, counters.lost_workers),
            (&self.given_back, counters.given_back_bytes),
        ] {
            metric.inner().store(value, Ordering::Relaxed);
        }
        let cpu = (ended_children() + running).as_secs_f64();
        self.cpu.inner().store(cpu.to_bits(), Ordering::Relaxed);
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            tracing::error!("metrics cannot be written");
        }
        text
    }

    fn pools(&self, status: &Status) {
        // A pool that is gone has no line any more.
        self.pages.clear();
        self.blocks.clear();
        self.ready_low.clear();
        self.ready_high.clear();
        self.kernel_free.clear();
        self.reserve.clear();
        self.reserve_grown.clear();
        for pool in &status.pools {
            let labels = PoolLabels::of(pool);
            for (state, pages) in [
                ("zeroable", pool.zeroable_pages),
                ("zeroing", pool.zeroing_pages),
                ("ready", pool.ready_pages),
                ("lent", pool.lent_pages),
                ("kept", pool.kept_pages),
                ("lingering", pool.lingering_pages),
            ] {
                set(&self.pages.get_or_create(&StateLabels::of(pool, state)), pages);
            }
            set(&self.blocks.get_or_create(&labels), pool.blocks);
            set(&self.ready_low.get_or_create(&labels), pool.ready_low);
            set(&self.ready_high.get_or_create(&labels), pool.ready_high);
            set(&self.kernel_free.get_or_create(&Shape::of(pool)), pool.kernel_free_pages);
            if let Some(elastic) = &pool.elastic {
                set(&self.reserve.get_or_create(&Shape::of(pool)), elastic.total_pages);
                set(&self.reserve_grown.get_or_create(&Shape::of(pool)), elastic.grown_pages);
            }
            let size = PageSizeLabel { page_size: Bytes(pool.page_bytes).to_string() };
            set(&self.page_bytes.get_or_create(&size), pool.page_bytes);
        }
    }
}

fn set(gauge: &Gauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// CPU time of this process's children that have ended: its own workers and those that worked for
/// writers of the tree, for it starts nothing else.
fn ended_children() -> Duration {
    let time = |value: nix::sys::time::TimeVal| {
        let micros = value.tv_sec() * 1_000_000 + value.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    };
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map(|usage| time(usage.user_time()) + time(usage.system_time()))
        .unwrap_or_default()
}
