// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agents' interface as it is on the wire: a changed field or name breaks every agent.

use serde_json::{Value, json};
use units::{Bytes, Node, PageSize, Uid};
use wire::agent::{AgentError, ListLoans, NamedLoan, ReadyBlocks, ReturnByName, Supply};
use wire::{LendForAgent, LendRequest, Parameters};

fn loan() -> (NamedLoan, Value) {
    let loan = NamedLoan {
        name: "team-a/7".to_owned(),
        path: "/run/prezero/pages-2048kB/lent/b1/pages".to_owned(),
        bytes: Bytes(4 << 20),
        page_size: PageSize::MIB_2,
        node: Node(1),
        uid: Uid(1000),
        pending: true,
    };
    let wire = json!({
        "name": "team-a/7", "path": "/run/prezero/pages-2048kB/lent/b1/pages", "bytes": 4_194_304,
        "page_bytes": 2_097_152, "node": 1, "uid": 1000, "pending": true,
    });
    (loan, wire)
}

#[test]
fn loans_and_supplies_are_as_agents_read_them() {
    let (value, wire) = loan();
    assert_eq!(serde_json::to_value(&value).expect("it can be written"), wire);
    assert_eq!(serde_json::from_value::<NamedLoan>(wire).expect("it reads back"), value);
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
    let names = [LendForAgent::NAME, ReturnByName::NAME, ListLoans::NAME];
    let expected = ["Lend", "Return", "ListLoans"].map(|name| format!("io.prezero.agent.{name}"));
    assert_eq!(names.map(str::to_owned), expected);
    let least: LendForAgent =
        serde_json::from_value(json!({ "name": "a", "bytes": 4096 })).expect("the rest is absent");
    assert_eq!(least.0, LendRequest::by_name("a".parse().expect("a name"), units::Bytes(4096)));
    let all = json!({
        "name": "a/b", "bytes": 2_097_152, "page_bytes": 2_097_152, "node": 1, "whole": true,
        "uid": 5, "gid": 6, "owner": "cache", "keep_seconds": 60,
    });
    let read: LendForAgent = serde_json::from_value(all.clone()).expect("a call");
    assert_eq!(serde_json::to_value(read).expect("it can be written"), all);
    for borrowers in ["single", "held_by_memory"] {
        let mut call = json!({ "name": "a", "bytes": 4096 });
        call.as_object_mut().expect("an object").insert(borrowers.to_owned(), true.into());
        serde_json::from_value::<LendForAgent>(call).expect_err("a parameter of borrowers");
    }
    let nameless = serde_json::from_value::<LendForAgent>(json!({ "bytes": 4096 }));
    assert!(nameless.expect_err("no name").to_string().contains("name"));
    assert_eq!(serde_json::from_value::<ListLoans>(json!({})).expect("all"), ListLoans::default());
    serde_json::from_value::<ReturnByName>(json!({ "name": "a//b" })).expect_err("no name");
    let kept: ReturnByName = serde_json::from_value(json!({ "name": "a" })).expect("a call");
    assert!(!kept.discard, "what has an owner is kept unless somebody says otherwise");
}

#[test]
fn errors_of_agents_carry_their_name_and_the_value_at_fault() {
    let (loan, wire) = loan();
    let quota = AgentError::QuotaExceeded {
        scope: "team-a".to_owned(),
        held_bytes: Bytes(1),
        quota_bytes: Bytes(2),
        asked_bytes: Bytes(3),
    };
    for (error, name, parameters, part) in [
        (
            AgentError::NameTaken { loan: Box::new(loan) },
            "NameTaken",
            json!({ "loan": wire }),
            "`team-a/7`",
        ),
        (AgentError::NameBusy { name: "x".into() }, "NameBusy", json!({ "name": "x" }), "`x`"),
        (AgentError::NoSuchName { name: "x".into() }, "NoSuchName", json!({ "name": "x" }), "`x`"),
        (AgentError::TooManyNames { most: 9 }, "TooManyNames", json!({ "most": 9 }), "9 loans"),
        (
            quota,
            "QuotaExceeded",
            json!({ "scope": "team-a", "held_bytes": 1, "quota_bytes": 2, "asked_bytes": 3 }),
            "quota of 2",
        ),
    ] {
        let written = serde_json::to_value(&error).expect("it can be written");
        let expected =
            json!({ "error": format!("io.prezero.agent.{name}"), "parameters": parameters });
        assert_eq!(written, expected);
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(serde_json::from_value::<AgentError>(written).expect("it reads back"), error);
    }
}
