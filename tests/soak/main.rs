// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A day of storm: `cargo xtask soak --hours N` runs it and draws what it measured.
//!
//! Two daemons share the machine's huge pages. The first meets all events that borrowers, programs
//! and operators cause, and lives from the beginning to the end: the test watches its memory, its
//! descriptors, its threads and the time of a loan. The other also dies: of SIGKILL, in restarts,
//! in upgrades to the other build and back, with a full log, while it starts. Meanwhile other
//! programs make the kernel's pool larger and smaller, the CPUs are taken, and the clock of the day
//! jumps.
//!
//! It goes in rounds of a minute. At the end of each every process lets go, both daemons give back
//! all, and the kernel's counters must equal those before the first round.

mod machine;
mod operators;
mod round;
mod sample;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use prezero_tests::daemon::binary;
use prezero_tests::storm::Seen;
use prezero_tests::{Page, counters::Kernel};
use rand::SeedableRng;
use rand::rngs::StdRng;
use testkit::child::alone;
use testkit::hugepages;
use units::Node;

use round::Soak;
use sample::Samples;

/// What both daemons, their clients and programs share.
const PAGES: u64 = 640;
/// Of one round.
const ROUND_PERIOD: Duration = Duration::from_secs(60);
/// After it everything that fills by use is full.
const WARM_UP_PERIOD: Duration = Duration::from_secs(3600);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The builds that upgrades go between.
fn builds() -> Vec<PathBuf> {
    let others = std::env::var_os("PREZERO_SOAK_BUILDS");
    let builds: Vec<_> = others.iter().flat_map(std::env::split_paths).collect();
    if builds.is_empty() { vec![binary()] } else { builds }
}

#[test]
fn mixed_storm_loses_nothing_and_leaves_the_daemon_as_it_was() {
    let _alone = alone();
    let lasts = Duration::from_secs(number("PREZERO_SOAK_SECONDS").unwrap_or(180));
    let seed = number("PREZERO_TEST_SEED").unwrap_or(1);
    let round = ROUND_PERIOD.min(lasts / 3);
    let wanted = [(Page::Mib2.size(), Some(Node(0)), PAGES)];
    let Some(pages) = hugepages::reserve_all(&wanted) else { return };
    let before = Kernel::now();
    let mut soak = Soak::start(pages, builds(), StdRng::seed_from_u64(seed));
    let mut samples = Samples::new(std::env::var_os("PREZERO_SOAK_SAMPLES").map(PathBuf::from));
    let begun = Instant::now();
    let mut seen = Seen::default();
    while begun.elapsed() < lasts {
        seen.add(soak.rage(round.mul_f64(0.8)));
        assert_eq!(seen.foreign, 0, "bytes of somebody else");
        assert_eq!(seen.hung, 0, "calls without an answer");
        soak.settle();
        // What a round has done shows in its own counts, which name its minute.
        assert_eq!(Kernel::now(), before, "pages of the kernel's after {:?}", begun.elapsed());
        samples.take(begun.elapsed(), &mut soak, seen);
    }
    eprintln!("{}", soak.done());
    eprintln!("{} loans, {:.1} GiB read, {} kept; seed {seed}", seen.loans, seen.gib(), seen.kept);
    let warm = WARM_UP_PERIOD.min(lasts / 3);
    for (what, most) in [("resident_kib", 1024.0), ("descriptors", 0.5), ("threads", 0.5)] {
        let Some(trend) = samples.trend(what, warm) else { continue };
        eprintln!("{what}: {trend}");
        assert!(trend.is_flat(most), "{what} grows: {trend}");
    }
    if let Some(trend) = samples.trend("p99_us", warm) {
        // The machine's as much as the daemon's: told, not judged.
        eprintln!("p99_us: {trend}");
    }
    soak.end();
}
