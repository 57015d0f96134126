// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name, step by step: asked, begun, filled, held, found and returned.

use super::*;
use crate::ops::{Granted, LoanStep};
use book::HeldByName;
use book::block::{Proof, Unheld};
use book::journal::MAX_OWNED_CHARACTERS;
use units::{Bytes, LoanName};

struct Seen;

impl Proof for Seen {}

fn name(text: &str) -> LoanName {
    text.parse().expect("a name")
}

fn named(text: &str, count: u64) -> LendRequest {
    LendRequest::by_name(name(text), Pages(count).bytes(SIZE))
}

fn owned(text: &str, owner: &str) -> LendRequest {
    LendRequest {
        whole: true,
        owner: Some(owner.parse().expect("a name")),
        keep: Some(Duration::from_secs(60)),
        ..named(text, 1)
    }
}

fn ask(bed: &Bed, request: &LendRequest) -> Result<Asked, wire::Error> {
    let uid = Uid(BORROWER);
    bed.shell.borrow_mut().ask(request.clone(), uid, uid, None)
}

fn begin(bed: &Bed, request: &LendRequest) -> Result<LoanStep, Refusal> {
    let asked = ask(bed, request).expect("a request");
    bed.shell.borrow_mut().lend(&asked, (0, 0)).expect("no kernel in the way")
}

fn pending(bed: &Bed, request: &LendRequest) -> Granted {
    match begin(bed, request) {
        Ok(LoanStep::Granted(granted)) => granted,
        other => panic!("{other:?}"),
    }
}

fn hold(bed: &Bed, request: &LendRequest) -> HeldByName {
    let pending = pending(bed, request);
    bed.shell.borrow_mut().hold_by_name(pending).expect("a file")
}

#[test]
fn owner_and_name_share_one_length_limit() {
    let bed = Bed::new();
    let owner = "o".repeat(64);
    let scoped = |length: usize| format!("a/{}", "x".repeat(length - 2));
    let fits = scoped(MAX_OWNED_CHARACTERS - 64);
    assert!(ask(&bed, &owned(&fits, &owner)).is_ok());
    let longer = scoped(MAX_OWNED_CHARACTERS - 63);
    let error = ask(&bed, &owned(&longer, &owner)).expect_err("there is no room");
    assert!(matches!(error, wire::Error::BadValue { .. }), "{error:?}");
    assert!(ask(&bed, &owned(&longer, &owner[1..])).is_ok());
    assert!(ask(&bed, &named(&longer, 1)).is_ok(), "it has no owner");
}

#[test]
fn agent_request_reaches_the_book_whole() {
    let bed = Bed::with("", "pages_per_block = 1\n[[pool]]\npage_size = \"1G\"");
    let request = LendRequest {
        page_size: Some(SIZE),
        node: Some(Node(0)),
        ..owned("a/x", "guest").given_to(Some(Uid(9)), None)
    };
    let asked = ask(&bed, &request).expect("a request");
    let LendRequest { bytes, page_size, node, owner, keep, single, .. } = &asked.request;
    assert_eq!((*bytes, *page_size, *node), (request.bytes, Some(SIZE), Some(Node(0))));
    assert_eq!((owner, *keep), (&request.owner, Some(Duration::from_secs(60))));
    assert!(single, "a path is of one file");
    assert_eq!((asked.uid, asked.account), (Uid(9), Uid(BORROWER)));
    let by_caller = ask(&bed, &request.given_to(None, None)).expect("a request");
    assert_eq!(by_caller.uid, Uid(BORROWER));
}

#[test]
fn name_is_pending_until_its_file_is_complete() {
    let bed = Bed::new();
    bed.zero(1);
    let request = named("a/x", 1);
    let pending = pending(&bed, &request);
    assert_eq!(pending.ready(), Pages(1));
    assert!(matches!(begin(&bed, &request), Err(Refusal::NameBusy)));
    let seen = |bed: &Bed| {
        let shell = bed.shell.borrow();
        let names = shell.book().named_loans("", None).count();
        let one = shell.book().named(&name("a/x"));
        (names, one.map(|loan| loan.is_pending))
    };
    assert_eq!(seen(&bed), (1, Some(true)), "who lists it sees that it is being made");
    let returned = bed.shell.borrow_mut().return_by_name(&name("a/x"), false);
    assert!(matches!(returned, Ok(Some(false))), "it is being made: {returned:?}");
    let held = bed.shell.borrow_mut().hold_by_name(pending).expect("a file");
    assert_eq!(seen(&bed), (1, Some(false)));
    assert!(matches!(begin(&bed, &request), Ok(LoanStep::Found(found)) if found == held));
    assert!(matches!(begin(&bed, &named("a/x", 2)), Err(Refusal::NameTaken)));
    let returned = bed.shell.borrow_mut().return_by_name(&name("a/x"), false);
    assert!(matches!(returned, Ok(Some(true))), "{returned:?}");
    let again = bed.shell.borrow_mut().return_by_name(&name("a/x"), false);
    assert!(matches!(again, Ok(None)), "{again:?}");
}

#[test]
fn unbacked_part_is_promised_until_it_is_filled() {
    let bed = Bed::with("[agent]\nfill_max = \"4M\"", "pages_per_block = 1");
    let waiting = || bed.shell.borrow().observed.unbacked.waiting(HERE);
    let unbacked = hold(&bed, &named("a/unbacked", 2));
    assert_eq!(waiting(), Pages(2), "its borrower will take them");
    let fills = |granted: &Granted| bed.shell.borrow().fill_whole(granted);
    let full = pending(&bed, &named("a/full", 2));
    assert_eq!(waiting(), Pages(4));
    for filled in fills(&full).expect("no more than it may") {
        filled.blocking_recv().expect("a thread").expect("room");
    }
    bed.shell.borrow_mut().record_whole(&full);
    assert_eq!(waiting(), Pages(2), "those of this one are there");
    let full = bed.shell.borrow_mut().hold_by_name(full).expect("a file");
    let loans = bed.shell.borrow_mut().status().loans;
    let unbacked_pages = |held: &HeldByName| {
        let loan = loans.iter().find(|loan| loan.lease == held.lease).expect("a loan");
        (loan.ready_pages.0, loan.unbacked_pages.0)
    };
    assert_eq!((unbacked_pages(&unbacked), unbacked_pages(&full)), ((0, 2), (2, 0)));
    let memory = |held: &HeldByName| bed.shell.borrow().memory_of(held.block, SIZE);
    assert_eq!((memory(&unbacked).0, memory(&full)), (0, full.bytes()));

    let large = pending(&bed, &named("a/large", 3));
    let error = fills(&large).expect_err("more than it may");
    assert!(matches!(&error, wire::Error::BadValue { field, .. } if field == "whole"), "{error:?}");
    bed.shell.borrow_mut().drop_granted(large);
    assert_eq!((waiting(), bed.shell.borrow().book().named(&name("a/large"))), (Pages(2), None));
    bed.zero(1);
    let ready = pending(&bed, &named("a/ready", 1));
    assert!(fills(&ready).expect("nothing to do").is_empty());
    bed.shell.borrow_mut().drop_granted(ready);
}

#[test]
fn a_file_that_no_path_reaches_is_not_lent() {
    let mut bed = Bed::new();
    bed.zero(1);
    let pending = pending(&bed, &named("a/x", 1));
    // As where the daemon's mount is in another mount namespace: its own descriptors do.
    let pages = bed.dir.path().join("run/pages-2048kB");
    let aside = pages.with_file_name("aside");
    fs::rename(&pages, &aside).expect("a directory");
    let error = bed.shell.borrow_mut().hold_by_name(pending).expect_err("nobody could reach it");
    let says = |what: &str| what.contains("not to be reached by a path");
    assert!(matches!(&error, wire::Error::Failed { what } if says(what)), "{error:?}");
    assert_eq!(bed.shell.borrow().book().named(&name("a/x")), None);
    fs::rename(&aside, &pages).expect("room");
    bed.settle();
    assert_eq!(bed.count(StateName::Lent) + bed.count(StateName::Draining), 0);
}

#[test]
fn owners_named_content_is_kept_unless_it_is_discarded() {
    for discard in [false, true] {
        let mut bed = Bed::new();
        bed.zero(1);
        hold(&bed, &owned("a/x", "guest"));
        let returned = bed.shell.borrow_mut().return_by_name(&name("a/x"), discard);
        assert!(matches!(returned, Ok(Some(true))), "{returned:?}");
        // Plain memory hides whether names of it are left: as huge pages would show it.
        bed.settle_as(|| Reach::Nobody(Unheld::by(Seen)));
        assert_eq!(bed.count(StateName::Kept), usize::from(!discard));
        bed.zero(usize::from(discard));
        // By any name of its scope.
        assert_eq!(pending(&bed, &owned("a/y", "guest")).handover.loan.kept, !discard);
    }
}

#[test]
fn agents_see_the_current_supply() {
    let bed = Bed::new();
    bed.zero(2);
    hold(&bed, &named("a/x", 1));
    bed.has_free(5);
    let supply = bed.shell.borrow_mut().supply();
    let [here] = &supply[..] else { panic!("{supply:?}") };
    let page = SIZE.bytes();
    assert_eq!((here.node, here.page_size.bytes(), here.named_bytes), (Node(0), page, Bytes(page)));
    assert_eq!((here.ready_bytes, here.total_bytes), (Bytes(page), Bytes(7 * page)));
    // The counts must be fresh.
    bed.set_free_unobserved(3);
    assert_eq!(bed.shell.borrow_mut().supply()[0].total_bytes, Bytes(5 * page));
}

#[test]
fn names_are_listed_in_order_by_prefix_and_start() {
    let bed = Bed::new();
    for text in ["b/1", "a/2", "a/1"] {
        hold(&bed, &named(text, 1));
    }
    let list = |prefix: &str, after: Option<&str>, most| {
        let after = after.map(name);
        let shell = bed.shell.borrow();
        let loans = shell.book().named_loans(prefix, after.as_ref()).take(most);
        loans.map(|loan| loan.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list("", None, 9), ["a/1", "a/2", "b/1"]);
    assert_eq!(list("", None, 2), ["a/1", "a/2"]);
    assert_eq!(list("a/", None, 9), ["a/1", "a/2"]);
    assert_eq!(list("a/", Some("a/1"), 9), ["a/2"]);
}
