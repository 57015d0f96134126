// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The storm: clients of several users that borrow, pin, cut, punch, unmap, pass on and die at
//! random, while the daemon and its workers are killed at seeded instants and every byte is read.
//!
//! `PREZERO_HOSTILE_STORM_SECONDS` says how long (25 unless told otherwise, 600 in `make
//! test-all`), `PREZERO_TEST_SEED` which one.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use client::Loan;
use linux::BlockFile;
use linux::Mapping;
use nix::sys::signal::{Signal, kill};
use prezero_tests::Daemon;
use prezero_tests::process::children;
use prezero_tests::storm::{Borrower, Crowd, Seen, USERS};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::{Child, fork};
use testkit::punch;

use crate::attack::say;
use crate::raw;
use crate::scene::path_only;
use crate::stage::Stage;

const CLIENTS: usize = 64;
const PAGES: u64 = 320;
const PAGE: usize = 2 << 20;

/// What a client keeps of a loan longer than the loan.
#[derive(Debug)]
enum Kept {
    Path { _fd: OwnedFd },
    Pipe { _ends: (OwnedFd, OwnedFd) },
    Heir { _child: Child },
}

/// One client, until it is killed.
fn client(daemon: &Daemon, borrower: Borrower<'_>) {
    let mut kept = Vec::new();
    borrower.live(&daemon.socket(), |random, loan, memory| {
        misuse(random, loan, memory, &mut kept);
        if kept.len() > 6 {
            kept.remove(random.random_range(0..kept.len()));
        }
    });
}

/// Gives it back, in one of the ways there are.
fn misuse(random: &mut StdRng, loan: Loan, memory: Mapping, kept: &mut Vec<Kept>) {
    let (lease, blocks) = loan.into_fds();
    let files: Vec<_> = blocks.into_iter().map(BlockFile::from).collect();
    let first = &files[0];
    match random.random_range(0..16) {
        0 => drop(first.set_len(0)),
        1 => drop(punch(first, 0..PAGE as u64)),
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

fn rage(daemon: &mut Daemon, seed: u64, lasts: Duration) -> Storm {
    let mut random = StdRng::seed_from_u64(seed);
    let mut storm = Storm::default();
    let mut clients = Crowd::new(seed);
    let begun = Instant::now();
    let mut next_kill = Duration::from_millis(random.random_range(500..3000));
    while begun.elapsed() < lasts {
        clients.fill(CLIENTS, |borrower| client(daemon, borrower));
        std::thread::sleep(Duration::from_millis(35));
        storm.seen.add(clients.gather());
        clients.thin(&mut random);
        if begun.elapsed() >= next_kill {
            if random.random_bool(0.5) {
                for worker in children(daemon.pid()) {
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
    clients.end();
    storm.seen.add(clients.gather());
    storm.clients_died = clients.died;
    storm
}

#[test]
fn storm_of_clients_and_kills_mixes_no_byte_and_loses_no_page() {
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
    let gib = seen.gib();
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
