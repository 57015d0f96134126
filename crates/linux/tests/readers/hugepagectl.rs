// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The structs in Rust are those of the C header, as the C compiler lays them out.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use linux::hugepagectl::{
    ALL, Argument, IOC_TYPE, Query, WATCH_INTERVAL_MAX_MS, WATCH_ZEROABLE, Watch, Zero,
};
use testkit::skip;

/// The comparison: a C expression, and its value in Rust.
fn facts() -> Vec<(String, u64)> {
    let mut facts = Vec::new();
    let mut fact = |c: &str, rust: u64| facts.push((c.to_owned(), rust));
    macro_rules! layout {
        ($type:ident, $name:literal, [$($field:ident),*]) => {
            fact(concat!("sizeof(struct ", $name, ")"), size_of::<$type>() as u64);
            $(fact(
                concat!("offsetof(struct ", $name, ", ", stringify!($field), ")"),
                offset_of!($type, $field) as u64,
            );)*
        };
    }
    layout!(
        Query,
        "hugepagectl_query",
        [
            size, node, page_shift, flags, total, free, reserved, zeroed, zeroable, zeroing, hits,
            misses, waits, node_total, node_free
        ]
    );
    layout!(Zero, "hugepagectl_zero", [size, node, page_shift, flags, pages, zeroed]);
    layout!(
        Watch,
        "hugepagectl_watch",
        [size, node, page_shift, flags, min_zeroed, min_interval_ms, reserved, min_free]
    );
    fact("HUGEPAGECTL_QUERY", Query::NUMBER.into());
    fact("HUGEPAGECTL_ZERO", Zero::NUMBER.into());
    fact("HUGEPAGECTL_WATCH", Watch::NUMBER.into());
    fact("HUGEPAGECTL_QUERY_SIZE_VER0", Query::SIZE_VER0 as u64);
    fact("HUGEPAGECTL_ZERO_SIZE_VER0", Zero::SIZE_VER0 as u64);
    fact("HUGEPAGECTL_WATCH_SIZE_VER0", Watch::SIZE_VER0 as u64);
    fact("HUGEPAGECTL_IOC_TYPE", IOC_TYPE.into());
    fact("HUGEPAGECTL_ALL", ALL);
    fact("HUGEPAGECTL_WATCH_ZEROABLE", WATCH_ZEROABLE.into());
    fact("HUGEPAGECTL_WATCH_INTERVAL_MAX", WATCH_INTERVAL_MAX_MS.into());
    facts
}

#[test]
fn the_structs_are_those_of_the_c_header() {
    if Command::new("gcc").arg("--version").output().is_err() {
        return skip("no C compiler here");
    }
    let facts = facts();
    let mut code = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/types.h>\n\
                    #include \"hugepagectl.h\"\nint main(void)\n{\n"
        .to_owned();
    for (expression, _) in &facts {
        writeln!(code, "\tprintf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    code += "\treturn 0;\n}\n";
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("facts.c"), dir.path().join("facts"));
    std::fs::write(&source, code).unwrap();
    let uapi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/uapi");
    let mut compiler = Command::new("gcc");
    compiler.arg("-I").arg(uapi).arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().expect("gcc is installed").success());
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let values: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts.len());
    for ((expression, rust), c) in facts.iter().zip(values) {
        assert_eq!(*rust, c, "{expression}");
    }
}
