// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storm: clients of several users that borrow, pin, cut, punch, unmap, pass on and die at
//! random, while the daemon and its workers are killed at seeded instants and every byte is read.
//!
//! `PREZERO_HOSTILE_STORM_SECONDS` says how long (25 unless told otherwise, 600 in `make
//! test-all`), `PREZERO_TEST_SEED` which one.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan, Mapping};
use linux::BlockFile;
use linux::testkit::child::{Child, fork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid};
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::attack::say;
use crate::raw;
use crate::scene::path_only;
use crate::stage::Stage;
use crate::users::LEND_GROUP;

const CLIENTS: usize = 64;
/// The clients' users are so many, from this number on.
const USERS: u32 = 5;
const FIRST_USER: u32 = 65_501;
/// A call that takes longer is hung: a loan waits 2 s for its owner's former self.
const HUNG: Duration = Duration::from_secs(20);
const PAGES: u64 = 320;
const PAGE: usize = 2 << 20;

/// What one client saw, in the order of its report.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    loans: u64,
    bytes: u64,
    foreign: u64,
    hung: u64,
    kept: u64,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.loans += other.loans;
        self.bytes += other.bytes;
        self.foreign += other.foreign;
        self.hung += other.hung;
        self.kept += other.kept;
    }

    fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        let numbers = [self.loans, self.bytes, self.foreign, self.hung, self.kept];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let bytes = bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (loans, bytes, foreign, hung, kept) =
            (number(0), number(1), number(2), number(3), number(4));
        Self { loans, bytes, foreign, hung, kept }
    }
}

/// The byte that all memory of one user is soiled with.
fn mark_of(uid: u32) -> u8 {
    u8::try_from(uid - FIRST_USER + 0x11).expect("few users")
}

/// What is not `expected`, by reading every byte of it; holes are filled by that.
fn foreign(memory: &Mapping, expected: &[u8], buffer: &mut [u8]) -> u64 {
    let mut foreign = 0;
    for at in (0..memory.len()).step_by(buffer.len()) {
        memory.read(at, buffer);
        let fits = |byte: u8| buffer[0] == byte && buffer[..] == vec![byte; buffer.len()];
        if !expected.iter().any(|byte| fits(*byte)) {
            let strange = |byte: &&u8| !expected.contains(byte);
            foreign += buffer.iter().filter(strange).count() as u64;
        }
    }
    foreign
}

/// What a client keeps of a loan longer than the loan.
#[derive(Debug)]
enum Kept {
    Path { _fd: OwnedFd },
    Pipe { _ends: (OwnedFd, OwnedFd) },
    Heir { _child: Child },
}

/// One client, until it is killed.
fn client(daemon: &Daemon, seed: u64, report: &OwnedFd) {
    let mut random = StdRng::seed_from_u64(seed);
    let uid = FIRST_USER + u32::try_from(seed % u64::from(USERS)).expect("few users");
    setgroups(&[Gid::from_raw(LEND_GROUP)]).expect("root");
    setgid(Gid::from_raw(uid)).expect("root");
    setuid(Uid::from_raw(uid)).expect("root");
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill).expect("a signal that exists");
    let mut kept = Vec::new();
    let mut buffer = vec![0; PAGE];
    loop {
        let mut seen = Seen::default();
        borrow(daemon, &mut random, uid, &mut seen, &mut kept, &mut buffer);
        // One message of a pipe: never half of one.
        rustix::io::write(report, &seen.to_bytes()).expect("the test reads");
        if kept.len() > 6 {
            kept.remove(random.random_range(0..kept.len()));
        }
    }
}

fn borrow(
    daemon: &Daemon,
    random: &mut StdRng,
    uid: u32,
    seen: &mut Seen,
    kept: &mut Vec<Kept>,
    buffer: &mut [u8],
) {
    let mark = mark_of(uid);
    let mut request = LendRequest::new(Page::Mib2.times(random.random_range(1..=5)));
    request.single = random.random_bool(0.5);
    request.held_by_memory = random.random_bool(0.3);
    if random.random_bool(0.25) {
        request.owner = Some(format!("s{}", random.random_range(0..3)).parse().expect("a name"));
        request.keep = Some(Duration::from_secs(random.random_range(0..2)));
    }
    let begun = Instant::now();
    let lent = Client::connect(daemon.socket()).and_then(|mut client| client.lend(&request));
    seen.hung += u64::from(begun.elapsed() >= HUNG);
    let loan = match lent {
        Ok(loan) => loan,
        // Nothing there, or nobody: the daemon is being killed all the time.
        Err(_) => {
            std::thread::sleep(Duration::from_millis(random.random_range(1..10)));
            return;
        }
    };
    // A hole may be short of pages while others' are on their way back.
    let Ok(memory) = loan.map() else { return };
    if loan.ready_bytes() != loan.bytes() && !loan.is_kept() && memory.populate().is_err() {
        return;
    }
    if loan.is_kept() && memory.populate().is_err() {
        return;
    }
    seen.loans += 1;
    seen.bytes += memory.len() as u64;
    seen.kept += u64::from(loan.is_kept());
    let expected: &[u8] = if loan.is_kept() { &[0, mark] } else { &[0] };
    seen.foreign += foreign(&memory, expected, buffer);
    memory.fill(0..memory.len(), mark);
    if random.random_bool(0.3) {
        std::thread::sleep(Duration::from_millis(random.random_range(0..20)));
    }
    seen.foreign += foreign(&memory, &[mark], buffer);
    misuse(random, loan, memory, kept);
}

/// Gives it back, in one of the ways there are.
fn misuse(random: &mut StdRng, loan: Loan, memory: Mapping, kept: &mut Vec<Kept>) {
    let (lease, blocks) = loan.into_fds();
    let files: Vec<_> = blocks.into_iter().map(BlockFile::from).collect();
    let first = &files[0];
    match random.random_range(0..16) {
        0 => drop(first.set_len(0)),
        1 => drop(first.punch(0..PAGE as u64)),
        2 => drop(first.set_len(64 << 20)),
        3 => drop(first.set_len(0).and_then(|()| first.allocate(0, PAGE as u64))),
        4 => kept.push(Kept::Path { _fd: path_only(&first.as_fd()) }),
        5 => {
            let (out, into) = rustix::pipe::pipe().expect("a pipe");
            if raw::pin_in_pipe(&into, &memory).is_ok() {
                kept.push(Kept::Pipe { _ends: (out, into) });
            }
        }
        6 => {
            let heir = fork(|ready| {
                std::thread::sleep(Duration::from_millis(30));
                ready.signal();
                let _ = &memory;
                0
            });
            kept.push(Kept::Heir { _child: heir });
        }
        7 => drop(raw::fcntl(first, libc::F_SETLEASE, libc::F_RDLCK)),
        8 => drop(rustix::fs::fchmod(first, rustix::fs::Mode::from_raw_mode(0o777))),
        9 => {
            drop(lease);
            std::thread::sleep(Duration::from_millis(random.random_range(0..40)));
        }
        10 => {
            drop(files);
            std::thread::sleep(Duration::from_millis(random.random_range(0..40)));
        }
        11 => {
            let pid = rustix::process::getpid();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        _ => {}
    }
}

/// Everything that happened.
#[derive(Debug, Default)]
struct Storm {
    seen: Seen,
    clients_died: u64,
    daemon_killed: u64,
    workers_killed: u64,
}

struct Clients {
    read: std::fs::File,
    write: OwnedFd,
    children: Vec<Child>,
}

impl Clients {
    fn gather(&mut self, storm: &mut Storm) {
        let mut reports = vec![0; 40 * 1000];
        while let Ok(read @ 1..) = self.read.read(&mut reports) {
            for report in reports[..read].chunks_exact(40) {
                storm.seen.add(Seen::from_bytes(report));
            }
        }
    }
}

/// The daemon's workers: its children.
fn workers_of(pid: u32) -> Vec<Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split(' ').filter_map(|pid| pid.trim().parse().ok()).map(Pid::from_raw).collect()
}

fn rage(daemon: &mut Daemon, seed: u64, lasts: Duration) -> Storm {
    let mut random = StdRng::seed_from_u64(seed);
    let mut storm = Storm::default();
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let (read, write) = rustix::pipe::pipe_with(flags).expect("a pipe");
    rustix::io::ioctl_fionbio(&read, true).expect("a pipe");
    let mut clients = Clients { read: read.into(), write, children: Vec::new() };
    let begun = Instant::now();
    let mut next_kill = Duration::from_millis(random.random_range(500..3000));
    let mut born = 0_u64;
    while begun.elapsed() < lasts {
        while clients.children.len() < CLIENTS {
            born += 1;
            let (seed, report) = (seed.wrapping_mul(1_000_003) + born, &clients.write);
            let child = fork(|_| {
                client(daemon, seed, report);
                0
            });
            clients.children.push(child);
        }
        std::thread::sleep(Duration::from_millis(35));
        clients.gather(&mut storm);
        // One dies by us, and those who died by themselves are followed by others.
        let victim = random.random_range(0..CLIENTS);
        clients.children.swap_remove(victim).kill();
        let ended = |child: &Child| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid()));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        let before = clients.children.len();
        clients.children.retain(|child| !ended(child));
        storm.clients_died += 1 + (before - clients.children.len()) as u64;
        if begun.elapsed() >= next_kill {
            if random.random_bool(0.5) {
                for worker in workers_of(daemon.pid()) {
                    storm.workers_killed += u64::from(kill(worker, Signal::SIGKILL).is_ok());
                }
            }
            daemon.kill();
            storm.daemon_killed += 1;
            daemon.spawn();
            if random.random_bool(0.3) {
                std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
                daemon.kill();
                storm.daemon_killed += 1;
                daemon.spawn();
            }
            daemon.wait_until_up();
            next_kill = begun.elapsed() + Duration::from_millis(random.random_range(800..3500));
        }
    }
    clients.children.clear();
    clients.gather(&mut storm);
    storm
}

#[test]
fn a_storm_of_clients_and_kills_mixes_up_no_byte_and_loses_no_page() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let lasts = Duration::from_secs(number("PREZERO_HOSTILE_STORM_SECONDS").unwrap_or(25));
    let seed = number("PREZERO_TEST_SEED").unwrap_or(7);
    let config = "[[pool]]\npage_size = \"2M\"\nmax = 120\nready_low = 80\nready_high = 100\n\
                  [[pool]]\npage_size = \"2M\"\npages_per_block = 4\nmax = 160\n\
                  ready_low = 80\nready_high = 120\nrecycle = \"auto\"\n\
                  [workers]\nmax = 2\nsched_idle = false\nnice = 0\n";
    let Some(mut stage) = Stage::set(PAGES, config) else { return };
    let storm = rage(&mut stage.daemon, seed, lasts);
    let log = stage.daemon.log();
    stage.remember();
    let left = stage.left().expect("nothing is held any more");
    let Storm { seen, clients_died, daemon_killed, workers_killed } = storm;
    let gib = seen.bytes as f64 / (1_u64 << 30) as f64;
    say(&[
        &format!("storm, {} s, seed {seed}", lasts.as_secs()),
        &format!("{CLIENTS} clients of {USERS} users"),
        &format!("{} loans, {gib:.1} GiB read, {} kept", seen.loans, seen.kept),
        &format!(
            "foreign bytes {}, hung {}; daemon killed {daemon_killed}x, workers {workers_killed}x, \
             clients {clients_died}x",
            seen.foreign, seen.hung
        ),
        &left.to_string(),
    ]);
    assert_eq!(seen.foreign, 0, "bytes of somebody else");
    assert_eq!(seen.hung, 0, "calls without an answer");
    assert!(seen.loans > lasts.as_secs(), "only {} loans", seen.loans);
    assert!(!log.contains("panicked"), "the daemon panicked:\n{log}");
    assert!(left.is_nothing(), "left {left}");
}
