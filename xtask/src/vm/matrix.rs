// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One suite on several providers: which case passes where.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use crate::tap::{Ending, Line};

/// Where the results of a program go.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cell {
    /// The suite, with the lines of a table as its cases.
    pub(crate) suite: String,
    /// The column: the tested provider.
    pub(crate) provider: String,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Failed => "FAIL",
            Self::Skipped => "skip",
        })
    }
}

/// A case by what stays of its name without measured numbers, and which one of that name.
type Case = (String, usize);

/// One suite.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    /// In the order of the first column that has them.
    cases: Vec<(Case, String)>,
    columns: Vec<(String, BTreeMap<Case, Ending>)>,
}

impl Matrix {
    /// Adds a column from what a program has printed as TAP.
    pub(crate) fn add(&mut self, provider: &str, output: &[String]) {
        let mut column = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for line in output {
            let Line::Result { ending, name: text, .. } = line.as_str().into() else { continue };
            let name = without_numbers(text);
            let count = seen.entry(name.clone()).or_insert(0);
            *count += 1;
            let case = (name, *count);
            if !self.cases.iter().any(|(known, _)| *known == case) {
                self.cases.push((case.clone(), shown(text)));
            }
            column.insert(case, ending);
        }
        self.columns.push((provider.to_owned(), column));
    }
}

/// Measured values differ from run to run: numbers, and the text in brackets at the end.
fn without_numbers(name: &str) -> String {
    let name = shown(name);
    let mut text = String::new();
    for part in name.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.chars().take_while(char::is_ascii_digit).count();
        text += if digits > 0 { "#" } else { "" };
        text += &part[digits..];
    }
    text
}

fn shown(name: &str) -> String {
    match name.rsplit_once(" (") {
        Some((name, bracket)) if bracket.ends_with(')') => name.to_owned(),
        _ => name.to_owned(),
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_COLUMNS: usize = 76;
        let width = self.cases.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0);
        let width = width.min(MAX_COLUMNS);
        let mut rows = vec![(String::new(), self.columns.iter().map(|c| c.0.clone()).collect())];
        for (case, name) in &self.cases {
            let ending = |column: &(String, BTreeMap<Case, Ending>)| {
                column.1.get(case).map_or_else(|| "-".to_owned(), ToString::to_string)
            };
            let endings: Vec<String> = self.columns.iter().map(ending).collect();
            rows.push((name.chars().take(MAX_COLUMNS).collect(), endings));
        }
        for (row, (name, cells)) in rows.iter().enumerate() {
            let mut line = format!("{name:width$}");
            for (cell, (provider, _)) in cells.iter().zip(&self.columns) {
                line += &format!("  {cell:width$}", width = provider.chars().count());
            }
            let end = if row == 0 { "" } else { "\n" };
            write!(f, "{end}{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Matrix;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_case_is_one_line_with_any_measurement() {
        let mut matrix = Matrix::default();
        matrix.add(
            "kernel",
            &lines("ok 1 node 9: ENODEV\nok 2 node 1: ENODEV\nok 3 took 17 ms (5)\n1..3"),
        );
        matrix.add(
            "stock",
            &lines("ok 1 node 9: ENODEV\nnot ok 2 node 1: ENODEV\nok 3 took 4 ms (6)\nok 4 more # SKIP why"),
        );
        let text = matrix.to_string();
        let rows: Vec<_> = text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(rows[0], ["kernel", "stock"]);
        assert_eq!(rows[1], ["node", "9:", "ENODEV", "ok", "ok"]);
        assert_eq!(rows[2], ["node", "1:", "ENODEV", "ok", "FAIL"]);
        assert_eq!(rows[3], ["took", "17", "ms", "ok", "ok"]);
        assert_eq!(rows[4], ["more", "-", "skip"]);
        assert_eq!(rows.len(), 5);
    }
}
