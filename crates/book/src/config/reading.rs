// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the reader of TOML found, in the words of the configuration: one line with the place, the
//! key, and what to write.

use super::ConfigError;

pub use wire::did_you_mean;

/// `a is no key: did you mean b?`, or which there are.
#[must_use]
pub fn unknown(word: &str, what: &str, known: &[&str]) -> String {
    match did_you_mean(word, known.iter().copied()) {
        Some(meant) => format!("`{word}` is no {what}: did you mean `{meant}`?"),
        None => format!("`{word}` is no {what}: there are {}", known.join(", ")),
    }
}

/// An error in a file of that text.
pub(super) fn in_file(text: &str, error: &toml::de::Error) -> ConfigError {
    let Some(start) = error.span().map(|span| span.start.min(text.len())) else {
        return ConfigError::Syntax(plain(error.message()));
    };
    let before = text.get(..start).unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let said = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) if is_one_of_many(error.message()) && !name.starts_with('[') => {
            format!(
                "there may be several tables of that name: write [[{name}]] in place of [{name}]"
            )
        }
        _ => plain(error.message()),
    };
    ConfigError::Syntax(format!("line {number}: {said}"))
}

/// A table that stands in place of a list of tables.
fn is_one_of_many(message: &str) -> bool {
    message.starts_with("invalid type: map, expected a sequence")
}

/// A value of another type than its key's.
pub(super) fn is_of_other_type(error: &toml::de::Error) -> bool {
    error.message().starts_with("invalid type: ")
}

/// The reader's message without its own terms.
pub(super) fn plain(message: &str) -> String {
    let quoted =
        |text: &str| text.split_once('`').map(|(word, rest)| (word.to_owned(), rest.to_owned()));
    let names = |rest: &str| -> Vec<String> {
        rest.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    for (prefix, what) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        if let Some((word, rest)) = message.strip_prefix(prefix).and_then(quoted) {
            let known = names(&rest);
            return unknown(&word, what, &known.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    if let Some((word, _)) = message.strip_prefix("missing field `").and_then(quoted) {
        return format!("`{word}` is missing");
    }
    for (prefix, fault) in
        [("invalid type: ", "is not"), ("invalid value: ", "is out of range: write")]
    {
        if let Some((found, wanted)) =
            message.strip_prefix(prefix).and_then(|m| m.split_once(", expected "))
        {
            return format!("{} {fault} {}", found_value(found), wanted_value(wanted));
        }
    }
    message.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// `string "x"` and the like, as it was written.
fn found_value(found: &str) -> String {
    let kinds = ["string ", "integer ", "boolean ", "floating point "];
    match kinds.iter().find_map(|kind| found.strip_prefix(kind)) {
        Some(value) => format!("`{}`", value.trim_matches(['`', '"'])),
        None if found == "map" => "a table".to_owned(),
        None if found == "sequence" => "a list".to_owned(),
        None => found.to_owned(),
    }
}

/// A type, as a person would say it.
fn wanted_value(wanted: &str) -> &str {
    match wanted.trim_start_matches("expected ") {
        "u8" => "a whole number from 0 to 255",
        "i8" => "a whole number from -128 to 127",
        "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "i16" | "i32" | "i64" => "a whole number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "a table of keys",
        table if table.starts_with("struct ") => "a table of keys",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn typing_errors_are_told_from_other_words() {
        let keys = ["ready", "ready_low", "ready_high", "recycle", "max", "leave_free"];
        for (word, meant) in [
            ("redy", Some("ready")),
            ("ready_hihg", Some("ready_high")),
            ("Ready-High", Some("ready_high")),
            ("leavefree", Some("leave_free")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(word, keys), meant, "{word}");
        }
    }

    // Promise P324.
    #[test]
    fn file_errors_are_one_line_with_its_number_and_what_to_write() {
        for (text, expected) in [
            ("\nlend_grp = \"kvm\"\n", "line 2: `lend_grp` is no key: did you mean `lend_group`?"),
            (
                "[pool]\npage_size = \"2M\"\n",
                "line 1: there may be several tables of that name: write [[pool]] in place of [pool]",
            ),
            (
                "[[pool]]\npage_size = \"2M\"\nredy = 3\n",
                "line 3: `redy` is no key: did you mean `ready`?",
            ),
            ("[workers]\nmax = \"four\"", "line 2: `four` is not a whole number from 0 on"),
            ("[workers]\nsched_idle = 1", "line 2: `1` is not true or false"),
            ("nice = 400", "line 1: `400` is out of range: write a whole number from -128 to 127"),
            ("provider = \"stok\"", "line 1: `stok` is no value: did you mean `stock`?"),
            ("[[pool]]\nready = 1\n", "line 1: `page_size` is missing"),
            (
                "[[pool]]\npage_size = \"2M\"\nready = [1]",
                "line 3: expected a number of pages, or a size as in \"16G\"",
            ),
        ] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            assert_eq!(error, expected, "{text}");
        }
        for text in ["quota = ", "= 1", "[[pool]", "quota = \"1G", "a = 1\na = 2", "x"] {
            let error = Config::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with("line 1: ") || error.starts_with("line 2: "), "{error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
    }
}
