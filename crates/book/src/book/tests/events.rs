// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can happen in a world, and how often it does.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use units::{Bytes, Domain, LoanName, Node, PageSize, Pages, PoolKey, Uid};
use wire::LendRequest;

use super::world::{Crash, Fate, Setup};
use super::zeroing::Claim;
use crate::book::{Asked, Named, Requester};
use crate::config::{PoolConfig, Recycle};

/// One event. Indices pick among the candidates of the current state.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Lend {
        ask: Asked,
        /// Another size: this number of blocks of that pool.
        like: Option<(usize, u64)>,
        pin: bool,
        fate: Fate,
    },
    /// An agent asks for a loan by a name, perhaps a whole one, for one of the users.
    LendByName {
        ask: Asked,
        whole: bool,
        fate: Fate,
    },
    /// An agent returns what it finds lent by names that it knows nothing of.
    Reconcile {
        fate: Fate,
    },
    /// A client asks for what an earlier one asked for, as a restarted program does.
    ComesBack {
        client: usize,
        fate: Fate,
    },
    ClientWrites {
        client: usize,
        pages: u64,
    },
    /// A client uses all of its memory, ends, and the daemon looks at what it left.
    ClientEnds {
        client: usize,
    },
    /// A client gives its files another length, or frees a page of each.
    ClientMeddles {
        client: usize,
        pages: u64,
        cut: bool,
    },
    /// A client has no descriptor or mapping any more, and keeps its pins.
    ClientUnmaps {
        client: usize,
    },
    EndLease {
        client: usize,
        fate: Fate,
    },
    ClientLeaves {
        client: usize,
        fate: Fate,
    },
    /// The operator takes away what a client has or had.
    Revoke {
        client: usize,
        fate: Fate,
    },
    Settle {
        block: usize,
        seen: Option<Less>,
        fate: Fate,
    },
    SettleAll,
    Wait {
        seconds: u64,
        fate: Fate,
    },
    Fill {
        blocks: usize,
        pages: u64,
    },
    Take {
        who: Requester,
        node: Option<Node>,
        size: Option<PageSize>,
        fate: Fate,
    },
    Work {
        worker: usize,
        pages: u64,
    },
    Finish {
        worker: usize,
        report: Claim,
        lets_go: bool,
        fate: Fate,
    },
    FinishNobodys(u64),
    LoseJob {
        worker: usize,
        dies: bool,
        fate: Fate,
    },
    /// A worker without a job writes into the block it still has.
    Scribble {
        ghost: usize,
        page: u64,
    },
    GhostLeaves {
        ghost: usize,
    },
    Release {
        node: Option<Node>,
        size: Option<PageSize>,
        pages: u64,
        fate: Fate,
    },
    Relieve {
        fate: Fate,
    },
    Observe,
    WantedWorkers {
        max: u32,
    },
    Outside {
        shape: usize,
        pages: u64,
        takes: bool,
    },
    Configure {
        pool: usize,
        change: Change,
    },
    /// The operator's file is read again: one pool is as `change` says, perhaps one is gone.
    Reload {
        pool: usize,
        change: Change,
        forget_pool: Option<usize>,
        fate: Fate,
    },
    Restart {
        forget_pool: Option<usize>,
        how: Crash,
    },
}

/// Less than the truth of who reaches a block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Less {
    /// A user that may be gone by then.
    Held,
    /// Not even that.
    Nothing,
    /// The truth. A free file may count as altered by its borrower.
    Altered,
    /// The same, and has marked its inode.
    Marked,
}

/// New thresholds of one pool.
#[derive(Debug, Clone)]
pub(super) struct Change {
    low: Option<u64>,
    high: u64,
    max: Option<u64>,
    leave: u64,
    in_place: bool,
}

impl Change {
    pub(super) fn of(&self, key: PoolKey, pins: bool) -> PoolConfig {
        PoolConfig {
            ready_low: self.low.map(Pages),
            ready_high: Pages(self.high),
            max: self.max.map(Pages),
            leave_free: Pages(self.leave),
            recycle: match (self.in_place, pins) {
                (true, false) => Recycle::InPlace,
                (true, true) => Recycle::Auto,
                (false, _) => Recycle::Fresh,
            },
            ..PoolConfig::new(key)
        }
    }
}

/// The smaller of the two page sizes: small, so that one unit suits all requests.
const SMALL: PageSize = PageSize::KIB_4;

fn large() -> PageSize {
    PageSize::new(8 << 10).expect("a power of two")
}

fn crash() -> impl Strategy<Value = Crash> {
    (any::<bool>(), proptest::option::weighted(0.3, 0..4usize))
        .prop_map(|(workers_die, again)| Crash { workers_die, again })
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        50 => Just(Fate::Fine),
        3 => (0..4usize, crash()).prop_map(|(after, how)| Fate::Crash { after, how }),
        2 => (0..3usize).prop_map(Fate::Fails),
    ]
}

/// A loan that was made and named without an answer to its agent takes a crash at the very end.
fn fate_of_two_steps() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => fate(),
        1 => (0..5usize, crash()).prop_map(|(after, how)| Fate::Crash { after, how }),
    ]
}

fn node() -> impl Strategy<Value = Option<Node>> {
    let one = (0..2u32).prop_map(|n| Some(Node(n)));
    prop_oneof![30 => Just(None), 6 => one, 1 => Just(Some(Node(7)))]
}

fn size() -> impl Strategy<Value = Option<PageSize>> {
    let (small, large) = (Just(Some(SMALL)), Just(Some(large())));
    prop_oneof![30 => Just(None), 4 => small, 2 => large, 1 => Just(Some(PageSize::GIB_1))]
}

fn who() -> impl Strategy<Value = Requester> {
    prop_oneof![Just(Requester::User), Just(Requester::Background)]
}

fn ask() -> impl Strategy<Value = Asked> {
    let keep = proptest::option::weighted(0.3, ("[ab]", 0..20u64));
    let whole = (1..13u64).prop_map(|n| n * SMALL.bytes());
    let odd = proptest::sample::select(vec![0, 5000, 1 << 63, u64::MAX]);
    let bytes = prop_oneof![20 => whole, 1 => odd];
    let quota = proptest::option::weighted(0.1, (0..24u64).prop_map(|n| Bytes(n * SMALL.bytes())));
    let flags = (any::<bool>(), any::<bool>());
    (bytes, size(), node(), (0..3u32, 0..3u32), keep, flags, quota).prop_map(
        |(bytes, page_size, node, (uid, account), keep, (single, await_owner), quota)| {
            let request = LendRequest {
                page_size,
                node,
                owner: keep.as_ref().map(|(owner, _)| owner.parse().expect("a name")),
                keep: keep.map(|(_, seconds)| Duration::from_secs(seconds)),
                single,
                ..LendRequest::new(Bytes(bytes))
            };
            Asked { request, uid: Uid(uid), account: Uid(account), quota, await_owner, named: None }
        },
    )
}

/// One of four names in two scopes.
fn named() -> impl Strategy<Value = Named> {
    let name = proptest::sample::select(vec!["a/1", "a/2", "b/1", "c"]);
    let quota = proptest::option::weighted(0.2, (0..16u64).prop_map(|n| Bytes(n * SMALL.bytes())));
    let most = prop_oneof![9 => Just(usize::MAX), 1 => 0..3usize];
    (name, quota, most).prop_map(|(name, quota, most)| {
        let name: LoanName = name.parse().expect("a name");
        Named { name, quota, most }
    })
}

fn ask_by_name() -> impl Strategy<Value = Asked> {
    (ask(), named()).prop_map(|(mut ask, named)| {
        // One file: as the daemon asks for an agent.
        ask.request.single = true;
        Asked { named: Some(named), quota: None, ..ask }
    })
}

fn change() -> impl Strategy<Value = Change> {
    let (low, max) = (proptest::option::of(0..6u64), proptest::option::weighted(0.3, 0..16u64));
    (low, 0..8u64, max, 0..4u64, prop::bool::weighted(0.6))
        .prop_map(|(low, high, max, leave, in_place)| Change { low, high, max, leave, in_place })
}

/// An index among what there is.
fn pick() -> std::ops::Range<usize> {
    0..16
}

fn of_clients() -> impl Strategy<Value = Event> {
    let like = proptest::option::of((pick(), 1..3u64));
    prop_oneof![
        10 => (ask(), like, any::<bool>(), fate())
            .prop_map(|(ask, like, pin, fate)| Event::Lend { ask, like, pin, fate }),
        4 => (ask_by_name(), any::<bool>(), fate_of_two_steps())
            .prop_map(|(ask, whole, fate)| Event::LendByName { ask, whole, fate }),
        1 => fate().prop_map(|fate| Event::Reconcile { fate }),
        4 => (pick(), fate()).prop_map(|(client, fate)| Event::ComesBack { client, fate }),
        8 => (pick(), 1..6u64).prop_map(|(client, pages)| Event::ClientWrites { client, pages }),
        6 => pick().prop_map(|client| Event::ClientEnds { client }),
        4 => (pick(), 0..4u64, prop::bool::weighted(0.3))
            .prop_map(|(client, pages, cut)| Event::ClientMeddles { client, pages, cut }),
        5 => pick().prop_map(|client| Event::ClientUnmaps { client }),
        4 => (pick(), fate()).prop_map(|(client, fate)| Event::EndLease { client, fate }),
        6 => (pick(), fate()).prop_map(|(client, fate)| Event::ClientLeaves { client, fate }),
    ]
}

fn of_workers() -> impl Strategy<Value = Event> {
    let all_or_few = prop_oneof![4 => Just(9), 1 => 1..4u64];
    let taken = (who(), node(), size(), fate());
    let report = prop_oneof![
        6 => Just(Claim::Less(0)),
        2 => (1..4u64).prop_map(Claim::Less),
        1 => (0..2u64).prop_map(Claim::Beyond),
    ];
    let finished = (pick(), report, any::<bool>(), fate());
    prop_oneof![
        8 => (1..6usize, all_or_few)
            .prop_map(|(blocks, pages)| Event::Fill { blocks, pages }),
        6 => taken.prop_map(|(who, node, size, fate)| Event::Take { who, node, size, fate }),
        6 => (pick(), 1..5u64).prop_map(|(worker, pages)| Event::Work { worker, pages }),
        5 => finished.prop_map(|(worker, report, lets_go, fate)| {
            Event::Finish { worker, report, lets_go, fate }
        }),
        1 => any::<u64>().prop_map(Event::FinishNobodys),
        3 => (pick(), any::<bool>(), fate())
            .prop_map(|(worker, dies, fate)| Event::LoseJob { worker, dies, fate }),
        3 => (pick(), 0..4u64).prop_map(|(ghost, page)| Event::Scribble { ghost, page }),
        3 => pick().prop_map(|ghost| Event::GhostLeaves { ghost }),
    ]
}

fn of_the_daemon() -> impl Strategy<Value = Event> {
    let less =
        proptest::sample::select(vec![Less::Held, Less::Nothing, Less::Altered, Less::Marked]);
    let seen = proptest::option::weighted(0.3, less);
    prop_oneof![
        8 => Just(Event::SettleAll),
        5 => (pick(), seen, fate())
            .prop_map(|(block, seen, fate)| Event::Settle { block, seen, fate }),
        6 => Just(Event::Observe),
        3 => (0..4u32).prop_map(|max| Event::WantedWorkers { max }),
        3 => (0..15u64, fate()).prop_map(|(seconds, fate)| Event::Wait { seconds, fate }),
        3 => fate().prop_map(|fate| Event::Relieve { fate }),
    ]
}

fn of_others() -> impl Strategy<Value = Event> {
    let restart = (proptest::option::weighted(0.2, pick()), crash());
    let reload = (pick(), change(), proptest::option::weighted(0.5, pick()), fate());
    prop_oneof![
        1 => (pick(), fate()).prop_map(|(client, fate)| Event::Revoke { client, fate }),
        2 => (node(), size(), 0..6u64, fate())
            .prop_map(|(node, size, pages, fate)| Event::Release { node, size, pages, fate }),
        3 => (pick(), 1..8u64, any::<bool>())
            .prop_map(|(shape, pages, takes)| Event::Outside { shape, pages, takes }),
        2 => (pick(), change()).prop_map(|(pool, change)| Event::Configure { pool, change }),
        1 => reload.prop_map(|(pool, change, forget_pool, fate)| {
            Event::Reload { pool, change, forget_pool, fate }
        }),
        1 => restart.prop_map(|(forget_pool, how)| Event::Restart { forget_pool, how }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => of_clients(),
        10 => of_workers(),
        7 => of_the_daemon(),
        1 => of_others(),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let node = prop::bool::weighted(0.3).prop_map(u32::from);
    // 0 pages: blocks of several sizes, and no other pool there.
    let pool = (node, prop::bool::weighted(0.3), prop_oneof![1 => Just(0), 6 => 1..5u64], change());
    let pools = proptest::collection::vec(pool, 1..4);
    let pages = [4..40u64, 0..24u64, 2..20u64, 0..12u64];
    let kernel = (prop::bool::weighted(0.85), prop::bool::weighted(0.6));
    (kernel, prop::bool::weighted(0.5), pools, pages).prop_map(
        |((provable, shows_pins), pins, pools, [a, b, c, d])| {
            let mut configs: BTreeMap<PoolKey, PoolConfig> = BTreeMap::new();
            for (node, is_large, k, change) in pools {
                let page_size = if is_large { large() } else { SMALL };
                let key = PoolKey { node: Node(node), page_size, pages_per_block: Pages(k) };
                let config = change.of(key, pins);
                if configs
                    .keys()
                    .any(|k| k.domain() == key.domain() && k.is_mixed() != key.is_mixed())
                {
                    continue;
                }
                let good = if config.check().is_ok() { config } else { PoolConfig::new(key) };
                configs.insert(key, good);
            }
            let shapes = [(0, SMALL), (1, SMALL), (0, large()), (1, large())]
                .map(|(node, page_size)| Domain { node: Node(node), page_size });
            let pages = shapes.into_iter().zip([a, b, c, d]).collect();
            Setup { provable, pins, shows_pins, pools: configs.into_values().collect(), pages }
        },
    )
}

/// A world, told of its kernel, and what happens in it.
pub(super) fn sequence() -> impl Strategy<Value = (Setup, Vec<Event>)> {
    (setup(), proptest::collection::vec(event(), 1..100))
}
