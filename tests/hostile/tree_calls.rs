// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls on the control tree by many threads: users take turns there as well, and none makes the
//! daemon do what takes its time.

use std::ffi::CStr;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use linux::kernel::{Device, WatchFor};
use prezero_tests::Daemon;
use units::{Domain, Node, PageSize, Pages};

use crate::attack::Attack;
use crate::many_groups::SUPPLY;
use crate::scene::{Got, Scene, errno};
use crate::stage::Stage;
use crate::tree::{LOOK, has_fuse};
use crate::users::User;

const MEMINFO: &CStr = c"/sys/devices/system/node/node0/meminfo";
const DOMAIN: Domain = Domain { node: Node(0), page_size: PageSize::MIB_2 };

fn device(daemon: &Daemon) -> PathBuf {
    daemon.tree().join("hugepagectl")
}

/// Has this number of threads call until the scene is over; returns the last answer.
fn call(scene: &mut Scene<'_>, threads: usize, act: fn(&Device) -> String) -> Got {
    let path = device(scene.daemon);
    scene.set_up();
    let scene = &*scene;
    let calls = |_: usize| {
        let device = Device::open_at(&path).expect("everybody may open it");
        let mut last = String::new();
        while !scene.over() {
            last = act(&device);
        }
        last
    };
    let mut said = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|at| scope.spawn(move || calls(at))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).collect::<Vec<_>>()
    });
    said.sort_unstable();
    said.dedup();
    Ok(said.join(", "))
}

fn watch(device: &Device) -> String {
    let low = WatchFor { min_zeroed: Pages(1), only_if_zeroable: false, min_interval_ms: 0 };
    errno(device.watch(DOMAIN, low))
}

fn zero(device: &Device) -> String {
    errno(device.zero(DOMAIN, Pages(1)))
}

fn query(device: &Device) -> String {
    errno(device.query(DOMAIN))
}

/// Only refused calls.
fn refused(got: Got) -> Got {
    match got {
        Ok(said) if said != "EPERM" => Err(format!("a stranger's ioctl got: {said}")),
        got => got,
    }
}

pub(crate) fn refused_ioctls_delay_no_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let eight = |scene: &mut Scene<'_>| refused(call(scene, 8, watch));
    Attack::new("refused ioctls by 8 threads", User::Stranger, eight).also(LOOK).run(stage);
}

pub(crate) fn refused_ioctls_of_many_groups_delay_no_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let who = User::StrangerOfManyGroups;
    let one = |scene: &mut Scene<'_>| refused(call(scene, 1, watch));
    Attack::new("refused ioctls of 65,536 groups", who, one).also(LOOK).run(stage);
    let eight = |scene: &mut Scene<'_>| refused(call(scene, 8, zero));
    Attack::new("the same by 8 threads", who, eight).also(LOOK).also(SUPPLY).run(stage);
}

/// What its group may, through a file that it has opened to read.
fn watch_as_a_member(scene: &mut Scene<'_>) -> Got {
    match call(scene, 1, watch) {
        Ok(said) if said != "ok" => Err(format!("a member's WATCH got: {said}")),
        got => got,
    }
}

pub(crate) fn ioctls_of_the_zeroing_group_are_granted(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    Attack::new("WATCH by a member", User::Zeroer, watch_as_a_member).also(LOOK).run(stage);
}

/// Asks for a node's memory beside threads that hold the locks of sysfs.
fn query_beside_hogs(scene: &mut Scene<'_>) -> Got {
    let ends = Instant::now() + Duration::from_secs(2);
    let hogs: Vec<_> = (0..60)
        .map(|_| {
            std::thread::spawn(move || {
                crate::raw::idle();
                while Instant::now() < ends {
                    drop(File::open("/sys/devices/system/node/node0/meminfo"));
                }
            })
        })
        .collect();
    let got = call(scene, 4, query);
    // They end with their process.
    drop(hogs);
    got
}

pub(crate) fn queries_beside_holders_of_sysfs_delay_no_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let four = |scene: &mut Scene<'_>| call(scene, 4, query);
    Attack::new("QUERY by 4 threads", User::Stranger, four).also(LOOK).run(stage);
    Attack::new("the same beside 60 idle threads in sysfs", User::Stranger, query_beside_hogs)
        .also(LOOK)
        .run(stage);
}

/// Asks for a node's memory, and looks who opens the file that says it.
pub(crate) fn queries_open_no_file(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let opened = (|| -> std::io::Result<usize> {
        let class = libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_CLOEXEC;
        let events = crate::raw::fanotify(class, libc::FAN_OPEN, MEMINFO)?;
        let device = Device::open_at(&device(&stage.daemon)).map_err(std::io::Error::other)?;
        for _ in 0..20 {
            device.query(DOMAIN).map_err(std::io::Error::other)?;
        }
        Ok(crate::raw::openers(&events).filter(|pid| *pid == stage.daemon.pid()).count())
    })();
    match opened {
        Ok(0) => {}
        Ok(_) => stage.record("QUERY opened a file of sysfs".to_owned()),
        Err(error) => stage.record(format!("who opens files of sysfs cannot be seen: {error}")),
    }
}
