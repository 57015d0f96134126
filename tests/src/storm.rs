// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Borrowers of several users that borrow, read every byte, write and die, for storms.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use client::{Client, Hold, LendRequest, Loan};
use linux::Mapping;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::child::{Child, fork};

use crate::Page;
use crate::memory::MapAlone as _;

/// Members may borrow. The number is unused on a usual machine, as are the users'.
pub const LEND_GROUP: u32 = 65_521;
/// Borrowers are this number of users, from [`FIRST_USER`] on.
pub const USERS: u32 = 5;
/// The first of them.
pub const FIRST_USER: u32 = 65_501;
/// A call that takes longer is hung: a loan waits 2 s for its owner's former self.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const PAGE: usize = 2 << 20;
/// A report: one message of a pipe, never half of one.
const REPORT: usize = 40;

/// What borrowers saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Loans that were read whole.
    pub loans: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that were neither zero nor the borrower's own.
    pub foreign: u64,
    /// Calls without an answer.
    pub hung: u64,
    /// Loans with what their owner had left.
    pub kept: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.loans += other.loans;
        self.bytes += other.bytes;
        self.foreign += other.foreign;
        self.hung += other.hung;
        self.kept += other.kept;
    }

    /// Of the bytes, in GiB.
    #[must_use]
    pub fn gib(self) -> f64 {
        self.bytes as f64 / (1_u64 << 30) as f64
    }

    fn to_bytes(self) -> [u8; REPORT] {
        let mut bytes = [0; REPORT];
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

/// Bytes other than `expected`, by reading every byte of it, which fills unbacked parts.
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

/// One borrower in a process of its own: which of the users, and what it will do, is by its seed.
#[derive(Debug)]
pub struct Borrower<'a> {
    random: StdRng,
    uid: u32,
    report: &'a OwnedFd,
    buffer: Vec<u8>,
}

impl<'a> Borrower<'a> {
    /// The calling process, a forked child, is it from now on.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn become_it(seed: u64, report: &'a OwnedFd) -> Self {
        let uid = FIRST_USER + u32::try_from(seed % u64::from(USERS)).expect("few users");
        setgroups(&[Gid::from_raw(LEND_GROUP)]).expect("root");
        setgid(Gid::from_raw(uid)).expect("root");
        setuid(Uid::from_raw(uid)).expect("root");
        // Undone by the change of user; without it a test that dies leaves its borrowers behind.
        let kill = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(kill).expect("a signal that exists");
        let random = StdRng::seed_from_u64(seed);
        Self { random, uid, report, buffer: vec![0; PAGE] }
    }

    /// Borrows at random and uses it, until it is killed. `end` gives a loan back, in its way.
    ///
    /// # Panics
    /// When the reader of the reports is gone.
    pub fn live(mut self, socket: &Path, mut end: impl FnMut(&mut StdRng, Loan, Mapping)) -> ! {
        loop {
            let mut seen = Seen::default();
            if let Some((loan, memory)) = self.borrow(socket, &mut seen) {
                end(&mut self.random, loan, memory);
            }
            rustix::io::write(self.report, &seen.to_bytes()).expect("the test reads");
        }
    }

    fn request(&mut self) -> LendRequest {
        let random = &mut self.random;
        let mut request = LendRequest::new(Page::Mib2.times(random.random_range(1..=5)));
        request.single = random.random_bool(0.5);
        if random.random_bool(0.3) {
            request.hold = Hold::Memory;
        }
        if random.random_bool(0.25) {
            let owner = format!("s{}", random.random_range(0..3));
            request.owner = Some(owner.parse().expect("a name"));
            request.keep = Some(Duration::from_secs(random.random_range(0..2)));
        }
        request
    }

    fn borrow(&mut self, socket: &Path, seen: &mut Seen) -> Option<(Loan, Mapping)> {
        let request = self.request();
        let begun = Instant::now();
        let lent = Client::connect(socket).and_then(|mut client| client.lend(&request));
        seen.hung += u64::from(begun.elapsed() >= CALL_TIMEOUT);
        let Ok(loan) = lent else {
            // Nothing there, or no process: the daemon may be killed all the time.
            std::thread::sleep(Duration::from_millis(self.random.random_range(1..10)));
            return None;
        };
        // An unbacked part may be short of pages while others' are on their way back.
        let memory = loan.map_alone().ok()?;
        if (loan.ready_bytes() != loan.bytes() || loan.is_kept()) && memory.populate().is_err() {
            return None;
        }
        seen.loans += 1;
        seen.bytes += memory.len() as u64;
        seen.kept += u64::from(loan.is_kept());
        let mark = mark_of(self.uid);
        let expected: &[u8] = if loan.is_kept() { &[0, mark] } else { &[0] };
        seen.foreign += foreign(&memory, expected, &mut self.buffer);
        memory.fill(0..memory.len(), mark);
        if self.random.random_bool(0.3) {
            std::thread::sleep(Duration::from_millis(self.random.random_range(0..20)));
        }
        seen.foreign += foreign(&memory, &[mark], &mut self.buffer);
        Some((loan, memory))
    }
}

/// Borrowers that live at a time, and what they have reported.
#[derive(Debug)]
pub struct Crowd {
    read: std::fs::File,
    write: OwnedFd,
    children: Vec<Child>,
    seed: u64,
    born: u64,
    /// How many have ended.
    pub died: u64,
}

impl Crowd {
    /// Nobody yet.
    ///
    /// # Panics
    /// Without a descriptor left.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let flags = rustix::pipe::PipeFlags::CLOEXEC;
        let (read, write) = rustix::pipe::pipe_with(flags).expect("a pipe");
        rustix::io::ioctl_fionbio(&read, true).expect("a pipe");
        Self { read: read.into(), write, children: Vec::new(), seed, born: 0, died: 0 }
    }

    /// Starts as many as are missing of `count`; `life` is what each does until it is killed.
    pub fn fill(&mut self, count: usize, life: impl Fn(Borrower<'_>)) {
        while self.children.len() < count {
            self.born += 1;
            let seed = self.seed.wrapping_mul(1_000_003) + self.born;
            let report = &self.write;
            let child = fork(|_| {
                life(Borrower::become_it(seed, report));
                0
            });
            self.children.push(child);
        }
    }

    /// Kills one, and forgets those that died by themselves.
    pub fn thin(&mut self, random: &mut StdRng) {
        let before = self.children.len();
        let victim = random.random_range(0..before);
        self.children.swap_remove(victim).kill();
        let ended = |child: &Child| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.pid()));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        self.children.retain(|child| !ended(child));
        self.died += (before - self.children.len()) as u64;
    }

    /// The reports since the last time.
    pub fn gather(&mut self) -> Seen {
        let mut seen = Seen::default();
        let mut reports = vec![0; REPORT * 1000];
        while let Ok(read @ 1..) = self.read.read(&mut reports) {
            for report in reports[..read].chunks_exact(REPORT) {
                seen.add(Seen::from_bytes(report));
            }
        }
        seen
    }

    /// Kills all of them.
    pub fn end(&mut self) {
        self.died += self.children.len() as u64;
        self.children.clear();
    }
}
