// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket: crowds, halves, floods, and peers that never read.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use linux::Mapping;
use prezero_tests::MapAlone as _;
use prezero_tests::Page;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};
use testkit::child::{Child, Ready, fork};

use crate::attack::{Attack, POOL, WORKERS};
use crate::scene::{Got, Scene, call, errno, error_of, message};
use crate::stage::Stage;
use crate::users::User;

/// The most descriptors in one message (`SCM_MAX_FD`).
pub(crate) const MAX_FDS: usize = 253;

/// Sends bytes with descriptors.
pub(crate) fn send_descriptors(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "at most {MAX_FDS} descriptors");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// An answer with its descriptors.
pub(crate) fn receive(socket: &UnixStream) -> (Value, Vec<OwnedFd>) {
    let (mut answer, mut fds) = (Vec::new(), Vec::new());
    while answer.last() != Some(&0) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(socket, pieces, &mut control, flags).map_or(0, |m| m.bytes);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got == 0 {
            return (json!({ "error": "hung up" }), fds);
        }
        answer.extend(&bytes[..got]);
    }
    answer.pop();
    (serde_json::from_slice(&answer).expect("JSON"), fds)
}

/// As many descriptors as the machine allows one process.
pub(crate) fn as_many_as_can_be() {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(Resource::Nofile, most).expect("up to the hard limit");
}

/// Connections as many as asked for or there are, and how many of them are hung up on.
pub(crate) fn crowd(scene: &Scene<'_>, wanted: usize) -> Vec<UnixStream> {
    as_many_as_can_be();
    let mut crowd = Vec::new();
    while crowd.len() < wanted {
        match scene.socket() {
            Ok(stream) => crowd.push(stream),
            Err(_) => break,
        }
    }
    crowd
}

fn hung_up(crowd: &[UnixStream]) -> usize {
    let ended = |stream: &&UnixStream| {
        stream.set_nonblocking(true).expect("a socket");
        let mut byte = [0];
        !matches!(Read::read(&mut &**stream, &mut byte),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    crowd.iter().filter(ended).count()
}

fn flood_with_descriptors(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    let stream = scene.socket().expect("everybody may connect");
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let fds = [null.as_fd(); MAX_FDS];
    let (mut sent, mut refused) = (0, String::new());
    for round in 0..400 {
        match send_descriptors(&stream, b"[", &fds) {
            Ok(_) => sent += fds.len(),
            Err(error) => refused = error.kind().to_string(),
        }
        if round == 100 {
            scene.set_up();
        }
        if !refused.is_empty() && round > 100 {
            break;
        }
    }
    scene.wait();
    let most = if sent > 40_000 { "its descriptors closed" } else { "hung up on" };
    Ok(most.to_owned())
}

pub(crate) fn descriptors_in_an_unfinished_message_cause_no_shortage(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower] {
        let name = format!("descriptors in an unfinished message, {}", user.name());
        Attack::new(name, user, flood_with_descriptors).run(stage);
    }
}

fn idle_crowd(scene: &mut Scene<'_>, wanted: usize) -> Got {
    // What one user may have where there are descriptors enough; a stranger may have none.
    const MAX_FDS: usize = 1024;
    let crowd = crowd(scene, wanted);
    scene.set_up();
    scene.wait();
    let begun = Instant::now();
    while hung_up(&crowd) + MAX_FDS < wanted {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(format!("only {} of {wanted} are hung up on", hung_up(&crowd)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(format!("all but {MAX_FDS} of {wanted} at least hung up on"))
}

pub(crate) fn idle_crowds_lock_no_user_out(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower, User::Zeroer] {
        let name = format!("4200 idle connections of a {}", user.name());
        Attack::new(name, user, |scene| idle_crowd(scene, 4200)).run(stage);
    }
}

fn half_messages(scene: &mut Scene<'_>, wanted: usize) -> Got {
    let crowd = crowd(scene, wanted);
    let half = vec![b'['; 60_000];
    for mut stream in &crowd {
        stream.set_nonblocking(true).expect("a socket");
        let _ = stream.write_all(&half);
    }
    scene.set_up();
    scene.wait();
    let ended = hung_up(&crowd);
    Ok(format!("{ended} of {} hung up on", crowd.len()))
}

pub(crate) fn half_messages_cost_no_memory_for_good(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower] {
        let name = format!("1000 halves of 60 kB by a {}", user.name());
        Attack::new(name, user, |scene| half_messages(scene, 1000)).run(stage);
    }
}

/// Asks again and again and leaves the answers, until the daemon stops reading.
fn deaf_crowd(scene: &mut Scene<'_>, wanted: usize) -> Got {
    let crowd = crowd(scene, wanted);
    Ok(ask_and_never_read(scene, &crowd, &message("GetStatus", &json!({})).repeat(600)))
}

/// Sends as much as each connection takes, again and again, and leaves the answers.
pub(crate) fn ask_and_never_read(
    scene: &mut Scene<'_>,
    crowd: &[UnixStream],
    asked: &[u8],
) -> String {
    scene.set_up();
    while !scene.over() {
        for mut stream in crowd {
            stream.set_nonblocking(true).expect("a socket");
            let _ = stream.write(asked);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    "its answers, unread".to_owned()
}

pub(crate) fn peers_that_do_not_read_delay_no_user(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower] {
        let name = format!("400 deaf pipelining connections of a {}", user.name());
        let attack = Attack::new(name, user, |scene| deaf_crowd(scene, 400));
        attack.windows_of(Duration::from_secs(1)).run(stage);
    }
}

/// One that asks as fast as it can and reads all answers.
fn ask_for_ever(scene: &mut Scene<'_>) -> Got {
    let stream = scene.socket().expect("everybody may connect");
    let asked: Vec<u8> = message("GetStatus", &json!({})).repeat(64);
    let mut answers = vec![0; 1 << 16];
    scene.set_up();
    stream.set_nonblocking(true).expect("a socket");
    let mut got = 0;
    while !scene.over() {
        let _ = (&stream).write(&asked);
        while let Ok(read @ 1..) = (&stream).read(&mut answers) {
            got += answers[..read].iter().filter(|byte| **byte == 0).count();
        }
    }
    Ok(if got > 0 { "its answers".to_owned() } else { "hung up on".to_owned() })
}

pub(crate) fn endless_callers_delay_no_other_user(stage: &mut Stage) {
    Attack::new("pipelining without end", User::Borrower, ask_for_ever).run(stage);
}

/// Calls that wait for pages, while blocks are held that were returned.
fn drain_and_wait(scene: &mut Scene<'_>) -> Got {
    const DRAINING_BLOCKS: u64 = 100;
    as_many_as_can_be();
    let mut held = Vec::new();
    for _ in 0..DRAINING_BLOCKS {
        let loan = scene.borrow(|request| request.single = false);
        let memory = loan.map_alone().expect("lent memory");
        memory.fill(0..1, 1);
        held.push(memory);
    }
    let crowd = crowd(scene, 150);
    let asked = message("Lend", &json!({ "bytes": Page::Mib2.times(130).0 }));
    scene.set_up();
    let mut answered = 0;
    while !scene.over() {
        for mut stream in &crowd {
            stream.set_nonblocking(true).expect("a socket");
            let mut answer = [0; 4096];
            answered += usize::from(matches!(stream.read(&mut answer), Ok(1..)));
            let _ = stream.write(&asked);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((crowd, held));
    Ok(if answered > 0 { "NotEnough" } else { "no answer" }.to_owned())
}

#[test]
fn waiting_for_draining_blocks_delays_no_user() {
    let config = format!("{}{WORKERS}", POOL.replace("max = 8", "max = 128"));
    let attack = Attack::new("100 draining blocks, 150 waiting loans", User::Borrower, |scene| {
        drain_and_wait(scene)
    });
    let Some(mut stage) = Stage::set(140, &config) else { return };
    attack.windows_of(Duration::from_millis(500)).run(&mut stage);
}

/// Sockets in states in which no client leaves them.
fn odd_sockets(scene: &mut Scene<'_>) -> Got {
    as_many_as_can_be();
    scene.set_up();
    let mut held = Vec::new();
    while !scene.over() {
        let Ok(mut stream) = scene.socket() else { continue };
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 256 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 256 << 20);
        stream.set_nonblocking(true).expect("a socket");
        match held.len() % 5 {
            0 => drop(stream.shutdown(Shutdown::Write)),
            1 => drop(stream.shutdown(Shutdown::Read)),
            2 => {
                let _ = stream.write_all(&message("GetStatus", &json!({})));
                let _ = stream.shutdown(Shutdown::Both);
            }
            3 => {
                // The daemon's own socket, sent to the daemon.
                let copy = stream.try_clone().expect("a copy");
                let _ = send_descriptors(&stream, b"[", &[copy.as_fd(), stream.as_fd()]);
            }
            _ => {
                let _ = stream.write_all(&message("Watch", &json!({ "interval_ms": 0 })));
            }
        }
        held.push(stream);
        if held.len() > 200 {
            held.clear();
        }
    }
    Ok("nothing".to_owned())
}

pub(crate) fn half_closed_and_oversized_sockets_delay_no_user(stage: &mut Stage) {
    for user in [User::Stranger, User::Borrower] {
        let name = format!("half-closed, huge and self-sent sockets of a {}", user.name());
        Attack::new(name, user, odd_sockets).run(stage);
    }
}

/// A crowd that borrows all ready pages and dies with the answer in its queue.
fn lend_and_die(scene: &mut Scene<'_>) -> Got {
    scene.set_up();
    while !scene.over() {
        for _ in 0..4 {
            let Ok(mut stream) = scene.socket() else { continue };
            let _ = stream.write_all(&message("Lend", &json!({ "bytes": 2 << 20 })));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("loans that nobody took".to_owned())
}

pub(crate) fn unread_answers_return_their_loans(stage: &mut Stage) {
    Attack::new("loans whose answer nobody reads", User::Borrower, lend_and_die).run(stage);
}

/// A stranger's watch, which is a full report each time something changes.
fn watch_without_rights(scene: &mut Scene<'_>) -> Got {
    let mut stream = scene.socket().expect("everybody may connect");
    let mut asked = json!({ "method": "io.prezero.Watch", "parameters": {}, "more": true })
        .to_string()
        .into_bytes();
    asked.push(0);
    let _ = stream.write_all(&asked);
    scene.set_up();
    scene.wait();
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).unwrap_or(0);
    let answer = String::from_utf8_lossy(&answer[..read]);
    if answer.contains("ready_pages") {
        return Err(format!("a stranger is told {answer}"));
    }
    Ok(if read == 0 { "hung up on".to_owned() } else { "NotPermitted".to_owned() })
}

pub(crate) fn stranger_learns_nothing(stage: &mut Stage) {
    Attack::new("Watch without rights", User::Stranger, watch_without_rights).run(stage);
    let all = |scene: &mut Scene<'_>| {
        scene.set_up();
        let calls = [
            ("GetStatus", json!({})),
            ("Lend", json!({ "bytes": 2 << 20 })),
            ("TakeZeroing", json!({})),
            ("FinishZeroing", json!({ "job": 1, "pages_done": 1 })),
            ("Release", json!({})),
            (
                "Configure",
                json!({ "change":
                { "node": 0, "page_bytes": 2 << 20, "pages_per_block": 1 } }),
            ),
        ];
        let mut got = Vec::new();
        for (method, parameters) in calls {
            let mut stream = scene.socket().expect("everybody may connect");
            let error = error_of(&call(&mut stream, method, &parameters));
            if error.starts_with("granted") {
                return Err(format!("{method} by a stranger: {error}"));
            }
            got.push(error);
        }
        scene.wait();
        got.dedup();
        Ok(got.join(", "))
    };
    Attack::new("each method without rights", User::Stranger, all).run(stage);
}

/// Memory mapped from a descriptor that another process was sent.
pub(crate) fn a_mapping_of_a_lease_is_refused(stage: &mut Stage) {
    let attack = |scene: &mut Scene<'_>| {
        let loan = scene.borrow(|_| {});
        scene.set_up();
        let lease = loan.lease().expect("a loan that is held by its lease");
        let mapped = Mapping::map(lease, 2 << 20, Page::Mib2.size());
        scene.wait();
        match mapped {
            Ok(_) => Err("the lease can be mapped".to_owned()),
            refused => Ok(errno(refused)),
        }
    };
    Attack::new("mmap of the lease", User::Borrower, attack).run(stage);
}

/// Unread watches: each change is a report for each.
fn watch_and_not_read(scene: &mut Scene<'_>) -> Got {
    let crowd = crowd(scene, 300);
    let asked = json!({
        "method": "io.prezero.Watch", "parameters": { "interval_ms": 0 }, "more": true,
    });
    let asked = [asked.to_string().as_bytes(), &[0]].concat();
    for mut stream in &crowd {
        let _ = stream.write_all(&asked);
    }
    scene.set_up();
    scene.wait();
    Ok("its reports, unread".to_owned())
}

pub(crate) fn unread_watches_delay_no_user(stage: &mut Stage) {
    Attack::new("300 unread watches", User::Borrower, watch_and_not_read).run(stage);
}

/// Copies of one descriptor, as many as there may be.
pub(crate) fn copies(fd: impl AsFd) -> Vec<OwnedFd> {
    as_many_as_can_be();
    let copy = || fd.as_fd().try_clone_to_owned().ok();
    (0..15_000).map_while(|_| copy()).collect()
}

/// Processes with epoll sets that watch each of them for all events.
pub(crate) fn watchers(copies: &[OwnedFd], processes: usize) -> Vec<Child> {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    let watch = |ready: &Ready| {
        let set = create(CreateFlags::CLOEXEC).expect("a set");
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::PRI | EventFlags::ET;
        for copy in copies {
            if add(&set, copy, EventData::new_u64(0), flags).is_err() {
                break;
            }
        }
        ready.signal();
        ready.hold()
    };
    let watchers: Vec<_> = (0..processes).map(|_| fork(watch)).collect();
    watchers.iter().for_each(Child::wait_ready);
    watchers
}

/// A send to a socket, or a read from it, wakes all who wait for it: here a hundred thousand.
fn wake_many(scene: &mut Scene<'_>) -> Got {
    let stream = scene.socket().expect("everybody may connect");
    let copies = copies(&stream);
    let sleepers = watchers(&copies, 8);
    let asked: Vec<u8> = message("GetStatus", &json!({})).repeat(16);
    let mut answers = vec![0; 1 << 16];
    scene.set_up();
    stream.set_nonblocking(true).expect("a socket");
    while !scene.over() {
        let _ = (&stream).write(&asked);
        while let Ok(1..) = (&stream).read(&mut answers) {}
    }
    drop(sleepers);
    Ok(format!("{} watchers of one socket", copies.len() * 8))
}

/// The same sockets, watched before they are connected: hanging up wakes the watchers.
fn connect_with_many_groups(scene: &mut Scene<'_>) -> Got {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };
    let address = SocketAddrUnix::new(scene.daemon.socket()).expect("a short path");
    scene.set_up();
    let (mut sockets, mut refused) = (0, 0);
    while !scene.over() || sockets == 0 {
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = socket_with(unix, stream, SocketFlags::CLOEXEC, None).expect("a socket");
        let copies = copies(&socket);
        let sleepers = watchers(&copies, 2);
        refused += usize::from(connect(&socket, &address).is_err());
        sockets += 1;
        drop(sleepers);
    }
    Ok(if refused < sockets { "hung up on" } else { "refused" }.to_owned())
}

pub(crate) fn socket_that_wakes_many_delays_no_user(stage: &mut Stage) {
    Attack::new("epoll watchers of one socket", User::Borrower, wake_many).run(stage);
    Attack::new("watched sockets that knock", User::Stranger, connect_with_many_groups).run(stage);
}
