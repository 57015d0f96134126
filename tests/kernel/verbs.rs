// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each verb, as an operator uses it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use units::Pages;

use linux::Roots;
use linux::kernel::{Support, offer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::daemon::{WAIT_TIMEOUT, binary};
use prezero_tests::{Daemon, Page};
use serde_json::Value;
use testkit::hugepages;

use super::support::{self, Program, kernel};

fn run(mut command: Command) -> Output {
    command.output().expect("prezero runs")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    })
}

// Promise P50 (kernel): `serve` picks the kernel's own pool where the kernel offers it; a provider
// that is forced and not there is one line and exit code 6.
#[test]
fn serve_picks_the_kernels_pool_and_stock_on_request() {
    let page = Page::Mib2;
    if !support::has_series() {
        return;
    }
    for (arguments, provider) in [
        (&[][..], "kernel"),
        (&["--set", "provider=auto"], "kernel"),
        (&["--set", "provider=kernel"], "kernel"),
        (&["--set", "provider=stock"], "stock"),
    ] {
        let Some(guard) = hugepages::reserve(page.size(), 1) else { return };
        let daemon = Daemon::start_with(Some(guard), &page.pool(""), arguments);
        let status = json(&run(daemon.command(&["status", "--json"])));
        assert_eq!(status["provider"], provider, "{arguments:?}");
    }
}

// Promise P50.
#[test]
fn missing_forced_provider_is_one_line_and_exit_code_6() {
    let offer = offer::probe(&Roots::default()).expect("a kernel can be asked");
    if offer.effective() > Support::Stock {
        testkit::skip_always("this kernel has the series");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(binary());
    command.args(["serve", "--set", "provider=kernel", "--pool", "page_size=2M"]);
    command.arg("--socket").arg(dir.path().join("socket")).arg("--run-dir").arg(dir.path());
    let output = run(command);
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), line.lines().count()), (Some(6), 1), "{line}");
    assert!(line.contains("provider kernel: this kernel does not offer it"), "{line}");
    assert!(!dir.path().join("socket").exists(), "nothing is left");
}

#[test]
fn doctor_says_the_level() {
    if !support::has_series() {
        return;
    }
    let mut command = Command::new(binary());
    command.args(["doctor", "--json"]);
    let report = json(&run(command));
    let findings = report["findings"].as_array().expect("findings");
    let provider = findings.iter().find(|f| f["subject"] == "provider").expect("a provider");
    assert_eq!(provider["level"], "ok");
    let found = provider["found"].as_str().expect("a text");
    assert!(found.contains("kernel; this kernel: zeroed pages, version 1"), "{found}");
}

#[test]
fn status_says_what_the_kernel_says() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 16, "ready_low = 4\nready_high = 8") else { return };
    daemon.wait_for("filled", |p| p.ready_pages == Pages(8));
    let _loan = daemon.lend(page, 2);
    daemon.wait_for("refilled or not", |p| p.ready_pages == Pages(6) && p.lent_pages == Pages(2));
    let text = String::from_utf8(run(daemon.command(&["status"])).stdout).expect("text");
    eprintln!("{text}");
    let kind = if Path::new("/sys/module/prezero").exists() { "module" } else { "series" };
    assert!(text.contains(&format!("provider kernel ({kind}")), "{text}");
    let status = json(&run(daemon.command(&["status", "--json"])));
    assert_eq!(status["kernel"]["kind"], kind);
    let (pool, counts) = (&status["pools"][0], kernel(page, 0));
    for (field, number) in [
        ("ready_pages", counts.ready.0),
        ("zeroable_pages", counts.zeroable.0),
        ("zeroing_pages", counts.zeroing.0),
        ("kernel_free_pages", counts.free.0),
        ("lent_pages", 2),
        ("blocks", 1),
    ] {
        assert_eq!(pool[field], number, "{field}: {status}");
    }
    assert_eq!(status["loans"][0]["pages"], 2);
}

// Promise P51.
#[test]
fn zero_n_pages_zeroes_exactly_n_where_they_are() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 12, "pages_per_block = 4") else { return };
    let output = run(daemon.command(&["zero", "5", "--json"]));
    let record = json(&output);
    assert_eq!((&record["pages"], &record["interrupted"]), (&5.into(), &false.into()), "{record}");
    let counts = kernel(page, 0);
    assert_eq!((counts.ready.0, counts.zeroable.0, counts.free.0), (5, 7, 12));
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.zeroable_pages, pool.blocks), (Pages(5), Pages(7), 0));
    assert_eq!(daemon.kernel_free(page), 12, "no file holds a page");
    assert_eq!(daemon.status().counters.zeroed_bytes, page.times(5));
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(12));
    let nothing = json(&run(daemon.command(&["zero", "max", "--json"])));
    assert_eq!(nothing["pages"], 0);
}

/// Interrupts `prezero zero` once `begun` says that it has begun; returns its record and exit code.
fn interrupt(daemon: &Daemon, arguments: &[&str], begun: impl Fn() -> bool) -> (Value, i32) {
    let mut zero = daemon.command(&[&["zero", "--json"], arguments].concat());
    let child = zero.stdout(Stdio::piped()).spawn().expect("prezero runs");
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !begun() {
        assert!(Instant::now() < deadline, "zeroing never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("our own child");
    let output = child.wait_with_output().expect("our own child");
    (json(&output), output.status.code().expect("it ends by itself"))
}

// Promise P54 (kernel): A signal ends zeroing within a page, also one of 1 GiB; pages that are
// done stay zero and are counted.
#[test]
fn ctrl_c_keeps_the_pages_that_are_done() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 192, "") else { return };
    let (record, code) = interrupt(&daemon, &["max"], || kernel(page, 0).ready.0 >= 4);
    assert_eq!((code, &record["interrupted"]), (130, &true.into()), "{record}");
    let counts = kernel(page, 0);
    assert!((4..192).contains(&counts.ready.0), "{counts:?}");
    assert_eq!(record["pages"], counts.ready.0, "what was done is what is ready");
    assert_eq!((counts.zeroing.0, counts.ready.0 + counts.zeroable.0), (0, 192));
    let status = daemon.status();
    assert_eq!(status.counters.lost_workers, 0);
    assert_eq!(status.counters.zeroed_bytes, page.times(counts.ready.0));
}

// Promise P54.
#[test]
fn ctrl_c_ends_the_zeroing_of_a_large_page_in_the_middle() {
    let page = Page::Gib1;
    let Some(daemon) = support::daemon(page, 1, "") else { return };
    let (record, code) = interrupt(&daemon, &["max"], || kernel(page, 0).zeroing.0 == 1);
    assert_eq!((code, &record["pages"]), (130, &0.into()), "{record}");
    let counts = kernel(page, 0);
    assert_eq!((counts.ready.0, counts.zeroing.0, counts.zeroable.0), (0, 0, 1));
}

// Promise P59 (kernel): Watches report what other programs do to the pool.
#[test]
fn watch_once_reports_when_a_program_takes_zeroed_pages() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 8, "") else { return };
    daemon.zero("max");
    let mut watch = daemon.command(&["watch", "--below", "6", "--once", "--json"]);
    let watch = watch.stdout(Stdio::piped()).spawn().expect("prezero runs");
    // The daemon cannot ask whether the watch is on: a fall before is reported at once.
    std::thread::sleep(Duration::from_millis(300));
    let program = Program::take(page, 4);
    let output = watch.wait_with_output().expect("our own child");
    assert!(output.status.success());
    let level = &json(&output)["levels"][0];
    assert_eq!((&level["ready_pages"], &level["zeroable_pages"]), (&4.into(), &0.into()));
    drop(program);
}

// Promise P59.
#[test]
fn watch_reports_pages_that_others_zero() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    let mut watch =
        daemon.client().watch(None, None, None, Duration::from_millis(50)).expect("a watch");
    let first = watch.next().expect("a report").expect("a good one");
    assert_eq!(first.levels[0].ready_pages, Pages(0));
    // As an operator without prezero would.
    let file = Roots::default()
        .sys
        .join("devices/system/node/node0/hugepages/hugepages-2048kB/zeroable_hugepages");
    std::fs::write(file, "max").expect("zeroed");
    loop {
        let report = watch.next().expect("a report").expect("a good one");
        if report.levels[0].ready_pages == Pages(4) {
            break;
        }
    }
}

#[test]
fn release_has_nothing_to_release() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    daemon.zero("max");
    let output = run(daemon.command(&["release", "--json"]));
    assert_eq!((output.status.code(), &json(&output)["bytes"]), (Some(0), &0.into()));
    assert_eq!(kernel(page, 0).ready.0, 4, "they are the kernel's and stay zero");
}

#[test]
fn set_changes_the_thresholds_of_the_one_pool_of_its_size() {
    let page = Page::Mib2;
    let fields = "node = 0\npages_per_block = 2\nleave_free = 1\nmax = 8\n\
                  [[pool]]\npage_size = \"2M\"\nnode = 0\npages_per_block = 4\nmax = 8";
    let Some(daemon) = support::daemon(page, 8, fields) else { return };
    let pools = daemon.status().pools;
    assert_eq!(pools.len(), 1, "{pools:?}");
    assert_eq!((pools[0].pages_per_block, pools[0].max_pages), (Pages(1), Some(Pages(16))));
    for shape in [&[][..], &["--page-size", "2M"]] {
        let set = ["set", "ready_low=2", "ready_high=3"];
        let output = run(daemon.command(&[&set[..], shape].concat()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let pool = daemon.wait_for("refilled", |p| p.ready_pages == Pages(3));
    assert_eq!((pool.ready_low, pool.ready_high, pool.leave_free), (Pages(2), Pages(3), Pages(1)));
    let output = run(daemon.command(&["set", "ready_low=9", "ready_high=3"]));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(daemon.pool().ready_low, Pages(2));
}
