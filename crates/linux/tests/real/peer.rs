// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use linux::peer::{self, MAX_GROUPS, Peer, PeerGroups};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use testkit::{child, skip};

#[test]
fn a_pair_of_ones_own_is_oneself() {
    let _alone = child::alone();
    let (one, _two) = UnixStream::pair().unwrap();
    let peer = Peer::from_socket(&one).unwrap();
    assert_eq!(peer.pid, Some(std::process::id()));
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    assert!(!PeerGroups::from_socket(&one).unwrap().contains(987_654));
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
    let groups: Vec<u32> = (2000..).take(MAX_GROUPS).collect();
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
    let peer = Peer::from_socket(&stream).unwrap();
    assert_eq!(
        (peer.pid, peer.uid, peer.gid),
        (Some(client.pid()), 0, 1999),
        "as it was at connect"
    );
    assert_eq!(PeerGroups::from_socket(&stream).unwrap(), PeerGroups::Known(groups));

    assert!(!peer::has_ended(&stream, Duration::ZERO).unwrap());
    client.kill();
    assert!(peer::has_ended(&stream, Duration::ZERO).unwrap());
}

// Promise P245.
#[test]
fn peer_with_too_many_groups_is_in_none_of_them() {
    let _alone = child::alone();
    if !rustix::process::geteuid().is_root() {
        return skip("65,536 groups need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    for count in [MAX_GROUPS + 1, 65_536] {
        let client = child::fork(|ready| {
            let ids: Vec<Gid> = (0..).take(count).map(Gid::from_raw).collect();
            set_thread_groups(&ids).unwrap();
            let _stream = UnixStream::connect(&path).unwrap();
            ready.signal();
            ready.hold()
        });
        let (stream, _) = listener.accept().unwrap();
        client.wait_ready();
        let groups = PeerGroups::from_socket(&stream).unwrap();
        assert_eq!((&groups, groups.contains(0)), (&PeerGroups::TooMany, false), "{count}");
    }
}

#[test]
fn listener_of_an_inherited_socket_is_the_process_that_listened() {
    let _alone = child::alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    assert!(!peer::has_ended(&stream, Duration::ZERO).unwrap(), "this process has it");
    // The last listener owns it.
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
    let error = Peer::from_socket(&file).unwrap_err().to_string();
    assert!(error.contains("</proc/version>, SOL_SOCKET, SO_PEERCRED) = errno"), "{error}");
}
