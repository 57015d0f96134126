// SPDX-License-Identifier: Apache-2.0 OR MIT
use std::fmt::Write;

use linux::peer::{MAX_GROUPS, PeerGroups};
use testkit::tree;

#[test]
fn thread_in_a_request_has_the_groups_that_procfs_says() {
    let tree = tree(&[
        ("proc/17/status", "Name:\tsh\nGroups:\t4 1000 \nSigQ:\t0/1\n"),
        ("proc/18/status", "Name:\tsh\nGroups:\t \n"),
        ("proc/19/status", "Name:\tGroups: 4\nGroups:\t5 \n"),
        ("proc/20/status", "Name:\tsh\nGroups:\tx \n"),
    ]);
    let groups = |thread| PeerGroups::from_request(&tree.roots(), thread);
    assert_eq!(groups(17).unwrap(), PeerGroups::Known(vec![4, 1000]));
    assert!(groups(17).unwrap().contains(4) && !groups(17).unwrap().contains(5));
    assert_eq!(groups(18).unwrap(), PeerGroups::Known(Vec::new()));
    assert_eq!(groups(19).unwrap(), PeerGroups::Known(vec![5]), "a name is no line");
    assert!(groups(20).unwrap_err().to_string().contains("a group's number"));
    assert_eq!(groups(0).unwrap(), PeerGroups::Known(Vec::new()), "hidden");
}

#[test]
fn thread_with_too_many_groups_is_in_none_of_them() {
    let status = |count: usize| {
        let mut text = "Name:\tsh\nGroups:\t".to_owned();
        (0..count).for_each(|at| write!(text, "{} ", 4_000_000_000 + at).unwrap());
        text + "\nSigQ:\t0/1\n"
    };
    let texts = [MAX_GROUPS, MAX_GROUPS + 1, 65_536].map(status);
    let tree = tree(&[
        ("proc/1/status", &texts[0]),
        ("proc/2/status", &texts[1]),
        ("proc/3/status", &texts[2]),
    ]);
    let groups = [1, 2, 3].map(|thread| PeerGroups::from_request(&tree.roots(), thread).unwrap());
    assert!(groups[0].contains(4_000_000_255));
    assert_eq!(groups[1..], [PeerGroups::TooMany, PeerGroups::TooMany]);
    assert!(!groups[2].contains(4_000_000_000));
}
