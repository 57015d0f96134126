// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sentences as wide as the terminal.

use std::io::{self, Write};

use super::terminal;

/// Spaces before the second line of a sentence.
const INDENT: usize = 2;

/// Writes a sentence, broken between words where the terminal ends.
pub(crate) fn write(out: &mut dyn Write, sentence: &str) -> io::Result<()> {
    for line in wrap(sentence, terminal::columns(), INDENT) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The lines of a sentence, those after the first indented. A word wider than a line has its own.
pub(crate) fn wrap(sentence: &str, columns: Option<usize>, indent: usize) -> Vec<String> {
    let Some(columns) = columns else { return vec![sentence.to_owned()] };
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut width = 0;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        let is_empty = line.trim_start().is_empty();
        if !is_empty && width + 1 + length > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            width = indent;
        } else if !line.is_empty() && !is_empty {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
    }
    lines.push(line);
    lines
}

/// A text of at most that many characters, cut off with a sign.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    kept.chain((columns > 0).then(terminal::ellipsis)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_broken_between_words() {
        let lines = wrap("one two three four", Some(9), 2);
        assert_eq!(lines, ["one two", "  three", "  four"]);
        assert_eq!(wrap("one two three", None, 2), ["one two three"]);
        assert_eq!(
            wrap("a word-that-is-too-long b", Some(5), 2),
            ["a", "  word-that-is-too-long", "  b"]
        );
        assert_eq!(wrap("", Some(5), 2), [""]);
    }

    #[test]
    fn cut_text_has_a_sign_and_whole_text_none() {
        assert_eq!(cut("postgres", 8), "postgres");
        assert_eq!(cut("postgres", 5).chars().count(), 5);
        assert!(cut("postgres", 5).starts_with("post") && !cut("postgres", 5).ends_with('g'));
        assert_eq!(cut("postgres", 0), "");
    }
}
