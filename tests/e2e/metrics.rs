// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics: each one moves when what it counts happens, and the documents name those there are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Client, LendRequest};
use nix::sys::signal::Signal;
use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::{Daemon, Page};
use units::{Bytes, Pages};

/// Every sample by its name and labels.
type Samples = BTreeMap<String, f64>;

fn get(mut stream: impl Read + Write, line: &str) -> (String, String) {
    write!(stream, "{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a listener");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// Has the daemon read `config`, with metrics at a unix socket in its directory.
fn reload(daemon: &Daemon, config: &str) {
    let path = daemon.scratch().join("metrics");
    daemon.write_config(&format!("[metrics]\nlisten = \"{}\"\n{config}", path.display()));
    daemon.signal(Signal::SIGHUP);
}

/// A daemon that serves metrics at a unix socket in its directory.
fn start(page: Page, pages: u64, config: &str) -> Option<Daemon> {
    let daemon = Daemon::start(page, pages, config)?;
    let listen =
        format!("[metrics]\nlisten = \"{}\"\n", daemon.scratch().join("metrics").display());
    daemon.write_config(&(listen + config));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("serves metrics");
    Some(daemon)
}

fn scrape(daemon: &Daemon) -> Samples {
    let stream = UnixStream::connect(daemon.scratch().join("metrics")).expect("a listener");
    let (head, body) = get(stream, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name.to_owned(), value.parse().expect("a number"))
    };
    body.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// Does something, and says by how much each sample changed.
fn change(daemon: &Daemon, deed: impl FnOnce()) -> Samples {
    let before = scrape(daemon);
    deed();
    let after = scrape(daemon);
    let was = |name: &String| before.get(name).copied().unwrap_or_default();
    let changes = after.into_iter().map(|(name, now)| (name.clone(), now - was(&name)));
    changes.filter(|(_, by)| by.abs() > f64::EPSILON).collect()
}

fn state(state: &str) -> String {
    format!(r#"prezero_pages{{node="0",page_size="2M",pages_per_block="1",state="{state}"}}"#)
}

#[expect(clippy::cast_precision_loss, reason = "a few pages")]
fn bytes(pages: u64) -> f64 {
    Page::Mib2.times(pages).0 as f64
}

// Promise P64 (years): Each metric moves when what it counts happens; the documents and the
// dashboard name those there are.
#[test]
fn every_metric_moves_when_what_it_counts_happens() {
    let page = Page::Mib2;
    let Some(daemon) = start(page, 8, &page.pool("max = 6")) else { return };
    let mut moved = BTreeSet::new();
    let mut check = |changes: Samples, expected: &[(&str, f64)]| {
        for (name, by) in expected {
            let found = changes.get(*name).copied();
            assert!(found.is_some_and(|found| (found - by).abs() < 1e-9), "{name}: {changes:?}");
        }
        moved.extend(changes.into_keys().map(|name| family(&name)));
    };
    let lend =
        |request: LendRequest| Client::connect(daemon.socket()).and_then(|mut c| c.lend(&request));

    let zeroed = change(&daemon, || daemon.zero("4"));
    check(
        zeroed,
        &[
            (&state("ready"), 4.0),
            (&state("zeroable"), -4.0),
            ("prezero_zeroed_bytes_total", bytes(4)),
        ],
    );

    let mut loans = Vec::new();
    let ready = change(&daemon, || loans.push(daemon.lend(page, 1)));
    check(
        ready,
        &[
            (&state("lent"), 1.0),
            (r#"prezero_loans_total{outcome="ready"}"#, 1.0),
            ("prezero_lend_seconds_count", 1.0),
            ("prezero_lent_ready_bytes_total", bytes(1)),
            ("prezero_leases", 1.0),
            (r#"prezero_user_held_bytes{uid="0"}"#, bytes(1)),
        ],
    );
    let partly =
        change(&daemon, || loans.push(lend(LendRequest::new(page.times(4))).expect("lent")));
    check(
        partly,
        &[
            (r#"prezero_loans_total{outcome="partly_ready"}"#, 1.0),
            ("prezero_lent_unbacked_bytes_total", bytes(1)),
        ],
    );
    let not_ready = change(&daemon, || loans.push(daemon.lend(page, 1)));
    check(not_ready, &[(r#"prezero_loans_total{outcome="not_ready"}"#, 1.0)]);
    let refused = change(&daemon, || {
        lend(LendRequest::new(page.times(99))).expect_err("more than there is");
        lend(LendRequest::new(Bytes(4096))).expect_err("no page has that size");
    });
    check(
        refused,
        &[
            (r#"prezero_refusals_total{reason="not_enough"}"#, 1.0),
            (r#"prezero_refusals_total{reason="bad_size"}"#, 1.0),
            ("prezero_lend_seconds_count", 2.0),
        ],
    );
    let mapping = loans[0].map_alone().expect("a mapping");
    let draining = change(&daemon, || {
        loans.clear();
        daemon.wait_for("draining", |pool| {
            pool.lent_pages == Pages(0) && pool.draining_pages == Pages(1)
        });
    });
    check(draining, &[(&state("draining"), 1.0), ("prezero_leases", -3.0)]);
    drop(mapping);
    daemon.wait_for("returned", |pool| pool.draining_pages == Pages(0));

    daemon.zero("1");
    let keep = || daemon.lend_to("db", Duration::from_secs(60), page, 1);
    let kept = change(&daemon, || {
        drop(keep());
        daemon.wait_for("kept", |pool| pool.kept_pages == Pages(1));
    });
    check(kept, &[(&state("kept"), 1.0)]);
    check(change(&daemon, || drop(keep())), &[(r#"prezero_loans_total{outcome="kept"}"#, 1.0)]);

    let set = |text: &str| daemon.command(&["set", text]).output().expect("prezero runs");
    daemon.command(&["release", "all"]).output().expect("prezero runs");
    let thresholds = change(&daemon, || {
        set("ready_high=3");
        daemon.wait_for("filled", |pool| pool.ready_pages == Pages(3));
        daemon.wait_for("idle", |_| daemon.status().workers == 0);
    });
    let pool = r#"{node="0",page_size="2M",pages_per_block="1"}"#;
    check(
        thresholds,
        &[
            (&format!("prezero_ready_high_pages{pool}"), 3.0),
            (&format!("prezero_ready_low_pages{pool}"), 3.0),
            (&format!("prezero_blocks{pool}"), 3.0),
            (r#"prezero_kernel_free_pages{node="0",page_size="2M"}"#, -3.0),
        ],
    );
    set("ready_high=0");
    let given = change(&daemon, || {
        daemon.command(&["release", "all"]).output().expect("prezero runs");
    });
    check(given, &[("prezero_released_bytes_total", bytes(3))]);
    let lost = change(&daemon, || {
        drop(
            daemon.client().take_zeroing(&wire::TakeZeroing::default()).expect("something to zero"),
        );
        daemon.wait_for("lost", |pool| pool.zeroing_pages == Pages(0));
    });
    check(lost, &[("prezero_lost_workers_total", 1.0)]);
    let job =
        daemon.client().take_zeroing(&wire::TakeZeroing::default()).expect("something to zero");
    let ended = change(&daemon, || {
        drop(job);
        daemon.wait_for("lost", |pool| pool.zeroing_pages == Pages(0));
    });
    check(ended, &[(&state("zeroing"), -1.0)]);
    let reloads = change(&daemon, || {
        daemon.write_config("pol = 1");
        daemon.signal(Signal::SIGHUP);
        daemon.wait_for_log("refused: nothing has changed");
    });
    check(reloads, &[(r#"prezero_reloads_total{result="refused"}"#, 1.0)]);

    let grown = change(&daemon, || {
        reload(&daemon, &page.pool("size_min = 10\nsize_max = 10"));
        let has_grown =
            |e: &wire::ResizeStatus| (e.total_pages, e.adding_pages) == (Pages(10), Pages(0));
        daemon.wait_for("grown", |pool| pool.resize.as_ref().is_some_and(has_grown));
    });
    check(
        grown,
        &[
            (r#"prezero_pool_size_pages{node="0",page_size="2M"}"#, 10.0),
            (r#"prezero_pool_size_added_pages{node="0",page_size="2M"}"#, 2.0),
        ],
    );

    // A user without loans has no line.
    let _held = daemon.lend(page, 1);
    // Metrics of the present state, and metrics that only a longer wait moves.
    let is: BTreeSet<_> = scrape(&daemon).into_keys().map(|name| family(&name)).collect();
    let constant = ["prezero_build_info", "prezero_page_size_bytes", "prezero_start_time_seconds"];
    let elsewhere = [
        "prezero_worker_cpu_seconds_total",
        "prezero_workers",
        "prezero_paused",
        "prezero_drained",
        "prezero_fresh",
        "prezero_resize_halted",
    ];
    let still: Vec<_> = is
        .iter()
        .filter(|name| !moved.contains(*name))
        .filter(|name| !constant.contains(&name.as_str()) && !elsewhere.contains(&name.as_str()))
        .collect();
    assert!(still.is_empty(), "nothing moved {still:?}");
    let samples = scrape(&daemon);
    assert!((samples[r#"prezero_page_size_bytes{page_size="2M"}"#] - bytes(1)).abs() < 1.0);
    assert_eq!(documented(), is, "docs/reference/metrics.md names exactly these");
}

// Promise P64.
#[test]
fn cpu_time_and_number_of_own_workers_are_metrics() {
    let page = Page::Mib2;
    // 30 ms of work, of workers that get what others leave of the CPUs.
    let Some(daemon) = start(page, 128, &page.pool("ready_high = 128")) else { return };
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let mut running = false;
    loop {
        let samples = scrape(&daemon);
        running |= samples["prezero_workers"] > 0.0;
        let used = samples["prezero_worker_cpu_seconds_total"];
        if running && used > 0.0 && daemon.pool().ready_pages == Pages(128) {
            break;
        }
        assert!(Instant::now() < deadline, "{running} {used}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

// Promise P64.
#[test]
fn pressure_pauses_own_workers_and_a_metric_says_so() {
    let page = Page::Mib2;
    let config = |limit: &str| format!("[workers]\n{limit}\n{}", page.pool("ready_high = 4"));
    if !std::path::Path::new("/proc/pressure/cpu").exists() {
        testkit::skip_always("this kernel tells no pressure (CONFIG_PSI)");
        return;
    }
    let Some(daemon) = start(page, 4, &config("pause_above_pressure = 1")) else { return };
    let stop = AtomicBool::new(false);
    let health = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from) * 2;
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while scrape(&daemon)["prezero_paused"] < 1.0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let health = daemon.status().health;
        stop.store(true, Ordering::Relaxed);
        health
    });
    assert!(scrape(&daemon)["prezero_paused"] > 0.0, "{}", daemon.log());
    assert_eq!(health, wire::Health::Paused, "while the pressure lasts");
    reload(&daemon, &config("max = 1"));
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(4));
    assert!(scrape(&daemon)["prezero_paused"] < 1.0);
}

#[test]
fn metrics_follow_the_configuration_and_only_reads_are_served() {
    let daemon = Daemon::start_with(None, "[metrics]\nlisten = \"127.0.0.1:0\"\n", &["--plain"]);
    daemon.wait_for_log("serves metrics");
    let path = daemon.scratch().join("metrics");
    assert!(!path.exists());
    daemon.write_config(&format!("[metrics]\nlisten = \"{}\"\n", path.display()));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(path.to_str().expect("plain"));
    for (line, status, part) in [
        ("GET /", "404", "/metrics"),
        ("POST /metrics", "405", "only read"),
        ("GET /metrics", "200", "prezero_build_info"),
    ] {
        let (head, body) = get(UnixStream::connect(&path).expect("a listener"), line);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}")) && body.contains(part),
            "{head}\n{body}"
        );
    }
    // Peers that send nothing, or an endless request, cost other users nothing.
    let mut idle: Vec<_> =
        (0..8).map(|_| UnixStream::connect(&path).expect("a listener")).collect();
    let long = "x".repeat(1 << 20);
    let _ = write!(idle[0], "GET /{long}");
    assert!(!scrape(&daemon).is_empty());
    daemon.write_config("");
    daemon.signal(Signal::SIGHUP);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while path.exists() {
        assert!(Instant::now() < deadline, "still served:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_are_served_over_tcp() {
    let port = {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        probe.local_addr().expect("an address").port()
    };
    let config = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let daemon = Daemon::start_with(None, &config, &["--plain"]);
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("a listener");
    let (head, body) = get(stream, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("prezero_build_info"), "{head}");
    drop(daemon);
}

/// A sample's metric: without labels and what a histogram adds.
fn family(sample: &str) -> String {
    let name = sample.split('{').next().unwrap_or_default();
    let of_histogram = ["_bucket", "_sum", "_count"].into_iter();
    let stem = of_histogram.filter_map(|end| name.strip_suffix(end)).next();
    stem.unwrap_or(name).to_owned()
}

/// The metrics in the tables of docs/reference/metrics.md.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string("../docs/reference/metrics.md").expect("the document");
    let first = |line: &str| line.strip_prefix("| `")?.split('`').next().map(str::to_owned);
    text.lines().filter_map(first).collect()
}
