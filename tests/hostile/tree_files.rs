// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open files of the control tree: one user has a limit, and names cost nothing.

use std::fs::File;
use std::io::{self, Read, Seek};

use linux::Errno;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create, wait};
use rustix::fs::{Mode, OFlags};

use crate::attack::Attack;
use crate::many_groups::Growth;
use crate::scene::{Got, Scene};
use crate::socket::as_many_as_can_be;
use crate::stage::Stage;
use crate::tree::{LOOK, domain, has_fuse};
use crate::users::User;

/// The limit on the daemon's memory for a hundred thousand names.
const NEXT_TO_NOTHING_KIB: u64 = 2 << 10;

/// Whether that is the daemon's word that there are enough.
fn no_more_files(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| matches!(errno, Errno::MFILE | Errno::NFILE))
}

/// Opens 15,000 files of the tree, reads each, and waits for news of each where it is to.
fn hold_files(scene: &mut Scene<'_>, is_polled: bool) -> Got {
    as_many_as_can_be();
    let growth = Growth::new(scene.daemon);
    let path = domain(scene.daemon).join("zeroed_hugepages");
    let set = create(CreateFlags::CLOEXEC).expect("a set");
    let mut held = Vec::new();
    let mut text = String::new();
    while held.len() < 15_000 {
        match File::open(&path) {
            Ok(mut file) => {
                let _ = file.read_to_string(&mut text);
                if is_polled {
                    let data = EventData::new_u64(held.len() as u64);
                    add(&set, &file, data, EventFlags::PRI | EventFlags::ERR).expect("a watch");
                }
                held.push(file);
            }
            Err(error) if no_more_files(&error) => break,
            Err(error) => return Err(format!("open: {error}")),
        }
    }
    scene.set_up();
    while !scene.over() {
        let mut events = Vec::with_capacity(4096);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let _ = wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&now));
        for event in events {
            let at = usize::try_from(event.data.u64()).expect("an index");
            let _ = held[at].rewind();
            let _ = held[at].read_to_string(&mut text);
            text.clear();
        }
    }
    let is_bounded = held.len() < 15_000;
    held.truncate(held.len().saturating_sub(16));
    growth.judge()?;
    let most = if is_bounded { "bounded" } else { "as many as it wants" };
    Ok(format!("open files: {most}"))
}

pub(crate) fn open_files_of_the_tree_are_bounded_by_user(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    let open = |scene: &mut Scene<'_>| hold_files(scene, false);
    Attack::new("60,000 open files of the tree", User::Stranger, open)
        .attackers(4)
        .also(LOOK)
        .run(stage);
    let poll = |scene: &mut Scene<'_>| hold_files(scene, true);
    Attack::new("45,000 polled files of the tree", User::Stranger, poll)
        .attackers(3)
        .also(LOOK)
        .run(stage);
}

/// Has files of the tree without opening them: the kernel keeps their inodes.
fn hold_paths(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    let growth = Growth::new(scene.daemon);
    let path = domain(scene.daemon).join("zeroed_hugepages");
    let open = |_| rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    let mut held: Vec<_> = (0..30_000).map_while(open).collect();
    scene.set_up();
    scene.wait();
    // Its own look at the daemon needs some.
    held.truncate(held.len().saturating_sub(16));
    growth.within(NEXT_TO_NOTHING_KIB)?;
    Ok(if held.is_empty() { "none" } else { "names, which cost the daemon nothing" }.to_owned())
}

pub(crate) fn names_of_the_tree_cost_the_daemon_no_memory(stage: &mut Stage) {
    if !has_fuse() {
        return;
    }
    Attack::new("O_PATH descriptors of the tree", User::Stranger, hold_paths)
        .attackers(4)
        .also(LOOK)
        .run(stage);
}
