// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use linux::peer::{self, Peer};
use linux::testkit::{child, skip};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

#[test]
fn a_pair_of_ones_own_is_oneself() {
    let _alone = child::alone();
    let (one, _two) = UnixStream::pair().unwrap();
    let peer = Peer::of(&one).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert!(peer.in_group(rustix::process::getegid().as_raw()));
    assert!(!peer.in_group(987_654));
}

#[test]
fn another_user_is_seen_with_all_its_groups() {
    let _alone = child::alone();
    if !rustix::process::geteuid().is_root() {
        return skip("becoming another user needs root");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // More groups than the first buffer holds.
    let groups: Vec<u32> = (2000..2100).collect();
    let client = child::fork(|ready| {
        let ids: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&ids).unwrap();
        set_thread_gid(Gid::from_raw(1999)).unwrap();
        // Connected before the user changes again: the socket is in root's directory.
        let stream = UnixStream::connect(&path).unwrap();
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        ready.signal();
        let _stream = stream;
        ready.hold()
    });
    let (stream, _) = listener.accept().unwrap();
    client.wait_ready();
    let peer = Peer::of(&stream).unwrap();
    assert_eq!(
        (peer.pid, peer.uid, peer.gid),
        (Some(client.pid()), 0, 1999),
        "as it was at connect"
    );
    assert_eq!(peer.groups, groups);
    assert!(peer.in_group(1999) && peer.in_group(2099) && !peer.in_group(2100));

    assert!(!peer::has_ended(&stream, Duration::ZERO).unwrap());
    client.kill();
    assert!(peer::has_ended(&stream, Duration::ZERO).unwrap());
}

#[test]
fn of_a_socket_that_is_handed_on_the_listener_is_who_listened() {
    let _alone = child::alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    assert!(!peer::has_ended(&stream, Duration::ZERO).unwrap(), "this process has it");
    // Who listens last is whose it is.
    let heir = child::fork(|ready| {
        rustix::net::listen(&listener, 8).unwrap();
        ready.signal();
        ready.hold()
    });
    heir.wait_ready();
    let stream = UnixStream::connect(&path).unwrap();
    assert!(!peer::has_ended(&stream, Duration::from_millis(10)).unwrap(), "the child has it");
    heir.kill();
    let stream = UnixStream::connect(&path).unwrap();
    assert!(peer::has_ended(&stream, Duration::ZERO).unwrap(), "though it is open here");
}

#[test]
fn a_file_has_no_peer() {
    let file = std::fs::File::open("/proc/version").unwrap();
    let error = Peer::of(&file).unwrap_err().to_string();
    assert!(error.contains("</proc/version>, SOL_SOCKET, SO_PEERCRED) = errno"), "{error}");
}
