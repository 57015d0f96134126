// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The .varlink files against the structs: each field, type and error of one is in the other.

mod definition;
mod shape;

use std::collections::BTreeMap;

use definition::{Definition, parse};
use serde_json::Value;
use shape::{Shapes, fields_of_error};
use units::{Bytes, JobId, LeaseId, Node, PageSize, Uid};
use wire::{Error, Parameters, Refused, ServiceError};

/// The methods of the structs, as a file would define them.
#[derive(Default)]
struct Code {
    shapes: Shapes,
    methods: BTreeMap<String, (String, String)>,
}

impl Code {
    fn method<P: Parameters>(&mut self) {
        let (_, name) = P::NAME.rsplit_once('.').expect("an interface");
        let (parameters, reply) = (self.shapes.fields::<P>(), self.shapes.fields::<P::Reply>());
        self.methods.insert(name.to_owned(), (parameters, reply));
    }
}

fn compare(text: &str, code: &Code, errors: &BTreeMap<String, String>) {
    let Definition { types, methods, errors: defined, .. } = parse(text);
    assert_eq!(types, code.shapes.types, "types: file, then structs");
    assert_eq!(methods, code.methods, "methods: file, then structs");
    assert_eq!(&defined, errors, "errors: file, then variants");
}

/// Errors by name, with their fields. A field that one of two errors of a name lacks is optional.
fn errors<E: serde::Serialize>(all: &[E]) -> BTreeMap<String, String> {
    let mut errors: BTreeMap<String, String> = BTreeMap::new();
    for (name, fields) in all.iter().map(fields_of_error) {
        let merged = match errors.get(&name) {
            None => fields,
            Some(other) => {
                let lacks = |text: &str, field: &str| !text.split(", ").any(|one| one == field);
                let field = |field: &str| match lacks(other, field) || lacks(&fields, field) {
                    true => field.replacen(':', ":?", 1),
                    false => field.to_owned(),
                };
                let longer = [other, &fields].into_iter().max_by_key(|text| text.len());
                let longer = longer.into_iter().flat_map(|text| text.split(", "));
                longer.map(field).collect::<Vec<_>>().join(", ")
            }
        };
        errors.insert(name, merged);
    }
    errors
}

// Promise P26.
#[test]
fn interface_of_borrowers_is_that_of_the_structs() {
    let mut code = Code::default();
    code.method::<wire::GetStatus>();
    code.method::<wire::LendRequest>();
    code.method::<wire::TakeZeroing>();
    code.method::<wire::FinishZeroing>();
    code.method::<wire::Release>();
    code.method::<wire::Drain>();
    code.method::<wire::FindHolders>();
    code.method::<wire::Revoke>();
    code.method::<wire::Configure>();
    code.method::<wire::Watch>();
    let text = String::new;
    let page_size = PageSize::MIB_2;
    let bytes = Bytes(1);
    let all = [
        Error::NotPermitted { uid: Uid(1), action: text(), needed: text() },
        Error::BadValue { field: text(), reason: text() },
        Error::NoSuchPool { wanted: text(), configured: text() },
        Error::QuotaExceeded {
            uid: Uid(1),
            held_bytes: bytes,
            quota_bytes: bytes,
            asked_bytes: bytes,
        },
        Error::NotEnough {
            asked_bytes: bytes,
            page_size,
            ready_bytes: bytes,
            free_bytes: bytes,
            left_free_bytes: bytes,
            used_bytes: bytes,
        },
        Error::ScopeQuotaExceeded {
            scope: text(),
            held_bytes: bytes,
            quota_bytes: bytes,
            asked_bytes: bytes,
        },
        Error::NameTaken { name: text(), bytes, page_size, node: Node(0), uid: Uid(1) },
        Error::NameBusy { name: text() },
        Error::NoSuchName { name: text() },
        Error::TooManyNames { most: 1 },
        Error::NothingToZero,
        Error::NoSuchLease { lease: LeaseId(1) },
        Error::NoSuchJob { job: JobId(1) },
        Error::Failed { what: text() },
    ];
    compare(wire::DESCRIPTION, &code, &errors(&all));
}

// Promise P26.
#[test]
fn interface_of_agents_is_that_of_the_structs() {
    let mut code = Code::default();
    code.method::<wire::agent::Return>();
    code.method::<wire::agent::ListLoans>();
    code.method::<wire::agent::GetSupply>();
    // Its errors are those of the other interface.
    compare(wire::agent::DESCRIPTION, &code, &BTreeMap::new());
}

// Promise P26.
#[test]
fn interface_of_varlink_is_that_of_the_structs() {
    let mut code = Code::default();
    code.method::<wire::GetInfo>();
    code.method::<wire::GetInterfaceDescription>();
    let text = String::new;
    let all = [
        ServiceError::InterfaceNotFound { interface: text() },
        ServiceError::MethodNotFound { method: text() },
        ServiceError::MethodNotImplemented { method: text() },
        ServiceError::InvalidParameter { parameter: text(), reason: Some(text()) },
        ServiceError::InvalidParameter { parameter: text(), reason: None },
    ];
    compare(wire::SERVICE.1, &code, &errors(&all));
}

#[test]
fn every_line_of_a_definition_has_its_comment_above() {
    for text in [wire::DESCRIPTION, wire::agent::DESCRIPTION, wire::SERVICE.1] {
        let mut above = "";
        for line in text.lines().map(str::trim) {
            let named = line
                .split_once(':')
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
            let begins = ["type ", "method ", "error ", "interface "];
            if named || begins.iter().any(|word| line.starts_with(word)) {
                assert!(above.starts_with('#'), "`{line}` has no comment above it");
            }
            assert!(!line.contains('#') || line.starts_with('#'), "`{line}`: comments stand above");
            above = line;
        }
    }
}

#[test]
fn a_parameter_is_refused_by_its_name() {
    let refused = |parameters: &str| {
        let call = format!(r#"{{"method":"io.prezero.Lend","parameters":{parameters}}}"#);
        let call = wire::Call::read(call.as_bytes()).expect("a call");
        match call.parameters::<wire::LendRequest>() {
            Err(Refused::Service(ServiceError::InvalidParameter { parameter, reason })) => {
                format!("{parameter} {}", reason.expect("the daemon says why"))
            }
            Err(Refused::Interface(Error::BadValue { field, reason })) => {
                format!("{field}: {reason}")
            }
            other => panic!("{parameters}: {other:?}"),
        }
    };
    for (parameters, named) in [
        ("[1]", "parameters is no object"),
        ("null", "bytes is missing"),
        ("{}", "bytes is missing"),
        (r#"{"byts":3}"#, "byts is unknown: did you mean `bytes`?"),
        (r#"{"bytes":"many"}"#, "bytes is a string, and not an integer"),
        (r#"{"bytes":null}"#, "bytes is null, and not an integer"),
        (r#"{"bytes":1.5}"#, "bytes is a number with a fraction, and not an integer"),
        (r#"{"bytes":4096,"node":[0]}"#, "node is an array, and not an integer"),
        (r#"{"bytes":4096,"node":true}"#, "node is a boolean, and not an integer"),
        (r#"{"bytes":4096,"owner":7}"#, "owner is an integer, and not a string"),
        (r#"{"bytes":4096,"single":1}"#, "single is an integer, and not a boolean"),
        (r#"{"bytes":4096,"page_size":4096}"#, "page_size is unknown: did you mean `page_bytes`?"),
    ] {
        assert_eq!(refused(parameters), named, "{parameters}");
    }
    for (parameters, begin) in [
        (r#"{"bytes":-1}"#, "bytes: integer `-1`"),
        (r#"{"bytes":4096,"node":4294967296}"#, "node: integer `4294967296`"),
        (r#"{"bytes":4096,"page_bytes":3}"#, "page_bytes: `3` is not a page size"),
        (r#"{"bytes":4096,"owner":"a/b"}"#, "owner: `a/b` is not an owner name"),
    ] {
        assert!(refused(parameters).starts_with(begin), "{parameters}: {}", refused(parameters));
    }
}

#[test]
fn a_word_is_refused_with_those_there_are() {
    let change = r#"{"node":0,"page_bytes":4096,"pages_per_block":1,"recycle":"never"}"#;
    let call = format!(r#"{{"method":"m","parameters":{{"change":{change}}}}}"#);
    let call = wire::Call::read(call.as_bytes()).expect("a call");
    let refused = call.parameters::<wire::Configure>().expect_err("no such way");
    let Refused::Interface(error) = refused else { panic!("{refused:?}") };
    assert_eq!(error.to_string(), "recycle: `never` is not auto, fresh or in-place");
}

#[test]
fn what_may_be_null_may_be_left_out_and_reads_the_same() {
    let read = |parameters: Value| {
        let call = serde_json::json!({ "method": "io.prezero.Lend", "parameters": parameters });
        let call = wire::Call::read(call.to_string().as_bytes()).expect("a call");
        call.parameters::<wire::LendRequest>().expect("it can be left out")
    };
    let all = serde_json::json!({
        "bytes": 4096, "page_bytes": null, "node": null, "owner": null, "keep_seconds": null,
        "single": null, "held_by_memory": null, "most_blocks": null,
    });
    assert_eq!(read(all), read(serde_json::json!({ "bytes": 4096 })));
}

#[test]
fn replies_read_back_with_their_errors() {
    use wire::{Release, Released};
    let read = wire::read_reply::<Release>;
    let message = wire::reply(&Released { bytes: Bytes(7) }, true).expect("JSON");
    assert_eq!(message.last(), Some(&wire::END));
    let reply = read(&message[..message.len() - 1]).expect("a reply").expect("no error");
    assert_eq!((reply.parameters.bytes, reply.continues), (Bytes(7), true));
    for refused in [
        Refused::Interface(Error::NothingToZero),
        Refused::Interface(Error::NoSuchJob { job: JobId(3) }),
        Refused::Service(ServiceError::MethodNotFound { method: "x".to_owned() }),
    ] {
        let message = wire::refusal(&refused).expect("JSON");
        let reply = read(&message[..message.len() - 1]).expect("a reply");
        assert_eq!(reply.expect_err("an error"), refused);
    }
    read(b"{\"error\":\"io.prezero.Unheard\"}").expect_err("no error that it knows");
    read(b"{}").expect_err("the reply has a field");
    let nothing = wire::read_reply::<wire::Configure>(b"{}").expect("a reply");
    assert!(nothing.is_ok(), "{nothing:?}");
}
