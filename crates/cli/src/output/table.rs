// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Aligned columns without borders, which people read and `awk` does, too.

use std::io::{self, Write};

/// Where a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A heading and how its column is aligned.
pub type Column<'a> = (&'a str, Align);

/// A cell as it is shown. Programs choose their own names, with escape sequences for the terminal
/// of a reader, or with line breaks: unprintable characters are shown by their number.
fn shown(cell: &str) -> String {
    let mut shown = String::with_capacity(cell.len());
    for c in cell.chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// Writes the rows below their headings; every row has as many cells as there are columns.
pub fn write(out: &mut dyn Write, columns: &[Column<'_>], rows: &[Vec<String>]) -> io::Result<()> {
    let rows = rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([columns[index].0.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let heading = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    for row in std::iter::once(&heading).chain(&rows) {
        let cells =
            row.iter().zip(columns).zip(&widths).map(|((cell, (_, align)), &width)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut out = Vec::new();
        let rows = [vec!["a".into(), "12345".into()], vec!["long".into(), "1".into()]];
        write(&mut out, &[("NAME", Align::Left), ("N", Align::Right)], &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME      N\na     12345\nlong      1\n");
    }

    // Promise P225.
    #[test]
    fn name_with_control_characters_is_shown_as_text() {
        let mut out = Vec::new();
        let name = "\u{1b}[2Ja\n\u{9b}b\u{202e}c\r\u{e9} \"'\\";
        let rows = [vec![name.into(), "1".into()], vec!["qemu".into(), "2".into()]];
        write(&mut out, &[("COMMAND", Align::Left), ("N", Align::Right)], &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], r#"\u{1b}[2Ja\n\u{9b}b\u{202e}c\ré "'\  1"#);
        assert_eq!((lines.len(), lines[2].len()), (3, lines[1].chars().count()));
    }
}
