// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deaths: of a worker, of a borrower, of the daemon.

use std::process::Stdio;
use std::time::{Duration, Instant};

use prezero_tests::MapAlone as _;
use prezero_tests::daemon::WAIT_TIMEOUT;
use prezero_tests::memory::{assert_soiled, assert_zero, soil};
use prezero_tests::{Daemon, Page};
use testkit::hugepages;
use units::Pages;
use worker::job::Task;
use worker::take_zeroing;

use super::support::{self, kernel, soil_pool};

// Promise P55 (kernel): A killed worker loses no page and no work; a worker's word makes nothing
// ready.
#[test]
fn a_killed_worker_leaves_its_pages_zeroed_and_no_page_behind() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 192, "") else { return };
    let mut zero = daemon.command(&["zero", "max"]);
    let mut worker = zero.stdout(Stdio::null()).spawn().expect("prezero runs");
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while kernel(page, 0).ready.0 < 4 {
        assert!(Instant::now() < deadline, "zeroing never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    worker.kill().expect("our own child");
    worker.wait().expect("our own child");
    let counts = kernel(page, 0);
    assert_eq!((counts.zeroing.0, counts.ready.0 + counts.zeroable.0), (0, 192), "{counts:?}");
    daemon.wait_for("told", |_| daemon.status().counters.lost_workers > 0);
    daemon.zero("max");
    assert_eq!(daemon.pool().ready_pages, Pages(192));
    assert_zero(&daemon.lend(page, 192).map_alone().expect("a mapping"));
}

// Promise P55.
#[test]
fn a_job_that_is_dropped_or_reported_twice_costs_nothing() {
    let page = Page::Mib2;
    let Some(daemon) = support::daemon(page, 4, "") else { return };
    let mut client = daemon.client();
    let job = take_zeroing(&mut client, &wire::TakeZeroing::default()).expect("something to zero");
    assert!(job.file().is_none());
    assert_eq!(job.pages(), Pages(4));
    drop(job);
    daemon.wait_for("lost", |_| daemon.status().counters.lost_workers == 1);
    let job = take_zeroing(&mut client, &wire::TakeZeroing::default()).expect("something to zero");
    let number = job.id();
    let Ok(Task::InKernel(task)) = job.begin() else { panic!("pages of the kernel's pool") };
    assert_eq!(task.zero(Pages(3)).expect("zeroed").pages, Pages(3));
    // More than was done, or asked for, makes nothing ready that is not.
    task.finish(Pages(u64::MAX)).report(&mut client).expect("booked");
    assert!(client.finish_zeroing(number, Pages(1)).is_err());
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.zeroable_pages), (Pages(3), Pages(1)));
    assert!(daemon.status().counters.zeroed_bytes <= page.times(4));
}

// Promise P58 (kernel): A restarted daemon honours loans; ready files of a daemon that owned
// blocks go back to the kernel.
#[test]
fn a_borrower_outlives_the_daemon_and_zeroed_pages_too() {
    let page = Page::Mib2;
    let Some(mut daemon) = support::daemon(page, 8, "") else { return };
    daemon.zero("max");
    let loan = daemon.lend(page, 4);
    let memory = loan.map_alone().expect("a mapping");
    soil(&memory, 9);
    daemon.kill();
    daemon.launch();
    let pool = daemon.pool();
    assert_eq!((pool.lent_pages, pool.ready_pages, pool.blocks), (Pages(4), Pages(4), 1));
    assert_soiled(&memory, 9);
    drop((memory, loan));
    daemon.wait_for("given back", |p| p.blocks == 0);
    assert_eq!(daemon.kernel_free(page), 8);
}

#[test]
fn loan_that_ends_without_a_daemon_is_freed_at_the_next_start() {
    let page = Page::Mib2;
    let Some(mut daemon) = support::daemon(page, 4, "") else { return };
    daemon.zero("max");
    let loan = daemon.lend(page, 4);
    soil(&loan.map_alone().expect("a mapping"), 3);
    daemon.kill();
    drop(loan);
    daemon.launch();
    daemon.wait_for("given back", |p| p.blocks == 0 && p.zeroable_pages == Pages(4));
    assert_zero(&daemon.lend(page, 4).map_alone().expect("a mapping"));
}

// Promise P58.
#[test]
fn ready_files_of_a_stock_daemon_go_back_to_the_kernel() {
    let page = Page::Mib2;
    if !support::has_series() {
        return;
    }
    let Some(guard) = hugepages::reserve_all(&[(page.size(), Some(units::Node(0)), 6)]) else {
        return;
    };
    soil_pool(page, 6);
    let config = page.pool("pages_per_block = 2");
    let mut daemon = Daemon::start_with(Some(guard), &config, &["--set", "provider=stock"]);
    daemon.zero("max");
    let loan = daemon.lend(page, 2);
    assert_eq!((daemon.pool().ready_pages, daemon.kernel_free(page)), (Pages(4), 0));
    daemon.kill();
    daemon.use_arguments(&["--set", "provider=kernel"]);
    daemon.launch();
    daemon.wait_for("given back", |p| {
        p.kernel_free_pages == Pages(4) && p.zeroable_pages == Pages(4)
    });
    let status = daemon.status();
    assert_eq!(status.loans.len(), 1, "{status:?}");
    drop(loan);
    daemon.wait_for("given back", |p| p.kernel_free_pages == Pages(6));
}
