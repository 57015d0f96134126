// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Aligned columns without borders, which people read and `awk` does, too.
//!
//! On a terminal a table fits its width. First go droppable columns without a value. Other
//! droppable ones go, in the order that they say, where the rest would not fit with its long texts
//! cut. Then texts are cut as far as they have to be. A line below names the columns that went.

use std::io::{self, Write};

use super::{terminal, text};

/// Spaces between two columns.
const GAP: usize = 2;

/// Where a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A column: its heading, its alignment, and what becomes of it on a narrow terminal.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    name: &'a str,
    align: Align,
    /// Droppable ones go in this order.
    drop: Option<u8>,
    /// Its texts may be cut to this width.
    cut: Option<usize>,
}

impl<'a> Column<'a> {
    /// Texts, which always stay whole.
    pub(crate) const fn left(name: &'a str) -> Self {
        Self { name, align: Align::Left, drop: None, cut: None }
    }

    /// Numbers, which always stay whole.
    pub(crate) const fn right(name: &'a str) -> Self {
        Self { name, align: Align::Right, drop: None, cut: None }
    }

    /// The same, dropped where the table is too wide: those with a smaller number first.
    pub(crate) const fn drop(mut self, order: u8) -> Self {
        self.drop = Some(order);
        self
    }

    /// The same with texts that may be cut to that width.
    pub(crate) const fn cut(mut self, columns: usize) -> Self {
        self.cut = Some(columns);
        self
    }
}

impl<'a> From<(&'a str, Align)> for Column<'a> {
    fn from((name, align): (&'a str, Align)) -> Self {
        Self { name, align, drop: None, cut: None }
    }
}

/// A cell as it is shown. Programs choose their own names, with escape sequences for the terminal
/// of a reader, or with line breaks: unprintable characters are shown by their number.
pub(crate) fn shown(cell: &str) -> String {
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
pub fn write<'a, C>(out: &mut dyn Write, columns: &[C], rows: &[Vec<String>]) -> io::Result<()>
where
    C: Copy + Into<Column<'a>>,
{
    let mut table = Table::new(columns.iter().map(|column| (*column).into()), rows);
    let dropped = terminal::columns().map(|width| table.fit(width)).unwrap_or_default();
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    if !dropped.is_empty() {
        let names = dropped.join(", ");
        text::write(out, &format!("(no room for {names}: see --json)"))?;
    }
    Ok(())
}

/// The lines of a table that fits a width, its heading first, for a screen.
pub(crate) fn lines(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let mut table = Table::new(columns.iter().copied(), rows);
    table.fit(width);
    table.lines().map(|line| text::cut(&line, width)).collect()
}

/// The columns that are shown, with their cells.
struct Table<'a> {
    columns: Vec<Shown<'a>>,
    rows: usize,
}

struct Shown<'a> {
    column: Column<'a>,
    cells: Vec<String>,
    width: usize,
}

impl Shown<'_> {
    /// Whether no row has a value.
    fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| matches!(cell.as_str(), "" | "-" | "0"))
    }

    /// The width that its texts may be cut to.
    fn least(&self) -> usize {
        let heading = self.column.name.chars().count();
        self.column.cut.map_or(self.width, |cut| cut.max(heading).min(self.width))
    }

    fn cut(&mut self, width: usize) {
        for cell in &mut self.cells {
            *cell = text::cut(cell, width);
        }
        self.width = width;
    }
}

impl<'a> Table<'a> {
    fn new(columns: impl Iterator<Item = Column<'a>>, rows: &[Vec<String>]) -> Self {
        let columns = columns.enumerate().map(|(index, column)| {
            let cells: Vec<_> = rows.iter().map(|row| shown(&row[index])).collect();
            let widths = cells.iter().map(|cell| cell.chars().count());
            let width = widths.chain([column.name.chars().count()]).max().unwrap_or(0);
            Shown { column, cells, width }
        });
        Self { columns: columns.collect(), rows: rows.len() }
    }

    fn width(&self) -> usize {
        let gaps = self.columns.len().saturating_sub(1) * GAP;
        self.columns.iter().map(|column| column.width).sum::<usize>() + gaps
    }

    /// Makes it as narrow as it can be and has to be. Returns the names of dropped columns.
    fn fit(&mut self, width: usize) -> Vec<&'a str> {
        let mut dropped = Vec::new();
        while self.width() > width
            && let Some(at) = self.next_to_drop(Shown::is_empty)
        {
            // It has nothing to tell.
            self.columns.remove(at);
        }
        while self.least_width() > width
            && let Some(at) = self.next_to_drop(|_| true)
        {
            dropped.push(self.columns.remove(at).column.name);
        }
        self.cut_texts(width);
        dropped
    }

    /// Its width with every text cut as far as that goes.
    fn least_width(&self) -> usize {
        let can_lose = |shown: &Shown<'_>| shown.width - shown.least();
        self.width() - self.columns.iter().map(can_lose).sum::<usize>()
    }

    fn next_to_drop(&self, is_meant: impl Fn(&Shown<'a>) -> bool) -> Option<usize> {
        let columns = self.columns.iter().enumerate().filter(|(_, shown)| is_meant(shown));
        let droppable = columns.filter_map(|(at, shown)| Some((shown.column.drop?, at)));
        droppable.min().map(|(_, at)| at)
    }

    /// Takes as much from the widest text as is too much, then from the next.
    fn cut_texts(&mut self, width: usize) {
        loop {
            let excess = self.width().saturating_sub(width);
            let texts = self.columns.iter_mut().filter(|shown| shown.width > shown.least());
            let Some(widest) = texts.max_by_key(|shown| shown.width).filter(|_| excess > 0) else {
                return;
            };
            widest.cut(widest.width.saturating_sub(excess).max(widest.least()));
        }
    }

    /// The heading, then the rows.
    fn lines(&self) -> impl Iterator<Item = String> + '_ {
        std::iter::once(None).chain((0..self.rows).map(Some)).map(|row| {
            let cells = self.columns.iter().map(|Shown { column, cells, width }| {
                let cell = row.map_or(column.name, |row| cells[row].as_str());
                match column.align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                }
            });
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            line.trim_end().to_owned()
        })
    }
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

    /// The table on a terminal of that width.
    fn narrow(width: usize, columns: &[Column<'_>], rows: &[Vec<String>]) -> String {
        let mut out = Vec::new();
        terminal::with_columns(Some(width), || write(&mut out, columns, rows)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn narrow_table_drops_empty_columns_first() {
        use Column as C;
        let columns = [
            C::right("NODE"),
            C::left("WAY").drop(1),
            C::right("KEPT").drop(2),
            C::right("READY"),
            C::left("UNIT").drop(3).cut(6),
        ];
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        let rows =
            [row(["0", "auto", "0", "16G", "vm-one.scope"]), row(["1", "auto", "0", "8G", "-"])];
        let wide = "NODE  WAY   KEPT  READY  UNIT\n   0  auto     0    16G  vm-one.scope\n";
        assert!(narrow(37, &columns, &rows).starts_with(wide));
        let without_kept = "NODE  WAY   READY  UNIT\n   0  auto    16G  vm-one.scope\n";
        assert!(narrow(36, &columns, &rows).starts_with(without_kept));
        let cut = narrow(27, &columns, &rows);
        assert!(
            cut.lines().nth(1).is_some_and(|line| line.starts_with("   0  auto    16G  vm-one."))
        );
        assert!(cut.lines().all(|line| line.chars().count() <= 27), "{cut}");
        let least = narrow(12, &columns, &rows);
        assert!(least.starts_with("NODE  READY\n   0    16G\n   1     8G\n"), "{least}");
        assert!(
            least.contains("WAY") && least.contains("UNIT") && !least.contains("KEPT"),
            "{least}"
        );
    }
}
