// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use linux::{Peer, Roots, user_ns};
use rustix::fs::Uid;
use rustix::thread::set_thread_uid;
use testkit::child::{self, Child};
use testkit::skip;

/// Users that are unknown to this machine.
const MAKER: u32 = 60_001;
const SUBORDINATES: u32 = 3_000_000;

/// A socket that every user may connect to.
fn listen(dir: &tempfile::TempDir) -> (std::path::PathBuf, UnixListener) {
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    (path, listener)
}

/// The view of a child that connects as user 5 of a namespace that `maker` made.
fn seen(maker: u32, ends: bool) -> (u32, linux::Result<Option<u32>>) {
    let dir = tempfile::tempdir().unwrap();
    let (path, listener) = listen(&dir);
    let child: Child = child::fork(|ready| {
        set_thread_uid(Uid::from_raw(maker)).unwrap();
        child::enter_user_namespace(ready, 5);
        let _stream = UnixStream::connect(&path).unwrap();
        if ends { 0 } else { ready.hold() }
    });
    child.wait_ready();
    child.map_users(0, SUBORDINATES, 10);
    let (stream, _) = listener.accept().unwrap();
    if ends {
        child.wait_exited();
    }
    let peer = Peer::from_socket(&stream).unwrap();
    (peer.uid, user_ns::maker(&Roots::default(), &stream, &peer))
}

// Promise P35.
#[test]
fn a_user_of_a_namespace_is_its_makers() {
    let _alone = child::alone();
    if !rustix::process::geteuid().is_root() {
        return skip("mapping users needs root");
    }
    let (uid, maker) = seen(MAKER, false);
    assert_eq!((uid, maker.unwrap()), (SUBORDINATES + 5, Some(MAKER)));
    let (uid, maker) = seen(0, false);
    assert_eq!((uid, maker.unwrap()), (SUBORDINATES + 5, None), "root's are containers");
}

// Promise P35.
#[test]
fn ended_peer_has_no_known_user() {
    let _alone = child::alone();
    if !rustix::process::geteuid().is_root() {
        return skip("mapping users needs root");
    }
    let (_, maker) = seen(MAKER, true);
    assert!(maker.unwrap_err().is_not_found());
}

#[test]
fn a_process_beside_ours_is_its_own() {
    let _alone = child::alone();
    let (one, _two) = UnixStream::pair().unwrap();
    let peer = Peer::from_socket(&one).unwrap();
    assert_eq!(user_ns::maker(&Roots::default(), &one, &peer).unwrap(), None);
}

// Promise P206 (years): A kernel without user namespaces refuses no user: every number is a user
// of its own.
#[test]
fn without_user_namespaces_every_user_is_its_own() {
    let _alone = child::alone();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("self/ns")).unwrap();
    let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
    let (one, _two) = UnixStream::pair().unwrap();
    let peer = Peer::from_socket(&one).unwrap();
    assert_eq!(user_ns::maker(&roots, &one, &peer).unwrap(), None);
}
