// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules over every source file.

use super::{files, read};

#[test]
fn every_source_file_says_its_licence_in_its_first_lines() {
    for path in files() {
        let is = |ending| path.extension().is_some_and(|e| e == ending);
        if !(is("rs") || is("c") || is("h")) {
            continue;
        }
        let text = read(&path);
        let licence = text
            .lines()
            .take(2)
            .find_map(|line| line.split_once("SPDX-License-Identifier: ").map(|(_, l)| l));
        let licence = licence
            .unwrap_or_else(|| panic!("{}: no SPDX-License-Identifier", path.display()))
            .trim_end_matches("*/")
            .trim();
        let expected = match path.starts_with("kernel") {
            true if path.components().any(|c| c.as_os_str() == "uapi") => {
                "GPL-2.0-only WITH Linux-syscall-note"
            }
            true => "GPL-2.0-only",
            false => "Apache-2.0 OR MIT",
        };
        // The kernel's own trees spell it both ways.
        let same = licence == expected || (expected == "GPL-2.0-only" && licence == "GPL-2.0");
        assert!(same, "{}: {licence} instead of {expected}", path.display());
    }
}

#[test]
fn unsafe_code_is_confined_to_the_files_that_say_why() {
    for path in files() {
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let text = read(&path);
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        // Tests may speak of it in strings; they are not part of what people run.
        let tests = path.components().any(|c| c.as_os_str() == "tests");
        if uses && !tests {
            // The compiler demands the allowance; that it gives a reason is ours to see.
            let allowed = text.contains("unsafe_code,") && text.contains("reason = ");
            assert!(allowed, "{}: unsafe without a reason", path.display());
            assert!(text.contains("# Safety"), "{}: no `# Safety` paragraph", path.display());
        }
    }
}

#[test]
fn unfinished_markers_are_absent() {
    // Split, so that this file does not find itself.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|m| m.concat());
    for path in files() {
        // mkstemp's templates end in a row of X, other people's licences are theirs.
        if path.starts_with("kernel/COPYING") || path.extension().is_some_and(|e| e == "lock") {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let words = || line.split(|c: char| !c.is_ascii_alphanumeric());
            let found = marks.iter().find(|mark| words().any(|word| word == **mark));
            assert_eq!(found, None, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn comments_stay_within_100_columns() {
    // rustfmt wraps code and leaves comments alone.
    const MAX_COLUMNS: usize = 100;
    let mut wide = Vec::new();
    for path in files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let mut fenced = false;
        for (number, line) in read(&path).lines().enumerate() {
            let Some((_, text)) = line.split_once("//").filter(|(code, _)| code.trim().is_empty())
            else {
                fenced = false;
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            fenced ^= text.starts_with("```");
            // A diagram and a row of a table have the width that they need.
            if line.chars().count() > MAX_COLUMNS && !fenced && !text.starts_with('|') {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {MAX_COLUMNS} columns: {}", wide.join(" "));
}

#[test]
fn one_word_is_spelt_one_way() {
    // Split, so that this file does not find itself. The kernel's files follow the kernel.
    let others = ["can no", "t", "can'", "t"];
    let others = [others[..2].concat(), others[2..].concat()];
    let ours = |path: &std::path::Path| {
        let text = ["rs", "md", "c", "h", "toml", "1", "3", "5", "go"];
        !path.starts_with("kernel")
            && path.extension().is_some_and(|e| text.iter().any(|t| e == *t))
    };
    for path in files().into_iter().filter(|path| ours(path)) {
        for (number, line) in read(&path).to_lowercase().lines().enumerate() {
            let mut words =
                line.split(|c: char| !(c.is_ascii_alphabetic() || "_'".contains(c))).peekable();
            while let Some(word) = words.next() {
                let two = format!("{word} {}", words.peek().unwrap_or(&""));
                let found = word == others[1] || two == others[0];
                assert!(!found, "{}:{}: write cannot", path.display(), number + 1);
            }
        }
    }
}
