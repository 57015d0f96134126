// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shapes of loans.

use std::time::Duration;

use client::{Error, Hold, LendRequest};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::{assert_zero, faults_of_touching, soil};
use prezero_tests::{Daemon, Page};
use units::{Bytes, Pages};

#[test]
fn a_ready_block_is_lent_whole_zero_and_comes_back() {
    // The odd page is outside all blocks, and stays the kernel's.
    for (page, pages) in [(Page::Mib2, 3), (Page::Gib1, 2)] {
        let Some(daemon) = Daemon::start(page, pages, &page.pool("pages_per_block = 2")) else {
            return;
        };
        daemon.zero("max");
        assert_eq!(daemon.pool().ready_pages, Pages(2));
        let loan = daemon.lend(page, 2);
        assert_eq!(loan.ready_bytes(), page.times(2));
        assert_eq!(loan.parts().len(), 1);
        let memory = loan.map_alone().expect("a mapping");
        assert_zero(&memory);
        soil(&memory, 0xA5);
        assert_eq!(daemon.pool().lent_pages, Pages(2));
        drop((memory, loan));
        daemon.wait_for("back", |p| p.lent_pages + p.draining_pages == Pages(0));
        // Cleared where it lies from now on, or the kernel's again already.
        daemon.client().release(None, None, None).expect("served");
        assert_eq!(daemon.pool().blocks, 0);
        assert_eq!(daemon.kernel_free(page), pages);
    }
}

// Promise P17 (fallback): A larger block is trimmed; the rest goes back to the kernel. None is
// trimmed of more than the loan asks for while the kernel has free pages for that.
#[test]
fn larger_block_is_trimmed_and_its_rest_goes_to_the_kernel() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 8, &page.pool("pages_per_block = 8")) else { return };
    daemon.zero("max");
    assert_eq!(daemon.kernel_free(page), 0);
    let loan = daemon.lend(page, 3);
    assert_eq!((loan.bytes(), loan.ready_bytes()), (page.times(3), page.times(3)));
    assert_eq!(daemon.kernel_free(page), 5);
    assert_zero(&loan.map_alone().expect("a mapping"));
}

// Promise P132 (fallback): A loan has as many blocks as its borrower has descriptors for, up to
// 1024, in as many messages as it takes; the rest is an unbacked part.
#[test]
fn loan_of_more_blocks_than_one_message_is_ready_as_a_whole() {
    const PAGES: u64 = 300;
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, PAGES, &page.pool("")) else { return };
    daemon.zero("max");
    let request = LendRequest::new(page.times(PAGES));
    let loan = daemon.client().lend(&request).expect("the daemon lends");
    assert_eq!((loan.ready_bytes(), loan.parts().len()), (page.times(PAGES), 300));
    let memory = loan.map_alone().expect("a mapping");
    assert_zero(&memory);
    drop((memory, loan));
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    daemon.zero("max");
    // A client that stays silent gets one message.
    let request = LendRequest { most_blocks: Some(252), ..request };
    let loan = daemon.client().lend(&request).expect("the daemon lends");
    assert_eq!((loan.ready_bytes(), loan.parts().len()), (page.times(251), 252));
}

// Promise P17.
#[test]
fn a_small_loan_leaves_a_large_block_alone() {
    let page = Page::Mib2;
    let config = page.pool("pages_per_block = 64\nmax = 64");
    let Some(daemon) = Daemon::start(page, 66, &config) else { return };
    daemon.zero("max");
    let small = daemon.lend(page, 1);
    assert_eq!((small.ready_bytes(), daemon.pool().ready_pages), (Bytes(0), Pages(64)));
    assert_zero(&small.map_alone().expect("a mapping"));
    // It also leaves the block to its borrower.
    let large = daemon.lend(page, 60);
    assert_eq!(large.ready_bytes(), page.times(60));
}

// Promise P14 (fallback): A loan is the ready part plus memory that the kernel zeroes in the
// client's own context; it never waits for zeroing.
#[test]
fn smaller_block_grows_by_an_unbacked_part_the_client_fills() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 8, &page.pool("pages_per_block = 2\nmax = 2")) else {
        return;
    };
    daemon.zero("max");
    let loan = daemon.lend(page, 6);
    assert_eq!((loan.bytes(), loan.ready_bytes()), (page.times(6), page.times(2)));
    assert_eq!(loan.parts().len(), 1);
    assert_eq!(daemon.kernel_free(page), 6, "the unbacked part takes pages when it is touched");
    let memory = loan.map_alone().expect("a mapping");
    assert_zero(&memory);
    soil(&memory, 1);
    assert_eq!(daemon.kernel_free(page), 2);
}

// Promise P14.
#[test]
fn loan_without_ready_pages_is_kernel_memory() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("")) else { return };
    let loan = daemon.lend(page, 4);
    assert_eq!(loan.ready_bytes(), Bytes(0));
    assert_zero(&loan.map_alone().expect("a mapping"));
}

// Promise P30 (socket): A ready block of 2 MiB pages and at least 1 GiB maps at one page fault per
// GiB where the library maps it (x86-64 kernels that share hugetlb page tables; `share_page_tables
// = false` turns it off).
#[test]
#[cfg(target_arch = "x86_64")]
fn a_ready_gibibyte_of_small_huge_pages_maps_at_one_fault() {
    let page = Page::Mib2;
    let config = page.pool("pages_per_block = 512\nrecycle = \"in-place\"");
    let Some(mut daemon) = Daemon::start(page, 1024, &config) else { return };
    daemon.zero("max");
    let check = |daemon: &Daemon| {
        let loan = daemon.client().lend(&LendRequest::new(page.times(1024))).expect("a loan");
        assert_eq!((loan.parts().len(), loan.ready_bytes()), (2, loan.bytes()));
        let memory = loan.map_alone().expect("a mapping");
        let faults = faults_of_touching(&memory, page.size().bytes());
        assert!(faults <= 16, "{faults} faults for 1024 pages");
        assert_zero_but_first(&memory, page);
    };
    check(&daemon);
    // What the daemon keeps mapped does not stand in the way of its own proof.
    daemon.wait_for("dirty again", |p| p.zeroable_pages == Pages(1024));
    daemon.zero("max");
    check(&daemon);
    daemon.wait_for("dirty again", |p| p.zeroable_pages == Pages(1024));
    daemon.zero("max");
    daemon.kill();
    daemon.launch();
    let taken_over = daemon.wait_for("taken over", |p| p.ready_pages == Pages(1024));
    assert_eq!(taken_over.draining_pages, Pages(0));
    // A restarted daemon makes them again by itself, without a waiting caller.
    std::thread::sleep(std::time::Duration::from_millis(200));
    check(&daemon);
}

/// Every byte but the first of each page, which was written.
fn assert_zero_but_first(memory: &linux::Mapping, page: Page) {
    let step = usize::try_from(page.size().bytes()).expect("fits");
    for at in (0..memory.len()).step_by(step) {
        memory.fill(at..at + 1, 0);
    }
    assert_zero(memory);
}

// Promise P30.
#[test]
fn with_page_tables_of_its_own_a_loan_is_the_same() {
    let page = Page::Mib2;
    let config = format!("share_page_tables = false\n{}", page.pool("pages_per_block = 512"));
    let Some(daemon) = Daemon::start(page, 512, &config) else { return };
    daemon.zero("max");
    let memory = daemon.lend(page, 512).map_alone().expect("a mapping");
    assert!(faults_of_touching(&memory, page.size().bytes()) >= 512);
}

#[test]
fn several_blocks_are_mapped_in_a_row_in_order() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 7, &page.pool("pages_per_block = 2\nmax = 6")) else {
        return;
    };
    daemon.zero("max");
    // Three blocks of two, and one page that only an unbacked part can give.
    let loan = daemon.client().lend(&LendRequest::new(page.times(7))).expect("a loan");
    assert_eq!(loan.parts().len(), 4);
    assert_eq!(loan.ready_bytes(), page.times(6));
    let memory = loan.map_alone().expect("one range");
    assert_eq!(memory.len() as u64, page.times(7).0);
    assert_zero(&memory);
    for (index, (fd, part)) in loan.parts().enumerate() {
        let alone = linux::Mapping::map(fd, part.bytes.0, page.size()).expect("one block");
        let byte = u8::try_from(index + 1).expect("few blocks");
        alone.fill(0..alone.len(), byte);
    }
    let mut found = Vec::new();
    for at in 0..7 {
        let mut byte = [0];
        memory.read(usize::try_from(page.times(at).0).expect("64 bit"), &mut byte);
        found.push(byte[0]);
    }
    assert_eq!(found, [1, 1, 2, 2, 3, 3, 4]);
}

// Promise P15 (fallback): Unlent blocks give way to a loan of another shape.
#[test]
fn unbacked_part_gets_pages_of_unlent_blocks_of_other_pools() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("")) else { return };
    daemon.zero("max");
    assert_eq!((daemon.pool().ready_pages, daemon.kernel_free(page)), (Pages(4), 0));
    // One file of four pages: one ready page and three that four blocks of one cannot join.
    let loan = daemon.lend(page, 4);
    assert_eq!(loan.ready_bytes(), page.times(1));
    let memory = loan.map_alone().expect("the kernel can promise the rest");
    memory.populate().expect("and give it");
    assert_zero(&memory);
}

// Promise P24 (socket): Bad input is refused by name and changes nothing.
#[test]
fn impossible_request_is_refused_and_changes_nothing() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("")) else { return };
    daemon.zero("2");
    let before = daemon.pool();
    let refused = |bytes: Bytes| match daemon.client().lend(&LendRequest::new(bytes)) {
        Err(Error::Refused(error)) => error,
        other => panic!("{bytes} bytes were not refused: {other:?}"),
    };
    assert!(matches!(refused(page.times(5)), wire::Error::NotEnough { .. }));
    assert!(matches!(refused(Bytes(4096)), wire::Error::BadValue { .. }));
    assert!(matches!(refused(Bytes(0)), wire::Error::BadValue { .. }));
    let other_size =
        LendRequest { page_size: Some(Page::Gib1.size()), ..LendRequest::new(Page::Gib1.times(1)) };
    let error = daemon.client().lend(&other_size).expect_err("no such pool");
    assert!(matches!(error, Error::Refused(wire::Error::NoSuchPool { .. })), "{error}");
    assert_eq!(daemon.pool(), before);
}

// Promise P71 (programs): A loan that is held by its memory lasts as long as its last mapping or
// descriptor in any process, and no longer.
#[test]
fn a_loan_held_by_its_memory_lasts_as_long_as_its_last_mapping() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("pages_per_block = 2")) else { return };
    daemon.zero("max");
    let request = LendRequest { hold: Hold::Memory, ..LendRequest::new(page.times(4)) };
    let loan = daemon.client().lend(&request).expect("a loan");
    let memory = loan.map_alone().expect("one range");
    // The lease's descriptor is closed, and the blocks' as well.
    drop(loan);
    soil(&memory, 7);
    let child = testkit::child::fork(|ready| {
        ready.signal();
        ready.hold()
    });
    child.wait_ready();
    drop(memory);
    // Longer than the daemon leaves new loans alone: it looks, and finds the child.
    std::thread::sleep(std::time::Duration::from_millis(600));
    let pool = daemon.pool();
    assert_eq!((pool.lent_pages, pool.draining_pages), (Pages(4), Pages(0)), "{pool:?}");
    assert_eq!(daemon.status().loans.len(), 1);
    child.kill();
    // A program short of pages finds them at once.
    assert_zero(&daemon.lend(page, 4).map_alone().expect("the pages of the loan that ended"));
    daemon.wait_for("given back", |p| p.blocks == 0);
}

// Promise P107 (isolation): The last mapping's end is an event: loans held by their memory, and
// blocks that drain, end with it and not by the clock, which is for what no event told.
#[test]
fn last_unmap_ends_loans_held_by_memory_and_draining_blocks() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("max = 1")) else { return };
    for hold in [Hold::Memory, Hold::Descriptor] {
        let mut times: Vec<_> = (0..9)
            .map(|_| {
                daemon.zero("max");
                let request = LendRequest { hold: hold.clone(), ..LendRequest::new(page.times(1)) };
                let loan = daemon.client().lend(&request).expect("a loan");
                let memory = loan.map_alone().expect("its memory");
                drop(loan);
                let wanted = |p: &wire::PoolStatus| p.lent_pages + p.draining_pages == Pages(1);
                daemon.wait_for("still mapped", wanted);
                // Longer than the daemon looks often by the clock.
                std::thread::sleep(std::time::Duration::from_millis(700));
                let begun = std::time::Instant::now();
                drop(memory);
                let mut client = daemon.client();
                while client.status().expect("a status").pools[0].zeroable_pages == Pages(0) {}
                begun.elapsed()
            })
            .collect();
        times.sort();
        // By the clock alone it would be half of a quarter of a second.
        let median = times[times.len() / 2];
        assert!(median.as_millis() < 60, "{hold:?}, {times:?}");
    }
}

#[test]
fn ready_blocks_are_released_on_request() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 4, &page.pool("")) else { return };
    daemon.zero("max");
    let given = daemon.client().release(None, None, Some(Pages(3))).expect("given back");
    assert_eq!(given, page.times(3));
    assert_eq!((daemon.pool().ready_pages, daemon.kernel_free(page)), (Pages(1), 3));
    daemon.client().release(None, None, None).expect("all");
    assert_eq!((daemon.pool().blocks, daemon.kernel_free(page)), (0, 4));
}

// Promise P116 (fallback): The unbacked part of a loan is kept for its client until it is mapped:
// no job takes the pages that it was granted.
#[test]
fn unbacked_part_of_a_loan_is_still_there_when_it_is_mapped() {
    const PAGES: u64 = 16;
    const LENT: u64 = 10;
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, PAGES, &page.pool("")) else { return };
    let loan = daemon.lend(page, LENT);
    assert_eq!(loan.ready_bytes(), Bytes(0));
    // Later than the daemon's last look at the kernel's counts, which knows of no mapping.
    std::thread::sleep(Duration::from_millis(50));
    let mut client = daemon.client();
    let jobs = std::iter::from_fn(|| client.take_zeroing(&wire::TakeZeroing::default()).ok());
    let jobs: Vec<_> = jobs.collect();
    assert_eq!(jobs.len() as u64, PAGES - LENT, "jobs of one page each");
    loan.map_alone().expect("what was granted can be mapped");
}
