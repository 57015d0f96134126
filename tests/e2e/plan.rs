// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `prezero plan` predicts, and what a daemon does with the same loans.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{Error, LendRequest};
use prezero_tests::MapAlone as _;
use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use serde_json::Value;
use units::{Bytes, Pages};
use worker::job::Task;
use worker::take_zeroing;

/// 1 GiB: 64 blocks of 16 MiB, with up to 24 kept ready.
const PAGES: u64 = 512;
const POOL: &str = "pages_per_block = 8\nready_low = 96\nready_high = 192\nrecycle = \"fresh\"";
/// What the worker takes for a block: paced, so that a busy machine zeroes as fast as an idle one.
const BLOCK_PERIOD: Duration = Duration::from_millis(100);
/// The same as `prezero plan` wants to know it, and the pool above.
const SETTINGS: &str = "--nodes 1 --memory 1G --block 16M --ready-high 384M --ready-low 50 \
                        --rate 160M --fault-rate 8G --placement packed --delay 0";
/// Half a minute in which more is asked for than can be zeroed, in bursts.
const LOANS: &str = "--seed 5 --loans 50 --size 48M --lifetime 1.5 --burst 4 --used 20";
const TOLERANCE: f64 = 0.05;

fn plan(arguments: &str, trace: &str, file: &Path) -> Value {
    let lab = binary().with_file_name("prezero-lab");
    assert!(lab.exists(), "{} is missing: cargo build -p prezero-lab", lab.display());
    let words = arguments.split_whitespace();
    let output = Command::new(lab)
        .args(["plan", "--json"])
        .args(words)
        .arg(trace)
        .arg(file)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

struct Ask {
    arrival: Duration,
    bytes: Bytes,
    lifetime: Duration,
}

fn read(trace: &Path) -> Vec<Ask> {
    let text = std::fs::read_to_string(trace).expect("the trace that was written");
    let seconds = |text: &str| Duration::from_secs_f64(text.parse().expect("seconds"));
    let ask = |line: &str| {
        let fields: Vec<_> = line.split(',').collect();
        let bytes = fields[1].parse().expect("a size");
        Ask { arrival: seconds(fields[0]), bytes, lifetime: seconds(fields[2]) }
    };
    text.lines().skip(1).map(ask).collect()
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Zeroes what the thresholds ask for, a block in its time.
fn zero(daemon: &Daemon, ended: &AtomicBool) {
    let mut client = daemon.client();
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let Ok(job) = take_zeroing(
            &mut client,
            &wire::TakeZeroing { background: true, ..Default::default() },
        ) else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        let Ok(Task::Allocate(task)) = job.begin() else { panic!("fresh blocks are allocated") };
        // Where a loan's unbacked part has taken the pages meanwhile, the job is given up.
        let Ok(done) = task.run(&mut |_| ControlFlow::Continue(())) else { continue };
        thread::sleep(BLOCK_PERIOD.saturating_sub(begin.elapsed()));
        done.report(&mut client).expect("booked");
    }
}

/// One loan, at its time and for its time: what of it was ready, or `None` if it was refused.
fn borrow(daemon: &Daemon, ask: &Ask, begin: Instant) -> Option<Bytes> {
    thread::sleep(ask.arrival.saturating_sub(begin.elapsed()));
    let mut request = LendRequest::new(ask.bytes);
    request.page_size = Some(Page::Mib2.size());
    let loan = match daemon.client().lend(&request) {
        Ok(loan) => loan,
        Err(Error::Refused(wire::Error::NotEnough { .. })) => return None,
        Err(other) => panic!("{other}"),
    };
    let memory = loan.map_alone().expect("a mapping");
    for page in (0..memory.len()).step_by(2 << 20) {
        memory.fill(page..page + 1, 1);
    }
    thread::sleep((ask.arrival + ask.lifetime).saturating_sub(begin.elapsed()));
    Some(loan.ready_bytes())
}

/// The share of lent bytes that were ready.
fn replay(daemon: &Daemon, asks: &[Ask]) -> f64 {
    let begin = Instant::now();
    let (mut ready, mut bytes) = (0, 0);
    thread::scope(|scope| {
        let loans: Vec<_> =
            asks.iter().map(|ask| scope.spawn(move || borrow(daemon, ask, begin))).collect();
        for (ask, loan) in asks.iter().zip(loans) {
            if let Some(of_it) = loan.join().expect("a borrower does not panic") {
                ready += of_it.0;
                bytes += ask.bytes.0;
            }
        }
    });
    ready as f64 / bytes as f64
}

// Promise P117 (socket): `prezero plan` says within five points what share of the lent bytes a
// daemon has ready.
#[test]
fn a_daemon_has_as_much_ready_as_the_plan_says() {
    let page = Page::Mib2;
    let config = format!("[workers]\nmax = 0\n{}", page.pool(POOL));
    let Some(daemon) = Daemon::start(page, PAGES, &config) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let trace = place.path().join("trace.csv");
    plan(&format!("{SETTINGS} {LOANS}"), "--write-trace", &trace);
    let says = plan(SETTINGS, "--trace", &trace);
    let predicted = says["runs"][0]["hit_rate"].as_f64().expect("a share");
    assert!((0.2..0.95).contains(&predicted), "a trace that tells: {says}");
    let ended = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| zero(&daemon, &ended));
        // A panic here must end the worker, too, which the scope waits for.
        let _ending = Ending(&ended);
        daemon.wait_for("filled", |pool| pool.ready_pages >= Pages(192));
        replay(&daemon, &read(&trace))
    });
    assert!((predicted - seen).abs() <= TOLERANCE, "predicted {predicted:.3}, seen {seen:.3}");
}

#[test]
fn a_trace_of_a_node_that_there_is_not_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let trace = place.path().join("trace.csv");
    let text = "arrival,size,lifetime,node\n0,1G,5,0\n1,1G,5,99999999999\n";
    std::fs::write(&trace, text).expect("a file of ours");
    let lab = binary().with_file_name("prezero-lab");
    let output = Command::new(lab)
        .args(["plan", "--nodes", "2", "--memory", "8G", "--trace"])
        .arg(&trace)
        .output()
        .expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let says = "loan 2 of the trace is of node 99999999999, and there are 2";
    assert!(error.contains(says), "{error}");
}
