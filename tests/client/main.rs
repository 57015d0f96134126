// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each call of the client library against a daemon of plain memory, which needs no huge page and
//! runs beside tests that hold some: the call's result, and its effect in the daemon.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use client::{Client, Error, LendRequest, Loan};
use prezero_tests::refused::refusal;
use prezero_tests::{Daemon, Page};
use units::{Bytes, LeaseId, Pages};
use wire::{PoolChange, StateName};

const PAGE: Page = Page::Mib2;

/// A daemon with this number of ready pages.
fn daemon(ready: u64) -> Daemon {
    let config = PAGE.pool("max = 8\n[workers]\nmax = 0");
    let daemon = Daemon::start_with(None, &config, &["--plain"]);
    if ready > 0 {
        daemon.zero(&ready.to_string());
    }
    daemon
}

fn pages(n: u64) -> LendRequest {
    LendRequest::new(PAGE.times(n))
}

#[test]
fn a_loan_is_what_the_daemon_says_it_is() {
    let daemon = daemon(3);
    let mut client = daemon.client();
    let first = client.lend(&pages(1)).expect("a loan");
    let loan = client.lend(&pages(2)).expect("a loan");
    let listed = client.status().expect("a status").loans;
    let ids: Vec<_> = listed.iter().map(|loan| loan.lease).collect();
    assert_eq!(ids, [first.id(), loan.id()]);
    assert!(loan.id() > LeaseId(1), "the second of them");
    assert_eq!((loan.bytes(), loan.ready_bytes()), (PAGE.times(2), PAGE.times(2)));
    assert_eq!((loan.page_size(), loan.is_kept(), loan.parts().len()), (PAGE.size(), false, 2));
    let memory = loan.map().expect("a mapping");
    assert_eq!(memory.len() as u64, PAGE.times(2).0);
    let loan = memory.unmap();
    let numbers: Vec<_> = loan.parts().map(|(fd, _)| fd.as_raw_fd()).collect();
    let number = loan.lease().expect("a lease").as_raw_fd();
    let (lease, blocks) = loan.into_fds();
    assert_eq!(lease.as_ref().map(|lease| lease.as_raw_fd()), Some(number));
    assert_eq!(blocks.iter().map(|fd| fd.as_raw_fd()).collect::<Vec<_>>(), numbers);
    drop((first, lease, blocks));
    daemon.wait_for("returned", |pool| pool.lent_pages == Pages(0));
}

#[test]
fn mapping_is_writable_bytes_and_holds_its_loan() {
    let daemon = daemon(2);
    let mut memory = daemon.client().lend(&pages(2)).and_then(Loan::map).expect("a mapping");
    assert!(memory.iter().all(|byte| *byte == 0));
    memory[0] = 7;
    memory.copy_within(..1, 1);
    assert_eq!(memory[..3], [7, 7, 0]);
    let listed = daemon.client().status().expect("a status").loans;
    let ids: Vec<_> = listed.iter().map(|loan| loan.lease).collect();
    assert_eq!(ids, [memory.loan().id()]);
    assert_eq!(daemon.pool().lent_pages, Pages(2));
    drop(memory);
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}

#[test]
fn owners_content_is_reported_as_kept() {
    let daemon = daemon(1);
    let lend = || daemon.lend_to("somebody", Duration::from_secs(60), PAGE, 1);
    let first: Loan = lend();
    assert!(!first.is_kept());
    first.map().expect("a mapping")[0] = 7;
    daemon.wait_for("kept", |pool| pool.kept_pages == Pages(1));
    assert!(lend().is_kept());
}

#[test]
fn a_worker_takes_a_job_and_its_report_is_believed_or_refused() {
    let daemon = daemon(0);
    let mut client = daemon.client();
    let (job, mut fds) = client.take_zeroing(&wire::TakeZeroing::default()).expect("a job");
    assert_eq!((job.page_size.bytes(), fds.len()), (PAGE.size().bytes(), 2));
    assert_eq!(daemon.pool().zeroing_pages, Pages(1));
    // A worker lets go of the block before it reports; the job lives with the other one.
    let held = fds.swap_remove(usize::try_from(job.job_fd).expect("an index"));
    drop(fds);
    let finished = client.finish_zeroing(job.job, Pages(0)).expect("its own job");
    assert_eq!(finished.state, StateName::Zeroable);
    let again = refusal(client.finish_zeroing(job.job, Pages(0)));
    assert!(matches!(again, wire::Error::NoSuchJob { .. }), "{again:?}");
    drop(held);
}

#[test]
fn an_operators_calls_are_done_and_say_what_they_did() {
    let daemon = daemon(4);
    let mut client = daemon.client();
    assert_eq!(client.release(None, None, Some(Pages(1))).expect("root may"), PAGE.times(1));
    assert_eq!(daemon.pool().ready_pages, Pages(3));

    let loan = client.lend(&pages(1)).expect("a loan");
    let holders = client.find_holders(Some(loan.id())).expect("root may");
    assert!(holders.holders.iter().any(|holder| holder.pid == std::process::id()), "{holders:?}");
    assert_eq!(client.revoke(loan.id()).expect("root may"), PAGE.times(1));
    let gone = refusal(client.revoke(loan.id()));
    assert!(matches!(gone, wire::Error::NoSuchLease { .. }), "{gone:?}");
    drop(loan);

    let drained = client.drain(true).expect("root may");
    assert_eq!(drained.released_bytes, PAGE.times(2), "{drained:?}");
    assert!(client.status().expect("a status").drained);
    client.drain(false).expect("root may");
    assert!(!client.status().expect("a status").drained);

    let change = PoolChange {
        page_size: PAGE.size(),
        pages_per_block: Pages(1),
        max_pages: Some(Pages(3)),
        ..PoolChange::default()
    };
    client.configure(change.clone()).expect("root may");
    assert_eq!(daemon.pool().max_pages, Some(Pages(3)));
    let wrong = PoolChange { ready_low: Some(Pages(4)), ..change };
    assert!(matches!(refusal(client.configure(wrong)), wire::Error::BadValue { .. }));
}

#[test]
fn a_watch_reports_each_change_and_ends_with_the_daemon() {
    let mut daemon = daemon(1);
    // A watch may be silent for longer than an answer may take.
    let client = Client::connect_within(daemon.socket(), Duration::from_millis(300));
    let mut watch = client
        .expect("a daemon")
        .watch(None, None, None, Duration::from_millis(10))
        .expect("root may");
    let mut next = || watch.next().map(|report| report.expect("a good one").levels);
    assert_eq!(next().expect("one at once")[0].ready_pages, Pages(1));
    let changed = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            daemon.zero("1");
        });
        let mut last = None;
        while last != Some(2) {
            last = next().map(|levels| levels[0].ready_pages.0);
        }
        last
    });
    assert_eq!(changed, Some(2));
    daemon.kill();
    assert!(std::iter::from_fn(next).count() < 4);
}

#[test]
fn an_agents_calls_are_done_and_say_what_they_did() {
    let daemon = daemon(4);
    let mut agent = daemon.agent();
    let ask = |name: &str| LendRequest::by_name(name.parse().expect("a name"), PAGE.times(1));
    for name in ["a/1", "a/2", "b/1"] {
        let lent = agent.lend(&ask(name)).expect("it lends");
        assert_eq!(
            (lent.was_found(), lent.lease().is_some(), lent.parts().len()),
            (false, false, 0)
        );
        assert!(lent.path().is_some_and(|path| std::path::Path::new(path).exists()), "{lent:?}");
    }
    let mut names = |prefix: &str| {
        let loans = agent.loans(prefix).expect("a list");
        loans.into_iter().map(|loan| loan.name).collect::<Vec<_>>()
    };
    assert_eq!(names("a/"), ["a/1", "a/2"]);
    assert_eq!(names("c/"), [""; 0]);
    agent.return_loan("a/1".parse().expect("a name"), false).expect("its own");
    let gone = agent.return_loan("a/1".parse().expect("a name"), false);
    assert!(matches!(gone, Err(Error::Refused(wire::Error::NoSuchName { .. }))), "{gone:?}");
    let supply = agent.supply().expect("what there is");
    assert_eq!(supply[0].named_bytes, PAGE.times(2), "{supply:?}");
}

#[test]
fn a_list_of_more_loans_than_an_answer_has_is_whole() {
    let config = PAGE.pool("max = 300\n[workers]\nmax = 0");
    let daemon = Daemon::start_with(None, &config, &["--plain"]);
    let mut agent = daemon.agent();
    let names: Vec<_> = (100..400).map(|nth| format!("a/{nth}")).collect();
    for name in &names {
        // Of an untouched page: all of them are unbacked parts.
        let ask = LendRequest::by_name(name.parse().expect("a name"), PAGE.times(1));
        agent.lend(&ask).expect("it lends");
    }
    let listed = agent.loans("a/").expect("a list").into_iter().map(|loan| loan.name);
    assert_eq!(listed.collect::<Vec<_>>(), names);
}

// Promise P264.
#[test]
fn waiting_client_gets_ready_memory_or_the_present_pages() {
    let daemon = daemon(1);
    let mut client = daemon.client();
    let soon = client.lend_within(&pages(1), Duration::from_secs(60)).expect("it is ready");
    assert_eq!(soon.ready_bytes(), PAGE.times(1));

    // Nothing is ready, and in time something is.
    let later = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            daemon.zero("1");
        });
        client.lend_within(&pages(1), Duration::from_secs(60)).expect("it comes")
    });
    assert_eq!(later.ready_bytes(), PAGE.times(1));

    // Nothing is, and nothing comes.
    let begun = std::time::Instant::now();
    let unbacked =
        client.lend_within(&pages(1), Duration::from_millis(100)).expect("an unbacked part");
    assert_eq!(unbacked.ready_bytes(), Bytes(0));
    assert!(begun.elapsed() >= Duration::from_millis(100), "not before");
    let too_much = refusal(client.lend_within(&pages(1 << 30), Duration::from_millis(100)));
    assert!(matches!(too_much, wire::Error::NotEnough { .. }), "{too_much:?}");
}

// Promise P264.
#[test]
fn a_wait_ends_when_its_caller_says_so() {
    let daemon = daemon(0);
    let begun = std::time::Instant::now();
    let mut asked = 0;
    let ended = daemon.client().lend_within_unless(&pages(1), Duration::from_secs(60), || {
        asked += 1;
        if asked < 3 { Ok(()) } else { Err(Ended::ByCaller) }
    });
    assert!(matches!(ended, Err(Ended::ByCaller)), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it was asked in time");
}

/// Why a wait ended.
#[derive(Debug)]
enum Ended {
    ByCaller,
    Otherwise(#[expect(dead_code, reason = "printed")] client::Error),
}

impl From<client::Error> for Ended {
    fn from(error: client::Error) -> Self {
        Self::Otherwise(error)
    }
}

/// Answers as a daemon with that status, and tells watches of no change; how often it was asked for
/// a report.
fn reports_of(status: &wire::Status, listener: UnixListener) -> usize {
    let status = serde_json::json!({ "parameters": status }).to_string();
    let levels =
        serde_json::json!({ "parameters": { "levels": [] }, "continues": true }).to_string();
    let (mut borrower, _) = listener.accept().expect("a client");
    std::thread::spawn(move || {
        let (mut watch, _) = listener.accept().expect("a watch");
        watch.write_all(format!("{levels}\0").as_bytes()).expect("it reads");
        let _ = watch.read(&mut [0]);
        std::thread::sleep(Duration::from_secs(60));
    });
    let (mut call, mut reports) = (Vec::new(), 0);
    while let Ok(1..) = BufReader::with_capacity(1, &borrower).read_until(0, &mut call) {
        let text = String::from_utf8_lossy(&call).into_owned();
        call.clear();
        // The loan in the end is not answered.
        if !text.contains("GetStatus") {
            break;
        }
        reports += 1;
        borrower.write_all(format!("{status}\0").as_bytes()).expect("it reads");
    }
    reports
}

// Promise P264 (operator): A program that waits for ready memory is told of changes, and asks for
// a report only where they could be enough; its caller can end the wait, from Python by Ctrl-C.
#[test]
fn a_wait_asks_for_no_report_while_nothing_changes() {
    let status = daemon(0).status();
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a new place");
    let daemon = std::thread::spawn(move || reports_of(&status, listener));
    let mut client = client::Client::connect(&path).expect("it listens");
    client.lend_within(&pages(1), Duration::from_secs(1)).expect_err("it hangs up in the end");
    drop(client);
    assert_eq!(daemon.join().expect("it answered"), 1, "of one second");
}
