// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nobody reads another's bytes: borrowers that die, hang, fork and cheat.

use std::os::fd::AsFd;
use std::time::Duration;

use linux::testkit::child::{alone, fork};
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::{Daemon, Page};

/// Both ways of recycling, over both page sizes.
fn variants() -> impl Iterator<Item = (Page, &'static str)> {
    Page::ALL.into_iter().flat_map(|page| ["fresh", "in-place"].map(|recycle| (page, recycle)))
}

/// A pool of one block of one page, so that the next borrower must get the same memory.
fn one_block(page: Page, recycle: &str) -> Option<Daemon> {
    let daemon = Daemon::start(page, 1, &page.pool(&format!("max = 1\nrecycle = \"{recycle}\"")))?;
    daemon.zero("max");
    Some(daemon)
}

fn next_borrower_finds_zeros(daemon: &Daemon, page: Page) {
    daemon.wait_for("zeroable again", |p| p.zeroable_pages == 1);
    daemon.zero("max");
    let loan = daemon.lend(page, 1);
    assert_eq!(loan.ready_bytes(), page.times(1));
    assert_zero(&loan.map().expect("a mapping"));
}

#[test]
fn a_borrower_killed_while_it_holds_its_block_leaves_zeros() {
    let _alone = alone();
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let borrower = fork(|ready| {
            let loan = daemon.lend(page, 1);
            let memory = loan.map().expect("a mapping");
            soil(&memory, 0xEE);
            ready.signal();
            ready.hold()
        });
        borrower.wait_ready();
        assert_eq!(daemon.pool().lent_pages, 1);
        borrower.kill();
        next_borrower_finds_zeros(&daemon, page);
    }
}

#[test]
fn a_block_that_a_child_still_maps_lingers_until_the_child_is_gone() {
    let _alone = alone();
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let loan = daemon.lend(page, 1);
        let memory = loan.map().expect("a mapping");
        soil(&memory, 0xDD);
        let (lease, mut blocks) = loan.into_fds();
        let block = blocks.pop().expect("one block");
        // Everything moves into the child, where only the mapping stays open.
        let heir = fork(move |ready| {
            drop((lease, block));
            let mut byte = [0];
            memory.read(0, &mut byte);
            assert_eq!(byte[0], 0xDD);
            ready.signal();
            ready.hold()
        });
        heir.wait_ready();
        daemon.wait_for("lingering", |p| p.lingering_pages == 1);
        std::thread::sleep(Duration::from_millis(300));
        let pool = daemon.pool();
        assert_eq!((pool.lingering_pages, pool.ready_pages), (1, 0), "{pool:?}");
        heir.kill();
        next_borrower_finds_zeros(&daemon, page);
    }
}

#[test]
fn a_mapping_alone_keeps_a_returned_block_out_of_use() {
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let loan = daemon.lend(page, 1);
        let memory = loan.map().expect("a mapping");
        soil(&memory, 0xCC);
        // Lease and descriptors are gone, the mapping stays.
        drop(loan);
        daemon.wait_for("lingering", |p| p.lingering_pages == 1);
        std::thread::sleep(Duration::from_millis(300));
        let pool = daemon.pool();
        assert_eq!((pool.lingering_pages, pool.ready_pages), (1, 0));
        assert_soiled(&memory, 0xCC);
        soil(&memory, 0xCD);
        drop(memory);
        next_borrower_finds_zeros(&daemon, page);
    }
}

#[test]
fn a_descriptor_alone_keeps_a_returned_block_out_of_use() {
    for (page, recycle) in variants() {
        let Some(daemon) = one_block(page, recycle) else { return };
        let (lease, blocks) = daemon.lend(page, 1).into_fds();
        drop(lease);
        daemon.wait_for("lingering", |p| p.lingering_pages == 1);
        drop(blocks);
        next_borrower_finds_zeros(&daemon, page);
    }
}

#[test]
fn a_path_only_descriptor_opens_nothing_after_the_return() {
    use rustix::fs::{Mode, OFlags};

    let _alone = alone();
    let page = Page::Mib2;
    for recycle in ["fresh", "in-place"] {
        let pool = page.pool(&format!("max = 1\nrecycle = \"{recycle}\""));
        let config = format!("lend_group = \"65534\"\n{pool}");
        let Some(daemon) = Daemon::start(page, 1, &config) else { return };
        daemon.zero("max");
        let cheat = fork(|ready| {
            nix::unistd::setgroups(&[]).expect("root");
            nix::unistd::setgid(65534.into()).expect("root");
            nix::unistd::setuid(65534.into()).expect("root");
            let loan = daemon.lend(page, 1);
            let (_, fds) = loan.into_fds();
            let path = |fd: &dyn std::os::fd::AsRawFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
            // Neither the lease proof nor the daemon sees an O_PATH descriptor.
            let hidden = rustix::fs::open(path(&fds[0]), OFlags::PATH, Mode::empty())
                .expect("a path to the block");
            drop(fds);
            ready.signal();
            // Until the block is in somebody else's hands.
            std::thread::sleep(Duration::from_secs(2));
            let again = rustix::fs::open(path(&hidden), OFlags::RDONLY, Mode::empty());
            match again {
                Err(_) => 0,
                // The old file of a fresh pool may open: it has no pages any more.
                Ok(fd) => match linux::BlockFile::from(fd).allocated_bytes() {
                    Ok(0) => 0,
                    _ => 1,
                },
            }
        });
        cheat.wait_ready();
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == 1);
        daemon.zero("max");
        let loan = daemon.lend(page, 1);
        let memory = loan.map().expect("a mapping");
        soil(&memory, 0x77);
        assert_eq!(cheat.wait(), Some(0), "{recycle}: the former borrower reached the block");
    }
}

#[test]
fn in_place_blocks_stay_files_and_come_back_zero_each_time() {
    for page in Page::ALL {
        let Some(daemon) = one_block(page, "in-place") else { return };
        for round in 1..=4_u8 {
            let loan = daemon.lend(page, 1);
            assert_eq!(loan.ready_bytes(), page.times(1));
            let memory = loan.map().expect("a mapping");
            assert_zero(&memory);
            soil(&memory, round);
            drop((memory, loan));
            daemon.wait_for("dirty in place", |p| p.zeroable_pages == 1 && p.blocks == 1);
            assert_eq!(daemon.kernel_free(page), 0, "the block keeps its page");
            daemon.zero("max");
        }
    }
}

#[test]
fn the_lease_descriptor_alone_keeps_the_loan() {
    let page = Page::Mib2;
    let Some(daemon) = one_block(page, "fresh") else { return };
    let (lease, blocks) = daemon.lend(page, 1).into_fds();
    let copy = lease.as_fd().try_clone_to_owned().expect("a copy");
    drop((lease, blocks));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(daemon.pool().lent_pages, 1);
    drop(copy);
    daemon.wait_for("returned", |p| p.lent_pages == 0);
}

#[test]
fn a_borrower_that_cuts_or_punches_its_file_costs_nobody_anything() {
    let page = Page::Mib2;
    let pool = page.pool("pages_per_block = 4\nmax = 4\nrecycle = \"in-place\"");
    let Some(daemon) = Daemon::start(page, 4, &pool) else { return };
    let cuts: [fn(&linux::BlockFile); 3] = [
        |file| file.punch(0..2 << 20).expect("our own file"),
        |file| file.set_len(2 << 20).expect("our own file"),
        |file| file.set_len(64 << 20).expect("our own file"),
    ];
    for cut in cuts {
        daemon.zero("max");
        assert_eq!(daemon.pool().ready_pages, 4);
        let (lease, mut blocks) = daemon.lend(page, 4).into_fds();
        let file = linux::BlockFile::from(blocks.pop().expect("one block"));
        cut(&file);
        drop((file, lease));
        daemon.wait_for("zeroable again", |p| p.zeroable_pages == 4);
    }
    daemon.zero("max");
    assert_zero(&daemon.lend(page, 4).map().expect("a mapping"));
}
