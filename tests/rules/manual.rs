// SPDX-License-Identifier: Apache-2.0 OR MIT
//! prezero.toml(5) and the file that packages install have the sections, keys and defaults of the
//! daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use book::config::Config;
use serde_json::Value;

use super::read;

/// A section, empty at the top, and a key.
type Key = (String, String);

/// Every key and its default; null where there is none, or where the key is required.
fn defaults_of_the_daemon() -> BTreeMap<Key, Value> {
    let one_of_each = "[[reserve]]\npage_size = \"2M\"\npages = 1\n\
                       [[pool]]\npage_size = \"2M\"\nsize_max = \"2M\"\n";
    let config = Config::from_toml(one_of_each).expect("a good configuration");
    let config = serde_json::to_value(config).expect("it can be written");
    let mut defaults = BTreeMap::new();
    for (name, value) in config.as_object().expect("a table") {
        let (section, table) = match value {
            Value::Object(table) if !["quota_of", "lend_groups"].contains(&name.as_str()) => {
                (format!("[{name}]"), table)
            }
            Value::Array(tables) => {
                (format!("[[{name}]]"), tables[0].as_object().expect("a table"))
            }
            _ => {
                defaults.insert((String::new(), name.clone()), value.clone());
                continue;
            }
        };
        for (key, value) in table {
            let is_given = ["page_size", "pages", "size_max"].contains(&key.as_str());
            let default = if is_given { Value::Null } else { value.clone() };
            defaults.insert((section.clone(), key.clone()), default);
        }
    }
    defaults
}

/// A default as documents write it; `None` where the key has no value of its own.
fn shown(default: &Value) -> Option<String> {
    match default {
        Value::Null => None,
        Value::Object(all) if all.is_empty() => None,
        Value::Array(all) if all.is_empty() => None,
        // A size is written as a number of bytes.
        Value::String(text) => match text.parse() {
            Ok(bytes) => Some(units::Bytes(bytes).to_string()),
            Err(_) => Some(text.clone()),
        },
        other => Some(other.to_string()),
    }
}

/// Each key of the manual with its text, one line, without macros and quotes.
fn texts_of_the_manual() -> BTreeMap<Key, String> {
    let mut section = String::new();
    let mut key = None;
    let mut texts = BTreeMap::<Key, String>::new();
    for line in read(Path::new("dist/man/prezero.toml.5")).lines() {
        if let Some(name) = line.strip_prefix(".Ss ") {
            section = if name == "Top level" { String::new() } else { name.to_owned() };
        } else if let Some(name) = line.strip_prefix(".It Ic ") {
            key = Some((section.clone(), name.to_owned()));
        } else if line.starts_with(".El") {
            key = None;
        } else if let Some(key) = &key {
            let words = line.split_once(' ').filter(|_| line.starts_with('.'));
            let text = words.map_or(line, |(_, words)| words).replace("\\(dq", "");
            let text = text.replace("\\-", "-").replace(" ,", ",").replace(" .", ".");
            let all = texts.entry(key.clone()).or_default();
            all.push_str(&text);
            all.push(' ');
        }
    }
    texts
}

// Promise P68 (years): prezero.toml(5) has exactly the keys that the daemon reads, libprezero(3)
// the functions that the library has.
#[test]
fn the_manual_of_the_configuration_file_has_exactly_its_keys() {
    let daemon: BTreeSet<_> = defaults_of_the_daemon().into_keys().collect();
    let manual: BTreeSet<_> = texts_of_the_manual().into_keys().collect();
    assert_eq!(manual, daemon);
}

#[test]
fn manual_says_the_default_of_every_key() {
    let texts = texts_of_the_manual();
    let mut wrong = Vec::new();
    for (key, default) in defaults_of_the_daemon() {
        let said = texts[&key].split_once("Default: ").map(|(_, said)| said);
        let is_required = ["page_size", "pages"].contains(&key.1.as_str());
        let is_right = match shown(&default) {
            _ if is_required => said.is_none(),
            None => said.is_some(),
            Some(value) => said.is_some_and(|said| {
                let rest = said.strip_prefix(value.as_str());
                rest.is_some_and(|rest| rest.starts_with(['.', ',', ' ']))
            }),
        };
        if !is_right {
            wrong.push(format!("{key:?}: {default} and not `{}`", said.unwrap_or_default()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn installed_file_shows_the_defaults_of_its_keys() {
    let defaults = defaults_of_the_daemon();
    let mut section = String::new();
    let mut seen = 0;
    for line in read(Path::new("dist/etc/prezero.toml")).lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if line.starts_with('[') {
            let name = line.split(" #").next().expect("a first part").trim();
            section = name.split_whitespace().next().expect("a name").to_owned();
        } else if let Some((key, rest)) = line.split_once(" = ")
            && let Some(default) = defaults.get(&(section.clone(), key.to_owned()))
        {
            let value = rest.split(" #").next().expect("a value").trim().trim_matches('"');
            // None of something is no default to show.
            if let Some(default) = shown(default).filter(|default| default != "0") {
                assert_eq!(value, default, "{section} {key}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 4, "only {seen} keys have a default there");
}

#[test]
fn installed_configuration_and_its_commented_lines_are_good() {
    let text = read(Path::new("dist/etc/prezero.toml"));
    Config::from_toml(&text).expect("it is installed like that");
    // Prose has a blank after its sign; what can be switched on has none.
    let on = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let text: Vec<_> = text.lines().map(on).collect();
    let config = Config::from_toml(&text.join("\n")).expect("with everything switched on");
    assert!(!config.pools.is_empty() && !config.reserve.is_empty());
    assert!(config.metrics.listen.is_some() && config.workers.cpus.is_some());
}

#[test]
fn example_of_the_manual_is_a_good_configuration() {
    let text = read(Path::new("dist/man/prezero.toml.5"));
    let (_, example) = text.split_once(".Bd -literal -offset indent\n").expect("an example");
    let (example, _) = example.split_once(".Ed").expect("its end");
    Config::from_toml(example).expect("a good configuration");
}

// Promise P68.
#[test]
fn the_manual_of_the_c_library_has_exactly_its_functions() {
    let header = read(Path::new("crates/client/include/prezero.h"));
    let declared: BTreeSet<_> = header
        .lines()
        .filter(|line| !line.starts_with(' ') && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("prezero_"))
        .map(str::to_owned)
        .collect();
    let manual = read(Path::new("dist/man/libprezero.3"));
    let synopsis = manual.split(".Sh DESCRIPTION").next().expect("a synopsis");
    let described: BTreeSet<_> = synopsis
        .lines()
        .filter_map(|line| line.strip_prefix(".Fn ")?.split(' ').next())
        .map(str::to_owned)
        .collect();
    assert!(declared.len() >= 19, "{declared:?}");
    assert_eq!(declared, described);
}
