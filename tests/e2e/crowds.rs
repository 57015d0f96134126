// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Crowds: the limits on one user's share of the daemon, and the rest for others.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use units::Pages;

use nix::time::ClockId;
use nix::unistd::Pid;
use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::process::{descriptors, resident_kib};
use prezero_tests::user::{NO_USER, run_as_user};
use prezero_tests::{Daemon, Page, scrape};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

/// Another user, who may zero.
const OTHER_USER: u32 = 65533;
/// The most connections of all users together, masters apart.
const MAX_CONNECTIONS: usize = 4096;
/// The bound for a victim's wait: this multiple of the wait without an attack, ...
const MAX_SLOWDOWN: u32 = 5;
/// ... or this time, the noise of a busy machine in debug builds.
const MIN_JUDGED_PERIOD: Duration = Duration::from_millis(8);
/// Ready pages for the timed users.
const READY: u64 = 60;

const GET_STATUS: &[u8] = b"{\"method\":\"io.prezero.GetStatus\"}\0";

/// A daemon with this number of pages: one user may borrow and another one may zero.
fn with_pages(pages: u64) -> Option<Daemon> {
    let page = Page::Mib2;
    let groups = format!("lend_group = \"{NO_USER}\"\nzero_group = \"{OTHER_USER}\"\n");
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
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a socket");
    stream
}

/// Connections of a user, made by it.
fn crowd(daemon: &Daemon, user: u32, connections: usize) -> Vec<UnixStream> {
    run_as_user(user, || (0..connections).map(|_| connect(daemon)).collect())
}

/// The next message, or `None` after the daemon has hung up.
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

/// How much the daemon works between a new connection's first byte and the loan of a ready page, by
/// root: the second most of 60.
///
/// Its CPU time, because wall-clock time on a busy machine measures the other work. So the
/// measuring process comes first on its CPU.
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

/// Checks that a victim's p99 stays the same, by turns without and with `attack`. The best turns
/// count: noise makes both slower, an effective attack makes all of its turns slow.
fn assert_not_slower<T>(daemon: &Daemon, mut attack: impl FnMut() -> T) {
    let (mut quiet, mut attacked) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        quiet = quiet.min(p99(daemon));
        let attackers = attack();
        attacked = attacked.min(p99(daemon));
        drop(attackers);
    }
    let bound = quiet.max(MIN_JUDGED_PERIOD / MAX_SLOWDOWN) * MAX_SLOWDOWN;
    eprintln!("p99 of connect and Lend: quiet {quiet:?}, attacked {attacked:?}");
    assert!(attacked <= bound, "p99 of connect and Lend: quiet {quiet:?}, attacked {attacked:?}");
}

// Promise P90 (socket): A user without any right is told so and hung up on at once; refusals are
// one line of the log in 10 s.
#[test]
fn stranger_gets_an_error_and_a_hangup() {
    let Some(daemon) = shared() else { return };
    let before = descriptors(daemon.pid());
    let mut strangers = crowd(&daemon, OTHER_USER - 1, 500);
    for stranger in &mut strangers {
        let refusal = hear(stranger).expect("a reason before it has said anything");
        assert_eq!(refusal["error"], "io.prezero.NotPermitted", "{refusal}");
        assert_eq!(refusal["parameters"]["uid"], OTHER_USER - 1, "{refusal}");
        assert_eq!(hear(stranger), None, "hung up on");
    }
    daemon.client().status().expect("the daemon serves");
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while descriptors(daemon.pid()) > before {
        assert!(Instant::now() < deadline, "strangers that stay keep descriptors");
        std::thread::sleep(Duration::from_millis(10));
    }
    // One line for all of them, however many.
    daemon.wait_for_log("refused connections");
    assert!(daemon.log().matches("refused connections").count() <= 2, "{}", daemon.log());
}

// Promise P91 (socket): One user has at most a quarter of the connections, all users together
// 4096; root and the daemon's own workers are not among them.
#[test]
fn one_users_connections_leave_places_for_other_users_and_root() {
    let Some(daemon) = shared() else { return };
    let mut crowd = crowd(&daemon, NO_USER, MAX_CONNECTIONS);
    let refused = crowd.iter_mut().rev().map_while(|stream| {
        let answer = ask(stream).expect("an answer or a reason");
        (answer["error"] == "io.prezero.Failed").then_some(answer)
    });
    let refused: Vec<_> = refused.collect();
    assert!(
        refused.len() >= MAX_CONNECTIONS / 2,
        "only {} of {MAX_CONNECTIONS} were refused",
        refused.len()
    );
    let what = refused[0]["parameters"]["what"].as_str().expect("a reason");
    assert!(what.contains("user 65534 has"), "{what}");
    // Of the zero group, which may look.
    let other = run_as_user(OTHER_USER, || ask(&mut connect(&daemon)));
    let other = other.expect("served");
    assert_eq!(
        (&other["error"], other["parameters"]["pid"].as_u64()),
        (&serde_json::Value::Null, Some(daemon.pid().into())),
        "{other}"
    );
    for _ in 0..20 {
        daemon.client().status().expect("root is served");
    }
    let first = ask(&mut crowd[0]).expect("those that are in are served");
    assert!(first["parameters"]["pools"].is_array(), "{first}");
    drop(crowd);
    let again = run_as_user(NO_USER, || ask(&mut connect(&daemon)));
    assert!(again.is_some_and(|answer| answer["error"].is_null()), "its places are free again");
}

/// A daemon that lets this number of users borrow and look, and the users.
fn with_borrowers(many: u32) -> Option<(Daemon, Vec<u32>)> {
    let users: Vec<u32> = (0..many).map(|user| OTHER_USER - 10 - user).collect();
    let groups: Vec<_> = users.iter().map(|user| format!("{user} = \"4M\"")).collect();
    let page = Page::Mib2;
    let config = format!("lend_groups = {{ {} }}\n{}", groups.join(", "), page.pool(""));
    Some((Daemon::start(page, 2, &config)?, users))
}

fn is_open(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let got = Read::read(&mut &*stream, &mut [0]);
    matches!(got, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

// Promise P207 (years): When all connections are taken, the daemon closes one connection of the
// busiest user to admit a user with fewer: the one that has been idle longest.
#[test]
fn users_holding_all_connections_make_room_for_others() {
    let Some((daemon, users)) = with_borrowers(5) else { return };
    let (newcomer, crowd_of) = users.split_last().expect("five");
    let crowds: Vec<_> = crowd_of
        .iter()
        .map(|user| crowd(&daemon, *user, MAX_CONNECTIONS / crowd_of.len()))
        .collect();
    // Each of them was served when the last of them is, which asks behind all others.
    for mut stream in crowds.iter().map(|crowd| &crowd[crowd.len() - 1]) {
        let _ = stream.write_all(GET_STATUS);
    }
    let mut last = crowds.iter().map(|crowd| crowd[crowd.len() - 1].try_clone().expect("a socket"));
    assert!(last.all(|mut stream| hear(&mut stream).is_some_and(|said| said["error"].is_null())));
    assert!(crowds.iter().flatten().all(is_open), "{MAX_CONNECTIONS} are served");
    const CAME: usize = 8;
    let mut came = crowd(&daemon, *newcomer, CAME);
    for stream in &mut came {
        let answer = ask(stream).expect("an answer");
        assert!(answer["error"].is_null(), "{answer}");
    }
    let open: Vec<usize> =
        crowds.iter().map(|crowd| crowd.iter().filter(|stream| is_open(stream)).count()).collect();
    assert_eq!(
        open,
        [MAX_CONNECTIONS / crowd_of.len() - CAME / crowd_of.len(); 4],
        "all give alike"
    );
    let asked = crowds.iter().all(|crowd| is_open(&crowd[crowd.len() - 1]));
    assert!(asked, "whoever has asked for something last stays");
    daemon.wait_for_log("made_room=8");
}

// Promise P92 (socket): No descriptor that a peer sends is ever the daemon's, and a message is at
// most 4 KiB.
#[test]
fn descriptors_in_a_message_without_end_never_arrive() {
    let Some(daemon) = shared() else { return };
    let mut streams = crowd(&daemon, NO_USER, 4);
    for stream in &mut streams {
        ask(stream).expect("served");
    }
    let before = descriptors(daemon.pid());
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
        most = most.max(descriptors(daemon.pid()));
    }
    for stream in &mut streams {
        ask(stream).expect("a message that begins with blanks is one");
    }
    assert!(most <= before, "{before} descriptors before, {most} while 40000 were sent");
}

// Promise P93 (socket): When a crowd is gone the daemon is at most 20 MiB resident again.
#[test]
fn memory_comes_back_when_a_crowd_leaves() {
    let Some(daemon) = shared() else { return };
    let mut crowd = crowd(&daemon, 0, 4000);
    let half = vec![b' '; 4000];
    for stream in &mut crowd {
        stream.write_all(&half).expect("the daemon reads");
    }
    for stream in &mut crowd {
        ask(stream).expect("served");
    }
    let during = resident_kib(daemon.pid());
    drop(crowd);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while resident_kib(daemon.pid()) > 20 << 10 {
        let now = resident_kib(daemon.pid());
        assert!(Instant::now() < deadline, "{during} KiB with the crowd, {now} KiB after it");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// Promise P94.
#[test]
fn a_client_that_never_reads_is_hung_up_on() {
    let Some(daemon) = shared() else { return };
    let before = descriptors(daemon.pid());
    let mut deaf = connect(&daemon);
    deaf.set_write_timeout(Some(Duration::from_millis(200))).expect("a socket");
    while deaf.write_all(GET_STATUS).is_ok() {}
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while descriptors(daemon.pid()) > before {
        assert!(Instant::now() < deadline, "it keeps its connection for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// Promise P94 (socket): Users take turns: one user's calls, in any number and unread, cost
// another's connection and loan at most 5 times what the daemon works for it alone. A client that
// does not read is disconnected.
#[test]
fn crowd_that_sends_ahead_and_never_reads_delays_no_other_user() {
    let Some(daemon) = with_pages(READY) else { return };
    let ahead = GET_STATUS.repeat(600);
    assert_not_slower(&daemon, || {
        let mut crowd = crowd(&daemon, NO_USER, 1000);
        for stream in &mut crowd {
            stream.set_nonblocking(true).expect("a socket");
            // As much as there is room for; beyond its places it is hung up on.
            let _ = stream.write(&ahead);
        }
        crowd
    });
}

// Promise P90.
#[test]
fn strangers_that_keep_connecting_delay_no_user() {
    let Some(daemon) = with_pages(READY) else { return };
    let answer = json!("io.prezero.NotPermitted");
    assert_not_slower(&daemon, || {
        let mut knocking = crowd(&daemon, OTHER_USER - 1, 1000);
        assert_eq!(hear(&mut knocking[0]).expect("a reason")["error"], answer);
        knocking
    });
}

// Promise P96 (socket): Loans that wait for pages, and draining blocks, delay no other user:
// maintenance runs once for all of them, for a bounded batch.
#[test]
fn loans_that_wait_beside_draining_blocks_delay_no_user() {
    const DRAINING_BLOCKS: u64 = 20;
    let page = Page::Mib2;
    let Some(daemon) = with_pages(READY + DRAINING_BLOCKS) else { return };
    let loans: Vec<_> = (0..DRAINING_BLOCKS).map(|_| daemon.lend(page, 1)).collect();
    let mapped: Vec<_> = loans.iter().map(|loan| loan.map_alone().expect("a mapping")).collect();
    drop(loans);
    daemon.wait_for("draining", |pool| pool.draining_pages == Pages(DRAINING_BLOCKS));
    // More than there is: each waits as long as pages are on their way, which they always are.
    let call = json!({ "method": "io.prezero.Lend", "parameters": { "bytes": 1_u64 << 40 } });
    let mut message = call.to_string().into_bytes();
    message.push(0);
    assert_not_slower(&daemon, || {
        let mut crowd = crowd(&daemon, NO_USER, 300);
        for stream in &mut crowd {
            // For longer than is looked: each call waits for half a second at most.
            stream.write_all(&message.repeat(200)).expect("the daemon reads");
        }
        crowd
    });
    drop(mapped);
    daemon.wait_for("returned", |pool| pool.draining_pages == Pages(0));
}

// Promise P97 (socket): A daemon that is out of descriptors loses no page and no file, and
// `status` and `doctor` tell of blocks that the daemon knows nothing of.
#[test]
fn without_descriptors_no_page_is_lost() {
    const PAGES: u64 = 20;
    let page = Page::Mib2;
    let Some(daemon) = with_pages(PAGES) else { return };
    daemon.zero("max");
    let mut client = daemon.client();
    client.status().expect("served");
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid"));
    let own = getrlimit(Resource::Nofile);
    let limit = |current: Option<u64>| {
        prlimit(pid, Resource::Nofile, Rlimit { current, ..own }).expect("our own child")
    };
    let before = limit(Some(u64::try_from(descriptors(daemon.pid())).expect("a count")));
    let request = client::LendRequest::new(page.times(1));
    let refused = client.lend(&request).expect_err("there is no descriptor for a loan");
    assert!(matches!(refused, client::Error::Refused(wire::Error::Failed { .. })), "{refused}");
    client.release(None, None, None).expect("this takes none");
    let files = || {
        let dirs = std::fs::read_dir(daemon.run_dir().join("pages-2048kB")).expect("the mount");
        let dirs = dirs.map(|dir| dir.expect("an entry").path());
        let of = |dir: std::path::PathBuf| std::fs::read_dir(dir).expect("a state's").count();
        dirs.filter(|dir| !dir.ends_with("loans")).map(of).sum::<usize>()
    };
    // The refused loan's block is draining until its proof has a descriptor; removed ones go
    // elsewhere.
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        let known: u64 =
            client.status().expect("served").pools.iter().map(|pool| pool.blocks).sum();
        let there = u64::try_from(files()).expect("a count");
        if there == known {
            break;
        }
        let says = format!("{there} files, of which the daemon knows {known}\n{}", daemon.log());
        assert!(Instant::now() < deadline, "{says}");
        std::thread::sleep(Duration::from_millis(5));
    }
    limit(before.current);
    daemon.wait_for("all returned", |pool| pool.draining_pages == Pages(0));
    let deadline = Instant::now() + WAIT_TIMEOUT;
    // Blocks that wait to be cleared where they lie still count.
    while daemon.kernel_free(page) < PAGES && daemon.pool().zeroable_pages < Pages(PAGES) {
        assert!(Instant::now() < deadline, "pages are lost:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(PAGES));
}

// Promise P98.
#[test]
fn a_crowd_at_the_metrics_keeps_no_scraper_out() {
    let page = Page::Mib2;
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("metrics");
    let config = format!("[metrics]\nlisten = \"{}\"\n{}", socket.display(), page.pool(""));
    let Some(_daemon) = Daemon::start(page, 1, &config) else { return };
    let connect = || UnixStream::connect(&socket).expect("the metrics are served");
    let held: Vec<_> = (0..200).map(|_| connect()).collect();
    for _ in 0..10 {
        let mut scraper = connect();
        scraper.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a socket");
        scraper.write_all(scrape::ASK).expect("served");
        let mut text = String::new();
        scraper.read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("prezero_"), "{text}");
    }
    drop(held);
}
