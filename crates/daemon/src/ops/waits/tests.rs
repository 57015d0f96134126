// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The waits of calls, and their ends: by a clock that goes on when every task waits.
//!
//! That clock knows nothing of the user queues' threads. So nothing here waits for those by it, but
//! for what they are kept from doing.

use crate::base::now::NowOrNever as _;
use book::Requester;
use linux::Mapping;
use rustix::fs::{FallocateFlags, fallocate};
use tokio::time::advance;
use units::{LeaseId, PageSize, Uid};
use wire::LendRequest;

use super::*;
use crate::ops::testkit::{BORROWER, Bed, SIZE, WAIT_TIMEOUT, map, owned, pages};
use crate::ops::waits;
use crate::peers::metrics::OwnProcess;
use crate::peers::users::{Bounds, Users};

/// Runs a test on a thread with a clock that stands still while any task has something to do.
fn by_the_clock<F: Future>(test: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("an event loop");
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// The promised values, independent of the code.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);
const LOAN_WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection of root's.
fn place() -> Place {
    Users::new(Bounds::new(1024)).enter(0, true).expect("the first one")
}

/// A loan that ends when what it hands over is dropped.
async fn lend(bed: &Bed, request: &LendRequest) -> Result<Handover, Refusal> {
    let mut asked = bed.ask(request.clone(), BORROWER);
    let lent = waits::lend(&bed.shell, &place(), &mut asked, (0, 0)).await;
    lent.expect("no kernel in the way").map(handed)
}

/// The hand-over of a loan.
fn handed(lent: HeldLoan) -> Handover {
    let HeldLoan::Descriptors(handover) = lent else { panic!("{lent:?}") };
    handover
}

/// Waits until a lease's end was heard.
async fn gone(bed: &Bed, lease: LeaseId) {
    let begin = std::time::Instant::now();
    while bed.has(lease) {
        assert!(begin.elapsed() < WAIT_TIMEOUT, "nobody hears its end");
        tokio::task::yield_now().await;
    }
}

/// An owner's loan that has ended, with content that is still mapped.
fn draining_owner(bed: &mut Bed) -> Mapping {
    let granted = bed.lend(&owned());
    let (lease, memory) = (granted.handover.loan.lease, map(&granted));
    drop(granted);
    bed.shell.borrow_mut().close_lease(lease, None);
    bed.settle();
    assert_eq!(bed.count(StateName::Draining), 1);
    memory
}

#[test]
fn owner_waits_two_seconds_for_its_former_self() {
    by_the_clock(async {
        let mut bed = Bed::new();
        bed.zero(2);
        let memory = draining_owner(&mut bed);
        let shell = Rc::clone(&bed.shell);
        tokio::task::spawn_local(async move {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(350)).await;
                shell.borrow().changes.wake();
            }
        });
        let begin = Instant::now();
        let handover = lend(&bed, &owned()).await.expect("other memory");
        assert_eq!(begin.elapsed(), OWNER_TIMEOUT);
        assert!(!handover.loan.kept);
        drop(memory);
    });
}

#[test]
fn an_owner_has_its_content_as_soon_as_that_is_there() {
    by_the_clock(async {
        let mut bed = Bed::new();
        bed.zero(1);
        let memory = draining_owner(&mut bed);
        let request = owned();
        let mut asked = bed.ask(request, BORROWER);
        let place = place();
        let shell = Rc::clone(&bed.shell);
        let mut lent = Box::pin(waits::lend(&shell, &place, &mut asked, (0, 0)));
        assert!((&mut lent).now_or_never().is_none(), "somebody has it mapped");
        assert!(shell.borrow().peers.waiting.has_waiters(), "maintenance runs for it");
        drop(memory);
        let begin = Instant::now();
        bed.shell.borrow_mut().settle_some(9);
        bed.settle_all();
        let handover = handed(lent.await.expect("no kernel in the way").expect("a loan"));
        assert!(handover.loan.kept);
        assert!(begin.elapsed() < OWNER_TIMEOUT);
        assert!(!shell.borrow().peers.waiting.has_waiters(), "nobody waits any more");
    });
}

#[test]
fn pages_on_their_way_are_waited_for_half_a_second() {
    by_the_clock(async {
        let bed = Bed::with("", "pages_per_block = 1\nmax = 1");
        bed.zero(1);
        bed.has_free(0);
        let begin = Instant::now();
        let refused = lend(&bed, &pages(2)).await.expect_err("there is one page");
        assert!(matches!(refused, Refusal::NotEnough { .. }), "{refused:?}");
        assert_eq!(begin.elapsed(), Duration::ZERO, "nothing was on its way");
        let busy = bed.hold_up(None);
        let refused = lend(&bed, &pages(2)).await.expect_err("there is one page");
        assert!(matches!(refused, Refusal::NotEnough { .. }), "{refused:?}");
        assert_eq!(begin.elapsed(), LOAN_WAIT_TIMEOUT);
        drop(busy);
        let other = LendRequest { page_size: Some(PageSize::GIB_1), ..pages(512) };
        assert!(matches!(lend(&bed, &other).await, Err(Refusal::NoSuchPool)));
        assert_eq!(begin.elapsed(), LOAN_WAIT_TIMEOUT, "for no pages there is nothing to wait for");
    });
}

#[test]
fn unbacked_loan_waits_for_released_pages_ready_one_does_not() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.zero(1);
        let busy = bed.hold_up(None);
        let ready = lend(&bed, &pages(1)).now_or_never();
        assert!(ready.is_some_and(|lent| lent.is_ok()));
        let request = pages(1);
        let mut unbacked = Box::pin(lend(&bed, &request));
        assert!((&mut unbacked).now_or_never().is_none());
        advance(Duration::from_secs(3600)).await;
        assert!((&mut unbacked).now_or_never().is_none(), "however long that takes");
        drop(busy);
        unbacked.await.expect("a loan");
    });
}

#[test]
fn a_granted_loan_ends_with_its_lease() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.zero(1);
        let handover = lend(&bed, &pages(1)).await.expect("a loan");
        let lease = handover.loan.lease;
        drop(handover);
        gone(&bed, lease).await;
    });
}

#[test]
fn a_report_waits_a_moment_for_pages_on_their_way() {
    by_the_clock(async {
        let bed = Bed::new();
        let place = place();
        let begin = Instant::now();
        assert!(waits::status(&bed.shell, &place).now_or_never().is_some(), "nothing is");
        // What users hold up is waited for less than what the daemon itself does.
        for (user_queue, wait) in [(Some(Uid(BORROWER)), 5), (None, 105)] {
            let busy = bed.hold_up(user_queue);
            let begin = Instant::now();
            waits::status(&bed.shell, &place).await;
            assert_eq!(begin.elapsed(), Duration::from_millis(wait), "{user_queue:?}");
            drop(busy);
            bed.wait_for_user_queues();
        }
        assert_eq!(begin.elapsed(), Duration::from_millis(110));
    });
}

#[test]
fn revoke_waits_a_second_for_the_pages() {
    by_the_clock(async {
        let bed = Bed::new();
        let begin = Instant::now();
        waits::revoked(&bed.shell).await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "they are free");
        let busy = bed.hold_up(Some(Uid(BORROWER)));
        waits::revoked(&bed.shell).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(1), "their user holds them up");
        drop(busy);
    });
}

fn named(count: u64) -> (LoanName, LendRequest) {
    let name: LoanName = "a/x".parse().expect("a name");
    (name.clone(), LendRequest::by_name(name, Pages(count).bytes(SIZE)))
}

async fn lend_by_name(
    bed: &Bed,
    request: &LendRequest,
) -> Result<Result<HeldLoan, Refusal>, wire::Error> {
    let uid = Uid(BORROWER);
    let asked = bed.shell.borrow_mut().ask(request.clone(), uid, uid, None);
    let mut asked = asked.expect("a request");
    waits::lend(&bed.shell, &place(), &mut asked, (0, 0)).await
}

#[test]
fn a_name_that_another_call_makes_is_waited_for_two_seconds() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.zero(1);
        let (name, request) = named(1);
        let asked = bed.shell.borrow_mut().ask(request.clone(), Uid(0), Uid(0), None);
        let begun = bed.shell.borrow_mut().lend(&asked.expect("a request"), (0, 0));
        let Ok(Ok(LoanStep::Granted(pending))) = begun else { panic!("{begun:?}") };
        let request = request.given_to(Some(Uid(0)), None);

        let begin = Instant::now();
        let busy = lend_by_name(&bed, &request).await;
        assert!(matches!(busy, Ok(Err(Refusal::NameBusy))), "{busy:?}");
        assert_eq!(begin.elapsed(), OWNER_TIMEOUT);
        let returned = waits::return_by_name(&bed.shell, &name, false).await;
        assert!(matches!(returned, Ok(Some(false))), "{returned:?}");
        assert_eq!(begin.elapsed(), 2 * OWNER_TIMEOUT);

        let mut found = Box::pin(lend_by_name(&bed, &request));
        let mut returned = Box::pin(waits::return_by_name(&bed.shell, &name, false));
        assert!((&mut found).now_or_never().is_none() && (&mut returned).now_or_never().is_none());
        let held = bed.shell.borrow_mut().hold_by_name(pending).expect("a file");
        bed.shell.borrow().changes.wake();
        let found = found.await;
        assert!(matches!(&found, Ok(Ok(HeldLoan::Found(found))) if *found == held), "{found:?}");
        let returned = returned.await;
        assert!(matches!(returned, Ok(Some(true))), "{returned:?}");
        assert_eq!(begin.elapsed(), 2 * OWNER_TIMEOUT, "neither waited any longer");
    });
}

/// A large loan with a file that is just being filled.
async fn being_filled<'a>(
    bed: &'a Bed,
    request: &'a LendRequest,
) -> std::pin::Pin<Box<dyn Future<Output = Result<Result<HeldLoan, Refusal>, wire::Error>> + 'a>> {
    let mut lent: std::pin::Pin<Box<dyn Future<Output = _>>> = Box::pin(lend_by_name(bed, request));
    let begin = std::time::Instant::now();
    loop {
        assert!((&mut lent).now_or_never().is_none(), "it is not that fast");
        let found = bed
            .shell
            .borrow()
            .book()
            .named(request.name().expect("a name"))
            .expect("it is listed at once");
        assert!(found.is_pending);
        if bed.shell.borrow().memory_of(found.block, SIZE) > units::Bytes(0) {
            return lent;
        }
        assert!(begin.elapsed() < WAIT_TIMEOUT, "nothing is filled");
        tokio::task::yield_now().await;
    }
}

// Promise P270.
#[test]
fn an_agent_that_hangs_up_or_a_return_ends_the_fill() {
    by_the_clock(async {
        // The awaited event is a thread's.
        tokio::time::resume();
        let pages = 1 << 30;
        let bed = Bed::with("[agent]\nfill_max = \"2048T\"", "pages_per_block = 1");
        bed.has_free(pages);
        let (name, request) = named(pages);
        let request = LendRequest { whole: true, ..request };
        let is_there = || bed.shell.borrow().book().named(&name).is_some();
        let begin = std::time::Instant::now();

        drop(being_filled(&bed, &request).await);
        while is_there() {
            assert!(begin.elapsed() < WAIT_TIMEOUT, "its fill goes on");
            tokio::task::yield_now().await;
        }

        let lent = being_filled(&bed, &request).await;
        let returned = waits::return_by_name(&bed.shell, &name, false);
        let (returned, lent) = tokio::join!(returned, lent);
        assert!(matches!(returned, Ok(Some(true))), "{returned:?}");
        assert!(matches!(&lent, Err(wire::Error::Failed { .. })), "{lent:?}");
        assert!(!is_there());
        bed.wait_for_user_queues();
        assert_eq!(bed.count(StateName::Lent), 0);
    });
}

/// How many loans of each outcome the metrics count.
fn counted(bed: &Bed) -> Vec<(&'static str, u64)> {
    let status = bed.shell.borrow_mut().status();
    let text = bed.shell.borrow().metrics.text(&status, Duration::ZERO, OwnProcess::default());
    let of = |outcome: &'static str| {
        let line = format!("prezero_loans_total{{outcome=\"{outcome}\"}} ");
        let count = text.lines().find_map(|found| found.strip_prefix(&line))?;
        Some((outcome, count.parse().expect("a number")))
    };
    ["kept", "not_ready", "partly_ready", "ready"].into_iter().filter_map(of).collect()
}

#[test]
fn loans_are_counted_by_what_they_had() {
    by_the_clock(async {
        let mut bed = Bed::new();
        for (ready, request) in [(1, pages(1)), (1, pages(2)), (0, pages(1))] {
            bed.zero(ready);
            let lent = lend(&bed, &request).await.expect("a loan");
            bed.shell.borrow_mut().close_lease(lent.loan.lease, None);
            drop(lent);
            bed.settle();
            bed.shell.borrow_mut().release(None, None, None);
            bed.wait_for_user_queues();
        }
        bed.zero(1);
        for kept in [false, true] {
            let lent = lend(&bed, &owned()).await.expect("a loan");
            assert_eq!(lent.loan.kept, kept);
            bed.shell.borrow_mut().sent(lent.loan.lease);
            let lease = lent.loan.lease;
            drop(lent);
            bed.shell.borrow_mut().close_lease(lease, None);
            bed.settle();
        }
        let all = [("kept", 1), ("not_ready", 1), ("partly_ready", 1), ("ready", 2)];
        assert_eq!(counted(&bed), all);
    });
}

#[test]
fn named_loan_reports_ready_and_kept_bytes() {
    by_the_clock(async {
        let bed = Bed::with("[agent]\nfill_max = \"4M\"", "pages_per_block = 1");
        bed.zero(1);
        let (name, request) = named(1);
        for ready in [Pages(1), Pages::ZERO] {
            let lent = lend_by_name(&bed, &LendRequest { whole: true, ..request.clone() }).await;
            let Ok(Ok(HeldLoan::Named { held, ready: had, kept })) = lent else {
                panic!("{lent:?}")
            };
            assert_eq!((held.pages, had, kept), (Pages(1), ready, false));
            assert_eq!(bed.shell.borrow().memory_of(held.block, SIZE), held.bytes());
            let returned = waits::return_by_name(&bed.shell, &name, false).await;
            assert!(matches!(returned, Ok(Some(true))), "{returned:?}");
        }
        assert_eq!(
            counted(&bed),
            [("kept", 0), ("not_ready", 1), ("partly_ready", 0), ("ready", 1)]
        );
        let large = LendRequest { whole: true, ..named(3).1 };
        let refused = lend_by_name(&bed, &large).await;
        assert!(matches!(&refused, Err(wire::Error::BadValue { .. })), "{refused:?}");
        assert_eq!(bed.shell.borrow().book().named(&name), None);
        let returned = waits::return_by_name(&bed.shell, &name, false).await;
        assert!(matches!(returned, Ok(None)), "{returned:?}");
    });
}

#[test]
fn a_loan_by_name_waits_for_pages_on_their_way_as_others_do() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.has_free(0);
        let begin = Instant::now();
        let refused = lend_by_name(&bed, &named(1).1).await;
        assert!(matches!(refused, Ok(Err(Refusal::NotEnough { .. }))), "{refused:?}");
        assert_eq!(begin.elapsed(), Duration::ZERO);
        let busy = bed.hold_up(Some(Uid(BORROWER)));
        let refused = lend_by_name(&bed, &named(1).1).await;
        assert!(matches!(refused, Ok(Err(Refusal::NotEnough { .. }))), "{refused:?}");
        assert_eq!(begin.elapsed(), LOAN_WAIT_TIMEOUT);
        drop(busy);
    });
}

#[test]
fn a_report_of_a_job_is_looked_at_before_it_is_believed() {
    by_the_clock(async {
        let bed = Bed::new();
        let take = || bed.shell.borrow_mut().take_zeroing(Requester::User, None, None);
        let (taken, _watch) = take().expect("a pipe").expect("work");
        let file = taken.block.expect("a file");
        let job = taken.order.job;
        fallocate(&file, FallocateFlags::empty(), 0, SIZE.bytes()).expect("room");
        // The worker has it still.
        let state = waits::finish(&bed.shell, job, Pages(1)).await;
        assert_eq!(state, Some(StateName::Draining));
        assert_eq!(waits::finish(&bed.shell, job, Pages(1)).await, None, "it was reported");
        drop(file);
        let (taken, _watch) = take().expect("a pipe").expect("work");
        let job = taken.order.job;
        drop(taken);
        // A page that has no memory was not zeroed.
        let state = waits::finish(&bed.shell, job, Pages(1)).await;
        assert_ne!(state, Some(StateName::Ready));
    });
}

// Promise P421 (work): A worker that waits for pages gets them when they come back, and is told at
// once to stop. It is refused after its time, or at once if it named none.
#[test]
fn worker_waits_for_pages_until_they_come_or_it_must_stop() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.has_free(0);
        let (place, begin) = (place(), Instant::now());
        let take = async |wait_ms| {
            let request = TakeZeroing { wait_ms, ..TakeZeroing::default() };
            waits::take_zeroing(&bed.shell, &place, request, Some(7)).await.expect("a pipe")
        };
        assert!(take(None).await.is_none() && begin.elapsed() == Duration::ZERO);
        assert!(take(Some(300)).await.is_none());
        assert_eq!(begin.elapsed(), Duration::from_millis(300));
        assert!(take(Some(3_600_000)).await.is_none());
        assert_eq!(begin.elapsed(), Duration::from_millis(5300), "5 s at most");

        // Every change wakes it. Changes without a page for it let it go on waiting.
        let later = async |then: &dyn Fn()| {
            for _ in 0..3 {
                advance(Duration::from_millis(10)).await;
                bed.shell.borrow().changes.wake();
                tokio::task::yield_now().await;
            }
            assert!(bed.shell.borrow().workers.is_idle(7));
            then();
            bed.shell.borrow().changes.wake();
        };
        let come = || {
            bed.has_free(1);
            bed.shell.borrow_mut().look_again();
        };
        let (taken, ()) = tokio::join!(take(Some(5000)), later(&come));
        let (taken, watch) = taken.expect("a page came");
        assert_eq!(begin.elapsed(), Duration::from_millis(5330));
        assert!(!bed.shell.borrow().workers.is_idle(7));
        bed.has_free(0);
        let stop = || bed.shell.borrow_mut().workers.abandon(7);
        let (refused, ()) = tokio::join!(take(Some(5000)), later(&stop));
        assert!(refused.is_none());
        assert_eq!(begin.elapsed(), Duration::from_millis(5360));
        drop((taken, watch));
    });
}

#[test]
fn maintenance_is_notified_when_a_wait_begins() {
    by_the_clock(async {
        let bed = Bed::new();
        let waiting = bed.shell.borrow().peers.waiting.clone();
        assert!(!waiting.has_waiters() && waiting.begun().now_or_never().is_none());
        let [first, second] = [waiting.begin(), waiting.begin()];
        assert!(waiting.has_waiters() && waiting.begun().now_or_never().is_some());
        drop(first);
        assert!(waiting.has_waiters());
        drop(second);
        assert!(!waiting.has_waiters());
    });
}

#[test]
fn closed_lease_ends_its_loan() {
    by_the_clock(async {
        let bed = Bed::new();
        bed.zero(1);
        let Granted { handover, watch, .. } = bed.lend(&pages(1));
        let lease = handover.loan.lease;
        watchers::lease(&bed.shell, lease, watch.expect("an end of its own"));
        tokio::task::yield_now().await;
        assert!(bed.has(lease));
        drop(handover);
        gone(&bed, lease).await;
    });
}
