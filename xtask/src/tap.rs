// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One line of TAP, or of the kernel's KTAP, which is nested by indentation.

/// What a line says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Line<'a> {
    /// `1..3`: the number of results to come.
    Plan { results: Option<u64>, is_nested: bool },
    /// `ok 1 name`, `not ok 2 name`, `ok 3 name # SKIP why`.
    Result { ending: Ending, name: &'a str, is_nested: bool },
    /// Anything else.
    Other,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    Ok,
    Failed,
    Skipped,
}

impl<'a> From<&'a str> for Line<'a> {
    fn from(line: &'a str) -> Self {
        let text = line.trim_start();
        let is_nested = text.len() < line.len();
        if let Some(plan) = text.strip_prefix("1..") {
            let results = plan.split_whitespace().next().and_then(|n| n.parse().ok());
            return Self::Plan { results, is_nested };
        }
        let (is_good, rest) = match (text.strip_prefix("ok "), text.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Self::Other,
        };
        let (number, name) = rest.trim_end().split_once(' ').unwrap_or((rest.trim_end(), ""));
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Other;
        }
        let skip = name.to_ascii_uppercase().find("# SKIP");
        let ending = match (skip, is_good) {
            (Some(_), _) => Ending::Skipped,
            (None, true) => Ending::Ok,
            (None, false) => Ending::Failed,
        };
        let name = name[..skip.unwrap_or(name.len())].trim();
        Self::Result { ending, name, is_nested }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, Line};

    #[test]
    fn every_form_of_a_result_is_read() {
        for (line, ending, name, is_nested) in [
            ("ok 1 a b", Ending::Ok, "a b", false),
            ("not ok 2 c", Ending::Failed, "c", false),
            ("ok 3 d # SKIP no memory", Ending::Skipped, "d", false),
            ("ok 4 # skip why", Ending::Skipped, "", false),
            ("ok 5", Ending::Ok, "", false),
            ("    ok 6 nested", Ending::Ok, "nested", true),
            ("not ok 7 e # SKIP", Ending::Skipped, "e", false),
        ] {
            assert_eq!(Line::from(line), Line::Result { ending, name, is_nested }, "{line}");
        }
    }

    #[test]
    fn plans_may_be_nested_or_say_why_there_is_nothing() {
        for (line, results, is_nested) in [
            ("1..3", Some(3), false),
            ("    1..2", Some(2), true),
            ("1..0 # SKIP no pages", Some(0), false),
            ("1..many", None, false),
        ] {
            assert_eq!(Line::from(line), Line::Plan { results, is_nested }, "{line}");
        }
    }

    #[test]
    fn lookalike_of_a_result_is_no_result() {
        for line in ["ok then", "not ok", "ok", "# ok 1 a", "okay 1 a", "TAP version 13", ""] {
            assert_eq!(Line::from(line), Line::Other, "{line}");
        }
    }
}
