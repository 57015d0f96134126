// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kept content of loans by name, and its owners.

use super::kernel::Seen;
use super::*;
use crate::block::{Settled, Unheld};
use crate::book::{Found, Named};
use crate::config::Recycle;
use crate::journal;

/// By a name, in the name of an owner.
fn owned(name: &str) -> Asked {
    let name = name.parse().expect("a name");
    let named = Some(Named { name, quota: Some(bytes(2)), most: 9 });
    Asked { named, ..ask_one_file(2).kept("guest", 60) }
}

fn nobody() -> Reach {
    Reach::Nobody(Unheld::by(Seen))
}

/// A loan by that name of one block, granted and not held by its name yet.
fn begun(name: &str) -> (Book, Loan) {
    let mut book = book([PoolConfig { recycle: Recycle::InPlace, ..pool(0, 2) }]);
    make_ready(&mut book, key(0, 2), 1);
    let (loan, _) = lend(&mut book, &owned(name));
    (book, loan)
}

// Promise P221.
#[test]
fn unnamed_content_is_not_kept() {
    let (mut book, loan) = begun("a/x");
    let block = loan.parts[0].block;
    // The daemon dies here, or gives up.
    let (_, file) = book.place(block).expect("it is lent");
    book.end_lease(loan.lease);
    assert_eq!(book.settle(block, nobody(), 100).expect("it is draining").0, Settled::Zeroable);
    let mut next = super::book([PoolConfig { recycle: Recycle::InPlace, ..pool(0, 2) }]);
    let entry = journal::parse(&file, PAGE).expect("a name that the book writes");
    let (reach, lease_alive) = (Reach::Shared, false);
    let found = Found { state: StateName::Lent, entry, allocated: Pages(2), reach, lease_alive };
    next.adopt(&found);
    assert_eq!(next.held_by_tenant(Some("a")), bytes(2), "it counts until it is nobody's");
    assert_eq!(next.settle(block, nobody(), 100).expect("it is draining").0, Settled::Zeroable);
    assert_eq!(next.held_by_tenant(Some("a")), bytes(0));
}

// Promise P216.
#[test]
fn named_content_is_kept_for_its_owner_within_its_scope() {
    let (mut book, loan) = begun("a/x");
    let block = loan.parts[0].block;
    book.hold_by_name(loan.lease);
    book.end_lease(loan.lease);
    assert_eq!(
        refusal(&mut book, &Asked { await_owner: true, ..owned("a/y") }),
        Refusal::OwnerDraining
    );
    assert_eq!(book.settle(block, nobody(), 100).expect("it is draining").0, Settled::Kept);
    assert_eq!(book.held_by_tenant(Some("a")), bytes(2), "it is its scope's");
    let other = Asked { named: None, ..owned("a/y") };
    for stranger in [owned("b/x"), Asked { uid: Uid(1), ..owned("a/y") }, other] {
        assert!(book.lend(&stranger).is_err(), "there is no page but what is kept");
    }
    // It counts already. A loan that ends without a name leaves it as it was.
    for name in ["a/y", "a/z"] {
        let (again, _) = lend(&mut book, &owned(name));
        assert!(again.kept && again.parts[0].block == block, "{again:?}");
        book.end_lease(again.lease);
        assert_eq!(book.settle(block, nobody(), 100).expect("it is draining").0, Settled::Kept);
    }
    let (again, _) = lend(&mut book, &owned("a/y"));
    book.hold_by_name(again.lease);
    book.end_unkept(again.lease);
    assert_eq!(book.settle(block, nobody(), 100).expect("it is draining").0, Settled::Zeroable);
}

#[test]
fn kept_content_is_kept_once() {
    let (mut book, loan) = begun("a/x");
    let block = loan.parts[0].block;
    book.hold_by_name(loan.lease);
    book.end_lease(loan.lease);
    assert_eq!(book.settle(block, nobody(), 100).expect("it is draining").0, Settled::Kept);
    let (_, file) = book.place(block).expect("it is kept");
    let part = journal::parse(&file, PAGE).and_then(|entry| entry.part).expect("it is its owner's");
    assert_eq!(part.name, None, "by its owner it comes back, and by no loan's name");
    assert_eq!((book.expire(159), book.expire(160)), (vec![], vec![Effect::Move(block)]));
    assert_eq!(book.settle(block, nobody(), 160).expect("it is draining").0, Settled::Zeroable);
    assert_eq!(book.held_by_tenant(Some("a")), bytes(0));
}
