// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface's types as they are on the wire: a changed field or name breaks every client.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use units::{Bytes, Counts, Domain, JobId, LeaseId, Node, PageSize, Pages, Uid};
use wire::{
    Ailment, AilmentCause, BlockHolder, BlockSize, Counters, Drained, Error, Finished, Health,
    Held, Hold, Holders, INTERFACE, Job, KernelKind, KernelStatus, LendRequest, Lent, LentPart,
    Level, LoanStatus, MAX_LOAN_PARTS, MESSAGE_FDS, PoolChange, PoolStatus, Provider, Recycle,
    Released, ResizeStatus, Revoked, StateName, Status, Unknown, UserStatus, Watch, WatchReply,
    ZeroBy,
};

/// The value is written as `wire`, and `wire` reads back as the value.
fn golden<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, wire: &Value) {
    assert_eq!(&serde_json::to_value(value).expect("it can be written"), wire);
    let text = serde_json::to_string(value).expect("it can be written");
    assert_eq!(&serde_json::from_str::<T>(&text).expect("it reads back"), value, "{text}");
    // A field that is absent or of another kind is refused, unless it may be absent.
    if let Value::Object(fields) = wire {
        for name in fields.keys().filter(|name| !fields[*name].is_null()) {
            let mut bad = fields.clone();
            bad.insert(name.clone(), json!({ "not": "this" }));
            let bad = serde_json::from_value::<T>(Value::Object(bad));
            assert!(bad.is_err(), "{name} takes anything: {bad:?}");
        }
    }
}

fn pool_status() -> (PoolStatus, Value) {
    let pool = PoolStatus {
        node: Node(1),
        page_size: PageSize::GIB_1,
        pages_per_block: Pages(8),
        recycle: Recycle::InPlace,
        zeroable_pages: Pages(9),
        zeroing_pages: Pages(10),
        ready_pages: Pages(11),
        lent_pages: Pages(12),
        kept_pages: Pages(13),
        draining_pages: Pages(14),
        mapped_pages: Pages(21),
        pinned_pages: Pages(22),
        blocks: 15,
        ready_low: Pages(16),
        ready_high: Pages(17),
        max_pages: Some(Pages(18)),
        leave_free: Pages(19),
        kernel_free_pages: Pages(20),
        kernel_reserved_pages: Pages(23),
        sizes: vec![BlockSize { pages_per_block: Pages(24), ready_blocks: 25, wanted_blocks: 26 }],
        resize: Some(ResizeStatus {
            min_pages: Pages(27),
            max_pages: Pages(28),
            total_pages: Pages(29),
            added_pages: Pages(30),
            adding_pages: Pages(31),
            held_pages: Some(Pages(32)),
            short_because: Some("memory".into()),
        }),
    };
    let wire = json!({
        "node": 1, "page_bytes": 1_073_741_824_u64, "pages_per_block": 8, "recycle": "in-place",
        "zeroable_pages": 9, "zeroing_pages": 10, "ready_pages": 11, "lent_pages": 12,
        "kept_pages": 13, "draining_pages": 14, "mapped_pages": 21, "pinned_pages": 22, "blocks": 15, "ready_low": 16, "ready_high": 17,
        "max_pages": 18, "leave_free": 19, "kernel_free_pages": 20,
        "kernel_reserved_pages": 23,
        "sizes": [{ "pages_per_block": 24, "ready_blocks": 25, "wanted_blocks": 26 }],
        "resize": {
            "min_pages": 27, "max_pages": 28, "total_pages": 29, "added_pages": 30,
            "adding_pages": 31, "held_pages": 32, "short_because": "memory",
        },
    });
    (pool, wire)
}

fn loan_status() -> (LoanStatus, Value) {
    let loan = LoanStatus {
        lease: LeaseId(5),
        uid: Uid(100_001),
        account: Uid(1000),
        owner: Some("guest1".to_owned()),
        page_size: PageSize::MIB_2,
        pages: Pages(512),
        grown_pages: Pages(3),
        blocks: 2,
        nodes: vec![Node(0), Node(1)],
        ready_pages: Pages(500),
        unbacked_pages: Pages(12),
        age: Some(Duration::from_secs(60)),
        pid: Some(77),
        command: Some("qemu".to_owned()),
        cgroup: Some("/vm.slice".to_owned()),
    };
    let wire = json!({
        "lease": 5, "uid": 100_001, "account": 1000, "owner": "guest1",
        "page_bytes": 2_097_152, "pages": 512, "grown_pages": 3, "blocks": 2, "nodes": [0, 1],
        "ready_pages": 500, "unbacked_pages": 12, "age_seconds": 60, "pid": 77, "command": "qemu",
        "cgroup": "/vm.slice",
    });
    (loan, wire)
}

fn counters() -> (Counters, Value) {
    let counters = Counters {
        loans: 1,
        lent_ready_bytes: Bytes(2),
        lent_unbacked_bytes: Bytes(3),
        kept_loans: 4,
        refusals: 5,
        zeroed_bytes: Bytes(6),
        lost_workers: 7,
        released_bytes: Bytes(u64::MAX),
    };
    let wire = json!({
        "loans": 1, "lent_ready_bytes": 2, "lent_unbacked_bytes": 3, "kept_loans": 4, "refusals": 5,
        "zeroed_bytes": 6, "lost_workers": 7, "released_bytes": 18_446_744_073_709_551_615_u64,
    });
    (counters, wire)
}

fn level() -> (Level, Value) {
    let level = Level {
        node: Node(1),
        page_size: PageSize::MIB_2,
        ready_pages: Pages(2),
        zeroable_pages: Pages(3),
        zeroing_pages: Pages(4),
        lent_pages: Pages(5),
    };
    let wire = json!({
        "node": 1, "page_bytes": 2_097_152, "ready_pages": 2, "zeroable_pages": 3,
        "zeroing_pages": 4, "lent_pages": 5,
    });
    (level, wire)
}

fn lent_part() -> (LentPart, Value) {
    let part =
        LentPart { fd: Some(1), node: Node(0), bytes: Bytes(8 << 30), ready_bytes: Bytes(2 << 30) };
    let wire = json!({
        "fd": 1, "node": 0, "bytes": 8_589_934_592_u64, "ready_bytes": 2_147_483_648_u64,
    });
    (part, wire)
}

#[test]
fn status_and_its_parts() {
    let (pool, pool_wire) = pool_status();
    golden(&pool, &pool_wire);
    let (loan, loan_wire) = loan_status();
    golden(&loan, &loan_wire);
    let (counters, counters_wire) = counters();
    golden(&counters, &counters_wire);
    let (level, level_wire) = level();
    let user =
        UserStatus { uid: Uid(1000), loans: 1, held_bytes: Bytes(2), quota_bytes: Some(Bytes(3)) };
    let user_wire = json!({ "uid": 1000, "loans": 1, "held_bytes": 2, "quota_bytes": 3 });
    golden(&user, &user_wire);
    let kernel = KernelStatus {
        kind: KernelKind::Module,
        module_version: Some("0.1.0".to_owned()),
        release: "6.12.117".to_owned(),
    };
    let kernel_wire = json!({ "kind": "module", "module_version": "0.1.0", "release": "6.12.117" });
    golden(&kernel, &kernel_wire);
    let status = Status {
        provider: Provider::Kernel,
        kernel: Some(kernel),
        version: "0.1.0".to_owned(),
        pid: 77,
        pools: vec![pool],
        levels: vec![level],
        loans: vec![loan],
        users: vec![user],
        workers: 2,
        paused_by_pressure: true,
        fresh_reason: Some("no BTF".to_owned()),
        drained: true,
        tree: Some("/run/prezero/tree".to_owned()),
        unknown_files: 3,
        health: Health::Drained,
        ailments: vec![Ailment {
            cause: AilmentCause::Drained,
            found: "drained".to_owned(),
            remedy: "end it".to_owned(),
            command: None,
        }],
        counters,
    };
    let wire = json!({
        "provider": "kernel", "kernel": kernel_wire, "version": "0.1.0", "pid": 77, "pools": [pool_wire],
        "levels": [level_wire], "loans": [loan_wire], "users": [user_wire], "workers": 2, "paused_by_pressure": true,
        "fresh_reason": "no BTF", "drained": true, "tree": "/run/prezero/tree", "unknown_files": 3,
        "health": "drained", "ailments": [{"cause": "drained", "found": "drained", "remedy": "end it", "command": null}],
        "counters": counters_wire,
    });
    golden(&status, &wire);
}

#[test]
fn unbounded_is_null_and_unnamed_is_absent() {
    let (pool, mut wire) = pool_status();
    let pool = PoolStatus { max_pages: None, ..pool };
    wire["max_pages"] = Value::Null;
    golden(&pool, &wire);
    wire.as_object_mut().unwrap().remove("max_pages");
    assert_eq!(serde_json::from_value::<PoolStatus>(wire).unwrap(), pool);
    let (loan, mut wire) = loan_status();
    wire["owner"] = Value::Null;
    golden(&LoanStatus { owner: None, ..loan }, &wire);
}

#[test]
fn holders_and_revoked_loans_round_trip() {
    let holder = BlockHolder {
        lease: Some(LeaseId(5)),
        draining: true,
        node: Node(1),
        page_size: PageSize::MIB_2,
        pages: Pages(3),
        pid: 77,
        uid: Uid(1000),
        command: "qemu".to_owned(),
        cgroup: None,
        how: Held::Pins,
    };
    let wire = json!({
        "lease": 5, "draining": true, "node": 1, "page_bytes": 2_097_152, "pages": 3, "pid": 77,
        "uid": 1000, "command": "qemu", "cgroup": null, "how": "pins",
    });
    golden(&holder, &wire);
    golden(
        &Holders { holders: vec![holder], complete: true },
        &json!({ "holders": [wire], "complete": true }),
    );
    let drained = Drained {
        released_bytes: Bytes(1),
        lent_bytes: Bytes(2),
        kept_bytes: Bytes(3),
        draining_bytes: Bytes(4),
    };
    let wire = json!({
        "released_bytes": 1, "lent_bytes": 2, "kept_bytes": 3, "draining_bytes": 4,
    });
    golden(&drained, &wire);
    golden(&Held::Maps, &json!("maps"));
    golden(&Held::Opens, &json!("opens"));
    golden(&Revoked { bytes: Bytes(4096) }, &json!({ "bytes": 4096 }));
}

#[test]
fn watches() {
    let (level, wire) = level();
    golden(&level, &wire);
    golden(&WatchReply { levels: vec![level] }, &json!({ "levels": [wire] }));
}

#[test]
fn loans() {
    let (part, wire) = lent_part();
    golden(&part, &wire);
    let lent = Lent {
        lease_fd: Some(0),
        lease: LeaseId(5),
        page_size: PageSize::GIB_1,
        kept: true,
        parts: vec![part],
        path: None,
        found: false,
    };
    let wire = json!({
        "lease_fd": 0, "lease": 5, "page_bytes": 1_073_741_824_u64, "kept": true, "parts": [wire],
        "path": null, "found": false,
    });
    golden(&lent, &wire);
}

#[test]
fn a_request_names_what_it_wants_and_nothing_else_is_needed() {
    let request = LendRequest {
        page_size: Some(PageSize::GIB_1),
        node: Some(Node(1)),
        owner: Some("guest1".parse().expect("an owner")),
        keep: Some(Duration::from_secs(60)),
        single: true,
        most_blocks: Some(300),
        hold: Hold::Memory,
        ..LendRequest::new(Bytes(8 << 30))
    };
    let wire = json!({
        "bytes": 8_589_934_592_u64, "page_bytes": 1_073_741_824, "node": 1, "owner": "guest1",
        "keep_seconds": 60, "single": true, "held_by_memory": true, "most_blocks": 300,
    });
    let written = serde_json::to_value(&request).expect("it can be written");
    for (key, value) in wire.as_object().expect("an object") {
        assert_eq!(&written[key], value, "{key}");
    }
    assert_eq!(serde_json::from_value::<LendRequest>(wire).expect("it can be read"), request);
    let least = serde_json::from_value::<LendRequest>(json!({ "bytes": 4096 }));
    assert_eq!(least.unwrap(), LendRequest::new(Bytes(4096)));
}

#[test]
fn silent_client_gets_the_descriptors_of_one_message() {
    let mut request = LendRequest::new(Bytes(4096));
    assert_eq!(request.max_parts() + 1, MESSAGE_FDS);
    for (says, gets) in [(0, 1), (1, 1), (300, 300), (u32::MAX, MAX_LOAN_PARTS)] {
        request.most_blocks = Some(says);
        assert_eq!(request.max_parts(), gets, "{says}");
    }
}

#[test]
fn watch_has_node_and_page_size_and_its_level_has_counts() {
    let counts = Counts {
        ready: Pages(2),
        zeroable: Pages(3),
        zeroing: Pages(4),
        lent: Pages(5),
        ..Counts::default()
    };
    let domain = Domain { node: Node(1), page_size: PageSize::MIB_2 };
    assert_eq!(Level::new(domain, &counts), level().0);
    for (node, is_its_node) in [(None, true), (Some(Node(1)), true), (Some(Node(0)), false)] {
        let sizes = [(None, true), (Some(PageSize::MIB_2), true), (Some(PageSize::GIB_1), false)];
        for (page_size, is_its_size) in sizes {
            let watch = Watch { node, page_size, below: None, interval_ms: None };
            assert_eq!(watch.fits(&level().0), is_its_node && is_its_size, "{watch:?}");
        }
    }
}

#[test]
fn unknown_word_names_the_known_ones() {
    let reported = |known| Unknown { word: "x".to_owned(), known }.to_string();
    assert_eq!(reported(&["a"]), "`x` is not a");
    assert_eq!(reported(&["a", "b"]), "`x` is not a or b");
    assert_eq!(reported(&["a", "b", "c"]), "`x` is not a, b or c");
    let typing_error = "fersh".parse::<Recycle>().unwrap_err().to_string();
    assert_eq!(typing_error, "`fersh` is not auto, fresh or in-place: did you mean `fresh`?");
}

#[test]
fn words_read_back_as_they_are_written() {
    for state in StateName::ALL {
        assert_eq!(state.to_string().parse(), Ok(state));
        golden(&state, &json!(state.as_str()));
    }
    let error = "never".parse::<Recycle>().unwrap_err().to_string();
    assert_eq!(error, "`never` is not auto, fresh or in-place");
}

#[test]
fn jobs() {
    golden(&ZeroBy::Allocate, &json!("allocate"));
    golden(&ZeroBy::Clear, &json!("clear"));
    golden(&ZeroBy::Kernel, &json!("kernel"));
    let job = Job {
        block_fd: Some(0),
        job_fd: 1,
        job: JobId(9),
        node: Node(1),
        page_size: PageSize::MIB_2,
        pages: Pages(512),
        first_page: Pages(3),
        by: ZeroBy::Clear,
    };
    let wire = json!({
        "block_fd": 0, "job_fd": 1, "job": 9, "node": 1, "page_bytes": 2_097_152, "pages": 512,
        "first_page": 3, "by": "clear",
    });
    golden(&job, &wire);
    let in_kernel = Job {
        block_fd: None,
        job_fd: 0,
        pages: Pages(128),
        first_page: Pages(0),
        by: ZeroBy::Kernel,
        ..job
    };
    let wire = json!({
        "block_fd": null, "job_fd": 0, "job": 9, "node": 1, "page_bytes": 2_097_152, "pages": 128,
        "first_page": 0, "by": "kernel",
    });
    golden(&in_kernel, &wire);
    golden(&Finished { state: StateName::Ready }, &json!({ "state": "ready" }));
    golden(&Released { bytes: Bytes(4096) }, &json!({ "bytes": 4096 }));
}

#[test]
fn a_change_names_a_pool_and_only_what_changes() {
    let change = PoolChange {
        node: Node(0),
        page_size: PageSize::MIB_2,
        pages_per_block: Pages(4),
        ready_low: Some(Pages(1)),
        ready_high: Some(Pages(2)),
        max_pages: Some(Pages(3)),
        leave_free: Some(Pages(4)),
        recycle: Some(Recycle::Fresh),
    };
    let wire = json!({
        "node": 0, "page_bytes": 2_097_152, "pages_per_block": 4, "ready_low": 1, "ready_high": 2,
        "max_pages": 3, "leave_free": 4, "recycle": "fresh",
    });
    golden(&change, &wire);
    let least = json!({ "node": 0, "page_bytes": 2_097_152, "pages_per_block": 4 });
    let nothing = PoolChange {
        node: Node(0),
        page_size: PageSize::MIB_2,
        pages_per_block: Pages(4),
        ..PoolChange::default()
    };
    assert_eq!(serde_json::from_value::<PoolChange>(least).unwrap(), nothing);
}

/// Every error, its parameters on the wire, and what a person must find in its message.
fn errors() -> Vec<(Error, Value, &'static [&'static str])> {
    // A variant that is added must be added below, too.
    let all = |error: &Error| match error {
        Error::NotPermitted { .. }
        | Error::BadValue { .. }
        | Error::NoSuchPool { .. }
        | Error::QuotaExceeded { .. }
        | Error::NotEnough { .. }
        | Error::ScopeQuotaExceeded { .. }
        | Error::NameTaken { .. }
        | Error::NameBusy { .. }
        | Error::NoSuchName { .. }
        | Error::TooManyNames { .. }
        | Error::NothingToZero
        | Error::NoSuchLease { .. }
        | Error::NoSuchJob { .. }
        | Error::Failed { .. } => 14,
    };
    let errors: Vec<(Error, Value, &[&str])> = vec![
        (
            Error::NotPermitted {
                uid: Uid(1000),
                action: "zero".to_owned(),
                needed: "root may".to_owned(),
            },
            json!({ "uid": 1000, "action": "zero", "needed": "root may" }),
            &["1000", "zero", "root may"],
        ),
        (
            Error::BadValue { field: "bytes".to_owned(), reason: "3 is odd".to_owned() },
            json!({ "field": "bytes", "reason": "3 is odd" }),
            &["bytes", "3 is odd"],
        ),
        (
            Error::NoSuchPool {
                wanted: "node 7".to_owned(),
                configured: "node 0 2M x 1".to_owned(),
            },
            json!({ "wanted": "node 7", "configured": "node 0 2M x 1" }),
            &["node 7", "node 0 2M x 1"],
        ),
        (
            Error::QuotaExceeded {
                uid: Uid(1000),
                held_bytes: Bytes(11),
                quota_bytes: Bytes(12),
                asked_bytes: Bytes(10),
            },
            json!({ "uid": 1000, "held_bytes": 11, "quota_bytes": 12, "asked_bytes": 10 }),
            &["1000", "11", "12", "10", "return"],
        ),
        (
            Error::NotEnough {
                asked_bytes: Bytes(11),
                page_size: PageSize::MIB_2,
                ready_bytes: Bytes(13),
                free_bytes: Bytes(14),
                left_free_bytes: Bytes(15),
                used_bytes: Bytes(16),
            },
            json!({
                "asked_bytes": 11, "page_bytes": 2_097_152, "ready_bytes": 13, "free_bytes": 14,
                "left_free_bytes": 15, "used_bytes": 16,
            }),
            &["11", "2M", "13", "14", "15 of it by leave_free", "16 are lent", "reserve"],
        ),
        (
            Error::ScopeQuotaExceeded {
                scope: "team-a".to_owned(),
                held_bytes: Bytes(11),
                quota_bytes: Bytes(12),
                asked_bytes: Bytes(10),
            },
            json!({ "scope": "team-a", "held_bytes": 11, "quota_bytes": 12, "asked_bytes": 10 }),
            &["team-a", "11", "12", "10", "return"],
        ),
        (
            Error::NameTaken {
                name: "x".to_owned(),
                bytes: Bytes(4096),
                page_size: PageSize::KIB_4,
                node: Node(1),
                uid: Uid(7),
            },
            json!({ "name": "x", "bytes": 4096, "page_bytes": 4096, "node": 1, "uid": 7 }),
            &["`x`", "4K", "node 1", "user 7", "return"],
        ),
        (Error::NameBusy { name: "x".to_owned() }, json!({ "name": "x" }), &["`x`", "ask again"]),
        (Error::NoSuchName { name: "x".to_owned() }, json!({ "name": "x" }), &["`x`"]),
        (Error::TooManyNames { most: 9 }, json!({ "most": 9 }), &["9 loans", "agent.names"]),
        (Error::NothingToZero, Value::Null, &["nothing to zero"]),
        (Error::NoSuchLease { lease: LeaseId(9) }, json!({ "lease": 9 }), &["9"]),
        (Error::NoSuchJob { job: JobId(9) }, json!({ "job": 9 }), &["9"]),
        (
            Error::Failed { what: "fallocate: ENOSPC".to_owned() },
            json!({ "what": "fallocate: ENOSPC" }),
            &["fallocate: ENOSPC"],
        ),
    ];
    assert!(errors.iter().all(|(error, ..)| all(error) == errors.len()));
    errors
}

#[test]
fn errors_are_varlink_errors_of_the_interface() {
    for (error, parameters, _) in errors() {
        let debug = format!("{error:?}");
        let variant = debug.split(' ').next().unwrap();
        let mut wire = json!({ "error": format!("{INTERFACE}.{variant}") });
        if !parameters.is_null() {
            wire["parameters"] = parameters;
        }
        golden(&error, &wire);
    }
}

#[test]
fn errors_name_the_values_at_fault() {
    for (error, _, parts) in errors() {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(!text.ends_with('.') && !text.starts_with(char::is_uppercase), "{text}");
    }
}

#[test]
fn an_error_of_another_interface_is_none_of_ours() {
    for text in [
        r#"{"error":"org.varlink.service.MethodNotFound","parameters":{"method":"x"}}"#,
        r#"{"error":"io.prezero.Unheard"}"#,
        r#"{"error":"NothingToZero"}"#,
        r#"{"parameters":{"job":1}}"#,
        r#"{"error":"io.prezero.NoSuchJob"}"#,
        r#"{"error":"io.prezero.NoSuchJob","parameters":{"job":-1}}"#,
    ] {
        assert!(serde_json::from_str::<Error>(text).is_err(), "{text}");
    }
}
