// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that pin, unmap, die and borrow at random, and read every byte of what they get.
//!
//! `PREZERO_TEST_STORM_SECONDS` says how long (8 unless told otherwise, 180 in `make test-all`),
//! `PREZERO_TEST_SEED` which one.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use client::{Client, Hold, LendRequest};
use io_uring::IoUring;
use linux::Mapping;
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{first_dirty, soil};
use prezero_tests::pins::{PINNED, pin_in_pipe, pin_in_ring, read_pinned, write_pinned};
use prezero_tests::{Daemon, Page};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::{Child, alone, fork};

const CLIENTS: usize = 64;
const PAGES: u64 = 256;

/// The result of one turn of a client: loans, other users' bytes seen, pins that outlived their
/// loan.
type Seen = [u64; 3];

/// A page that a client has longer than its loan, and what it last wrote there.
enum Pinned {
    Pipe { out: OwnedFd, _into: OwnedFd, mark: u8 },
    Ring { ring: Box<IoUring>, at: usize, mark: u8 },
}

impl Pinned {
    /// Reads a page that only this client may have written. Returns the unexpected bytes.
    fn foreign(self) -> u64 {
        let mut page = [0; PINNED];
        let mark = match self {
            Self::Pipe { out, mark, .. } => {
                File::from(out).read_exact(&mut page).expect("a page in the pipe");
                mark
            }
            Self::Ring { mut ring, at, mark } => {
                let (out, into) = rustix::pipe::pipe().expect("a pipe");
                read_pinned(&mut ring, at, &into).expect("a pinned page");
                File::from(out).read_exact(&mut page).expect("a page in the pipe");
                mark
            }
        };
        page.iter().filter(|byte| **byte != mark).count() as u64
    }

    /// Has the kernel write to the page, long after the loan.
    fn write(&mut self, late: u8) {
        if let Self::Ring { ring, at, mark } = self {
            let (out, into) = rustix::pipe::pipe().expect("a pipe");
            rustix::io::write(&into, &[late; PINNED]).expect("room in a pipe");
            write_pinned(ring, *at, &out).expect("a pinned page");
            *mark = late;
        }
    }
}

fn pin(random: &mut StdRng, memory: &Mapping, mark: u8) -> Option<Pinned> {
    if random.random_bool(0.5) {
        let (out, into) = rustix::pipe::pipe().ok()?;
        pin_in_pipe(&into, memory).ok()?;
        return Some(Pinned::Pipe { out, _into: into, mark });
    }
    let ring = Box::new(pin_in_ring(memory).ok()?);
    Some(Pinned::Ring { ring, at: memory.as_ptr().addr(), mark })
}

fn borrow(daemon: &Daemon, random: &mut StdRng, pinned: &mut Vec<Pinned>) -> Option<Seen> {
    let mark = random.random_range(1..=255);
    let mut request = LendRequest::new(Page::Mib2.times(random.random_range(1..=4)));
    if random.random_bool(0.5) {
        request.hold = Hold::Memory;
    }
    let lent = Client::connect(daemon.socket()).and_then(|mut client| client.lend(&request));
    let loan = lent.ok()?;
    let memory = loan.map_alone().ok()?;
    memory.populate().ok()?;
    let foreign = u64::from(first_dirty(&memory).is_some());
    soil(&memory, mark);
    if random.random_bool(0.4)
        && let Some(pin) = pin(random, &memory, mark)
    {
        pinned.push(pin);
    }
    if random.random_bool(0.5) {
        drop(loan);
        std::thread::sleep(Duration::from_millis(random.random_range(0..5)));
    }
    if random.random_bool(0.05) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .expect("itself");
    }
    Some([1, foreign, 0])
}

/// One client, until it is killed.
fn client(daemon: &Daemon, seed: u64, report: &OwnedFd) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pinned = Vec::new();
    loop {
        let mut seen = borrow(daemon, &mut random, &mut pinned).unwrap_or_default();
        for pin in &mut pinned {
            if random.random_bool(0.2) {
                pin.write(random.random_range(1..=255));
            }
        }
        if pinned.len() > 2 {
            let one = random.random_range(0..pinned.len());
            seen[1] += pinned.swap_remove(one).foreign();
            seen[2] += 1;
        }
        // One message of a pipe: never half of one.
        let bytes: Vec<u8> = seen.iter().flat_map(|number| number.to_le_bytes()).collect();
        rustix::io::write(report, &bytes).expect("the test reads");
        std::thread::sleep(Duration::from_millis(random.random_range(0..4)));
    }
}

fn gather(read: &mut File, sum: &mut Seen) {
    let mut reports = vec![0; 24 * 1000];
    while let Ok(read @ 1..) = read.read(&mut reports) {
        for report in reports[..read].chunks_exact(24) {
            for (number, total) in report.chunks_exact(8).zip(sum.iter_mut()) {
                *total += u64::from_le_bytes(number.try_into().expect("eight bytes"));
            }
        }
    }
}

// Promise P106 (isolation): However many clients pin, unmap and die at random, none reads a byte
// of another, and no page is lost.
#[test]
fn a_storm_of_pins_mixes_up_no_byte_and_loses_no_page() {
    let _alone = alone();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let lasts = Duration::from_secs(number("PREZERO_TEST_STORM_SECONDS").unwrap_or(8));
    let seed = number("PREZERO_TEST_SEED").unwrap_or(7);
    let page = Page::Mib2;
    let config = format!(
        "{}{}[workers]\nmax = 2\nsched_idle = false\nnice = 0\n",
        page.pool("max = 128\nready_low = 64\nready_high = 96"),
        page.pool("pages_per_block = 4\nmax = 128\nready_low = 64\nready_high = 96"),
    );
    let Some(daemon) = Daemon::start(page, PAGES, &config) else { return };
    if !super::shows_pins(&daemon) {
        return;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&read, true).expect("a pipe");
    let mut read = File::from(read);
    let (mut sum, mut born, begun) = (Seen::default(), 0, Instant::now());
    let mut children: Vec<Child> = Vec::new();
    let mut most_pinned = 0;
    while begun.elapsed() < lasts {
        while children.len() < CLIENTS {
            born += 1;
            let seed = seed.wrapping_mul(1_000_003) + born;
            children.push(fork(|_| {
                client(&daemon, seed, &write);
                0
            }));
        }
        std::thread::sleep(Duration::from_millis(35));
        gather(&mut read, &mut sum);
        children.swap_remove(random.random_range(0..CLIENTS)).kill();
        children.retain(Child::is_running);
        let pinned = daemon.status().pools.iter().map(|pool| pool.pinned_pages.0).sum();
        most_pinned = u64::max(most_pinned, pinned);
    }
    children.clear();
    gather(&mut read, &mut sum);
    let [loans, foreign, outlived] = sum;
    eprintln!(
        "{loans} loans of {born} clients, {outlived} pins read after their loan, {most_pinned} pages \
         pinned at most"
    );
    assert_eq!(foreign, 0, "bytes of somebody else");
    assert!(loans > lasts.as_secs() && most_pinned > 0, "{loans} loans, {most_pinned} pinned");
    assert!(outlived > 0, "no pin was looked through");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    let end = Instant::now() + prezero_tests::daemon::WAIT_TIMEOUT;
    loop {
        let pools = daemon.status().pools;
        let held = |p: &wire::PoolStatus| (p.lent_pages + p.draining_pages + p.zeroing_pages).0;
        let held: u64 = pools.iter().map(held).sum();
        let owned: u64 = pools.iter().map(|p| p.blocks * p.pages_per_block.0).sum();
        let free = daemon.kernel_free(page);
        if (held, owned + free) == (0, PAGES) {
            break;
        }
        assert!(Instant::now() < end, "lost, or never back: {free} are free, {pools:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
