// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one HTML page that loads nothing: no script, no style, no picture from elsewhere.

use std::error::Error;
use std::fmt::Write;

use super::reach::Reach;
use super::report::{BenchReport, DISTURBED};
use crate::page::{self, escape, section};

/// The page.
pub(super) fn html(report: &BenchReport) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    page::begin(&mut out, "prezero bench")?;
    for answer in &report.answers {
        writeln!(out, "<p class=\"answer\">{}</p>", escape(answer))?;
    }
    writeln!(
        out,
        "<p class=\"machine\">{}. prezero {}, {} rounds, {} threads.<br>prezero clears with: {}</p>",
        escape(&report.heading()),
        report.version,
        report.rounds,
        report.threads,
        escape(&report.choice),
    )?;
    if let Some(disturbance) = report.disturbance() {
        writeln!(
            out,
            "<p class=\"warning\">Disturbed: {}. {DISTURBED}.</p>",
            escape(&disturbance)
        )?;
    }
    out += "<div class=\"wide\"><table id=\"ratios\">\n<tr><th>ratio<th class=\"number\">measured<th class=\"number\">possible here<th class=\"number\">reached</tr>\n";
    let is_left_out = |reach: &&Reach| reach.measured.is_none() && reach.is_of_a_part_not_run();
    for reach in report.reached.iter().filter(|reach| !is_left_out(reach)) {
        ratio(&mut out, reach)?;
    }
    out += "</table></div>\n";
    let left_out: Vec<_> = report.reached.iter().filter(is_left_out).map(|r| r.name).collect();
    if !left_out.is_empty() {
        let names = escape(&left_out.join(", "));
        writeln!(out, "<p class=\"note\">Parts that were not run would have: {names}.</p>")?;
    }
    for part in &report.parts {
        section(&mut out, part)?;
    }
    page::end(&mut out);
    Ok(out)
}

/// A row of the table, and its figures in a row of their own.
fn ratio(out: &mut String, reach: &Reach) -> Result<(), Box<dyn Error>> {
    let cells = reach.cells();
    let [name, measured, possible, reached] = [0, 1, 2, 3].map(|at| escape(&cells[at]));
    writeln!(
        out,
        "<tr><td>{name}<td class=\"number\">{measured}<td class=\"number\">{possible}\
         <td class=\"number\">{reached}</tr>\n\
         <tr><td class=\"why\" colspan=\"4\">{}</tr>",
        escape(&reach.figures)
    )?;
    Ok(())
}
