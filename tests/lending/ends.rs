// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a loan is held, how it is accounted, and the knowledge about its holders.

use client::Hold;
use units::{Bytes, LeaseId, Node, Pages, Uid};

use super::*;
use prezero_tests::MapAlone as _;

#[test]
fn a_loan_held_by_its_memory_lasts_as_long_as_its_mapping() {
    let _alone = alone();
    let daemon = daemon("max = 2", "");
    ready(&daemon, 2);
    let by_memory = LendRequest { hold: Hold::Memory, ..one_file(1) };
    let loan = daemon.client().lend(&by_memory).expect("a loan");
    let id = loan.id();
    let memory = loan.map_alone().expect("a mapping");
    drop(loan);
    // One that is held by its descriptors ends meanwhile.
    drop(daemon.client().lend(&one_file(1)).expect("a loan"));
    daemon.wait_for("one is back", |pool| pool.lent_pages == Pages(1));
    let loans = daemon.status().loans;
    assert!(loans.len() == 1 && loans[0].lease == id, "{loans:?}");
    drop(memory);
    daemon.wait_for("returned", |pool| {
        pool.lent_pages == Pages(0) && pool.draining_pages == Pages(0)
    });
    assert!(daemon.status().loans.is_empty());
}

#[test]
fn unmapped_loan_held_by_memory_ends_with_its_lease() {
    let _alone = alone();
    let daemon = daemon("max = 1", "");
    ready(&daemon, 1);
    let by_memory = LendRequest { hold: Hold::Memory, ..one_file(1) };
    drop(daemon.client().lend(&by_memory).expect("a loan"));
    daemon.wait_for("returned", |pool| {
        pool.lent_pages == Pages(0) && pool.draining_pages == Pages(0)
    });
    // Its page is there for the next one, which is told so at once, and for one that waits.
    let loan = daemon.client().lend(&by_memory).expect("a loan");
    let memory = loan.map_alone().expect("a mapping");
    drop(loan);
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| daemon.client().lend(&one_file(1)));
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(memory);
        next.join().expect("no panic")
    });
    next.expect("it was on its way");
}

#[test]
fn loan_status_has_its_borrower_until_it_ends() {
    let _alone = alone();
    let mut daemon = daemon("max = 3", "");
    ready(&daemon, 1);
    let loan = daemon.client().lend(&one_file(2)).expect("a loan");
    let loans = daemon.status().loans;
    let [lent] = &loans[..] else { panic!("{loans:?}") };
    assert_eq!((lent.lease, lent.uid, lent.account), (loan.id(), Uid(0), Uid(0)));
    assert_eq!(
        (lent.pages, lent.ready_pages + lent.unbacked_pages, lent.grown_pages),
        (Pages(2), Pages(2), Pages(0))
    );
    assert_eq!(lent.ready_pages * PAGE.size().bytes(), Pages(loan.ready_bytes().0));
    assert_eq!((lent.pid, lent.nodes.as_slice()), (Some(std::process::id()), &[Node(0)][..]));
    assert!(lent.age.is_some_and(|age| age.as_secs() < 60), "{lent:?}");
    assert!(lent.owner.is_none() && lent.command.is_some(), "{lent:?}");

    let holders = daemon.client().find_holders(Some(LeaseId(loan.id().0))).expect("root may");
    assert!(holders.holders.iter().all(|holder| holder.pid == std::process::id()), "{holders:?}");
    assert!(!holders.holders.is_empty());

    // The next daemon knows the loan, and not who asked for it.
    daemon.terminate();
    daemon.launch();
    let loans = daemon.status().loans;
    let [lent] = &loans[..] else { panic!("{loans:?}") };
    assert_eq!((lent.lease, lent.pid, lent.age), (loan.id(), None, None));
    drop(loan);
    daemon.wait_for("returned", |pool| pool.lent_pages == Pages(0));
    assert!(daemon.status().loans.is_empty());
}

#[test]
fn growth_of_a_file_counts_against_its_users_quota() {
    let _alone = alone();
    let daemon = daemon("max = 8", "quota_of = { 0 = \"6M\" }");
    ready(&daemon, 3);
    let loan = daemon.client().lend(&one_file(2)).expect("within the quota");
    let quota = |pages| match refusal(daemon.client().lend(&one_file(pages))) {
        wire::Error::QuotaExceeded { held_bytes, quota_bytes, .. } => (held_bytes, quota_bytes),
        other => panic!("{other:?}"),
    };
    assert_eq!(quota(2), (Bytes(PAGE.times(2).0), Bytes(6 << 20)));
    let (file, _) = loan.parts().next().expect("a part");
    let length = PAGE.times(3).0;
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length).expect("room");
    // It is looked up a moment later.
    let deadline = std::time::Instant::now() + prezero_tests::daemon::WAIT_TIMEOUT;
    let refused = loop {
        match daemon.client().lend(&one_file(1)) {
            Ok(loan) => {
                drop(loan);
                daemon
                    .wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(2));
            }
            Err(Error::Refused(refused)) => break refused,
            Err(other) => panic!("{other}"),
        }
        assert!(std::time::Instant::now() < deadline, "what it grew by never counted");
    };
    assert!(
        matches!(refused, wire::Error::QuotaExceeded { held_bytes, .. } if held_bytes == Bytes(length)),
        "{refused:?}"
    );
    assert_eq!(daemon.status().loans[0].grown_pages, Pages(1));
    drop(loan);
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    daemon.client().lend(&one_file(3)).expect("all of its quota");
}

#[test]
fn revoked_loan_is_lost_to_all_its_holders() {
    let _alone = alone();
    let daemon = daemon("max = 4\npages_per_block = 2", "");
    ready(&daemon, 4);
    let loan = daemon.client().lend(&one_file(2)).expect("a loan");
    let (file, _) = loan.parts().next().expect("a part");
    let length = || rustix::fs::fstat(file).expect("a descriptor").st_size;
    assert_eq!(length(), 4 << 20);
    let taken = daemon.client().revoke(LeaseId(loan.id().0)).expect("root may");
    assert_eq!((taken, length()), (PAGE.times(2), 0));
    let status = daemon.status();
    let pool = &status.pools[0];
    assert!(
        status.loans.is_empty() && pool.lent_pages + pool.draining_pages == Pages(0),
        "{status:?}"
    );
    assert_eq!((pool.blocks, pool.ready_pages), (1, Pages(2)), "the other block is as it was");
    // What is draining of one that has ended is revoked as well, by the same number.
    let loan = daemon.client().lend(&one_file(2)).expect("a loan");
    let (id, memory) = (loan.id(), loan.map_alone().expect("a mapping"));
    drop(loan);
    daemon.wait_for("draining", |pool| pool.draining_pages == Pages(2));
    assert_eq!(daemon.client().revoke(LeaseId(id.0)).expect("root may"), PAGE.times(2));
    assert_eq!(daemon.pool().draining_pages, Pages(0));
    drop(memory);
}

#[test]
fn a_killed_daemons_loans_are_the_next_ones() {
    let _alone = alone();
    let mut daemon = daemon("max = 4", "");
    ready(&daemon, 3);
    let [kept, dropped] = [1, 2].map(|pages| daemon.client().lend(&one_file(pages)));
    let kept = kept.expect("a loan");
    daemon.kill();
    drop(dropped);
    daemon.launch();
    daemon.wait_for("one is back", |pool| {
        pool.lent_pages == Pages(1) && pool.draining_pages == Pages(0)
    });
    assert_eq!(daemon.status().loans[0].lease, kept.id());
    drop(kept);
    daemon.wait_for("both are back", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}
