// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that a process still has by other means than a descriptor or a mapping: real programs
//! that pin pages and keep them over their loan's end.
//!
//! For each of them, each page size and each way to recycle: the block is neither ready nor lent
//! while the pin lives, the next borrower never reads bytes written through it, and the block comes
//! back when it goes.

mod slow_file;
mod storm;

use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use units::Pages;

use linux::Mapping;
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_zero, soil};
use prezero_tests::pins::{
    PINNED, break_page, has_packet_sockets, pin_in_packet_socket, pin_in_pipe, pin_in_ring,
    read_into, without_bpf, write_pinned,
};
use prezero_tests::{Daemon, Page};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use testkit::child::{Child, alone, fork};
use testkit::{skip, skip_always};

use slow_file::SlowFile;

/// What a borrower writes while it has its loan.
const OWN: u8 = 0x5A;
/// The bytes written through a pin after the loan.
const LATE: u8 = 0xE7;

/// What keeps the page, and how it lets go of it.
enum Kept {
    Pipe(OwnedFd),
    Ring { holder: Child, go: File },
    Read { file: SlowFile, holder: Child },
    Packets(Child),
    Message(UnixStream),
}

impl Kept {
    /// Has the kernel write to the page, where it is for writing.
    fn write_late(&mut self) {
        if let Self::Ring { holder, go } = self {
            go.write_all(&[LATE; PINNED]).expect("its pipe");
            holder.wait_ready();
        }
    }

    /// Ends it; a read that is in flight ends by writing its page.
    fn lift_limit(self) {
        match self {
            Self::Pipe(end) => {
                let mut seen = [0; PINNED];
                File::from(end).read_exact(&mut seen).expect("a page in the pipe");
                assert_eq!(seen, [OWN; PINNED], "what a pipe has is what its maker gave it");
            }
            Self::Ring { holder, .. } | Self::Packets(holder) => holder.kill(),
            Self::Read { file, holder } => {
                file.answer();
                assert_eq!(holder.wait(), Some(0), "the read ends");
            }
            Self::Message(socket) => drop(socket),
        }
    }
}

/// A program that borrows a page, and ends its loan with the page pinned.
type Pin = fn(&Daemon, Page) -> Option<Kept>;

const PINS: [(&str, Pin); 5] = [
    ("vmsplice into a pipe whose maker is killed", splice),
    ("io_uring fixed buffer", register),
    ("O_DIRECT read in flight", read_directly),
    ("AF_XDP frames", receive_packets),
    ("descriptor sent and never received", send),
];

fn borrowed(daemon: &Daemon, page: Page) -> (client::Loan, Mapping) {
    let loan = daemon.lend(page, 1);
    let memory = loan.map_alone().expect("lent memory");
    soil(&memory, OWN);
    (loan, memory)
}

fn splice(daemon: &Daemon, page: Page) -> Option<Kept> {
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    let maker = fork(|ready| {
        let (_loan, memory) = borrowed(daemon, page);
        pin_in_pipe(&into, &memory).expect("its own memory");
        ready.signal();
        ready.hold()
    });
    maker.wait_ready();
    maker.kill();
    Some(Kept::Pipe(out))
}

fn register(daemon: &Daemon, page: Page) -> Option<Kept> {
    let (from, go) = rustix::pipe::pipe().expect("a pipe");
    let holder = fork(|ready| {
        let (loan, memory) = borrowed(daemon, page);
        let mut ring = pin_in_ring(&memory).expect("its own memory");
        let at = memory.as_ptr().addr();
        drop((memory, loan));
        ready.signal();
        write_pinned(&mut ring, at, &from).expect("a pinned page");
        ready.signal();
        ready.hold()
    });
    holder.wait_ready();
    Some(Kept::Ring { holder, go: go.into() })
}

fn read_directly(daemon: &Daemon, page: Page) -> Option<Kept> {
    let file = SlowFile::serve(LATE);
    let path = file.path();
    let (from, go) = rustix::pipe::pipe().expect("a pipe");
    let holder = fork(|ready| {
        let (loan, memory) = borrowed(daemon, page);
        let source = File::open(&path).expect("a file");
        let at = memory.as_ptr().expose_provenance();
        let reader = std::thread::spawn(move || read_into(&source, at).expect("a read"));
        ready.signal();
        // Once the kernel has the page, mapping and loan may go.
        rustix::io::read(&from, &mut [0]).expect("a word");
        drop((memory, loan));
        i32::from(reader.join().expect("the thread") != PINNED)
    });
    holder.wait_ready();
    file.wait_read();
    rustix::io::write(&go, b"g").expect("its pipe");
    Some(Kept::Read { file, holder })
}

fn receive_packets(daemon: &Daemon, page: Page) -> Option<Kept> {
    if !has_packet_sockets() {
        skip("this kernel has no AF_XDP");
        return None;
    }
    let holder = fork(|ready| {
        let (loan, memory) = borrowed(daemon, page);
        let _socket = pin_in_packet_socket(&memory).expect("its own memory");
        drop((memory, loan));
        ready.signal();
        ready.hold()
    });
    holder.wait_ready();
    Some(Kept::Packets(holder))
}

fn send(daemon: &Daemon, page: Page) -> Option<Kept> {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let sender = fork(|ready| {
        let (loan, memory) = borrowed(daemon, page);
        let (lease, blocks) = loan.into_fds();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let rights = [blocks[0].as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)), "one");
        let bytes = [std::io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&theirs, &bytes, &mut control, SendFlags::empty()).expect("room");
        drop((lease, memory));
        ready.signal();
        ready.hold()
    });
    sender.wait_ready();
    sender.kill();
    Some(Kept::Message(ours))
}

fn one_block(page: Page, recycle: &str) -> Option<Daemon> {
    let daemon = Daemon::start(page, 1, &page.pool(&format!("max = 1\nrecycle = \"{recycle}\"")))?;
    daemon.zero("max");
    Some(daemon)
}

/// Whether this kernel shows pins; otherwise it says so.
fn shows_pins(daemon: &Daemon) -> bool {
    let reason = daemon.status().fresh_reason;
    if let Some(reason) = &reason {
        skip(reason);
    }
    reason.is_none()
}

fn keeps_its_block(recycle: &str) {
    let _alone = alone();
    for page in Page::ALL {
        for (name, pin) in PINS {
            let Some(daemon) = one_block(page, recycle) else { break };
            if recycle != "fresh" && !shows_pins(&daemon) {
                return;
            }
            let what = format!("{name}, {recycle}, {}", page.size());
            let Some(mut kept) = pin(&daemon, page) else { continue };
            daemon.wait_for(&format!("draining: {what}"), |p| p.draining_pages == Pages(1));
            std::thread::sleep(std::time::Duration::from_millis(300));
            kept.write_late();
            let pool = daemon.pool();
            let others = (pool.ready_pages.0, pool.zeroing_pages.0, pool.zeroable_pages.0);
            assert_eq!((pool.draining_pages, others), (Pages(1), (0, 0, 0)), "{what}");
            let is_pin = !matches!(kept, Kept::Message(_));
            assert_eq!(
                (pool.pinned_pages == Pages(1), pool.mapped_pages),
                (is_pin, Pages(0)),
                "{what}"
            );
            assert_eq!(daemon.kernel_free(page), 0, "{what}");
            kept.lift_limit();
            daemon.wait_for(&format!("back: {what}"), |p| p.zeroable_pages == Pages(1));
            let is_block = daemon.pool().blocks == 1;
            assert_eq!(is_block, recycle != "fresh", "cleared where it lies: {what}");
            daemon.zero("max");
            let loan = daemon.lend(page, 1);
            assert_eq!(loan.ready_bytes(), page.times(1), "{what}");
            assert_zero(&loan.map_alone().expect("a mapping"));
        }
    }
}

// Promise P5 (isolation): Memory that is still pinned, by a living or dead process, is neither
// ready nor lent. It comes back, zero, when the pin goes. Kept content and workers' blocks wait,
// too.
#[test]
fn pinned_pages_keep_their_block_until_the_pin_goes() {
    keeps_its_block("auto");
}

// Promise P5.
#[test]
fn pinned_pages_keep_their_block_where_in_place_is_forced() {
    keeps_its_block("in-place");
}

// Promise P5.
#[test]
fn pinned_pages_keep_their_block_where_fresh_is_forced() {
    keeps_its_block("fresh");
}

// Promise P105 (isolation): Pages that a borrower keeps pinned over their return count in its
// quota until it lets go.
#[test]
fn pinned_pages_count_in_their_users_quota() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("quota_of = {{ 0 = \"2M\" }}\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 2, &config) else { return };
    if !shows_pins(&daemon) {
        return;
    }
    daemon.zero("max");
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    let (loan, memory) = borrowed(&daemon, page);
    pin_in_pipe(&into, &memory).expect("its own memory");
    drop((memory, loan));
    daemon.wait_for("pinned", |p| p.pinned_pages == Pages(1));
    let request = client::LendRequest::new(page.times(1));
    let refused = daemon.client().lend(&request).expect_err("a page of one is held");
    assert!(refused.to_string().contains("holds 2M of a quota of 2M"), "{refused}");
    drop((out, into));
    daemon.wait_for("let go", |p| p.draining_pages == Pages(0));
    drop(daemon.lend(page, 1));
}

// Promise P5.
#[test]
fn kept_content_and_a_workers_block_wait_for_the_last_pin() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = one_block(page, "auto") else { return };
    if !shows_pins(&daemon) {
        return;
    }
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    let loan = daemon.lend_to("guest", std::time::Duration::from_secs(60), page, 1);
    let memory = loan.map_alone().expect("lent memory");
    soil(&memory, OWN);
    pin_in_pipe(&into, &memory).expect("its own memory");
    drop((memory, loan));
    daemon.wait_for("pinned", |p| p.pinned_pages == Pages(1) && p.kept_pages == Pages(0));
    drop((out, into));
    daemon.wait_for("kept", |p| p.kept_pages == Pages(1));

    let Some(daemon) = Some(daemon).and_then(|daemon| {
        drop(daemon);
        Daemon::start(page, 1, &page.pool("max = 1"))
    }) else {
        return;
    };
    let (out, into) = rustix::pipe::pipe().expect("a pipe");
    let mut client = daemon.client();
    let job = worker::job::take_zeroing(&mut client, &wire::TakeZeroing::default()).expect("a job");
    let file = linux::BlockFile::from(
        job.file().expect("a block").try_clone_to_owned().expect("a descriptor"),
    );
    file.allocate(0, page.size().bytes()).expect("the pool's page");
    let memory = Mapping::map(&file, page.size().bytes(), page.size()).expect("its block");
    pin_in_pipe(&into, &memory).expect("its own memory");
    drop((memory, file));
    let worker::job::Task::Allocate(task) = job.begin().expect("a task") else {
        panic!("a new block is allocated");
    };
    let done = task.run(&mut |_| std::ops::ControlFlow::Continue(())).expect("its page is there");
    done.report(&mut client).expect("an answer");
    let pool = daemon.wait_for("pinned by its worker", |p| p.pinned_pages == Pages(1));
    assert_eq!(pool.ready_pages, Pages(0));
    drop((out, into));
    daemon.wait_for("let go", |p| p.draining_pages == Pages(0));
}

// Promise P153 (isolation): A block with a memory error goes back to the kernel, which keeps the
// broken page and frees the others, for every former user and every way of recycling.
/// The references by which the kernel keeps a broken page are no pin: a block that waited for them
/// to go would wait for ever.
#[test]
fn block_with_a_memory_error_goes_back_except_the_broken_page() {
    let _alone = alone();
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("procfs");
    if !meminfo.contains("HardwareCorrupted:") {
        return skip_always("this kernel knows no memory errors");
    }
    let page = Page::Mib2;
    for recycle in ["auto", "in-place"] {
        let config = format!("pages_per_block = 2\nmax = 2\nrecycle = \"{recycle}\"");
        let Some(mut daemon) = Daemon::start(page, 2, &page.pool(&config)) else { return };
        if !shows_pins(&daemon) {
            return;
        }
        daemon.zero("max");
        let borrower = fork(|_| {
            let loan = daemon.lend(page, 2);
            let memory = loan.map_alone().expect("lent memory");
            soil(&memory, OWN);
            break_page(&memory, memory.len() / 2).expect("root may");
            0
        });
        // By SIGBUS where the kernel sends it for its own madvise, too.
        borrower.wait();
        daemon.wait_for("given back", |p| p.lent_pages + p.draining_pages == Pages(0));
        assert_eq!(daemon.pool().blocks, 0, "{recycle}");
        assert!(daemon.log().contains("memory errors"), "{}", daemon.log());
        assert_eq!(daemon.kernel_free(page), 1, "the other page is free, {recycle}");
        let loan = daemon.lend(page, 1);
        assert_zero(&loan.map_alone().expect("a mapping"));
        drop(loan);
        daemon.lose(page, 1);
    }
}

// Promise P104 (isolation): Where the proof cannot be had blocks recycle fresh, and log and
// `status` say why in one line.
#[test]
fn without_visible_pins_blocks_recycle_fresh_with_a_reason() {
    let page = Page::Mib2;
    let Some(guard) = testkit::hugepages::reserve(page.size(), 1) else { return };
    let mut daemon = Daemon::start_with(Some(guard), &page.pool("max = 1"), &[]);
    daemon.terminate();
    daemon.spawn_as(without_bpf);
    daemon.wait_until_up();
    let status = daemon.status();
    let reason = status.fresh_reason.expect("a reason");
    assert!(reason.starts_with("2M: pins cannot be seen: bpf(BPF_PROG_LOAD): "), "{reason}");
    assert_eq!(status.pools[0].recycle.as_str(), "fresh");
    assert!(daemon.log().contains("auto recycles fresh"), "{}", daemon.log());
    let output = daemon.command(&["status"]).output().expect("prezero runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nauto recycles fresh: 2M: pins cannot be seen: "), "{text}");
    daemon.zero("max");
    let (loan, memory) = borrowed(&daemon, page);
    drop((memory, loan));
    let pool = daemon.wait_for("the kernel's again", |p| p.zeroable_pages == Pages(1));
    assert_eq!(pool.blocks, 0);
}
