// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use linux::{Errno, LeaseDir};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use tempfile::TempDir;
use testkit::child;
use testkit::hugepages::{self, MIB_2};

const NO_TIMEOUT: Option<Duration> = Some(Duration::ZERO);
/// Long enough for a loaded machine; the tests that pass do not wait for it.
const LONG_TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn leases() -> (TempDir, LeaseDir) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let leases = LeaseDir::open(dir.path()).unwrap();
    (dir, leases)
}

#[test]
fn a_lease_lives_as_long_as_the_clients_end() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    assert!(!daemon.has_ended().unwrap());
    drop(client);
    assert!(daemon.has_ended().unwrap());
    assert!(daemon.wait(NO_TIMEOUT).unwrap());
}

#[test]
fn the_last_copy_counts_and_sigkill_closes_it() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    let holder = child::fork(|ready| {
        ready.signal();
        ready.hold()
    });
    holder.wait_ready();
    drop(client);
    assert!(!daemon.has_ended().unwrap(), "the child has a copy");
    holder.kill();
    assert!(daemon.wait(LONG_TIMEOUT).unwrap());
}

#[test]
fn a_restarted_daemon_finds_a_lease_that_is_held() {
    let _alone = child::alone();
    let (dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    drop((daemon, leases));

    // Nothing of the daemon is left but the directory.
    let restarted = LeaseDir::open(dir.path()).unwrap();
    assert_eq!(restarted.list().unwrap(), ["1"]);
    let daemon = restarted.reopen("1").unwrap().expect("the client still holds it");
    assert!(!daemon.has_ended().unwrap());
    let again = restarted.reopen("1").unwrap().expect("asking twice is harmless");
    drop(client);
    assert!(daemon.has_ended().unwrap() && again.has_ended().unwrap());
}

#[test]
fn a_restarted_daemon_learns_which_leases_ended_meanwhile() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    let holder = child::fork(|ready| {
        ready.signal();
        ready.hold()
    });
    holder.wait_ready();
    drop((client, daemon));
    // The child has copies of both ends; its read end makes the lease live.
    assert!(leases.reopen("1").unwrap().is_some());
    holder.kill();
    assert!(leases.reopen("1").unwrap().is_none(), "ended by SIGKILL while no daemon ran");
    assert!(leases.reopen("2").unwrap().is_none(), "there never was one");
    assert_eq!(leases.list().unwrap(), ["1"], "the name is left until it is removed");
    leases.remove("1").unwrap();
    assert!(leases.list().unwrap().is_empty());
}

#[test]
fn the_client_sees_whether_a_daemon_runs() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    let hung_up = || {
        let mut fds = [PollFd::new(&client, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents().contains(PollFlags::HUP)
    };
    assert!(!hung_up());
    drop(daemon);
    assert!(hung_up(), "the daemon is gone, the lease is not");
    let daemon = leases.reopen("1").unwrap().expect("still held");
    assert!(!hung_up(), "the daemon is back");
    assert!(!daemon.has_ended().unwrap());
}

#[test]
fn epoll_reports_the_end_unasked_and_edge_triggered() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (client, daemon) = leases.create("1").unwrap();
    let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&set, &daemon, EventData::new_u64(7), EventFlags::ET).unwrap();
    let wait = |seconds| {
        let mut events = Vec::with_capacity(4);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&set, spare, Some(&timeout)).unwrap();
        events
    };
    assert!(wait(0).is_empty(), "a lease that lives is silent");
    drop(client);
    let events = wait(20);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].data.u64(), 7);
    // The event structure is packed, so the flags are copied out.
    let flags = events[0].flags;
    assert!(flags.contains(EventFlags::ERR));
}

// Promise P160 (socket): Who changes a lease's FIFO, or is at work on its pipe, holds up no
// other's loan, and no start: each lease has a directory of its own.
#[test]
fn each_lease_has_a_directory_of_its_own() {
    let _alone = child::alone();
    let (dir, leases) = leases();
    let (_client, _daemon) = leases.create("1").unwrap();
    let (_other, _others) = leases.create("2").unwrap();
    let names = |dir: &Path| -> Vec<_> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let own = names(dir.path());
    assert_eq!(own.len(), 2);
    for one in &own {
        let mode = std::fs::metadata(one).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "a directory that nobody else enters");
        // The unlinked lease, in a directory with a lock of its own.
        assert!(matches!(&names(one)[..], [fifo] if !fifo.is_dir()));
    }
    leases.remove("1").unwrap();
    leases.remove("2").unwrap();
    assert!(names(dir.path()).is_empty());
    // A crash may come between the directory and its FIFO, or between their ends.
    std::fs::create_dir(dir.path().join("3")).unwrap();
    assert_eq!(leases.list().unwrap(), ["3"]);
    assert!(leases.reopen("3").unwrap().is_none());
    leases.remove("3").unwrap();
    assert!(leases.list().unwrap().is_empty());
}

#[test]
fn an_id_is_used_once_and_is_one_name() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (_client, _daemon) = leases.create("1").unwrap();
    assert_eq!(leases.create("1").unwrap_err().errno(), Some(Errno::EXIST));
    assert!(leases.create("../1").is_err());
    assert!(leases.reopen("..").is_err());
}

#[test]
fn non_lease_files_are_not_listed() {
    let _alone = child::alone();
    let (dir, leases) = leases();
    std::fs::write(dir.path().join("note"), "").unwrap();
    assert!(leases.list().unwrap().is_empty());
}

#[test]
fn leases_can_lie_on_the_hugetlbfs_itself() {
    let _alone = child::alone();
    let Some(mount) = hugepages::mounted(MIB_2) else { return };
    let leases = LeaseDir::open(mount.path()).unwrap();
    let (client, daemon) = leases.create("1").unwrap();
    drop(daemon);
    let daemon = leases.reopen("1").unwrap().expect("held");
    drop(client);
    assert!(daemon.has_ended().unwrap());
    assert!(leases.reopen("1").unwrap().is_none());
}

#[test]
fn a_wait_has_an_end() {
    let _alone = child::alone();
    let (_dir, leases) = leases();
    let (_client, daemon) = leases.create("1").unwrap();
    let begun = std::time::Instant::now();
    assert!(!daemon.wait(Some(Duration::from_millis(30))).unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(30));
}
