// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may do what: refusals that name the user, the action and who may.

use client::{Client, Error, LendRequest};
use prezero_tests::MapAlone as _;
use prezero_tests::refused::refusal;
use prezero_tests::user::{NO_USER, as_other_user};
use prezero_tests::{Daemon, Page};
use testkit::child::{alone, enter_user_namespace, fork};
use units::{Bytes, JobId, Node, Pages, Uid};

// Promise P22 (socket): Credentials decide; a refusal names the user, the action and who may.
#[test]
fn without_a_group_only_root_may_do_anything() {
    let _alone = alone();
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 2, &page.pool("")) else { return };
    daemon.zero("max");
    as_other_user(|| {
        let connect = || Client::connect(daemon.socket()).expect("everybody may connect");
        let request = LendRequest::new(page.times(1));
        let denied = |error| matches!(error, wire::Error::NotPermitted { uid: Uid(NO_USER), .. });
        denied(refusal(connect().lend(&request)))
            && denied(refusal(connect().status()))
            && denied(refusal(connect().take_zeroing(&wire::TakeZeroing::default())))
            && denied(refusal(connect().release(None, None, None)))
            && denied(refusal(connect().configure(wire::PoolChange::default())))
    });
    assert_eq!(daemon.pool().ready_pages, Pages(2), "nothing changed");
}

// Promise P22.
#[test]
fn members_of_the_lend_group_may_borrow_but_not_zero() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"{NO_USER}\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 2, &config) else { return };
    daemon.zero("1");
    as_other_user(|| {
        let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
        let loan = client.lend(&LendRequest::new(page.times(1))).expect("a member may borrow");
        let zero = refusal(client.take_zeroing(&wire::TakeZeroing::default()));
        loan.map_alone().is_ok() && matches!(zero, wire::Error::NotPermitted { .. })
    });
}

// Promise P23 (socket): A user holds no more than its quota, kept content included.
#[test]
fn quota_counts_lent_and_kept_bytes() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!(
        "lend_group = \"{NO_USER}\"\nquota_of = {{ {NO_USER} = \"4M\" }}\n{}",
        page.pool("")
    );
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    daemon.zero("max");
    as_other_user(|| {
        let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
        let mut request = LendRequest::new(page.times(1));
        request.owner = Some("db".parse().expect("a good name"));
        request.keep = Some(std::time::Duration::from_secs(60));
        let first = client.lend(&request).expect("2 of 4 MiB");
        let _second = client.lend(&LendRequest::new(page.times(1))).expect("4 of 4 MiB");
        let full = refusal(client.lend(&LendRequest::new(page.times(1))));
        drop(first);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let kept = refusal(client.lend(&LendRequest::new(page.times(1))));
        let again = client.lend(&request).expect("its own content is counted already");
        let exceeded = |error: &wire::Error| {
            let expected = wire::Error::QuotaExceeded {
                uid: Uid(NO_USER),
                held_bytes: Bytes(4 << 20),
                quota_bytes: Bytes(4 << 20),
                asked_bytes: Bytes(2 << 20),
            };
            *error == expected
        };
        exceeded(&full) && exceeded(&kept) && again.is_kept()
    });
}

// Promise P192 (socket): Each of several groups has its quota: a member of more than one has the
// largest, a user's own comes before all, and a refusal names every group.
#[test]
fn each_lend_group_has_its_quota_and_a_refusal_names_them_all() {
    /// Groups unknown to this machine.
    const SMALL: u32 = 3_000_001;
    const LARGE: u32 = 3_000_002;
    /// A user of its own quota.
    const OWN: u32 = 3_000_003;
    const OTHER_USER: u32 = 3_000_004;
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!(
        "lend_group = \"{NO_USER}\"\nquota = \"2M\"\nquota_of = {{ {OWN} = \"2M\" }}\n\
         lend_groups = {{ {SMALL} = \"4M\", {LARGE} = \"6M\" }}\n{}",
        page.pool("")
    );
    let Some(daemon) = Daemon::start(page, 4, &config) else { return };
    daemon.zero("max");
    let as_member = |uid: u32, groups: &[u32], body: &dyn Fn(Client) -> bool| {
        let child = fork(|_| {
            let groups: Vec<_> = groups.iter().map(|group| (*group).into()).collect();
            nix::unistd::setgroups(&groups).expect("root");
            nix::unistd::setgid(uid.into()).expect("root");
            nix::unistd::setuid(uid.into()).expect("root");
            let client = Client::connect(daemon.socket()).expect("everybody may connect");
            i32::from(!body(client))
        });
        assert_eq!(child.wait(), Some(0), "{uid} of {groups:?}");
        daemon
            .wait_for("all is returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
        daemon.zero("max");
    };
    // The user gets this number of pages, and the daemon says so.
    let gets = |uid: u32, groups: &[u32], pages: u64| {
        as_member(uid, groups, &|mut client| {
            let one = LendRequest::new(page.times(1));
            let held: Vec<_> =
                (0..pages).map(|_| client.lend(&one).expect("within its quota")).collect();
            let refused = refusal(client.lend(&one));
            let status = client.status().expect("a member may look");
            drop(held);
            let user = status.users.iter().find(|user| user.uid == Uid(uid));
            assert_eq!(user.and_then(|user| user.quota_bytes), Some(page.times(pages)));
            matches!(refused, wire::Error::QuotaExceeded { quota_bytes, .. }
                if quota_bytes == page.times(pages))
        });
    };
    gets(NO_USER, &[], 1);
    gets(OTHER_USER, &[SMALL], 2);
    gets(OTHER_USER, &[SMALL, LARGE, NO_USER], 3);
    gets(OWN, &[LARGE], 1);
    as_member(OTHER_USER, &[], &|mut client| {
        let said = refusal(client.lend(&LendRequest::new(page.times(1)))).to_string();
        let named = [format!("{SMALL} (lend_groups)"), format!("{LARGE} (lend_groups)")];
        said.contains("(lend_group)") && named.iter().all(|group| said.contains(group))
    });
}

// Promise P99 (isolation): What a borrower allocates beyond its loan (fallocate(2)) comes out of
// the kernel's free pages, as `mmap(MAP_HUGETLB)` would take it. It is shown, counts against its
// quota for further loans, and comes back with the block.
#[test]
fn pages_added_by_a_borrower_count_against_its_quota() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"{NO_USER}\"\nquota = \"8M\"\n{}", page.pool("max = 3"));
    let Some(daemon) = Daemon::start(page, 8, &config) else { return };
    daemon.zero("max");
    let lent = || {
        let status = daemon.status();
        status.loans.iter().map(|loan| (loan.pages.0, loan.grown_pages.0)).collect::<Vec<_>>()
    };
    as_other_user(|| {
        let connect = || Client::connect(daemon.socket()).expect("everybody may connect");
        let ask = || connect().lend(&LendRequest::new(page.times(1)));
        let (lease, mut blocks) = ask().expect("2 of 8 MiB").into_fds();
        let file = linux::BlockFile::from(blocks.pop().expect("one block"));
        file.allocate(page.size().bytes(), page.times(3).0).expect("free pages");
        assert_eq!(lent(), [(1, 3)]);
        let refused = |what: &str| match refusal(ask()) {
            wire::Error::QuotaExceeded { held_bytes, .. } => {
                assert_eq!(held_bytes, Bytes(8 << 20), "{what}")
            }
            other => panic!("{what}: {other}"),
        };
        refused("1 page lent and 3 added");
        drop(lease);
        // The file is still open: what it has is still its borrower's.
        std::thread::sleep(std::time::Duration::from_millis(200));
        refused("draining");
        file.set_len(page.times(1).0).expect("its own file");
        std::thread::sleep(std::time::Duration::from_millis(10));
        let _other = ask().expect("2 of 8 MiB are draining");
        true
    });
    daemon.wait_for("all of it back", |p| p.lent_pages + p.draining_pages == Pages(0));
    daemon.zero("max");
    // Pages that are ready in the kernel's pool are free in it.
    let free = if daemon.has_blocks() { 5 } else { 8 };
    assert_eq!((daemon.pool().ready_pages, daemon.kernel_free(page)), (Pages(3), free));
}

// Promise P35 (socket): A user's subordinates (user_namespaces(7), subuid(5)) count against its
// quota, restarts included.
#[test]
fn users_of_a_users_namespaces_share_its_quota_over_restarts() {
    /// Users unknown to this machine.
    const SUBORDINATES: u32 = 3_000_000;
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("lend_group = \"{NO_USER}\"\nquota = \"4M\"\n{}", page.pool(""));
    let Some(mut daemon) = Daemon::start(page, 6, &config) else { return };
    daemon.zero("max");
    let borrower = |daemon: &Daemon, uid: u32| {
        let child = fork(|ready| {
            nix::unistd::setgroups(&[NO_USER.into()]).expect("root");
            nix::unistd::setgid(NO_USER.into()).expect("root");
            nix::unistd::setuid(NO_USER.into()).expect("root");
            enter_user_namespace(ready, uid);
            let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
            let loan = client.lend(&LendRequest::new(page.times(1)));
            ready.signal();
            match loan {
                Ok(_loan) => ready.hold(),
                Err(Error::Refused(wire::Error::QuotaExceeded { uid: Uid(NO_USER), .. })) => 7,
                Err(error) => panic!("{error}"),
            }
        });
        child.wait_ready();
        child.map_users(0, SUBORDINATES, 10);
        child.wait_ready();
        child
    };
    let _holding = [borrower(&daemon, 1), borrower(&daemon, 2)];
    assert_eq!(borrower(&daemon, 3).wait(), Some(7), "a third user, and 4 of 4 MiB lent");
    let loans = |daemon: &Daemon| -> Vec<_> {
        daemon.status().loans.iter().map(|loan| (loan.uid.0, loan.account.0)).collect()
    };
    let expected = [(SUBORDINATES + 1, NO_USER), (SUBORDINATES + 2, NO_USER)];
    assert_eq!(loans(&daemon), expected);
    daemon.kill();
    daemon.launch();
    assert_eq!(loans(&daemon), expected, "after a restart");
    assert_eq!(borrower(&daemon, 4).wait(), Some(7), "after a restart");
    as_other_user(|| {
        let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
        let full = refusal(client.lend(&LendRequest::new(page.times(1))));
        matches!(full, wire::Error::QuotaExceeded { held_bytes: Bytes(0x40_0000), .. })
    });
}

// Promise P31 (socket): Members of the zeroing group get no block in their hands that others
// borrow, unless `trust_zero_group` says that they are trusted as root is; how a pool recycles
// only root changes.
#[test]
fn workers_of_the_zero_group_get_lent_blocks_only_if_trusted() {
    let _alone = alone();
    let page = Page::Mib2;
    for (trusted, expected) in [(false, 0), (true, 2)] {
        let config = format!(
            "lend_group = \"{NO_USER}\"\nzero_group = \"{NO_USER}\"\n\
             trust_zero_group = {trusted}\n{}",
            page.pool("max = 2")
        );
        let Some(daemon) = Daemon::start(page, 2, &config) else { return };
        as_other_user(|| {
            let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
            if trusted {
                return client.take_zeroing(&wire::TakeZeroing::default()).is_ok();
            }
            let refused = [
                refusal(client.take_zeroing(&wire::TakeZeroing::default())),
                refusal(client.finish_zeroing(JobId(1), units::Pages(1))),
            ];
            refused.iter().all(|e| e.to_string().contains("write to the control tree"))
        });
        if trusted {
            let output = as_user(&daemon, &["zero", "max"]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(daemon.pool().ready_pages, Pages(expected), "trusted: {trusted}");
    }
}

/// A prezero command of the user `nobody`.
fn as_user(daemon: &Daemon, arguments: &[&str]) -> std::process::Output {
    use std::os::unix::process::CommandExt;
    let mut command = daemon.command(arguments);
    command.uid(NO_USER).gid(NO_USER).output().expect("prezero runs")
}

// Promise P31.
#[test]
fn only_root_changes_how_a_pool_recycles() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("zero_group = \"{NO_USER}\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 1, &config) else { return };
    let change = |recycle: Option<wire::Recycle>| wire::PoolChange {
        page_size: page.size(),
        pages_per_block: Pages(1),
        ready_high: Some(Pages(1)),
        recycle,
        ..wire::PoolChange::default()
    };
    as_other_user(|| {
        let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
        let refused = refusal(client.configure(change(Some(wire::Recycle::InPlace))));
        matches!(refused, wire::Error::NotPermitted { uid: Uid(NO_USER), .. })
            && client.configure(change(None)).is_ok()
    });
    let pool = daemon.pool();
    assert_eq!((pool.recycle, pool.ready_high), (wire::Recycle::Auto, Pages(1)));
    daemon.client().configure(change(Some(wire::Recycle::InPlace))).expect("root may");
}

// Promise P162 (socket): Only root adds pools, and only of nodes that the machine has.
#[test]
fn only_root_adds_pools_and_only_of_nodes_that_there_are() {
    let _alone = alone();
    let page = Page::Mib2;
    let config = format!("zero_group = \"{NO_USER}\"\n{}", page.pool(""));
    let Some(daemon) = Daemon::start(page, 1, &config) else { return };
    let change = |node: u32, pages_per_block: u64| wire::PoolChange {
        node: Node(node),
        page_size: page.size(),
        pages_per_block: Pages(pages_per_block),
        ready_high: Some(Pages(0)),
        ..wire::PoolChange::default()
    };
    as_other_user(|| {
        let mut client = Client::connect(daemon.socket()).expect("everybody may connect");
        let refused = refusal(client.configure(change(0, 3)));
        matches!(refused, wire::Error::NotPermitted { uid: Uid(NO_USER), .. })
            && client.configure(change(0, 1)).is_ok()
    });
    assert_eq!(daemon.status().pools.len(), 1);
    let refused = refusal(daemon.client().configure(change(1023, 1)));
    assert!(refused.to_string().contains("1023"), "{refused}");
    daemon.client().configure(change(0, 3)).expect("root may");
    assert_eq!(daemon.status().pools.len(), 2);
}
