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

/// Writes the rows below their headings; every row has as many cells as there are columns.
pub fn write(out: &mut dyn Write, columns: &[Column<'_>], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([columns[index].0.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let heading = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
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
}
