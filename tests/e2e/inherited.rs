// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The things a daemon inherits from its starter: descriptors, signals, limits, a umask.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use prezero_tests::{Daemon, Page, process};
use units::Pages;
use wire::LendRequest;

const PAGE: Page = Page::Mib2;

/// A daemon before its start, and its configuration.
fn unstarted() -> Option<(Daemon, String)> {
    let config = PAGE.pool("ready_high = 2");
    let mut daemon = Daemon::start(PAGE, 2, &config)?;
    daemon.terminate();
    Some((daemon, config))
}

/// Sees a daemon that was just started do all that there is to do, and end as one does.
fn lives(daemon: &mut Daemon, config: &str) {
    daemon.wait_until_up();
    daemon.wait_for("filled", |pool| pool.ready_pages == Pages(2));
    let loan = daemon.lend(PAGE, 1);
    for worker in process::children(daemon.pid()) {
        kill(worker, Signal::SIGKILL).ok();
    }
    // A line of every level: a refused configuration, a killed worker, a refused loan.
    daemon.write_config("pol = 1");
    daemon.signal(Signal::SIGHUP);
    daemon.client().lend(&LendRequest::new(PAGE.times(3))).expect_err("there are two");
    drop(loan);
    daemon.wait_for("filled again", |pool| pool.ready_pages == Pages(2));
    daemon.write_config(&format!("{config}leave_free = 1\n"));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for("read again", |pool| pool.leave_free == Pages(1));
    daemon.write_config(config);
    daemon.terminate();
}

/// `command` as another program starts it.
fn by(starter: &[&str], command: &Command) -> Command {
    let mut other = Command::new(starter[0]);
    other.args(&starter[1..]).arg(command.get_program()).args(command.get_args());
    other
}

// Promise P204 (years): A log that cannot be written or is not read (its disk full, its reader
// gone) stops no work: 4,096 events wait for their reader, later ones are dropped, and the next
// one gives their number. Each event is one entry of the journal with its level.
#[test]
fn unwritable_or_unread_log_blocks_nothing() {
    let Some((mut daemon, config)) = unstarted() else { return };
    let full = || OwnedFd::from(File::options().append(true).open("/dev/full").expect("a device"));
    // The reader has ended, as that of `prezero serve 2>&1 | tee log` may.
    let broken = || OwnedFd::from(std::io::pipe().expect("a pipe").1);
    // The reader hangs, and the unread lines fill the pipe.
    let (unread, hanging) = std::io::pipe().expect("a pipe");
    let hanging = || {
        let log = OwnedFd::from(hanging.try_clone().expect("a descriptor"));
        let nonblocking = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&log, nonblocking).expect("a pipe");
        while rustix::io::write(&log, b"not read\n").is_ok() {}
        rustix::fs::fcntl_setfl(&log, rustix::fs::OFlags::empty()).expect("a pipe");
        log
    };
    for journal in [false, true] {
        for log in [full(), broken(), hanging()] {
            let stat = rustix::fs::fstat(&log).expect("an open file");
            let stream = journal.then(|| format!("{}:{}", stat.st_dev, stat.st_ino));
            daemon.spawn_as(|mut command| {
                command.env("JOURNAL_STREAM", stream.unwrap_or_default()).stderr(log);
                command
            });
            lives(&mut daemon, &config);
        }
    }
    drop(unread);
}

// Promise P205 (years): With anything that its starter gives it, the daemon works, ends and reads
// its configuration again: ignored or blocked signals, low limits, no environment, no descriptors,
// a child that is not its own, a missing directory, any umask.
#[test]
fn daemon_works_with_any_inherited_state() {
    let Some((mut daemon, config)) = unstarted() else { return };
    let sh = |line| ["sh", "-c", line, "sh"];
    let starters: [&[&str]; 9] = [
        &["env", "--ignore-signal"],
        &["env", "--block-signal"],
        &["env", "--ignore-signal", "--block-signal"],
        &["env", "-i"],
        &["prlimit", "--nofile=64:64", "--memlock=0:0", "--stack=524288:524288"],
        &sh("exec \"$@\" 0<&- 1>&- 2>&-"),
        // A child of another process, and one that ends.
        &sh("sleep 0.05 & exec \"$@\""),
        &sh("mkdir gone; cd gone; rmdir ../gone; exec \"$@\""),
        &sh("umask 777; exec \"$@\""),
    ];
    for starter in starters {
        eprintln!("{starter:?}");
        let dir = daemon.scratch().to_owned();
        daemon.spawn_as(|command| {
            let mut command = by(starter, &command);
            command.current_dir(dir);
            command
        });
        lives(&mut daemon, &config);
    }
}

/// The files below a directory, mounts excluded: kind, mode and owner.
fn modes(dir: &Path) -> BTreeSet<String> {
    let device = fs::metadata(dir).expect("a directory").dev();
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    let mut found = BTreeSet::new();
    for path in entries.map(|entry| entry.path()) {
        let meta = fs::symlink_metadata(&path).expect("nobody removes it");
        let socket = if meta.file_type().is_socket() { " socket" } else { "" };
        found.insert(format!("{} {:o}{socket}", path.display(), meta.mode()));
        if meta.is_dir() && meta.dev() == device {
            found.extend(modes(&path));
        }
    }
    found
}

// Promise P205.
#[test]
fn files_of_the_daemon_have_their_mode_under_any_umask() {
    let Some((mut daemon, _)) = unstarted() else { return };
    let mut seen = |umask: &str| {
        daemon.unmount();
        fs::remove_dir_all(daemon.run_dir()).expect("nobody uses it");
        daemon.spawn_as(|command| {
            by(&["sh", "-c", &format!("umask {umask}; exec \"$@\""), "sh"], &command)
        });
        daemon.wait_until_up();
        daemon.wait_for("filled", |pool| pool.ready_pages == Pages(2));
        let modes = modes(daemon.scratch());
        daemon.terminate();
        modes
    };
    let usual = seen("022");
    for umask in ["0", "077", "777"] {
        assert_eq!(seen(umask), usual, "umask {umask}");
    }
}
