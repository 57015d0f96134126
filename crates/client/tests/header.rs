// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `include/prezero.h` is what the sources say.

use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};

/// Set to `1` to write the header anew instead of comparing it.
const BLESS: &str = "PREZERO_BLESS";

const HEADER: &str = "\
/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * prezero.h - huge pages that are zero before anyone asks
 *
 * Link with -lprezero (pkg-config prezero). Functions return 0 or a negative errno where they can
 * fail; prezero_last_error() says what went wrong and what to do. A connection, a loan and a watch
 * are each for one thread at a time, different ones for different threads.
 *
 * Made from the Rust sources by cbindgen: PREZERO_BLESS=1 cargo test -p prezero --test header
 */";

/// Behind the guard, and before the structure that it is about: a macro is nothing before its use.
const MACROS: &str = "
/* A request with nothing set but that any node will do. */
#define PREZERO_REQUEST_INIT \\
\t{ .size = sizeof(struct prezero_request), .node = PREZERO_ANY_NODE }";

/// The generated header, without the sections that only Rust programmers need.
fn generate(sources: &Path) -> String {
    let config = Config {
        language: Language::C,
        style: Style::Tag,
        header: Some(HEADER.to_owned()),
        after_includes: Some(MACROS.to_owned()),
        include_guard: Some("PREZERO_H".to_owned()),
        cpp_compat: true,
        documentation_style: DocumentationStyle::C,
        usize_is_size_t: true,
        line_length: 100,
        ..Config::default()
    };
    // Its modules are found from there.
    let builder = Builder::new().with_config(config).with_src(sources.join("mod.rs"));
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    let text = String::from_utf8(text).expect("text");
    let (mut lines, mut skipping): (Vec<&str>, bool) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim() == "# Safety" {
            skipping = true;
            // And the empty line before it.
            lines.pop();
        }
        skipping &= !line.trim_start().starts_with("*/");
        if !skipping {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

// Promise P74.
#[test]
fn the_header_is_what_the_sources_say() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.join("include/prezero.h");
    let generated = generate(&package.join("src/capi"));
    if std::env::var(BLESS).as_deref() == Ok("1") {
        std::fs::write(&path, &generated).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the header is there");
    assert!(
        committed == generated,
        "{} is not what the sources say: {BLESS}=1 cargo test -p prezero --test header",
        path.display()
    );
}

// Promise P74.
/// Two of a program's own headers may both include it.
#[test]
fn all_of_the_header_lies_behind_its_guard() {
    let generated = generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/capi"));
    let (before, rest) = generated.split_once("#ifndef PREZERO_H\n").expect("a guard");
    let (inside, after) = rest.rsplit_once("#endif  /* PREZERO_H */\n").expect("its end");
    assert_eq!(after, "", "nothing comes after the guard");
    assert!(!before.contains('#'), "nothing but a comment comes before it: {before}");
    assert!(inside.contains("#define PREZERO_REQUEST_INIT"));
}
