// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Workers that report too much, too little, or keep what they should let go.

use std::ops::ControlFlow;

use client::{Client, Error};
use prezero_tests::MapAlone as _;
use prezero_tests::memory::assert_zero;
use prezero_tests::{Daemon, Page};
use units::Pages;
use worker::job::{Done, Job, Task};
use worker::take_zeroing;

fn allocate(job: Job, pages: u64) -> Done {
    let Ok(Task::Allocate(task)) = job.begin() else { panic!("a fresh block is allocated") };
    let stop = |done: Pages| {
        if done.0 >= pages { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    task.run(&mut { stop }).expect("pages are free")
}

fn take(client: &mut Client) -> Job {
    take_zeroing(client, &wire::TakeZeroing::default()).expect("something to zero")
}

// Promise P18.
#[test]
fn part_of_a_block_is_kept_and_the_next_worker_goes_on_there() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 8, &page.pool("pages_per_block = 8")) else { return };
    let mut client = daemon.client();
    let done = allocate(take(&mut client), 3);
    assert_eq!((done.pages, done.all), (Pages(3), false));
    assert_eq!(done.report(&mut client).expect("booked").state, wire::StateName::Zeroable);
    assert_eq!(daemon.pool().zeroable_pages, Pages(5));
    let job = take(&mut client);
    assert_eq!(job.first(), Pages(3));
    let done = allocate(job, 8);
    assert_eq!(done.report(&mut client).expect("booked").state, wire::StateName::Ready);
    assert_zero(&daemon.lend(page, 8).map_alone().expect("a mapping"));
}

#[test]
fn zeroed_pages_are_whole_blocks_with_any_number_of_threads() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 16, &page.pool("pages_per_block = 4")) else { return };
    // Of half a block more the half is no block.
    for (pages, ready, zeroable) in [(4, 4, 12), (6, 8, 6), (6, 16, 0)] {
        let zero = daemon.command(&["zero", "-j", "4", &pages.to_string()]).output();
        assert!(zero.expect("prezero runs").status.success());
        let pool = daemon.pool();
        assert_eq!(
            (pool.ready_pages, pool.zeroable_pages),
            (Pages(ready), Pages(zeroable)),
            "{pages} more"
        );
    }
}

// Promise P7 (zero claim): A worker that still holds a block, or reports pages that have no
// memory, does not make it ready.
#[test]
fn a_worker_that_keeps_a_mapping_does_not_make_a_block_ready() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("pages_per_block = 2")) else { return };
    let mut client = daemon.client();
    let job = take(&mut client);
    let size = page.times(2).0;
    let hidden =
        linux::Mapping::map(job.file().expect("a block"), size, page.size()).expect("a mapping");
    let done = allocate(job, 2);
    assert_eq!(done.report(&mut client).expect("booked").state, wire::StateName::Draining);
    assert_eq!(daemon.pool().ready_pages, Pages(0));
    drop(hidden);
    daemon.wait_for("zeroable again", |p| {
        p.draining_pages == Pages(0) && p.zeroable_pages == Pages(2)
    });
}

#[test]
fn a_job_is_reported_once() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 1, &page.pool("")) else { return };
    let mut client = daemon.client();
    let job = take(&mut client);
    let number = job.id();
    allocate(job, 1).report(&mut client).expect("booked");
    let again = client.finish_zeroing(number, Pages(1));
    assert!(matches!(again, Err(Error::Refused(wire::Error::NoSuchJob { .. }))), "{again:?}");
}

#[test]
fn with_everything_ready_there_is_nothing_to_zero() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("max = 2")) else { return };
    daemon.zero("max");
    let nothing = daemon.client().take_zeroing(&wire::TakeZeroing::default());
    assert!(matches!(nothing, Err(Error::Refused(wire::Error::NothingToZero))), "{nothing:?}");
}

#[test]
fn a_dropped_job_returns_its_pages() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("pages_per_block = 2")) else { return };
    drop(take(&mut daemon.client()));
    daemon.wait_for("zeroable again", |p| {
        p.zeroing_pages == Pages(0) && p.zeroable_pages == Pages(2)
    });
    assert_eq!(daemon.kernel_free(page), 2);
}

// Promise P422 (work): The daemon's worker stays for the pages of the next loan: a pool that is
// lent from all the time is zeroed by one process, which ends when it has had nothing to do.
#[test]
fn own_worker_stays_while_loans_come_back() {
    let page = Page::Mib2;
    let pool = page.pool("ready_low = 4\nready_high = 4");
    let config = format!("[workers]\nmax = 1\nsched_idle = false\n{pool}");
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    let fill = || daemon.wait_for("full", |pool| pool.ready_pages == Pages(4));
    fill();
    let workers = || prezero_tests::process::children(daemon.pid());
    let first = workers();
    assert_eq!(first.len(), 1, "it waits");
    for _ in 0..20 {
        let memory = daemon.lend(page, 2).map_alone().expect("a mapping");
        memory.fill(0..4 << 20, 1);
        drop(memory);
        fill();
        assert_eq!(workers(), first);
    }
    daemon.wait_for("ended", |_| workers().is_empty() && daemon.status().workers == 0);
}
