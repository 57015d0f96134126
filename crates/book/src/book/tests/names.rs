// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans by name: finding one, and which of two with the same name is the loan.

use units::{LeaseId, LoanName};

use super::*;
use crate::book::{Found, Named};
use crate::journal;

fn name(text: &str) -> LoanName {
    text.parse().expect("a name")
}

/// By one of three names.
fn by_name(text: &str, pages: u64) -> Asked {
    Asked { named: Some(Named { name: name(text), quota: None, most: 3 }), ..ask_one_file(pages) }
}

/// A loan by that name, which has it.
fn held(book: &mut Book, asked: &Asked) -> Loan {
    let (loan, _) = lend(book, asked);
    assert_eq!(book.hold_by_name(loan.lease), [Effect::Move(loan.parts[0].block)]);
    loan
}

fn three() -> Book {
    let mut book = book([pool(0, 2)]);
    make_ready(&mut book, key(0, 2), 3);
    book
}

#[test]
fn the_same_request_is_the_same_loan_and_no_other_is() {
    let mut book = three();
    let asked = by_name("a/x", 2).kept("guest", 60);
    held(&mut book, &asked);
    let found = book.named(&name("a/x")).expect("it is there");
    assert_eq!(found.bytes(), bytes(2));
    let sized = asked.with(|request| request.page_size = Some(PAGE));
    for same in [&asked, &sized, &asked.on(0), &sized.on(0)] {
        assert!(found.fits(same), "{same:?}");
    }
    let large = asked.with(|request| request.page_size = Some(PageSize::GIB_1));
    for other in [
        asked.with(|request| request.bytes = bytes(1)),
        large,
        asked.on(1),
        Asked { uid: Uid(7), ..asked.clone() },
        asked.kept("other", 60),
        asked.kept("guest", 61),
        by_name("a/x", 2),
    ] {
        assert!(!found.fits(&other), "{other:?}");
    }
}

#[test]
fn names_are_listed_in_order_from_behind_one_pending_ones_too() {
    let mut book = three();
    let begun = [("b/2", true), ("a/1", true), ("a/3", false)].map(|(text, is_held)| {
        let (loan, _) = lend(&mut book, &by_name(text, 2));
        if is_held {
            book.hold_by_name(loan.lease);
        }
        loan
    });
    let listed = |prefix: &str, after: Option<&str>| -> Vec<String> {
        let after = after.map(name);
        let loans = book.named_loans(prefix, after.as_ref());
        loans.map(|loan| loan.name.to_string()).collect()
    };
    assert_eq!(listed("", None), ["a/1", "a/3", "b/2"]);
    assert_eq!(listed("a/", None), ["a/1", "a/3"]);
    assert_eq!(listed("", Some("a/1")), ["a/3", "b/2"]);
    assert_eq!(book.names(), 3, "one is not held yet");
    assert_eq!(book.supply_by_domain()[0].named_bytes, bytes(6), "it counts as well");
    assert_eq!(book.leases_name(begun[2].lease), Some(name("a/3")));
    assert!(book.named(&name("a/3")).is_some_and(|loan| loan.is_pending));
    assert_eq!(refusal(&mut book, &by_name("a/3", 2)), Refusal::NameTaken);
    assert_eq!(refusal(&mut book, &by_name("c/4", 2)), Refusal::TooManyNames);
    book.end_lease(begun[2].lease);
    assert_eq!((book.names(), book.named(&name("a/3"))), (2, None));
}

// Promise P272 (names): Scopes `TENANT@INCARNATION` of one tenant share its quota and no content.
#[test]
fn a_tenant_made_anew_has_its_quota_once_and_other_content() {
    let mut book = three();
    let asked = |text: &str| {
        let named = Named { name: name(text), quota: Some(bytes(4)), most: 9 };
        Asked { named: Some(named), ..ask_one_file(2) }.kept("guest", 60)
    };
    held(&mut book, &asked("a@1/x"));
    assert_eq!(book.held_by_tenant(Some("a")), bytes(2));
    let again = held(&mut book, &asked("a@2/x"));
    assert!(!again.kept, "it is another scope");
    let refused = refusal(&mut book, &asked("a@3/x"));
    assert_eq!(refused, Refusal::ScopeQuota { held: bytes(4), quota: bytes(4) });
    held(&mut book, &asked("ab@1/x"));
}

#[test]
fn a_loan_that_was_filled_is_whole() {
    let mut book = book([pool(0, 2)]);
    book.has_free(Node(0), PAGE, Pages(2));
    let (loan, _) = lend(&mut book, &by_name("a/x", 2));
    assert_eq!(book.loans()[0].unbacked_pages, Pages(2));
    book.record_whole(loan.lease);
    assert_eq!((book.loans()[0].unbacked_pages, book.loans()[0].ready_pages), (Pages(0), Pages(2)));
}

/// A file with a name, as the next daemon finds it, of that lease.
fn found(file: &str, lease: LeaseId, lease_alive: bool) -> Found {
    let mut entry = journal::parse(file, PAGE).expect("a name that the book writes");
    let part = entry.part.as_mut().expect("it is lent");
    part.lease = lease;
    entry.block = BlockId(lease.0);
    let (allocated, reach) = (Pages(2), Reach::Shared);
    Found { state: StateName::Lent, entry, allocated, reach, lease_alive }
}

#[test]
fn of_two_files_of_one_name_the_later_is_the_loan() {
    let mut before = three();
    let loan = held(&mut before, &by_name("a/x", 2));
    let (_, file) = before.place(loan.parts[0].block).expect("it is lent");
    for order in [[5, 9], [9, 5]] {
        let mut book = book([pool(0, 2)]);
        for lease in order {
            book.adopt(&found(&file, LeaseId(lease), false));
        }
        assert_eq!(book.named(&name("a/x")).map(|loan| loan.lease), Some(LeaseId(9)), "{order:?}");
        assert_eq!(book.in_state(StateName::Draining).count(), 1, "the other one's file");
    }
}

#[test]
fn one_file_of_a_lease_is_the_loan_by_name() {
    let mut before = three();
    let loan = held(&mut before, &by_name("a/x", 2));
    let (_, file) = before.place(loan.parts[0].block).expect("it is lent");
    let mut book = book([pool(0, 2)]);
    book.adopt(&found(&file, LeaseId(5), false));
    let again = Found {
        entry: journal::Entry { block: BlockId(6), ..found(&file, LeaseId(5), false).entry },
        ..found(&file, LeaseId(5), true)
    };
    book.adopt(&again);
    assert_eq!(book.named(&name("a/x")).map(|loan| loan.block), Some(BlockId(5)));
    assert_eq!(book.lease_blocks(LeaseId(5)), [BlockId(5)]);
}
