// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads an interface definition: enough of the language for these files.

use std::collections::BTreeMap;

/// An interface, each part as one normalized text: `(name: type, ...)`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) types: BTreeMap<String, String>,
    /// Parameters and reply.
    pub(crate) methods: BTreeMap<String, (String, String)>,
    pub(crate) errors: BTreeMap<String, String>,
}

pub(crate) fn parse(text: &str) -> Definition {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let code = lines.collect::<Vec<_>>().join(" ");
    let mut words = code.as_str();
    let mut found = Definition::default();
    let mut interfaces = 0;
    while let Some((keyword, rest)) = words.trim_start().split_once(' ') {
        let end = rest.find(['(', ' ']).unwrap_or(rest.len());
        let (name, rest) = (rest[..end].to_owned(), &rest[end..]);
        words = rest;
        match keyword {
            "interface" => interfaces += 1,
            "type" => assert_eq!(found.types.insert(name, fields(&mut words)), None),
            "error" => assert_eq!(found.errors.insert(name, fields(&mut words)), None),
            "method" => {
                let parameters = fields(&mut words);
                words = words.trim_start().strip_prefix("->").expect("a reply");
                let both = (parameters, fields(&mut words));
                assert_eq!(found.methods.insert(name, both), None);
            }
            _ => panic!("`{keyword}` begins nothing"),
        }
    }
    assert!(words.trim().is_empty(), "`{words}` is left");
    assert_eq!(interfaces, 1);
    found
}

/// What stands between parentheses, none of which is inside another.
fn fields(words: &mut &str) -> String {
    let inner = words.trim_start().strip_prefix('(').expect("fields");
    let (inner, rest) = inner.split_once(')').expect("their end");
    assert!(!inner.contains('('), "{inner}");
    *words = rest;
    let fields = inner.split(',').map(|field| field.trim().replace(": ", ":"));
    let mut fields: Vec<_> = fields.filter(|field| !field.is_empty()).collect();
    if fields.iter().all(|field| field.contains(':')) {
        // Their order means nothing to a reader; that of an enumeration's words may.
        fields.sort();
    }
    fields.join(", ")
}
