// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operator in control: who holds memory, taking it back, and true counts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::user::NO_USER;
use prezero_tests::{Daemon, Page};
use rustix::fs::MemfdFlags;
use serde_json::Value;
use testkit::child::{alone, fork};
use testkit::hugepages;
use units::{Node, Pages};

fn json(mut command: Command) -> Value {
    let output = command.arg("--json").output().expect("prezero runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A prezero command of the user and group `nobody`.
fn as_other_user(daemon: &Daemon, arguments: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    let mut command = daemon.command(arguments);
    command.uid(NO_USER).gid(NO_USER).stdin(Stdio::null()).output().expect("prezero runs")
}

/// A command on borrowed memory, once it has begun: it writes a line then.
fn lend(daemon: &Daemon, arguments: &[&str], script: &str) -> Child {
    let script = format!("echo begun; {script}");
    let arguments = [&["lend"], arguments, &["--", "sh", "-c", &script]].concat();
    let mut command = daemon.command(&arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "begun\n");
    child
}

fn end(mut child: Child) {
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}

// Promise P120 (operator): `status` gives each loan's requesting process, its command, control
// group, user, nodes and age, and how much of it was ready. A reused PID is not reported. Users
// who may only borrow see this of their own loans alone.
#[test]
fn loan_status_has_process_node_and_age() {
    let page = Page::Mib2;
    let config =
        format!("lend_group = \"{NO_USER}\"\nquota = \"8M\"\n{}", page.pool("pages_per_block = 2"));
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    daemon.zero("max");
    let child = lend(&daemon, &["6M"], "exec sleep 60");
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let loan = loop {
        let status = json(daemon.command(&["status"]));
        let loan = status["loans"][0].clone();
        if loan["command"] == "sleep" {
            break loan;
        }
        assert!(Instant::now() < deadline, "{loan}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((&loan["pid"], &loan["user"]), (&child.id().into(), &"root".into()), "{loan}");
    assert_eq!((&loan["nodes"], &loan["pages"]), (&[0].into(), &3.into()), "{loan}");
    assert_eq!((&loan["ready_pages"], &loan["unbacked_pages"]), (&2.into(), &1.into()), "{loan}");
    assert!(loan["age_seconds"].as_u64().is_some_and(|age| age < 60), "{loan}");
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").expect("/proc");
    let found = loan["cgroup"].as_str().expect("every process has a control group");
    assert!(cgroup.lines().any(|line| line.ends_with(&format!(":{found}"))), "{found}: {cgroup}");
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    let line = people.lines().find(|line| line.contains(&child.id().to_string())).expect(&people);
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!((words[1], words[3], words[8], words[9]), ("root", "sleep", "6M", "2M"), "{people}");
    let held = people.lines().find(|line| line.starts_with("root ")).expect(&people);
    assert_eq!(held.split_whitespace().collect::<Vec<_>>(), ["root", "1", "6M", "8M"]);
    // A user that may only borrow sees the loan, but not the process.
    let theirs = text(&as_other_user(&daemon, &["status", "--json"]).stdout);
    let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
    let (loan, users) = (&theirs["loans"][0], &theirs["users"]);
    assert_eq!((loan["pages"].as_u64(), loan["pid"].as_u64()), (Some(3), None), "{loan}");
    assert!(loan["command"].is_null() && loan["cgroup"].is_null(), "{loan}");
    assert_eq!(users.as_array().map(Vec::len), Some(0), "{users}");
    end(child);
}

// Promise P225 (operator): The name of a process or control group moves no cursor and begins no
// line where people read it, and hides nothing.
#[test]
fn process_named_like_an_escape_sequence_is_shown_as_text() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    daemon.zero("max");
    // Clears the screen, and has a line of its own.
    let script = "printf '\\033[2J\\nroot 0 4P' > /proc/$$/comm; kill -STOP $$";
    let mut child = lend(&daemon, &["2M"], script);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    let is_named = |loan: &Value| loan["command"].as_str() == Some("\u{1b}[2J\nroot 0 4P");
    while !is_named(&json(daemon.command(&["status"]))["loans"][0]) {
        assert!(Instant::now() < deadline, "{}", json(daemon.command(&["status"])));
        assert!(child.try_wait().expect("our own child").is_none(), "it holds a loan");
        std::thread::sleep(Duration::from_millis(5));
    }
    for verb in ["status", "holders"] {
        let people = text(&daemon.command(&[verb]).output().expect("prezero runs").stdout);
        assert!(people.contains(r"\u{1b}[2J\nroot 0 4P"), "{people}");
        assert!(!people.contains(|c: char| c.is_control() && c != '\n'), "{people:?}");
        assert!(!people.lines().any(|line| line.starts_with("root 0 4P")), "{people}");
    }
    end(child);
}

// Promise P120.
#[test]
fn loan_of_an_ended_process_names_no_other_process() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    daemon.zero("max");
    // The child of the shell has the lease, and the shell ends.
    let mut child = lend(&daemon, &["2M"], "sleep 3 & exit");
    let pid = child.id();
    child.wait().expect("our own child");
    let loan = json(daemon.command(&["status"]))["loans"][0].clone();
    assert_eq!(loan["pid"], pid, "{loan}");
    assert!(loan["command"].is_null(), "{loan}");
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}

// Promise P121 (operator): A loan of 1 GiB or more is a line of the log with the process that has
// it.
#[test]
fn a_large_loan_is_a_line_of_the_log() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 512, &page.pool("")) else { return };
    let child = lend(&daemon, &["1G"], "exec sleep 60");
    daemon.wait_for_log("a large loan");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("a large loan")).expect("it was waited for");
    for part in
        ["bytes=1G", "ready=0", "uid=0", "command=\"sleep\"", &format!("pid={}", child.id())]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    end(child);
}

// Promise P122 (operator): `holders` finds the processes that map or have open lent or draining
// memory, for root, beside the daemon's own thread.
#[test]
fn draining_block_is_traced_to_its_holder_and_can_be_revoked() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 3, &page.pool("recycle = \"fresh\"")) else { return };
    daemon.zero("2");
    let free = daemon.kernel_free(page);
    let loan = daemon.lend(page, 1);
    let mapping = loan.map_alone().expect("a mapping");
    drop(loan);
    let (lease, files) = daemon.lend(page, 1).into_fds();
    drop(lease);
    daemon.wait_for("draining", |pool| pool.draining_pages == Pages(2));
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    assert!(
        people.contains("2M mapped, 2M open: `prezero holders` names the processes"),
        "{people}"
    );
    let found = json(daemon.command(&["holders"]));
    assert_eq!(found["complete"], true);
    let mut ways: Vec<_> = found["holders"].as_array().expect("a list").iter().collect();
    ways.sort_by_key(|holder| holder["how"].as_str());
    assert_eq!(ways.len(), 2, "{found}");
    for (holder, how) in ways.iter().zip(["maps", "opens"]) {
        let pid = u64::from(std::process::id());
        assert_eq!((holder["how"].as_str(), holder["pid"].as_u64()), (Some(how), Some(pid)));
        assert_eq!((holder["draining"].as_bool(), holder["pages"].as_u64()), (Some(true), Some(1)));
    }
    let refused = as_other_user(&daemon, &["holders"]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    for holder in ways {
        let lease = holder["lease"].as_u64().expect("a number").to_string();
        let taken = json(daemon.command(&["revoke", &lease]));
        assert_eq!(taken["bytes"], page.size().bytes(), "{taken}");
    }
    // Both are still mapped and open here.
    assert_eq!((daemon.pool().draining_pages, daemon.kernel_free(page)), (Pages(0), free + 2));
    let again = daemon.command(&["revoke", "1"]).output().expect("prezero runs");
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("no loan has the number 1"), "{}", text(&again.stderr));
    drop((mapping, files));
}

// Promise P123.
#[test]
fn pinned_block_names_possible_holders_and_comes_back_later() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    daemon.zero("max");
    if let Some(why) = daemon.status().fresh_reason {
        testkit::skip_always(&format!("pins are not seen here: {why}"));
        return;
    }
    let loan = daemon.lend(page, 1);
    let mapping = loan.map_alone().expect("a mapping");
    let Ok(ring) = prezero_tests::pins::pin_in_ring(&mapping) else {
        testkit::skip_always("io_uring is not for programs here");
        return;
    };
    drop((mapping, loan));
    daemon.wait_for("pinned", |pool| pool.pinned_pages == Pages(1));
    let found = json(daemon.command(&["holders"]));
    let own = |holder: &&Value| holder["pid"] == std::process::id();
    let holders = found["holders"].as_array().expect("a list");
    let holder = holders.iter().find(own).unwrap_or_else(|| panic!("{found}"));
    assert_eq!((&holder["how"], &holder["draining"]), (&"pins".into(), &true.into()), "{found}");
    let lease = holder["lease"].as_u64().expect("a number").to_string();
    json(daemon.command(&["revoke", &lease]));
    // The kernel keeps pinned pages of any file.
    assert_eq!((daemon.pool().draining_pages, daemon.kernel_free(page)), (Pages(0), 0));
    drop(ring);
    daemon.wait_for("free again", |pool| pool.kernel_free_pages == Pages(1));
}

// Promise P123 (operator): `revoke` takes a loan's pages out of every mapping, and their content
// is unreadable from then on; pinned ones come back after their unpinning.
#[test]
fn revoked_loan_releases_its_pages_against_its_borrowers_will() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    let child = fork(|ready| {
        let loan = daemon.lend(page, 2);
        let mapping = loan.map_alone().expect("a mapping");
        mapping.fill(0..mapping.len(), 1);
        ready.signal();
        loop {
            mapping.fill(0..1, 2);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    child.wait_ready();
    let lease = daemon.status().loans[0].lease.0.to_string();
    let people = daemon.command(&["revoke", &lease]).output().expect("prezero runs");
    assert_eq!(text(&people.stdout), format!("took 4M of loan {lease} away\n"));
    // It touched the memory, and no signal handler of its own caught that: no exit code.
    assert_eq!(child.wait(), None, "SIGBUS ends it");
    let pool = daemon.wait_for("all of it back", |pool| pool.zeroable_pages == Pages(2));
    assert_eq!(
        (pool.lent_pages, pool.draining_pages, pool.kernel_free_pages),
        (Pages(0), Pages(0), Pages(2))
    );
    assert!(daemon.status().loans.is_empty());
    daemon.zero("max");
    prezero_tests::memory::assert_zero(&daemon.lend(page, 2).map_alone().expect("a mapping"));
}

// Promise P124 (operator): Free pages are unpromised ones: in `status`, `doctor`, the log and the
// metrics, and `zero` says why it zeroed none.
#[test]
fn pages_promised_to_others_are_reported_and_not_free() {
    let page = Page::Mib2;
    let Some(guard) = hugepages::reserve_all(&[(page.size(), Some(Node(0)), 4)]) else { return };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let memfd = rustix::fs::memfd_create("promised", flags).expect("huge pages");
    let others = guard.free(page.size()) - 1;
    rustix::fs::ftruncate(&memfd, page.times(others).0).expect("a length");
    let promised = linux::Mapping::map(&memfd, page.times(others).0, page.size());
    let promised = promised.expect("the pages are free");
    // Other programs of this machine may have been promised some, too.
    let counters = linux::hugetlb::counters(&linux::Roots::default(), page.size(), Some(Node(0)));
    let reserved = counters.expect("counts").free - 1;
    let promised_bytes = page.times(reserved);
    let daemon = Daemon::start_with(Some(guard), &page.pool(""), &[]);
    let pool = daemon.pool();
    assert_eq!((pool.kernel_free_pages, pool.zeroable_pages), (Pages(1), Pages(1)), "{pool:?}");
    assert_eq!(pool.kernel_reserved_pages, Pages(reserved), "{pool:?}");
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    let line = format!("reserved, node 0, 2M: {promised_bytes} free in the kernel, and promised");
    assert!(people.contains(&line), "{people}");
    daemon.zero("1");
    let nothing = daemon.command(&["zero", "256"]).output().expect("prezero runs");
    assert!(text(&nothing.stdout).starts_with("zeroed 0 in "), "{}", text(&nothing.stdout));
    let why = text(&nothing.stderr);
    assert!(
        why.contains(&format!("{promised_bytes} of the free memory is promised to programs")),
        "{why}"
    );
    let doctor = text(&daemon.command(&["doctor"]).output().expect("prezero runs").stdout);
    assert!(doctor.contains(&format!("{reserved} promised")), "{doctor}");
    drop((promised, memfd));
    daemon.wait_for("free again", |pool| {
        pool.kernel_free_pages == Pages(others) && pool.ready_pages == Pages(1)
    });
}

// Promise P125 (operator): Members of the zeroing group alone zero (by the control tree, unless
// they are trusted), set, watch and drain. A refusal names groups as the system does, and a watch
// that is refused ends.
#[test]
fn member_of_the_zero_group_zeroes_sets_watches_and_drains() {
    let page = Page::Mib2;
    let config = format!("zero_group = \"{NO_USER}\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    // The tree lies in the run directory, which an installation opens to every user.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(daemon.run_dir(), open).expect("our own directory");
    let done = |arguments: &[&str]| {
        let output = as_other_user(&daemon, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    if daemon.status().tree.is_some() {
        assert!(done(&["zero", "3"]).starts_with("zeroed 6M in "));
        assert_eq!(daemon.pool().ready_pages, Pages(3));
    } else {
        testkit::skip_always("the control tree cannot be mounted here");
    }
    done(&["set", "leave_free=1"]);
    assert!(done(&["watch", "--once"]).contains("node 0 2M: "));
    assert!(done(&["status"]).contains("prezero"));
    done(&["drain"]);
    assert_eq!(daemon.pool().ready_pages, Pages(0));
    let refused = as_other_user(&daemon, &["lend", "2M", "--", "true"]);
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{why}");
    assert!(why.contains("may not borrow"), "{why}");
}

// Promise P125.
// Promise P130.
#[test]
fn strangers_get_the_group_names_and_their_watch_ends() {
    let page = Page::Mib2;
    let config = format!("lend_group = \"daemon\"\nzero_group = \"2\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 1, &config) else { return };
    for arguments in [&["watch"][..], &["status"], &["lend", "2M", "--", "true"]] {
        let begin = Instant::now();
        let output = as_other_user(&daemon, arguments);
        let why = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {why}");
        assert!(why.contains("daemon (lend_group) or bin (zero_group) may"), "{why}");
        assert!(begin.elapsed() < WAIT_TIMEOUT, "{arguments:?} took {:?}", begin.elapsed());
    }
    let output = as_other_user(&daemon, &["status", "--json"]);
    let error: Value = serde_json::from_slice(&output.stderr).expect("an error as JSON");
    assert_eq!((&error["exit"], &output.stdout[..]), (&4.into(), &b""[..]), "{error}");
    assert_eq!(error["refusal"]["error"], "io.prezero.NotPermitted", "{error}");
    assert_eq!(error["refusal"]["parameters"]["uid"], NO_USER, "{error}");
}

// Promise P126 (operator): `wait` and `lend --wait` end as soon as memory is ready, or when their
// time is over; `wait` waits for a daemon, too.
#[test]
fn waiting_ends_when_memory_is_ready_or_the_time_is_over() {
    let page = Page::Mib2;
    let config = page.pool("pages_per_block = 2\nready_low = 4\nready_high = 4");
    // The loans meanwhile leave the pages that are waited for.
    let Some(mut daemon) = Daemon::start(page, 6, &format!("[workers]\nmax = 0\n{config}")) else {
        return;
    };
    let late = daemon.command(&["wait", "--timeout", "300ms"]).output().expect("prezero runs");
    let why = text(&late.stderr);
    assert_eq!(late.status.code(), Some(5), "{why}");
    let pool = if daemon.has_blocks() { "node 0 2M x 2" } else { "node 0 2M x 1" };
    assert!(why.contains(&format!("{pool}: 0 of 8M are ready")), "{why}");
    let late = daemon.command(&["wait", "--ready", "1G", "--timeout", "50ms"]).output();
    assert!(text(&late.expect("prezero runs").stderr).contains("0 of 1G are ready"));
    // All of it comes while they wait, of a daemon that is not there yet.
    daemon.terminate();
    let waits = |arguments: &[&str]| {
        let mut command = daemon.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("prezero runs")
    };
    let timeout = ["--timeout", "60s"];
    let waiting =
        [&["wait"][..], &["wait", "--ready", "8M"]].map(|verb| waits(&[verb, &timeout].concat()));
    daemon.launch();
    let lend =
        daemon.command(&["lend", "4M", "--wait", "20s", "--", "sh", "-c", ": {path}; echo lent"]);
    let mut lend = { lend }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    std::thread::sleep(Duration::from_millis(300));
    assert!(lend.try_wait().expect("our own child").is_none(), "nothing is ready yet");
    daemon.zero("max");
    for child in waiting {
        let output = child.wait_with_output().expect("our own child");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let reported = text(&output.stdout);
        assert!(
            reported.starts_with("8M are ready") || reported.starts_with("12M are ready"),
            "{reported}"
        );
    }
    let output = lend.wait_with_output().expect("our own child");
    assert_eq!(text(&output.stdout), "lent\n");
    assert_eq!(text(&output.stderr), "", "all of it was ready");
    // What never becomes ready is lent as it is, when the time is over. Pages that are zero in the
    // kernel's pool are there already, and stay.
    if !daemon.has_blocks() {
        return;
    }
    daemon.command(&["release", "all"]).output().expect("prezero runs");
    let begin = Instant::now();
    let late = daemon.command(&["lend", "4M", "--wait", "400ms", "--", "true"]).output();
    assert!(text(&late.expect("prezero runs").stderr).contains("0 of 4M are ready"));
    assert!(begin.elapsed() >= Duration::from_millis(400));
}

// Promise P127 (operator): `serve --check` refuses what a start and a reload refuse: groups,
// nodes, page sizes, CPUs, control groups that are not there.
#[test]
fn a_check_refuses_what_a_start_and_a_reload_refuse() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    let good = page.pool("");
    let bad = [
        (format!("lend_group = \"no-such-group\"\n{good}"), "no-such-group"),
        (format!("[tree]\ngroup = \"no-such-group\"\n{good}"), "no-such-group"),
        ("[[pool]]\npage_size = \"2M\"\nnode = 77\n".to_owned(), "node 77"),
        ("[[pool]]\npage_size = \"4M\"\n".to_owned(), "no 4M pages"),
        (format!("[workers]\ncpus = \"9000-9001\"\n{good}"), "9000-9001"),
        (format!("[workers]\ncgroup = \"/sys/fs/cgroup/a/../b\"\n{good}"), "cgroup"),
        ("[[pool]]\npage_size = \"2M\"\nready_low = 9\n".to_owned(), "ready_low"),
    ];
    let file = daemon.scratch().join("other.toml");
    let check = |config: &str| {
        std::fs::write(&file, config).expect("our own file");
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--check", "--config"]).arg(&file).output().expect("prezero runs")
    };
    assert!(check(&good).status.success());
    for (config, named) in &bad {
        let checked = check(config);
        let why = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(2), "{config}: {why}");
        assert!(why.contains(named), "{config}: {why}");
        let refusals = || daemon.log().matches("refused: nothing has changed").count();
        let before = refusals();
        daemon.write_config(config);
        daemon.signal(nix::sys::signal::Signal::SIGHUP);
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while refusals() == before {
            assert!(Instant::now() < deadline, "a reload takes {config}\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    daemon.terminate();
    for (config, named) in &bad {
        daemon.write_config(config);
        let run_dir = daemon.run_dir();
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--config"]).arg(daemon.scratch().join("config.toml"));
        command.arg("--socket").arg(daemon.socket()).arg("--run-dir").arg(run_dir);
        let output = command.output().expect("prezero runs");
        let why = text(&output.stderr);
        assert!(!output.status.success() && why.contains(named), "{config}: {why}");
    }
    daemon.write_config(&good);
    daemon.launch();
}

// Promise P129 (operator): A drain lasts over restarts, for all thresholds, until an operator ends
// it; also without a daemon.
#[test]
fn drain_lasts_over_restarts_until_it_is_ended() {
    let page = Page::Mib2;
    let config = page.pool("ready_low = 4\nready_high = 4");
    let Some(mut daemon) = Daemon::start(page, 4, &config) else { return };
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(4));
    let loan = daemon.lend(page, 1);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(3));
    let drained = json(daemon.command(&["drain"]));
    assert_eq!(drained["released_bytes"], page.times(3).0, "{drained}");
    assert_eq!(drained["lent_bytes"], page.times(1).0, "{drained}");
    assert_eq!(daemon.kernel_free(page), 3);
    drop(loan);
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((daemon.kernel_free(page), daemon.status().drained), (4, true));
    let zero = daemon.command(&["zero", "max"]).output().expect("prezero runs");
    assert!(text(&zero.stdout).starts_with("zeroed 0 in "), "{}", text(&zero.stdout));
    // It lends all the same, what the kernel zeroes.
    assert_eq!(daemon.lend(page, 1).ready_bytes().0, 0);
    daemon.kill();
    daemon.launch();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((daemon.pool().ready_pages, daemon.status().drained), (Pages(0), true));
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    assert!(people.lines().next().is_some_and(|line| line.ends_with(": drained")), "{people}");
    json(daemon.command(&["drain", "--end"]));
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(4));
    // After the end of the daemon, too.
    let while_it_runs = drain_without(&daemon, "elsewhere");
    assert!(text(&while_it_runs.stderr).contains("another daemon works in"), "it lives");
    daemon.terminate();
    assert_eq!(daemon.kernel_free(page), 0, "a stop leaves ready pages where they are");
    let output = drain_without(&daemon, "socket");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("gave 8M back"), "{}", text(&output.stdout));
    assert_eq!(daemon.kernel_free(page), 4);
    daemon.launch();
    assert!(daemon.status().drained);
}

fn drain_without(daemon: &Daemon, socket: &str) -> Output {
    let mut command = Command::new(prezero_tests::daemon::binary());
    command.arg("drain").arg("--socket").arg(daemon.scratch().join(socket));
    command.arg("--run-dir").arg(daemon.run_dir()).output().expect("prezero runs")
}

// Promise P130 (operator): Errors have sizes as the command line takes them, tell of a missing
// `--`, and are JSON where records are.
#[test]
fn errors_speak_as_the_command_line_does() {
    let page = Page::Mib2;
    let config = format!("quota = \"4M\"\nlend_group = \"{NO_USER}\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 2, &config) else { return };
    let says = |output: Output, code: i32, parts: &[&str]| {
        let why = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{why}");
        for part in parts {
            assert!(why.contains(part), "{part}: {why}");
        }
    };
    let run = |arguments: &[&str]| daemon.command(arguments).output().expect("prezero runs");
    says(run(&["lend", "1G", "true"]), 2, &["'true'", "write `--` before the command"]);
    let quota = as_other_user(&daemon, &["lend", "8M", "--", "true"]);
    says(quota, 4, &["holds 0 of a quota of 4M", "8M is more than all of it"]);
    let config = page.pool("");
    daemon.write_config(&config);
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_for_log("read again and holds now");
    let free = "0 are ready and 4M free in the kernel";
    says(run(&["lend", "8G", "--", "true"]), 5, &["8G of 2M pages were asked for", free]);
}
