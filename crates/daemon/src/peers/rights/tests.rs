// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;

/// Users and groups with only the rights that a test gives them.
const OTHER_USER: u32 = 3_000_000;
const SMALL: u32 = 3_000_001;
const LARGE: u32 = 3_000_002;
const ZERO: u32 = 3_000_003;
const AGENTS: u32 = 3_000_004;
const FIRST: u32 = 3_000_005;

fn shared(toml: &str) -> SharedGroups {
    let config = Config::from_toml(toml).unwrap();
    Rc::new(RefCell::new(Rc::new(Groups::from_config(&config).unwrap())))
}

fn usual() -> SharedGroups {
    shared(&format!(
        "lend_group = \"{FIRST}\"\nquota = \"2M\"\nzero_group = \"{ZERO}\"\n\
         lend_groups = {{ {SMALL} = \"4M\", {LARGE} = \"6M\" }}\n[agent]\ngroup = \"{AGENTS}\"\n"
    ))
}

fn rights(groups: &SharedGroups, uid: u32, gid: u32, more: &peer::PeerGroups) -> Rights {
    let today = Rc::clone(&groups.borrow());
    let member = today.member(gid, more);
    let peer = Peer { pid: None, uid, gid };
    Rights {
        peer,
        account: Uid(uid),
        groups: Rc::clone(groups),
        member: RefCell::new((today, member)),
        socket: Weak::new(),
    }
}

fn known(groups: &[u32]) -> peer::PeerGroups {
    peer::PeerGroups::Known(groups.to_vec())
}

#[test]
fn quota_of_several_groups_is_the_largest() {
    let quota = |gid: u32, more: &[u32]| {
        rights(&usual(), OTHER_USER, gid, &known(more)).quota().map(|quota| quota.0 >> 20)
    };
    assert_eq!([quota(OTHER_USER, &[FIRST]), quota(FIRST, &[])], [Some(2); 2]);
    assert_eq!([quota(OTHER_USER, &[SMALL]), quota(SMALL, &[FIRST])], [Some(4); 2]);
    assert_eq!(quota(OTHER_USER, &[SMALL, LARGE, FIRST]), Some(6));
    assert_eq!(quota(LARGE, &[SMALL]), Some(6), "in whatever order");
    assert_eq!(quota(OTHER_USER, &[]), Some(2), "the usual one");
}

#[test]
fn group_without_quota_is_larger_than_any() {
    let toml = format!("lend_group = \"{FIRST}\"\nlend_groups = {{ {SMALL} = \"4M\" }}\n");
    let groups = shared(&toml);
    let quota = |more: &[u32]| rights(&groups, OTHER_USER, OTHER_USER, &known(more)).quota();
    assert_eq!(quota(&[SMALL]), Some(Bytes(4 << 20)));
    assert_eq!([quota(&[SMALL, FIRST]), quota(&[FIRST, SMALL])], [None, None]);
}

#[test]
fn borrowers_and_agents_see_nothing_of_others() {
    let sees =
        |uid: u32, more: &[u32]| rights(&usual(), uid, OTHER_USER, &known(more)).may_see_others();
    assert!(!sees(OTHER_USER, &[FIRST, SMALL, LARGE, AGENTS]));
    assert!(sees(OTHER_USER, &[ZERO]) && sees(0, &[]));
}

#[test]
fn each_right_is_its_groups_alone() {
    let may = |uid: u32, gid: u32, more: &[u32]| {
        let rights = rights(&usual(), uid, gid, &known(more));
        [
            rights.may_connect().is_ok(),
            rights.may_lend().is_ok(),
            rights.may_zero("zero").is_ok(),
            rights.may_be_agent().is_ok(),
            rights.may_revoke("revoke").is_ok(),
        ]
    };
    assert_eq!(may(OTHER_USER, OTHER_USER, &[]), [false; 5]);
    assert_eq!(may(OTHER_USER, FIRST, &[]), [true, true, false, false, false]);
    assert_eq!(may(OTHER_USER, OTHER_USER, &[LARGE]), [true, true, false, false, false]);
    assert_eq!(may(OTHER_USER, OTHER_USER, &[ZERO]), [true, false, true, false, false]);
    assert_eq!(may(OTHER_USER, AGENTS, &[]), [false, false, false, true, false]);
    assert_eq!(may(0, OTHER_USER, &[]), [true; 5]);
}

// Promise P245 (socket): The daemon knows what a peer may do from its user, its primary group and
// at most 256 supplementary groups. A process in more has the rights of its primary group. Root is
// always served. The daemon keeps the rights and no group.
#[test]
fn too_many_groups_leave_root_and_the_primary_group() {
    let groups = usual();
    let of = |uid, gid| rights(&groups, uid, gid, &peer::PeerGroups::TooMany);
    assert!(of(0, OTHER_USER).may_connect().is_ok());
    assert!(of(rustix::process::geteuid().as_raw(), OTHER_USER).may_connect().is_ok());
    assert!(of(OTHER_USER, FIRST).may_lend().is_ok());
    assert_eq!(of(OTHER_USER, LARGE).quota(), Some(Bytes(6 << 20)));
    let refused = of(OTHER_USER, OTHER_USER).may_connect().unwrap_err().to_string();
    assert!(refused.contains("more than 256"), "{refused}");
}

// Promise P245.
#[test]
fn memory_per_peer_does_not_grow_with_its_groups() {
    assert!(size_of::<Rights>() <= 128, "{} bytes", size_of::<Rights>());
}

// Promise P246 (socket): A reload changes what open connections may do.
#[tokio::test]
async fn reload_asks_an_open_connection_for_its_groups_again() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let ours = Rc::new(ours);
    let peer = Peer::from_socket(&*ours).unwrap();
    let own = |key: &str| Config::from_toml(&format!("{key} = \"{}\"", peer.gid)).unwrap();
    let groups = shared(&format!("lend_group = \"{FIRST}\""));
    let rights =
        Rights::from_peer(&*ours, peer, Rc::clone(&groups)).unwrap().with_connection(&ours);
    assert!(!rights.member().borrows);
    groups.replace(Rc::new(Groups::from_config(&own("lend_group")).unwrap()));
    assert!(rights.member().borrows && !rights.member().zeroes);
    groups.replace(Rc::new(Groups::from_config(&own("zero_group")).unwrap()));
    assert!(!rights.member().borrows && rights.member().zeroes);
    drop(ours);
    groups.replace(Rc::new(Groups::from_config(&own("lend_group")).unwrap()));
    assert_eq!(rights.member(), Member::default(), "nobody is there to be asked");
}
