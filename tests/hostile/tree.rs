// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control tree: files that every user may look at, and some may write.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::time::Duration;

use linux::fuse;
use prezero_tests::Daemon;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::skip;

use crate::attack::{Attack, POOL, WORKERS};
use crate::groups::Throttled;
use crate::scene::{Got, Scene};
use crate::socket::{copies, watchers};
use crate::stage::Stage;
use crate::users::User;
use crate::victim::{Clock, Victim};

pub(crate) fn domain(daemon: &Daemon) -> PathBuf {
    daemon.tree().join("node0/hugepages/hugepages-2048kB")
}

/// Root's own look at the tree.
pub(crate) const LOOK: Victim = Victim { what: "read of the tree", user: User::Root, act: look };
/// Root's own order of a page.
const ORDER: Victim = Victim { what: "write to the tree", user: User::Root, act: order };

/// The same by another member of the group that may.
const ORDER_OF_ANOTHER: Victim =
    Victim { what: "another user's write", user: User::Operator, act: order };

fn look(daemon: &Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let read = fs::read_to_string(domain(daemon).join("zeroable_hugepages"));
    let took = clock.stop();
    read.map(|_| took).map_err(|error| format!("read of the tree: {error}"))
}

fn order(daemon: &Daemon) -> Result<Duration, String> {
    let clock = Clock::start(daemon);
    let file = OpenOptions::new().write(true).open(domain(daemon).join("zeroable_hugepages"));
    let written = file.and_then(|mut file| file.write_all(b"1\n"));
    let took = clock.stop();
    written.map(|()| took).map_err(|error| format!("write to the tree: {error}"))
}

pub(crate) fn has_fuse() -> bool {
    let has = fuse::open_device().is_ok();
    if !has {
        skip("no FUSE here");
    }
    has
}

fn config() -> String {
    format!("{POOL}[tree]\nenabled = true\n{WORKERS}")
}

/// Looks at existing and missing names as fast as it can.
fn stat_storm(scene: &mut Scene<'_>) -> Got {
    let domain = domain(scene.daemon);
    let long = "n".repeat(300);
    scene.set_up();
    let mut stats = 0_u64;
    while !scene.over() {
        for name in ["zeroable_hugepages", "zeroed_hugepages", "..", "nothing", &long] {
            let _ = fs::metadata(domain.join(name));
            stats += 1;
        }
        let _ = fs::metadata(domain.join(format!("x{stats}")));
        let _ = fs::read_dir(&domain).map(Iterator::count);
    }
    Ok("what everybody may see".to_owned())
}

pub(crate) fn reads_of_the_tree_delay_no_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    Attack::new("stat and readdir storm on the tree", User::Stranger, stat_storm)
        .also(LOOK)
        .run(stage);
}

/// Each change wakes all who poll a file: here a hundred thousand.
fn wake_many(scene: &mut Scene<'_>) -> Got {
    let file = File::open(domain(scene.daemon).join("zeroed_hugepages")).expect("everybody may");
    let copies = copies(&file);
    let sleepers = watchers(&copies, 8);
    scene.set_up();
    while !scene.over() {
        // Each look arms the bell again.
        let mut text = String::new();
        let _ = (&file).seek(std::io::SeekFrom::Start(0));
        let _ = (&file).read_to_string(&mut text);
        let mut fds = [PollFd::new(&file, PollFlags::PRI)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 }));
    }
    drop(sleepers);
    Ok(format!("{} watchers of one file", copies.len() * 8))
}

pub(crate) fn tree_file_that_wakes_many_delays_no_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    Attack::new("epoll watchers of a file of the tree", User::Stranger, wake_many)
        .also(LOOK)
        .run(stage);
}

/// Writes, cuts and controls that are not its to do.
fn write_without_rights(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let domain = domain(scene.daemon);
    let mut errors = Vec::new();
    let mut tried = |what: &str, result: std::io::Result<()>| match result {
        Ok(()) => Err(format!("{what} of the tree was granted to a stranger")),
        Err(error) => {
            errors.push(format!("{:?}", error.kind()));
            Ok(())
        }
    };
    for name in ["zeroable_hugepages", "zeroed_hugepages"] {
        let path = domain.join(name);
        tried("a write", OpenOptions::new().write(true).open(&path).map(drop))?;
        tried("a cut", OpenOptions::new().write(true).truncate(true).open(&path).map(drop))?;
        tried("a removal", fs::remove_file(&path))?;
        tried("a rename", fs::rename(&path, domain.join("other")))?;
        tried("a link", fs::hard_link(&path, domain.join("other")))?;
        tried(
            "a mode",
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)),
        )?;
    }
    tried("a new file", File::create(domain.join("new")).map(drop))?;
    scene.wait();
    errors.sort_unstable();
    errors.dedup();
    Ok(errors.join(", "))
}

pub(crate) fn the_tree_is_written_by_its_group_only(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    Attack::new("writes to the tree without rights", User::Stranger, write_without_rights)
        .also(LOOK)
        .run(stage);
}

/// Endless orders, from users that may: root's own order has a place all the same.
fn hold_places(scene: &mut Scene<'_>) -> Got {
    let path = domain(scene.daemon).join("zeroable_hugepages");
    scene.set_up();
    let mut got = Vec::new();
    while !scene.over() {
        let written =
            OpenOptions::new().write(true).open(&path).and_then(|mut f| f.write_all(b"1\n"));
        let text = written.map_or_else(|e| format!("{:?}", e.kind()), |()| "ok".to_owned());
        if !got.contains(&text) {
            got.push(text);
        }
    }
    Ok(got.join(", "))
}

pub(crate) fn writers_of_the_tree_leave_room_for_root(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let idle = |scene: &mut Scene<'_>| {
        crate::raw::idle();
        hold_places(scene)
    };
    Attack::new("70 SCHED_IDLE writers of the tree", User::Zeroer, idle)
        .attackers(70)
        .also(ORDER)
        .windows_of(Duration::from_millis(500))
        .run(stage);
}

// Promise P49.
/// A thread without CPU time leaves its work unfinished.
#[test]
fn writers_without_cpu_time_hold_up_no_other_user() {
    if !has_fuse() {
        return;
    }
    // A block for each delegated worker of the attacker's, and some for the others.
    let config = config().replace("max = 8", "max = 24");
    let Some(mut stage) = Stage::set(32, &config) else { return };
    let Some(group) = Throttled::make() else { return };
    Attack::new("64 writers of the tree without CPU time", User::Zeroer, hold_places)
        .attackers(64)
        .throttled(&group)
        .also(ORDER)
        .also(ORDER_OF_ANOTHER)
        .windows_of(Duration::from_millis(500))
        .run(&mut stage);
}
