// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From symptom to cause in one step: each cause is put in place, and `status`, `doctor`, the log
//! and a metric name it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::user::NO_USER;
use prezero_tests::{Daemon, Page};
use rustix::fs::{FallocateFlags, MemfdFlags};
use testkit::hugepages;
use units::{Node, Pages};
use wire::{AilmentCause, Health};

const PAGE: Page = Page::Mib2;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(daemon: &Daemon, words: &[&str]) -> Output {
    daemon.command(words).stdin(Stdio::null()).output().expect("prezero runs")
}

fn as_stranger(daemon: &Daemon, words: &[&str]) -> Output {
    let mut command = daemon.command(words);
    command.uid(NO_USER).gid(NO_USER).stdin(Stdio::null()).output().expect("prezero runs")
}

/// A configuration with metrics at a unix socket.
fn metered(daemon: &Daemon, config: &str) -> String {
    let path = daemon.scratch().join("metrics");
    format!("{config}\n[metrics]\nlisten = \"{}\"\n", path.display())
}

/// Has the daemon read that configuration, and serve metrics.
fn meter(daemon: &Daemon, config: &str) {
    daemon.write_config(&metered(daemon, config));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("serves metrics");
}

fn scrape(daemon: &Daemon) -> BTreeMap<String, f64> {
    let path = daemon.scratch().join("metrics");
    let mut stream = UnixStream::connect(path).expect("metrics are served");
    stream.write_all(prezero_tests::scrape::ASK).expect("a listener");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let lines = answer.lines().filter(|line| line.starts_with("prezero_"));
    let samples = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    samples.collect()
}

/// That the cause is in the one word, in `status`, in `doctor` with its remedy, and in the metrics.
fn is_named(daemon: &Daemon, health: Health, cause: AilmentCause, parts: &[&str]) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let has = |status: &wire::Status| status.ailments.iter().any(|one| one.cause == cause);
    let status = loop {
        let status = daemon.status();
        if has(&status) || Instant::now() > deadline {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(has(&status), "{cause:?}: {:#?}", status.ailments);
    assert_eq!(status.health, health, "{:#?}", status.ailments);
    let people = text(&run(daemon, &["status"]).stdout);
    assert!(people.lines().next().is_some_and(|line| line.ends_with(health.word())), "{people}");
    let doctor = text(&run(daemon, &["doctor"]).stdout);
    for part in parts {
        assert!(doctor.contains(part), "{part}: {doctor}");
        assert!(!cause.is_ailing() || people.contains(part), "{part}: {people}");
    }
    assert!(doctor.contains("->"), "{doctor}");
    let samples = scrape(daemon);
    let metric = format!("prezero_ailments{{cause=\"{}\"}}", cause.word());
    assert!(samples[&metric] > 0.5, "{metric}: {samples:?}");
    let word = format!("prezero_health{{state=\"{}\"}}", health.word());
    assert!(samples[&word] > 0.5, "{word}: {samples:?}");
}

// Promise P325.
#[test]
fn borrower_outside_of_the_group_is_named_with_the_command() {
    let daemon = Daemon::start_with(None, "", &["--plain"]);
    let config = "lend_group = \"1\"\n[[pool]]\npage_size = \"2M\"\nmax = \"16M\"\n";
    meter(&daemon, config);
    assert_eq!(daemon.status().health, Health::Healthy, "{:?}", daemon.status().ailments);
    let reason = "prezero_refusals_total{reason=\"permission\"}";
    assert!(scrape(&daemon)[reason] < 0.5, "it is there before the first event");
    let lend = as_stranger(&daemon, &["lend", "2M", "--", "sh", "-c", "echo $PREZERO_PATH"]);
    assert_eq!(lend.status.code(), Some(4), "{}", text(&lend.stderr));
    // The wrapper for libvirt is this verb, and what it says here is in the guest's log.
    let run = as_stranger(&daemon, &["run", "--preload", "/etc/passwd", "--", "true"]);
    let said = text(&run.stderr);
    assert!(said.contains(&format!("user {NO_USER} may not connect")), "{said}");
    assert!(said.contains("the command gets no lent memory"), "{said}");
    let user = format!("user {NO_USER} may not borrow");
    is_named(&daemon, Health::Degraded, AilmentCause::Stranger, &[&user, "usermod -aG 1"]);
    assert!(scrape(&daemon)[reason] > 1.5, "both were counted");
    daemon.wait_for_log("a user may not borrow: it is in no group that may borrow");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("a user may not borrow")).expect("waited for");
    assert!(line.contains(&format!("uid={NO_USER}")) && line.contains("lend_group=1"), "{line}");
}

// Promise P325.
#[test]
fn drained_service_says_so_over_restarts() {
    let config = PAGE.pool("ready_high = 2");
    let Some(mut daemon) = Daemon::start(PAGE, 2, &config) else { return };
    assert!(run(&daemon, &["drain"]).status.success());
    daemon.terminate();
    daemon.launch();
    meter(&daemon, &config);
    is_named(&daemon, Health::Drained, AilmentCause::Drained, &["prezero drain --end"]);
    assert!(scrape(&daemon)["prezero_drained"] > 0.5);
    assert!(daemon.log().contains("the service is drained"), "{}", daemon.log());
    assert!(run(&daemon, &["drain", "--end"]).status.success());
    assert!(scrape(&daemon)["prezero_drained"] < 0.5);
}

#[test]
fn missing_workers_and_refused_reload_are_named_with_remedies() {
    let config = format!("[workers]\nmax = 0\n{}", PAGE.pool("ready_high = 2"));
    let Some(daemon) = Daemon::start(PAGE, 2, &config) else { return };
    meter(&daemon, &config);
    let parts = ["workers.max is 0", "prezero zero"];
    is_named(&daemon, Health::Degraded, AilmentCause::Workers, &parts);
    daemon.zero("max");
    assert_eq!(daemon.status().health, Health::Healthy, "{:?}", daemon.status().ailments);
    daemon.write_config(&(config.clone() + "redy = 3\n"));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("refused: nothing has changed");
    let parts = ["`redy` is no key: did you mean `ready`?", "--check"];
    is_named(&daemon, Health::Degraded, AilmentCause::Reload, &parts);
    let refused = "prezero_reloads_total{result=\"refused\"}";
    assert!(scrape(&daemon)[refused] > 0.5);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("refused: nothing has changed"));
    assert!(line.is_some_and(|line| line.contains("did you mean `ready`?")), "one line: {log}");
    daemon.write_config(&metered(&daemon, &config));
    daemon.signal(Signal::SIGHUP);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while daemon.status().health != Health::Healthy {
        assert!(Instant::now() < deadline, "{:?}", daemon.status().ailments);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn small_blocks_used_quotas_and_shortage_name_user_and_size() {
    let config = format!("quota_of = {{ 0 = \"6M\" }}\n{}", PAGE.pool("pages_per_block = 1"));
    let Some(daemon) = Daemon::start(PAGE, 4, &config) else { return };
    meter(&daemon, &config);
    daemon.zero("max");
    let lend = run(&daemon, &["lend", "4M", "--", "sh", "-c", ": $PREZERO_PATH"]);
    let said = text(&lend.stderr);
    assert!(
        said.contains("2M of 4M are ready") && said.contains("ready in other blocks"),
        "{said}"
    );
    let parts = ["a loan of 4M found 2M ready", "pages_per_block as large as the guests"];
    is_named(&daemon, Health::Degraded, AilmentCause::Blocks, &parts);
    daemon.wait_for_log("a loan is larger than every ready block");
    let lend = run(&daemon, &["lend", "8M", "--", "sh", "-c", ": $PREZERO_PATH"]);
    assert_eq!(lend.status.code(), Some(4), "{}", text(&lend.stderr));
    let parts = ["user 0 was refused 8M", "quota of 6M", "prezero holders"];
    is_named(&daemon, Health::Degraded, AilmentCause::Quota, &parts);
    let config = config.replace("6M", "1T");
    meter(&daemon, &config);
    let lend = run(&daemon, &["lend", "64G", "--", "sh", "-c", ": $PREZERO_PATH"]);
    assert_eq!(lend.status.code(), Some(5), "{}", text(&lend.stderr));
    let parts = ["user 0 was refused 64G", "set size_max"];
    is_named(&daemon, Health::Degraded, AilmentCause::Shortage, &parts);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    // A line each ten seconds.
    while !daemon.log().contains("refused a loan: ") {
        assert!(Instant::now() < deadline, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("refused a loan: ")).expect("waited for");
    assert!(line.contains("uid=0") && line.contains("bytes="), "{line}");
}

// Promise P325.
#[test]
fn pool_that_is_too_small_or_taken_is_told_apart() {
    let pool = |ready: &str| PAGE.pool(&format!("ready_high = \"{ready}\""));
    let Some(guard) = hugepages::reserve_all(&[(PAGE.size(), Some(Node(0)), 4)]) else { return };
    let roots = linux::Roots::default();
    let counters = linux::hugetlb::counters(&roots, PAGE.size(), Some(Node(0))).expect("counts");
    // Another program takes all pages of the machine's pool.
    let file = rustix::fs::memfd_create(
        "taken",
        MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
    )
    .expect("a memfd of huge pages");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PAGE.times(counters.free).0)
        .expect("the pages are free");
    let daemon = Daemon::start_with(Some(guard), &pool("4M"), &[]);
    meter(&daemon, &pool("4M"));
    let parts = ["programs without prezero use", "smaps"];
    is_named(&daemon, Health::Degraded, AilmentCause::Taken, &parts);
    drop(file);
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(2));
    assert_eq!(daemon.status().health, Health::Healthy, "{:?}", daemon.status().ailments);
    meter(&daemon, &pool("1T"));
    let parts = ["1T", "the kernel's pool has", "prezero reserve 0:2M=1T"];
    is_named(&daemon, Health::Degraded, AilmentCause::Pool, &parts);
}

#[test]
fn daemon_that_hangs_is_said_to_after_ten_seconds() {
    let daemon = Daemon::start_with(None, "", &["--plain"]);
    daemon.signal(Signal::SIGSTOP);
    let ask = |verb: &str| {
        let mut command = daemon.command(&[verb]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("prezero runs")
    };
    let (status, doctor) = (ask("status"), ask("doctor"));
    let status = status.wait_with_output().expect("our own child");
    let doctor = doctor.wait_with_output().expect("our own child");
    daemon.signal(Signal::SIGCONT);
    let said = text(&status.stderr);
    assert!(said.contains("did not answer io.prezero.GetStatus within 10 s"), "{said}");
    let found = text(&doctor.stdout);
    assert!(found.contains("within 10 s") && found.contains("journalctl -u prezero"), "{found}");
}

// Promise P326 (operator): A metrics address or agents' socket that cannot be served is a cause in
// the service's health, and all else is served.
#[test]
fn busy_metrics_port_stops_no_lending_and_leaves_no_mount() {
    let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = format!("metrics.listen={}", busy.local_addr().expect("it has one"));
    let mut daemon = Daemon::start_with(None, "", &["--plain", "--set", &listen]);
    let status = daemon.status();
    assert_eq!(status.health, Health::Degraded, "{:?}", status.ailments);
    let doctor = text(&run(&daemon, &["doctor"]).stdout);
    assert!(doctor.contains("metrics is not served") && doctor.contains("in use"), "{doctor}");
    assert!(daemon.log().contains("metrics are not served; all else is"), "{}", daemon.log());
    drop(busy);
    // So it is with the agents' socket, below.
    assert!(!status.ailments.iter().any(|one| one.found.contains("agents")), "{status:?}");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("was read again and holds now");
    assert_eq!(daemon.status().health, Health::Healthy, "{:?}", daemon.status().ailments);
    daemon.terminate();
    // A file that is no socket stays as it is.
    let file = daemon.scratch().join("config.toml");
    daemon.use_arguments(&["--plain", "--agent-socket", file.to_str().expect("text")]);
    daemon.launch();
    let found: Vec<_> = daemon.status().ailments.into_iter().map(|one| one.found).collect();
    assert!(found.iter().any(|one| one.contains("the agents' socket is not served")), "{found:?}");
    daemon.terminate();
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc");
    let dir = daemon.run_dir();
    let tree = dir.join("tree").display().to_string();
    assert!(!mounts.contains(&tree), "{mounts}");
}

// Promise P327.
#[test]
fn check_warns_of_pools_that_nothing_can_fill() {
    let daemon = Daemon::start_with(None, "", &["--plain"]);
    let check = |config: &str| {
        daemon.write_config(config);
        let path = daemon.scratch().join("config.toml");
        let output = run_check(&daemon, path.to_str().expect("text"));
        (output.status.code(), text(&output.stderr))
    };
    let Some(_pages) = hugepages::reserve_all(&[(PAGE.size(), Some(Node(0)), 1)]) else { return };
    let stock = "provider = \"stock\"\n";
    let (code, said) =
        check(&format!("{stock}[workers]\nmax = 0\n{}", PAGE.pool("ready = \"900T\"")));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: workers.max is 0"), "{said}");
    assert!(said.contains("900T are wanted of"), "{said}");
    let (code, said) = check(&format!("{stock}[workers]\ncpus = \"0-8000\"\n{}", PAGE.pool("")));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("8000"), "{said}");
    let (code, said) = check(&format!("{stock}{}", PAGE.pool("ready_high = 1")));
    assert_eq!((code, said.as_str()), (Some(0), ""), "a good one says nothing");
}

fn run_check(daemon: &Daemon, path: &str) -> Output {
    run(daemon, &["serve", "--check", "--config", path])
}

/// A control group of its own, which ends with this value.
struct Group(PathBuf);

impl Group {
    /// `None` without a hierarchy of version 2 that has the hugetlb controller.
    fn without_huge_pages() -> Option<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let has = |root: &&&Path| {
            let controllers = std::fs::read_to_string(root.join("cgroup.controllers"));
            controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "hugetlb"))
        };
        let root = roots.iter().find(has)?;
        std::fs::write(root.join("cgroup.subtree_control"), "+hugetlb").ok()?;
        let group = Self(root.join(format!("prezero-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join("hugetlb.2MB.max"), "0").ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

// Promise P403 (operator): Where pages are free and none for the process that looks, `doctor` names
// its cpuset and its limit, and no kernel.
#[test]
fn doctor_in_a_group_without_huge_pages_blames_no_kernel() {
    let Some(_pages) = hugepages::reserve_all(&[(PAGE.size(), Some(Node(0)), 2)]) else { return };
    let Some(group) = Group::without_huge_pages() else {
        testkit::skip("no control group with the hugetlb controller here");
        return;
    };
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$1\" doctor";
    let mut doctor = Command::new("sh");
    doctor.args(["-c", script]).arg(&group.0).arg(prezero_tests::daemon::binary());
    let said = text(&doctor.stdin(Stdio::null()).output().expect("sh runs").stdout);
    let line = said.lines().find(|line| line.contains("pins") && line.contains("2M: not tried"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("none for this process") && line.contains("allows nodes"), "{line}");
    assert!(line.contains("its limit is 0") && line.contains("hugetlb.2MB.max"), "{line}");
    assert!(line.starts_with("ok"), "{line}");
}
