// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crowds: what one user can take of the daemon, and what is left of it for others.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use nix::unistd::Pid;
use prezero_tests::daemon::PATIENCE;
use prezero_tests::user::{NOBODY, on_a_thread_of};
use prezero_tests::{Daemon, Page};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};

/// Another user, who may zero.
const SOMEBODY: u32 = 65533;
/// The most connections of all users together, masters apart.
const MOST: usize = 4096;
/// What a victim's wait may become: so many times what it is without an attack, ...
const WORSE: u32 = 5;
/// ... or so much, below which a busy machine's own noise lies in debug builds.
const FLOOR: Duration = Duration::from_millis(8);
/// Pages ready for those who are timed.
const READY: u64 = 60;

const GET_STATUS: &[u8] = b"{\"method\":\"io.prezero.GetStatus\"}\0";

/// A daemon with so many pages, where one user may borrow and another one may zero.
fn with_pages(pages: u64) -> Option<Daemon> {
    let page = Page::Mib2;
    let groups = format!("lend_group = \"{NOBODY}\"\nzero_group = \"{SOMEBODY}\"\n");
    Daemon::start(page, pages, &format!("{groups}{}", page.pool("")))
}

/// The same with two ready pages.
fn shared() -> Option<Daemon> {
    let daemon = with_pages(2)?;
    daemon.zero("max");
    Some(daemon)
}

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.socket()).expect("the daemon listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// So many connections of a user, made by it.
fn crowd(daemon: &Daemon, user: u32, connections: usize) -> Vec<UnixStream> {
    on_a_thread_of(user, || (0..connections).map(|_| connect(daemon)).collect())
}

/// The next message, or nothing if the daemon has hung up.
fn hear(stream: &mut UnixStream) -> Option<Value> {
    let mut message = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        if byte[0] == 0 {
            return Some(serde_json::from_slice(&message).expect("JSON"));
        }
        message.push(byte[0]);
    }
    None
}

fn ask(stream: &mut UnixStream) -> Option<Value> {
    // The daemon may have hung up, and have said why.
    let _ = stream.write_all(GET_STATUS);
    hear(stream)
}

fn descriptors(daemon: &Daemon) -> usize {
    let dir = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("our own child");
    dir.count()
}

fn resident_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
    let status = status.expect("our own child");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number of KiB")
}

/// How much the daemon works between a new connection's first byte and the loan of a ready page, by
/// root: the second most of 60.
///
/// Its CPU time, because on a machine that has other things to do the time of day says how much
/// those are. So whoever measures comes first on its CPU.
fn p99(daemon: &Daemon) -> Duration {
    daemon.zero("max");
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid"));
    let clock = ClockId::pid_cpu_clock_id(pid).expect("our own child");
    let used = || Duration::from(clock.now().expect("a clock"));
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            linux::sched::set_nice(-20).expect("root");
            let one = || {
                let begin = used();
                let loan = daemon.lend(Page::Mib2, 1);
                (used() - begin, loan)
            };
            // Kept until the end: a page that is given back is work, too.
            let (mut work, _loans): (Vec<_>, Vec<_>) = (0..READY).map(|_| one()).unzip();
            work.sort_unstable();
            work[work.len() - 2]
        });
        measured.join().expect("a measurement")
    })
}

/// Sees that a victim's p99 stays what it is meanwhile, by turns without and with `attack`, of which
/// the best turns count: noise makes both slower, an attack that works makes all of its turns slow.
fn assert_not_slower<T>(daemon: &Daemon, mut attack: impl FnMut() -> T) {
    let (mut quiet, mut attacked) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        quiet = quiet.min(p99(daemon));
        let attackers = attack();
        attacked = attacked.min(p99(daemon));
        drop(attackers);
    }
    let bound = quiet.max(FLOOR / WORSE) * WORSE;
    eprintln!("p99 of connect and Lend: quiet {quiet:?}, attacked {attacked:?}");
    assert!(attacked <= bound, "p99 of connect and Lend: quiet {quiet:?}, attacked {attacked:?}");
}

#[test]
fn a_stranger_is_told_why_and_hung_up_on() {
    let Some(daemon) = shared() else { return };
    let before = descriptors(&daemon);
    let mut strangers = crowd(&daemon, SOMEBODY - 1, 500);
    for stranger in &mut strangers {
        let refusal = hear(stranger).expect("a reason before it has said anything");
        assert_eq!(refusal["error"], "io.prezero.NotPermitted", "{refusal}");
        assert_eq!(refusal["parameters"]["uid"], SOMEBODY - 1, "{refusal}");
        assert_eq!(hear(stranger), None, "hung up on");
    }
    daemon.client().status().expect("the daemon serves");
    let deadline = Instant::now() + PATIENCE;
    while descriptors(&daemon) > before {
        assert!(Instant::now() < deadline, "strangers that stay keep descriptors");
        std::thread::sleep(Duration::from_millis(10));
    }
    // One line for all of them, however many.
    daemon.wait_for_log("refused connections");
    assert!(daemon.log().matches("refused connections").count() <= 2, "{}", daemon.log());
}

#[test]
fn one_users_connections_leave_places_for_other_users_and_root() {
    let Some(daemon) = shared() else { return };
    let mut crowd = crowd(&daemon, NOBODY, MOST);
    let refused = crowd.iter_mut().rev().map_while(|stream| {
        let answer = ask(stream).expect("an answer or a reason");
        (answer["error"] == "io.prezero.Failed").then_some(answer)
    });
    let refused: Vec<_> = refused.collect();
    assert!(refused.len() >= MOST / 2, "only {} of {MOST} were refused", refused.len());
    let what = refused[0]["parameters"]["what"].as_str().expect("a reason");
    assert!(what.contains("user 65534 has"), "{what}");
    // In the zero group, so that it is told of a right that it lacks, and not that there is no place.
    let other = on_a_thread_of(SOMEBODY, || ask(&mut connect(&daemon)));
    assert_eq!(other.expect("served")["error"], "io.prezero.NotPermitted");
    for _ in 0..20 {
        daemon.client().status().expect("root is served");
    }
    let first = ask(&mut crowd[0]).expect("those that are in are served");
    assert!(first["parameters"]["pools"].is_array(), "{first}");
    drop(crowd);
    let again = on_a_thread_of(NOBODY, || ask(&mut connect(&daemon)));
    assert!(again.is_some_and(|answer| answer["error"].is_null()), "its places are free again");
}

#[test]
fn descriptors_in_a_message_without_end_never_arrive() {
    let Some(daemon) = shared() else { return };
    let mut streams = crowd(&daemon, NOBODY, 4);
    for stream in &mut streams {
        ask(stream).expect("served");
    }
    let before = descriptors(&daemon);
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let mut most = before;
    for _ in 0..100 {
        for stream in &streams {
            let fds = [null.as_fd(); 100];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let pieces = [IoSlice::new(b" ")];
            rustix::net::sendmsg(stream, &pieces, &mut control, SendFlags::NOSIGNAL)
                .expect("the daemon reads");
        }
        most = most.max(descriptors(&daemon));
    }
    for stream in &mut streams {
        ask(stream).expect("a message that begins with blanks is one");
    }
    assert!(most <= before, "{before} descriptors before, {most} while 40000 were sent");
}

#[test]
fn memory_comes_back_when_a_crowd_is_gone() {
    let Some(daemon) = shared() else { return };
    let mut crowd = crowd(&daemon, 0, 4000);
    let half = vec![b' '; 4000];
    for stream in &mut crowd {
        stream.write_all(&half).expect("the daemon reads");
    }
    for stream in &mut crowd {
        ask(stream).expect("served");
    }
    let during = resident_kib(&daemon);
    drop(crowd);
    let deadline = Instant::now() + PATIENCE;
    while resident_kib(&daemon) > 20 << 10 {
        let now = resident_kib(&daemon);
        assert!(Instant::now() < deadline, "{during} KiB with the crowd, {now} KiB after it");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_never_reads_is_hung_up_on() {
    let Some(daemon) = shared() else { return };
    let before = descriptors(&daemon);
    let mut deaf = connect(&daemon);
    deaf.set_write_timeout(Some(Duration::from_millis(200))).expect("a socket");
    while deaf.write_all(GET_STATUS).is_ok() {}
    let deadline = Instant::now() + PATIENCE;
    while descriptors(&daemon) > before {
        assert!(Instant::now() < deadline, "it keeps its connection for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_crowd_that_sends_ahead_and_never_reads_slows_nobody_down() {
    let Some(daemon) = with_pages(READY) else { return };
    let ahead = GET_STATUS.repeat(600);
    assert_not_slower(&daemon, || {
        let mut crowd = crowd(&daemon, NOBODY, 1000);
        for stream in &mut crowd {
            stream.set_nonblocking(true).expect("a socket");
            // As much as there is room for; beyond its places it is hung up on.
            let _ = stream.write(&ahead);
        }
        crowd
    });
}

#[test]
fn strangers_that_knock_all_the_time_slow_nobody_down() {
    let Some(daemon) = with_pages(READY) else { return };
    let answer = json!("io.prezero.NotPermitted");
    assert_not_slower(&daemon, || {
        let mut knocking = crowd(&daemon, SOMEBODY - 1, 1000);
        assert_eq!(hear(&mut knocking[0]).expect("a reason")["error"], answer);
        knocking
    });
}
