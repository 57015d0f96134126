// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another user's memory: by what a borrower keeps of a block over its return.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use linux::BlockFile;
use linux::Mapping;
use prezero_tests::Page;
use rustix::fs::{Mode, OFlags};
use testkit::child::{Child, fork};

use crate::attack::Attack;
use crate::raw;
use crate::scene::{Got, Scene, outcome, path_of, path_only, spy};
use crate::socket::send_descriptors;
use crate::stage::Stage;
use crate::users::User;

/// What an attacker writes all over its memory.
const MARK: u8 = 0xA7;

/// Of in-place blocks and of those lent to an owner, the borrower owns the file: it may change its
/// mode until it does not own it any more.
fn change_modes(scene: &mut Scene<'_>, keep: bool) -> Got {
    let mut paths: Vec<OwnedFd> = Vec::new();
    let (mut loans, mut changed, mut refused) = (0, 0, 0);
    scene.set_up();
    while !scene.over() {
        let (lease, file) = scene.borrow_file(|request| {
            if keep {
                request.owner = Some(format!("o{loans}").parse().expect("a name"));
                request.keep = Some(Duration::ZERO);
            }
        });
        loans += 1;
        let memory = Mapping::map(&file, 2 << 20, Page::Mib2.size()).expect("lent memory");
        memory.fill(0..4096, MARK);
        drop(memory);
        paths.push(path_only(&file.as_fd()));
        let path = path_of(paths.last().expect("just pushed"));
        drop((file, lease));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(10) {
            match std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)) {
                Ok(()) => changed += 1,
                Err(_) => break,
            }
        }
        for path in &paths {
            match rustix::fs::open(path_of(path), OFlags::RDWR, Mode::empty()) {
                Ok(fd) => spy(fd, "O_PATH with a changed mode", MARK)?,
                Err(_) => refused += 1,
            }
        }
        if paths.len() > 16 {
            paths.remove(0);
        }
    }
    assert!(refused > 0, "it never got so far as to be refused");
    let owned = if changed > 0 { "chmod ok while it was its own, then " } else { "chmod " };
    Ok(format!("{owned}EPERM, open EACCES"))
}

pub(crate) fn changing_the_mode_between_return_and_proof_opens_nothing(stage: &mut Stage) {
    for keep in [false, true] {
        let kept = if keep { ", kept" } else { "" };
        let name = format!("chmod through O_PATH, {}{kept}", stage.recycle);
        Attack::new(name, User::Borrower, |scene| change_modes(scene, keep)).run(stage);
        // Once the change is noticed, the block is unused until it is taken back for good. From the
        // moment when its owner is root only root can change its mode, in all later states.
        if stage.daemon.log().contains("was changed while it was taken away") {
            stage.record("a file's mode was changed after its owner was".to_owned());
        }
    }
}

/// What still refers to a block when everything that is known of it is closed.
enum Reference {
    Path(OwnedFd),
    Mapping(Mapping),
    Fork(Child),
    Descriptor(OwnedFd),
    Queue { _ends: (OwnedFd, OwnedFd) },
    Nothing,
    Pipe(OwnedFd, OwnedFd),
    Ring(Box<io_uring::IoUring>, usize),
}

type Keep = fn(&BlockFile, Mapping) -> Reference;

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    (one.into(), other.into())
}

fn keep_path(file: &BlockFile, _: Mapping) -> Reference {
    Reference::Path(path_only(&file.as_fd()))
}

fn keep_mapping(_: &BlockFile, memory: Mapping) -> Reference {
    Reference::Mapping(memory)
}

fn keep_fork(_: &BlockFile, memory: Mapping) -> Reference {
    Reference::Fork(fork(move |ready| {
        ready.signal();
        // Mapped in the child; the parent's goes when this function returns.
        let _memory = memory;
        ready.hold()
    }))
}

/// Access mode 3 (open(2)): for ioctl only.
fn keep_mode_3(file: &BlockFile, _: Mapping) -> Reference {
    let flags = OFlags::from_bits_retain(3);
    let opened = rustix::fs::open(path_of(&file.as_fd()), flags, Mode::empty());
    Reference::Descriptor(opened.unwrap_or_else(|_| path_only(&file.as_fd())))
}

fn keep_in_flight(file: &BlockFile, _: Mapping) -> Reference {
    let (one, other) = socket_pair();
    send_descriptors(&one, b"x", &[file.as_fd()]).expect("sent");
    Reference::Queue { _ends: (one, other) }
}

fn keep_in_cycle(file: &BlockFile, _: Mapping) -> Reference {
    let (one, other) = socket_pair();
    send_descriptors(&one, b"x", &[file.as_fd(), other.as_fd(), one.as_fd()]).expect("sent");
    // Both sockets are only in their own queue now.
    Reference::Nothing
}

fn keep_in_pipe(_: &BlockFile, memory: Mapping) -> Reference {
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    raw::pin_in_pipe(&into, &memory).expect("its own memory");
    Reference::Pipe(out, into)
}

fn keep_in_ring(_: &BlockFile, memory: Mapping) -> Reference {
    let ring = raw::pin_in_ring(&memory).expect("its own memory");
    Reference::Ring(Box::new(ring), memory.as_ptr().addr())
}

const REFERENCES: [(&str, Keep); 8] = [
    ("O_PATH", keep_path),
    ("access mode 3", keep_mode_3),
    ("mapping", keep_mapping),
    ("fork", keep_fork),
    ("descriptor in flight", keep_in_flight),
    ("unreachable SCM_RIGHTS cycle", keep_in_cycle),
    ("vmsplice", keep_in_pipe),
    ("io_uring buffer", keep_in_ring),
];

/// The last bytes seen through it: its own content or nothing.
fn look_through(reference: Reference) -> Got {
    let mut seen = [MARK; 4096];
    let got = match reference {
        Reference::Path(fd) | Reference::Descriptor(fd) => {
            match rustix::fs::open(path_of(&fd), OFlags::RDWR, Mode::empty()) {
                Ok(file) => spy(file, "a reference", MARK).map(|()| "a dead file".to_owned())?,
                Err(errno) => outcome::<()>(Err(errno.into())),
            }
        }
        Reference::Mapping(memory) => {
            memory.read(0, &mut seen);
            "its own content, which is draining".to_owned()
        }
        Reference::Fork(child) => {
            child.kill();
            "a block that is draining".to_owned()
        }
        Reference::Queue { .. } | Reference::Nothing => "a block that is draining".to_owned(),
        Reference::Pipe(out, into) => {
            drop(into);
            std::fs::File::from(out).read_exact(&mut seen).expect("a page in the pipe");
            "its own page".to_owned()
        }
        Reference::Ring(mut ring, at) => {
            let (out, into) = rustix::pipe::pipe().expect("a pipe");
            raw::read_pinned(&mut ring, at, &into).expect("a pinned page");
            std::fs::File::from(out).read_exact(&mut seen).expect("a page in the pipe");
            "its own page".to_owned()
        }
    };
    match seen.iter().find(|byte| **byte != MARK) {
        None => Ok(got),
        Some(byte) => Err(format!("a page that it gave back has changed: {byte:#x}")),
    }
}

fn hold_on(scene: &mut Scene<'_>, keep: Keep) -> Got {
    let mut references = Vec::new();
    for _ in 0..2 {
        let (lease, file) = scene.borrow_file(|_| {});
        let memory = Mapping::map(&file, 2 << 20, Page::Mib2.size()).expect("lent memory");
        memory.fill(0..memory.len(), MARK);
        references.push(keep(&file, memory));
        drop((file, lease));
    }
    scene.set_up();
    scene.wait();
    let mut got = String::new();
    for reference in references {
        got = look_through(reference)?;
    }
    Ok(got)
}

pub(crate) fn no_reference_reaches_the_next_borrower(stage: &mut Stage) {
    for (name, keep) in REFERENCES {
        let name = format!("reference by {name}, {}", stage.recycle);
        Attack::new(name, User::Borrower, |scene| hold_on(scene, keep)).run(stage);
    }
}
