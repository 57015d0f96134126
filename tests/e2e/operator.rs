// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operator in control: who has what, taking it back, and counts that are true.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use linux::testkit::child::{alone, fork};
use linux::testkit::hugepages;
use prezero_tests::daemon::PATIENCE;
use prezero_tests::user::NOBODY;
use prezero_tests::{Daemon, Page};
use rustix::fs::MemfdFlags;
use serde_json::Value;
use units::Node;

fn json(mut command: Command) -> Value {
    let output = command.arg("--json").output().expect("prezero runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A prezero command of user nobody, whose group is nobody's.
fn as_nobody(daemon: &Daemon, arguments: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    let mut command = daemon.command(arguments);
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).output().expect("prezero runs")
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

#[test]
fn a_loan_says_who_has_it_where_and_since_when() {
    let page = Page::Mib2;
    let config =
        format!("lend_group = \"{NOBODY}\"\nquota = \"8M\"\n{}", page.pool("pages_per_block = 2"));
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    daemon.zero("max");
    let child = lend(&daemon, &["6M"], "exec sleep 60");
    let deadline = Instant::now() + PATIENCE;
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
    assert_eq!((&loan["ready_pages"], &loan["hole_pages"]), (&2.into(), &1.into()), "{loan}");
    assert!(loan["age_seconds"].as_u64().is_some_and(|age| age < 60), "{loan}");
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").expect("/proc");
    let found = loan["cgroup"].as_str().expect("every process has a control group");
    assert!(cgroup.lines().any(|line| line.ends_with(&format!(":{found}"))), "{found}: {cgroup}");
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    let line = people.lines().find(|line| line.contains(&child.id().to_string())).expect(&people);
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!((words[1], words[3], words[9], words[10]), ("root", "sleep", "1", "6M"), "{people}");
    let held = people.lines().find(|line| line.starts_with("root ")).expect(&people);
    assert_eq!(held.split_whitespace().collect::<Vec<_>>(), ["root", "1", "6M", "8M"]);
    // Who may only borrow sees that there is a loan, and not whose process has it.
    let theirs = text(&as_nobody(&daemon, &["status", "--json"]).stdout);
    let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
    let (loan, users) = (&theirs["loans"][0], &theirs["users"]);
    assert_eq!((loan["pages"].as_u64(), loan["pid"].as_u64()), (Some(3), None), "{loan}");
    assert!(loan["command"].is_null() && loan["cgroup"].is_null(), "{loan}");
    assert_eq!(users.as_array().map(Vec::len), Some(0), "{users}");
    end(child);
}

#[test]
fn a_loan_whose_process_has_ended_names_no_other_one() {
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
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.lingering_pages == 0);
}

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

#[test]
fn what_lingers_is_traced_to_whoever_maps_or_opens_it_and_can_be_taken_away() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 3, &page.pool("recycle = \"fresh\"")) else { return };
    daemon.zero("2");
    let free = daemon.kernel_free(page);
    let loan = daemon.lend(page, 1);
    let mapping = loan.map().expect("a mapping");
    drop(loan);
    let (lease, files) = daemon.lend(page, 1).into_fds();
    drop(lease);
    daemon.wait_for("lingering", |pool| pool.lingering_pages == 2);
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    assert!(people.contains("1 mapped, 1 open: `prezero holders` says by whom"), "{people}");
    let found = json(daemon.command(&["holders"]));
    assert_eq!(found["complete"], true);
    let mut ways: Vec<_> = found["holders"].as_array().expect("a list").iter().collect();
    ways.sort_by_key(|holder| holder["how"].as_str());
    assert_eq!(ways.len(), 2, "{found}");
    for (holder, how) in ways.iter().zip(["maps", "opens"]) {
        let pid = u64::from(std::process::id());
        assert_eq!((holder["how"].as_str(), holder["pid"].as_u64()), (Some(how), Some(pid)));
        assert_eq!((holder["lingers"].as_bool(), holder["pages"].as_u64()), (Some(true), Some(1)));
    }
    let refused = as_nobody(&daemon, &["holders"]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    for holder in ways {
        let lease = holder["lease"].as_u64().expect("a number").to_string();
        let taken = json(daemon.command(&["revoke", &lease]));
        assert_eq!(taken["bytes"], page.size().bytes(), "{taken}");
    }
    // Both are still mapped and open here.
    assert_eq!((daemon.pool().lingering_pages, daemon.kernel_free(page)), (0, free + 2));
    let again = daemon.command(&["revoke", "1"]).output().expect("prezero runs");
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("no loan has the number 1"), "{}", text(&again.stderr));
    drop((mapping, files));
}

#[test]
fn a_revoked_loan_gives_its_pages_back_whatever_its_borrower_does() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    let child = fork(|ready| {
        let loan = daemon.lend(page, 2);
        let mapping = loan.map().expect("a mapping");
        mapping.fill(0..mapping.len(), 1);
        ready.signal();
        loop {
            mapping.fill(0..1, 2);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    child.wait_ready();
    let lease = daemon.status().loans[0].lease.to_string();
    let people = daemon.command(&["revoke", &lease]).output().expect("prezero runs");
    assert_eq!(text(&people.stdout), format!("took 4M of loan {lease} away\n"));
    // It touched the memory, and no signal handler of its own caught that: no exit code.
    assert_eq!(child.wait(), None, "SIGBUS ends it");
    let pool = daemon.wait_for("all of it back", |pool| pool.zeroable_pages == 2);
    assert_eq!((pool.lent_pages, pool.lingering_pages, pool.kernel_free_pages), (0, 0, 2));
    assert!(daemon.status().loans.is_empty());
    daemon.zero("max");
    prezero_tests::memory::assert_zero(&daemon.lend(page, 2).map().expect("a mapping"));
}

#[test]
fn pages_that_are_promised_to_others_are_not_free_and_it_is_said() {
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
    let daemon = Daemon::start_with(Some(guard), &page.pool(""), &[]);
    let pool = daemon.pool();
    assert_eq!((pool.kernel_free_pages, pool.zeroable_pages), (1, 1), "{pool:?}");
    assert_eq!(pool.kernel_reserved_pages, reserved, "{pool:?}");
    let people = text(&daemon.command(&["status"]).output().expect("prezero runs").stdout);
    let line = format!("reserved, node 0, 2M: {reserved} pages free in the kernel, and promised");
    assert!(people.contains(&line), "{people}");
    daemon.zero("1");
    let nothing = daemon.command(&["zero", "256"]).output().expect("prezero runs");
    assert!(text(&nothing.stdout).starts_with("zeroed 0 pages"), "{}", text(&nothing.stdout));
    let why = text(&nothing.stderr);
    assert!(why.contains(&format!("{reserved} free pages are promised to programs")), "{why}");
    let doctor = text(&daemon.command(&["doctor"]).output().expect("prezero runs").stdout);
    assert!(doctor.contains(&format!("{reserved} promised")), "{doctor}");
    drop(promised);
    daemon.wait_for("free again", |pool| pool.kernel_free_pages == others && pool.ready_pages == 1);
}
