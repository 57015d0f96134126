// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a daemon starts: a run directory and a socket are one daemon's, and its user's alone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use units::Pages;

use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::{Daemon, Page};
use testkit::child::{alone, fork};

// Promise P128 (operator): A run directory has one daemon, and so has a socket; files that a
// killed one left open in others do not prevent a start.
#[test]
fn second_daemon_in_a_run_directory_is_refused() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    let second = || {
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--pool", "page_size=2M", "--run-dir"]).arg(daemon.run_dir());
        command.arg("--socket").arg(daemon.scratch().join("second")).output().expect("it runs")
    };
    let output = second();
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("another daemon works in") && why.contains("--run-dir"), "{why}");
    assert!(!daemon.scratch().join("second").exists(), "its socket is gone");
    let loan = daemon.lend(page, 1);
    assert_eq!((loan.ready_bytes(), daemon.pool().ready_pages), (page.times(1), Pages(1)));
    drop(loan);
    // A killed daemon leaves everything unlocked.
    daemon.kill();
    daemon.launch();
}

// Promise P240 (operator): A run directory into which others than the daemon's user can put files
// is refused, and nothing is written there.
#[test]
fn run_directory_writable_by_others_is_refused_and_stays_empty() {
    let _alone = alone();
    let place = tempfile::tempdir().expect("a directory");
    let victim = place.path().join("victim");
    for (owner, mode, says) in [
        (65534, 0o700, "is of uid 65534 with mode 700"),
        (0, 0o777, "is of uid 0 with mode 777"),
        (0, 0o1777, "is of uid 0 with mode 1777"),
        (0, 0o770, "is of uid 0 with mode 770"),
    ] {
        let run_dir = place.path().join(format!("{owner}-{mode:o}"));
        std::fs::create_dir(&run_dir).expect("a new directory");
        std::fs::set_permissions(&run_dir, Permissions::from_mode(mode)).expect("our own");
        // As who may put files there would, to have one made that is root's.
        std::os::unix::fs::symlink(&victim, run_dir.join("lock")).expect("a link");
        if std::os::unix::fs::chown(&run_dir, Some(owner), None).is_err() {
            testkit::skip("giving a directory away needs root");
            return;
        }
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--pool", "page_size=2M", "--run-dir"]).arg(&run_dir);
        command.arg("--socket").arg(place.path().join("socket"));
        let output = command.output().expect("it runs");
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.contains(says) && why.contains("--run-dir"), "{why}");
        assert!(!victim.exists(), "{why}");
        assert!(!place.path().join("socket").exists(), "its socket is gone");
        assert_eq!(std::fs::read_dir(&run_dir).expect("it is there").count(), 1);
    }
}

// Promise P128.
#[test]
fn dead_daemons_socket_is_replaced_and_a_living_ones_is_not() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.terminate();
    let listener = UnixListener::bind(daemon.socket()).expect("our own directory");
    daemon.spawn();
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !daemon.has_ended() {
        assert!(Instant::now() < deadline, "it does not give up:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.forget_process();
    assert!(daemon.log().contains("another daemon already listens at"), "{}", daemon.log());
    // As a daemon that is killed between making a worker and the worker's first instruction.
    let forerunner = fork(|_| i32::from(rustix::net::listen(&listener, 8).is_err()));
    assert_eq!(forerunner.wait(), Some(0));
    daemon.spawn();
    // Before that a client would knock at the old one.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while daemon.log().matches("serves socket").count() < 2 {
        assert!(Instant::now() < deadline, "it does not serve:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.wait_until_up();
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(2));
    drop(listener);
}

// Promise P400 (operator): A start that fails leaves no mount behind, neither of huge pages nor of
// the control tree; mounts that were there before stay.
#[test]
fn failed_start_leaves_no_mount_behind() {
    let page = Page::Mib2;
    let other = Daemon::start_with(None, "", &["--plain"]);
    let Some(mut daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    if !other.tree().join("hugepagectl").exists() {
        testkit::skip("there is no FUSE here");
        return;
    }
    // The last step of a start: its tree's place is another daemon's.
    let scratch = daemon.scratch().to_owned();
    let config = scratch.join("taken.toml");
    let tree = format!("[tree]\nenabled = true\npath = \"{}\"\n", other.tree().display());
    std::fs::write(&config, page.pool("") + &tree).expect("our own directory");
    let starts = |run_dir: &Path| {
        let mut command = Command::new(prezero_tests::daemon::binary());
        command.args(["serve", "--run-dir"]).arg(run_dir).arg("--config").arg(&config);
        let output = command.arg("--socket").arg(scratch.join("second")).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains("another daemon's control tree"), "{why}");
    };
    let mounts = || std::fs::read_to_string("/proc/self/mounts").expect("/proc");
    let fresh = scratch.join("fresh");
    starts(&fresh);
    let left = mounts();
    assert!(!left.contains(&fresh.display().to_string()), "{left}");
    daemon.zero("max");
    daemon.terminate();
    let run_dir = daemon.run_dir();
    starts(&run_dir);
    daemon.launch();
    assert_eq!(daemon.pool().ready_pages, Pages(2), "what was there before stays");
}
