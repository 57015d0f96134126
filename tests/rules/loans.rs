// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One loan, however it is held: one request, one client, one set of errors, and no function that
//! does for loans by name what another does for the rest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{files, read};

/// What a new parameter of loans is a field of: the request, and the loan as a list shows it.
const TYPES: [&str; 2] = ["LendRequest", "NamedLoan"];

/// The most files that a new parameter touches.
const MAX_FILES: usize = 5;

/// The rooms that a loan goes through.
const ROOMS: [&str; 5] = ["wire", "book", "client", "daemon", "cli"];

fn sources() -> impl Iterator<Item = PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs"))
}

/// The product's part of each source of the rooms.
fn product() -> impl Iterator<Item = (String, String)> {
    let shown = sources().map(|path| (path.display().to_string(), path));
    let of_rooms = shown.filter(|(shown, _)| {
        let of_room = |room: &&str| shown.starts_with(&format!("crates/{room}/src/"));
        let is_test = shown.contains("/tests") || shown.contains("testkit");
        ROOMS.iter().any(of_room) && !is_test
    });
    of_rooms.map(|(shown, path)| {
        let text = read(&path);
        (shown, text.split("#[cfg(test)]").next().expect("a first part").to_owned())
    })
}

/// Whether a text has a literal or a pattern of the type that names every field: one that is added
/// must be added there, too.
fn names_every_field(text: &str, name: &str) -> bool {
    let begin = format!("{name} {{");
    text.match_indices(&begin).any(|(at, _)| {
        let before = text[..at].lines().next_back().unwrap_or_default();
        let is_type = ["struct ", "impl ", "for ", "-> "].iter().any(|word| before.ends_with(word));
        let is_word = before.ends_with(|c: char| c.is_alphanumeric());
        let fields = inside(&text[at + begin.len()..]);
        // A base or a rest is the last of the fields.
        let last = fields.trim_end().rsplit('\n').next().unwrap_or_default();
        !is_type && !is_word && !last.contains("..")
    })
}

/// The text until the brace that closes it.
fn inside(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        depth == 0
    });
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn parameter_of_loans_touches_five_files() {
    let mut touched: BTreeSet<String> = BTreeSet::new();
    // The interface's file for each of the types.
    touched.insert("crates/wire/io.prezero.varlink".to_owned());
    touched.insert("crates/wire/io.prezero.agent.varlink".to_owned());
    for path in sources().filter(|path| !path.ends_with("rules/loans.rs")) {
        let text = read(&path);
        let declares = |name: &&str| text.contains(&format!("pub struct {name} {{"));
        if TYPES.iter().any(|name| declares(name) || names_every_field(&text, name)) {
            touched.insert(path.display().to_string());
        }
    }
    assert!(touched.contains("crates/wire/src/lend.rs"), "{touched:?}");
    assert!(touched.len() <= MAX_FILES, "a new parameter must be added to each of {touched:#?}");
}

#[test]
fn literal_without_a_rest_names_every_field() {
    let of = |text: &str| names_every_field(text, "LendRequest");
    assert!(of("let a = LendRequest { bytes, node: Some(Node { n }) };"));
    assert!(of("let LendRequest {\n    bytes,\n} = request;"));
    assert!(!of("LendRequest { single: true, ..LendRequest::new(bytes) }"));
    assert!(!of("LendRequest {\n    bytes: range(..),\n    ..base\n}"));
    assert!(!of("pub struct LendRequest {\n    bytes: Bytes,\n}"));
    assert!(!of("impl LendRequest {\n    fn a() {}\n}"));
    assert!(!of("fn request() -> LendRequest {\n    base()\n}"));
}

#[test]
fn no_function_has_a_twin_for_loans_by_name() {
    let mut functions: BTreeSet<(String, String)> = BTreeSet::new();
    for (path, text) in product() {
        let room = path.split('/').nth(1).expect("a room").to_owned();
        for (_, rest) in text.match_indices("fn ").map(|(at, word)| text.split_at(at + word.len()))
        {
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            functions.insert((room.clone(), name));
        }
    }
    let twin = |name: &str| -> Option<String> {
        let forms = ["_by_name", "_named", "_for_agent", "_of_agent", "_as_agent"];
        let end = forms.iter().find_map(|form| name.strip_suffix(form));
        end.or_else(|| name.strip_prefix("named_")).map(str::to_owned)
    };
    let twins: Vec<_> = functions
        .iter()
        .filter(|(room, name)| {
            twin(name).is_some_and(|one| functions.contains(&(room.clone(), one)))
        })
        .collect();
    assert!(functions.len() > 500, "{} functions", functions.len());
    assert!(twins.is_empty(), "each does for loans by name what another does: {twins:?}");
}

#[test]
fn client_and_errors_are_one_for_both_sockets() {
    let mut clients = Vec::new();
    let mut errors = BTreeSet::new();
    for (path, text) in product() {
        for line in text.lines().map(str::trim) {
            let name = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
            let name = name.map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
            if name.flatten().is_some_and(|name| name.ends_with("Client")) {
                clients.push(path.clone());
            }
            if line.contains("rename = \"io.prezero.") {
                errors.insert(path.clone());
            }
        }
    }
    assert_eq!(clients, ["crates/client/src/connection.rs"]);
    assert_eq!(errors.into_iter().collect::<Vec<_>>(), ["crates/wire/src/error.rs"]);
    let agents = read(Path::new("crates/wire/io.prezero.agent.varlink"));
    assert!(!agents.contains("\nerror ") && !agents.contains("\nmethod Lend("), "they are shared");
}
