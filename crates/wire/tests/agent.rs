// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agents' interface as it is on the wire: a changed field or name breaks every agent.

use serde_json::{Value, json};
use units::{Bytes, Node, PageSize, Uid};
use wire::agent::{ListLoans, ReadyBlocks, Return, Supply};
use wire::{LendRequest, NamedLoan, Parameters};

#[test]
fn loans_and_supplies_are_as_agents_read_them() {
    let wire = json!({
        "name": "team-a/7", "path": "/run/prezero/pages-2048kB/lent/b1/pages", "bytes": 4_194_304,
        "page_bytes": 2_097_152, "node": 1, "uid": 1000, "pending": true,
    });
    let loan: NamedLoan = serde_json::from_value(wire.clone()).expect("it can be read");
    assert_eq!(
        (loan.name.as_str(), loan.bytes, loan.page_size.bytes()),
        ("team-a/7", Bytes(4 << 20), 2 << 20)
    );
    assert_eq!((loan.node, loan.uid, loan.pending), (Node(1), Uid(1000), true));
    let written = serde_json::to_value(&loan).expect("it can be written");
    for (key, value) in wire.as_object().expect("an object") {
        assert_eq!(&written[key], value, "{key}");
    }
    let supply = Supply {
        node: Node(0),
        page_size: PageSize::KIB_4,
        block_bytes: Bytes(2),
        ready_bytes: Bytes(3),
        ready_blocks: vec![ReadyBlocks { block_bytes: Bytes(6), ready_bytes: Bytes(7) }],
        total_bytes: Bytes(4),
        named_bytes: Bytes(5),
    };
    let wire = json!({
        "node": 0, "page_bytes": 4096, "block_bytes": 2, "ready_bytes": 3, "total_bytes": 4,
        "named_bytes": 5, "ready_blocks": [{ "block_bytes": 6, "ready_bytes": 7 }],
    });
    assert_eq!(serde_json::to_value(supply).expect("it can be written"), wire);
}

#[test]
fn calls_have_their_names_and_what_may_be_absent_may() {
    let names = [Return::NAME, ListLoans::NAME];
    assert_eq!(names, ["io.prezero.agent.Return", "io.prezero.agent.ListLoans"]);
    assert_eq!(serde_json::from_value::<ListLoans>(json!({})).expect("all"), ListLoans::default());
    serde_json::from_value::<Return>(json!({ "name": "a//b" })).expect_err("no name");
    let kept: Return = serde_json::from_value(json!({ "name": "a" })).expect("a call");
    assert!(!kept.discard, "what has an owner is kept unless somebody says otherwise");
}

#[test]
fn a_name_is_one_of_three_holds() {
    let read = |call: Value| serde_json::from_value::<LendRequest>(call);
    let least = read(json!({ "name": "a", "bytes": 4096 })).expect("the rest is absent");
    let by_name = LendRequest::by_name("a".parse().expect("a name"), Bytes(4096));
    assert_eq!(least, LendRequest { single: false, ..by_name });
    let all = json!({
        "name": "a/b", "bytes": 2_097_152, "page_bytes": 2_097_152, "node": 1, "whole": true,
        "uid": 5, "gid": 6, "owner": "cache", "keep_seconds": 60,
    });
    let written = serde_json::to_value(read(all.clone()).expect("a call")).expect("JSON");
    for (key, value) in all.as_object().expect("an object") {
        assert_eq!(&written[key], value, "{key}");
    }
    let refused = |call: Value| read(call).expect_err("it is refused").to_string();
    for needs_name in [json!({ "whole": true }), json!({ "uid": 1 }), json!({ "gid": 1 })] {
        let mut call = json!({ "bytes": 4096 });
        let fields = call.as_object_mut().expect("an object");
        fields.extend(needs_name.as_object().expect("an object").clone());
        assert!(refused(call).contains("need a `name`"));
    }
    let two = json!({ "name": "a", "bytes": 4096, "held_by_memory": true });
    assert!(refused(two).contains("two holds"));
}
