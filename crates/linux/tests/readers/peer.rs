// SPDX-License-Identifier: Apache-2.0 OR MIT
use linux::Peer;
use linux::testkit::tree;

#[test]
fn who_waits_in_a_request_has_the_groups_that_procfs_says() {
    let tree = tree(&[
        ("proc/17/status", "Name:\tsh\nGroups:\t4 1000 \nSigQ:\t0/1\n"),
        ("proc/18/status", "Name:\tsh\nGroups:\t \n"),
    ]);
    let peer = Peer::of_request(&tree.roots(), 17, 1000, 100).unwrap();
    assert_eq!((peer.pid, peer.uid, peer.groups.as_slice()), (Some(17), 1000, &[4, 1000][..]));
    assert!(peer.in_group(100) && peer.in_group(4) && !peer.in_group(5));
    assert_eq!(Peer::of_request(&tree.roots(), 18, 1, 1).unwrap().groups, []);
    let hidden = Peer::of_request(&tree.roots(), 0, 1, 1).unwrap();
    assert_eq!((hidden.pid, hidden.groups.len()), (None, 0));
}
