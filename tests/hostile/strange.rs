// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other kernel features that an intruder could use.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::time::Duration;

use client::{Client, Hold, LendRequest};
use linux::Mapping;
use prezero_tests::MapAlone as _;
use prezero_tests::Page;
use rustix::fs::{Mode, OFlags};
use testkit::child::fork;

use crate::attack::Attack;
use crate::raw;
use crate::scene::{Got, Scene, outcome, path_of};
use crate::stage::Stage;
use crate::users::User;

/// The attempts and their results: harm if any was granted.
#[derive(Default)]
struct Tried {
    harm: Vec<String>,
    errors: Vec<String>,
}

impl Tried {
    fn that<T>(&mut self, what: &str, result: io::Result<T>) {
        match result {
            Ok(_) => self.harm.push(format!("{what} was granted")),
            Err(error) => {
                let text = outcome::<()>(Err(error));
                if !self.errors.contains(&text) {
                    self.errors.push(text);
                }
            }
        }
    }

    fn got(mut self) -> Got {
        self.errors.sort_unstable();
        if self.harm.is_empty() { Ok(self.errors.join(", ")) } else { Err(self.harm.join("; ")) }
    }
}

/// The daemon and its workers as processes.
fn reach_into_processes(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let pid = scene.daemon.pid();
    let mut tried = Tried::default();
    tried.that("ptrace", raw::seize(pid));
    tried.that("process_vm_readv", raw::peek(pid, 0x1000));
    tried.that("process_madvise", raw::page_out(pid, 0x1000));
    for fd in 0..40 {
        tried.that("pidfd_getfd", raw::steal(pid, fd));
    }
    for name in ["mem", "maps", "fd", "map_files", "environ", "cwd/x", "root/run", "ns/mnt", "auxv"]
    {
        let path = format!("/proc/{pid}/{name}");
        let opened = std::fs::File::open(&path).map(drop);
        let listed = std::fs::read_dir(&path).map(drop);
        tried.that(&path, if name == "fd" || name == "map_files" { listed } else { opened });
    }
    for fd in 0..40 {
        let path = CString::new(format!("/proc/{pid}/fd/{fd}")).expect("no zero byte");
        tried.that("an open by io_uring", raw::open_by_ring(&path).map(drop));
    }
    scene.wait();
    tried.got()
}

pub(crate) fn the_daemons_process_is_closed_to_users(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower, User::Zeroer] {
        let name = format!("ptrace, pidfd_getfd, /proc, io_uring open by a {}", user.name());
        Attack::new(name, user, reach_into_processes).run(stage);
    }
}

/// The daemon's directories: names to plant, files to open.
fn reach_into_directories(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let run = scene.daemon.run_dir();
    let pages = run.join("pages-2048kB");
    let mut tried = Tried::default();
    let mut round = 0;
    while !scene.over() || round == 0 {
        for dir in [scene.daemon.scratch().to_owned(), run.clone(), pages.clone()] {
            tried.that("a symbolic link", symlink("/etc/passwd", dir.join("io.prezero")));
            tried.that("a file", std::fs::write(dir.join("log2"), b"x"));
            tried.that("a directory", std::fs::create_dir(dir.join("pages-1048576kB")));
            tried.that("a rename", std::fs::rename(&dir, dir.with_extension("old")));
        }
        tried.that("the socket's end", std::fs::remove_file(scene.daemon.socket()));
        // A process that can open it could lock it, and keep the next daemon from starting.
        tried.that("the lock", std::fs::File::open(run.join("lock")).map(drop));
        tried.that("a mark of draining", std::fs::write(run.join("drained"), b""));
        for state in ["ready", "lent", "zeroing", "loans", "kept"] {
            tried.that("a list of blocks", std::fs::read_dir(pages.join(state)).map(drop));
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    tried.got()
}

pub(crate) fn the_daemons_directories_are_closed_to_users(stage: &mut Stage) {
    for user in [User::Stranger, User::Zeroer] {
        let name = format!("symlinks and renames in its directories by a {}", user.name());
        Attack::new(name, user, reach_into_directories).run(stage);
    }
}

/// The lease is a FIFO: its other end, its size, its mode.
fn play_with_the_lease(scene: &mut Scene<'_>) -> Got {
    let (lease, file) = scene.borrow_file(|_| {});
    scene.set_up();
    let mut tried = Tried::default();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY] {
        let path = path_of(&lease);
        let opened = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty());
        tried.that("another end of the lease", opened.map_err(io::Error::from));
    }
    tried.that("a mode", rustix::fs::fchmod(&lease, Mode::RWXO).map_err(io::Error::from));
    tried.that("a write", rustix::io::write(&lease, b"x").map_err(io::Error::from));
    tried.that("a lease on it", raw::fcntl(&lease, libc::F_SETLEASE, libc::F_RDLCK));
    // Its buffer is the borrower's to make larger, within its own share of pipes.
    let _ = raw::fcntl(&lease, libc::F_SETPIPE_SZ, 1 << 20);
    let _ = raw::fcntl(&lease, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK);
    scene.wait();
    drop((lease, file));
    tried.got()
}

pub(crate) fn the_lease_has_one_end_for_its_borrower(stage: &mut Stage) {
    Attack::new("the lease FIFO's other end", User::Borrower, play_with_the_lease).run(stage);
}

/// Advice and faults on lent memory that reach beyond the process.
fn poison(scene: &mut Scene<'_>) -> Got {
    let loan = scene.borrow(|_| {});
    let memory = loan.map_alone().expect("lent memory");
    memory.fill(0..memory.len(), 1);
    scene.set_up();
    let mut tried = Tried::default();
    tried.that("MADV_HWPOISON", raw::advise(&memory, libc::MADV_HWPOISON));
    tried.that("MADV_SOFT_OFFLINE", raw::advise(&memory, libc::MADV_SOFT_OFFLINE));
    let path = CString::new(format!("{}", scene.daemon.socket().display())).expect("a path");
    let content = libc::FAN_CLASS_CONTENT;
    let permission = raw::fanotify(content, libc::FAN_OPEN_PERM, &path);
    tried.that("fanotify with permission events", permission);
    let lock = raw::lock(&memory);
    scene.wait();
    drop((memory, loan));
    tried.got().map(|got| format!("{got}; mlock {}", if lock.is_ok() { "ok" } else { "ENOMEM" }))
}

pub(crate) fn poison_and_permission_events_are_roots(stage: &mut Stage) {
    Attack::new("MADV_HWPOISON, fanotify, mlock", User::Borrower, poison).run(stage);
}

/// Notices and faults of its own on a block that it returns.
fn watch_what_was_lent(scene: &mut Scene<'_>) -> Got {
    let mut got = Vec::new();
    let (lease, file) = scene.borrow_file(|_| {});
    // A block that is longer than its memory: another process answers the faults of its holes.
    file.set_len(4 << 20).expect("its own file");
    let memory = Mapping::map(&file, 4 << 20, Page::Mib2.size());
    let faults = raw::userfaultfd();
    if let (Ok(faults), Ok(memory)) = (&faults, &memory) {
        let watched = raw::watch_faults(faults, memory);
        got.push(format!("userfaultfd {}", if watched.is_ok() { "ok" } else { "refused" }));
    }
    let path = CString::new(path_of(&file.as_fd())).expect("a path");
    let class = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID;
    let notices = raw::fanotify(class, libc::FAN_OPEN | libc::FAN_CLOSE_WRITE, &path);
    got.push(format!("fanotify {}", if notices.is_ok() { "ok" } else { "refused" }));
    drop((lease, file));
    scene.set_up();
    scene.wait();
    drop((memory, faults, notices));
    Ok(got.join(", "))
}

pub(crate) fn notices_and_faults_of_returned_blocks_delay_no_user(stage: &mut Stage) {
    let name = format!("userfaultfd and fanotify on a returned block, {}", stage.recycle);
    Attack::new(name, User::Borrower, watch_what_was_lent).run(stage);
}

/// Root, but only in a namespace of its own.
fn pretend_to_be_root(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if let Err(error) = raw::unshare(libc::CLONE_NEWUSER) {
        scene.wait();
        return Ok(format!("no user namespaces: {:?}", error.kind()));
    }
    let map = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
    let mapped = map("uid_map", format!("0 {uid} 1"))
        .and_then(|()| map("setgroups", "deny".to_owned()))
        .and_then(|()| map("gid_map", format!("0 {gid} 1")));
    assert!(mapped.is_ok(), "one's own number may be mapped: {mapped:?}");
    let answers = [
        scene.client().status().map(|_| ()),
        scene.client().lend(&LendRequest::new(Page::Mib2.times(1))).map(drop),
        scene.client().release(None, None, None).map(|_| ()),
    ];
    scene.wait();
    if answers.iter().any(Result::is_ok) {
        return Err("root of a namespace of its own is root here".to_owned());
    }
    Ok("NotPermitted".to_owned())
}

pub(crate) fn root_of_a_namespace_is_a_stranger(stage: &mut Stage) {
    Attack::new("root in a user namespace", User::Stranger, pretend_to_be_root).run(stage);
}

/// Processes that die in every state, as fast as they come.
fn die_everywhere(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    let mut died = 0;
    while !scene.over() {
        let socket = scene.daemon.socket();
        let child = fork(move |ready| {
            let mut request = LendRequest::new(Page::Mib2.times(1));
            request.hold = Hold::Memory;
            let lent = Client::connect(&socket).and_then(|mut client| client.lend(&request));
            let _memory = lent.and_then(|loan| {
                let memory = loan.map_alone()?;
                memory.fill(0..memory.len(), 0xD1);
                Ok((loan, memory))
            });
            ready.signal();
            ready.hold()
        });
        std::thread::sleep(Duration::from_micros(died % 7 * 400));
        child.kill();
        died += 1;
    }
    Ok(format!("killed {}", if died > 10 { "at every step" } else { "a few times" }))
}

pub(crate) fn borrowers_that_die_at_every_step_leave_nothing(stage: &mut Stage) {
    let name = format!("SIGKILL at each step of a loan held by memory, {}", stage.recycle);
    Attack::new(name, User::Borrower, die_everywhere).attackers(2).run(stage);
}
