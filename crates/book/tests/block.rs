// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of one block has the moves it has and no others.

use book::block::{
    Block, HeldBy, IllegalMove, Keep, Part, Proof, Reach, Settled, State, StateName, Unheld,
};
use book::config::Recycle;
use units::{BlockId, JobId, LeaseId, Node, PageSize, Pages, PoolKey, Uid};

const ID: BlockId = BlockId(7);
const POOL: PoolKey =
    PoolKey { node: Node(0), page_size: PageSize::GIB_1, pages_per_block: Pages(2) };

fn part(lease: u64, owner: &str) -> Part {
    let owner = owner.parse().expect("an owner's name");
    let keep = Some(Keep { owner, scope: None, seconds: 60 });
    let (uid, account) = (Uid(1000), Uid(1000));
    Part { lease: LeaseId(lease), index: 0, uid, account, keep, pages: Pages(2), name: None }
}

/// A block in that state: of job 1, of lease 1, of owner `guest`.
fn block_in(state: StateName) -> Block {
    let block = match state {
        StateName::Zeroing => Block::new_zeroing(ID, POOL, JobId(1)),
        StateName::Zeroable => {
            let mut block = Block::new_zeroing(ID, POOL, JobId(1));
            let state = block.finish(JobId(1), Pages(1), Reach::Sole, false);
            assert_eq!(state, Ok(StateName::Zeroable));
            block
        }
        StateName::Ready => Block::adopt_ready(ID, POOL, &Reach::Sole),
        StateName::Lent => Block::adopt_lent(ID, POOL, part(1, "guest")),
        StateName::Draining => Block::adopt_unknown(ID, POOL, Some(part(1, "guest"))),
        StateName::Kept => Block::adopt_kept(ID, POOL, part(1, "guest"), 160),
    };
    assert_eq!(block.state_name(), state);
    block
}

/// An event, what it is called when it is refused, and the one state that it is for.
type Event = (fn(&mut Block) -> Result<(), IllegalMove>, &'static str, StateName, StateName);

fn events() -> [Event; 9] {
    use StateName::{Draining, Kept, Lent, Ready, Zeroable, Zeroing};
    [
        (|b| b.take(JobId(2)).map(drop), "taken to zero", Zeroable, Zeroing),
        (
            |b| b.finish(JobId(1), Pages(2), Reach::Sole, false).map(drop),
            "finished",
            Zeroing,
            Ready,
        ),
        (|b| b.lose(JobId(1)), "lost by its job", Zeroing, Draining),
        (|b| b.lend(part(2, "guest")).map(drop), "lent", Ready, Lent),
        (
            |b| b.hold_by_name(LeaseId(1), "team-a/db".parse().expect("a name"), 0),
            "given that name",
            Lent,
            Lent,
        ),
        (|b| b.put_back(LeaseId(1)), "returned by that lease", Lent, Draining),
        (|b| b.settle(Reach::Sole, Recycle::InPlace, 100).map(drop), "settled", Draining, Kept),
        (|b| b.lend_again(part(2, "guest")), "lent again to its owner", Kept, Lent),
        (|b| b.give_up(), "given up", Kept, Draining),
    ]
}

#[test]
fn every_move_is_for_one_state_and_refused_in_all_others() {
    for (happens, name, from, to) in events() {
        for state in StateName::ALL {
            let mut block = block_in(state);
            let result = happens(&mut block);
            if state == from {
                assert_eq!((result, block.state_name()), (Ok(()), to), "{name}");
                continue;
            }
            assert_eq!(result, Err(IllegalMove { block: ID, from: state, event: name }));
            assert_eq!(block, block_in(state), "a refused move changed the block");
        }
    }
}

#[test]
fn a_refused_move_says_which_block_is_what() {
    let error = block_in(StateName::Lent).take(JobId(2)).expect_err("it is lent");
    assert_eq!(error.to_string(), "block b7 is lent: it cannot be taken to zero");
}

#[test]
fn only_the_job_that_has_it_finishes_or_loses_a_block() {
    let mut block = block_in(StateName::Zeroing);
    assert!(block.finish(JobId(2), Pages(2), Reach::Sole, false).is_err());
    assert!(block.lose(JobId(2)).is_err());
    assert_eq!(block, block_in(StateName::Zeroing));
}

#[test]
fn only_its_lease_returns_a_block() {
    let mut block = block_in(StateName::Lent);
    assert!(block.put_back(LeaseId(2)).is_err());
    assert_eq!(block, block_in(StateName::Lent));
}

#[test]
fn kept_content_goes_to_its_owner_and_user_alone() {
    let other_uid = Part { uid: Uid(1001), ..part(2, "guest") };
    let nobody = Part { keep: None, ..part(2, "guest") };
    for wrong in [part(2, "other"), other_uid, nobody] {
        let mut block = block_in(StateName::Kept);
        assert!(block.lend_again(wrong.clone()).is_err(), "{wrong:?}");
        assert_eq!(block, block_in(StateName::Kept));
    }
}

#[test]
fn a_block_is_lent_once_for_each_time_it_was_cleared() {
    let mut block = block_in(StateName::Ready);
    let claim = block.lend(part(1, "guest")).expect("it is ready");
    assert_eq!(claim.spend(), Pages(2));
    assert!(block.lend(part(2, "guest")).is_err());
    block.put_back(LeaseId(1)).expect("it is lent");
    assert!(block.lend(part(2, "guest")).is_err());
    block.record_memory(Pages(2));
    block.settle(Reach::Sole, Recycle::InPlace, 100).expect("it is draining");
    block.give_up().expect("it is kept");
    assert_eq!(block.settle(Reach::Sole, Recycle::InPlace, 200), Ok(Settled::Zeroable));
    assert!(block.lend(part(2, "guest")).is_err());
    assert_eq!(block.take(JobId(3)), Ok(Pages(0)));
    assert!(block.lend(part(2, "guest")).is_err());
    let state = block.finish(JobId(3), Pages(2), Reach::Sole, false);
    assert_eq!(state, Ok(StateName::Ready));
    assert!(block.lend(part(2, "guest")).is_ok());
}

/// What the tests show in the place of looks at a kernel.
struct Shown;

impl Proof for Shown {}

// Promise P103 (isolation): A block is cleared in place only after the proof that it is closed,
// unmapped, unpinned, and that no `open()` of it is in flight; or where the operator forces that
// on a kernel that hides pins.
#[test]
fn only_a_proof_or_in_place_has_a_block_cleared_where_it_lies() {
    use Recycle::{Auto, Fresh, InPlace};
    type Case = (fn() -> Reach, Recycle, Settled);
    let nobody = || Reach::Nobody(Unheld::by(Shown));
    let cases: [Case; 18] = [
        (nobody, Auto, Settled::Zeroable),
        (nobody, InPlace, Settled::Zeroable),
        (nobody, Fresh, Settled::Gone),
        (|| Reach::Sole, Auto, Settled::Gone),
        (|| Reach::Sole, InPlace, Settled::Zeroable),
        (|| Reach::Sole, Fresh, Settled::Gone),
        (|| Reach::Pinned, Auto, Settled::Draining),
        (|| Reach::Pinned, InPlace, Settled::Draining),
        (|| Reach::Pinned, Fresh, Settled::Draining),
        (|| Reach::Mapped, Auto, Settled::Draining),
        (|| Reach::Shared, Auto, Settled::Draining),
        (|| Reach::Unknown, Auto, Settled::Gone),
        (|| Reach::Altered, Auto, Settled::Gone),
        (|| Reach::Altered, InPlace, Settled::Gone),
        (|| Reach::Marked, Auto, Settled::Gone),
        (|| Reach::Marked, InPlace, Settled::Gone),
        (|| Reach::Poisoned, Auto, Settled::Gone),
        (|| Reach::Poisoned, InPlace, Settled::Gone),
    ];
    for (reach, recycle, expected) in cases {
        let mut block = Block::adopt_unknown(ID, POOL, None);
        let settled = block.settle(reach(), recycle, 100);
        assert_eq!(settled, Ok(expected), "{:?}, {recycle:?}", reach());
    }
}

#[test]
fn kept_content_and_a_workers_report_wait_for_the_last_pin() {
    let mut kept = block_in(StateName::Draining);
    assert_eq!(kept.settle(Reach::Pinned, Recycle::Auto, 100), Ok(Settled::Draining));
    assert_eq!(kept.held_by(), HeldBy::Pinned);
    let nobody = Reach::Nobody(Unheld::by(Shown));
    assert_eq!(kept.settle(nobody, Recycle::Auto, 100), Ok(Settled::Kept));
    let mut zeroed = block_in(StateName::Zeroing);
    let state = zeroed.finish(JobId(1), Pages(2), Reach::Pinned, false);
    assert_eq!(state, Ok(StateName::Draining));
}

#[test]
fn holder_of_a_block_is_forgotten_with_that_life_of_it() {
    let mut block = block_in(StateName::Draining);
    assert_eq!(block.settle(Reach::Pinned, Recycle::Auto, 100), Ok(Settled::Draining));
    assert_eq!(block.settle(Reach::Sole, Recycle::Auto, 100), Ok(Settled::Kept));
    block.lend_again(part(2, "guest")).expect("it is kept");
    block.put_back(LeaseId(2)).expect("it is lent");
    assert_eq!(block.held_by(), HeldBy::Open, "nobody has looked yet");
}

// Promise P221.
#[test]
fn named_loan_is_kept_only_where_no_process_has_its_files_name() {
    struct Looked;
    impl Proof for Looked {}
    let named = || {
        let mut part = part(1, "guest");
        part.name = Some("team-a/1".parse().expect("a name"));
        part.keep = part.keep.map(|keep| Keep { scope: Some("team-a".to_owned()), ..keep });
        Block::adopt_unknown(ID, POOL, Some(part))
    };
    for recycle in [Recycle::Auto, Recycle::Fresh, Recycle::InPlace] {
        let mut block = named();
        assert_eq!(block.settle(Reach::Sole, recycle, 100), Ok(Settled::Gone));
        let mut block = named();
        let nobody = || Reach::Nobody(Unheld::by(Looked));
        assert_eq!(block.settle(nobody(), recycle, 100), Ok(Settled::Kept));
        // The scope decides: an owner of the same name in another scope, or without a scope, is a
        // different one.
        for scope in [None, Some("team-b".to_owned())] {
            let mut other = part(2, "guest");
            other.keep = other.keep.map(|keep| Keep { scope, ..keep });
            block.lend_again(other).expect_err("it is another owner's");
        }
        // Given up, it still belongs to a named loan, and goes where a process may have a name of
        // it.
        block.give_up().expect("it is kept");
        assert_eq!(block.settle(Reach::Sole, recycle, 200), Ok(Settled::Gone));
    }
}

#[test]
fn a_loan_has_one_name_and_only_its_own_lease_gives_it() {
    let mut block = block_in(StateName::Lent);
    let mut name = |lease, name: &str| block.hold_by_name(lease, name.parse().expect("a name"), 0);
    assert!(name(LeaseId(2), "team-a/db").is_err());
    assert_eq!(name(LeaseId(1), "team-a/db"), Ok(()));
    assert!(name(LeaseId(1), "team-a/other").is_err());
    let State::Lent(part) = block.state() else { panic!("{block:?}") };
    assert_eq!(part.name.as_ref().map(ToString::to_string).as_deref(), Some("team-a/db"));
}
