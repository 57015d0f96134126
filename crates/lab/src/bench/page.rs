// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one HTML page that loads nothing: no script, no style, no picture from elsewhere.

use std::error::Error;
use std::fmt::Write;

use super::chart;
use super::figure::Part;
use super::reach::Reach;
use super::report::{DISTURBED, Report, columns};

const STYLE: &str = "
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; color: #222; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { margin: 2.5rem 0 .25rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
figure { margin: 1rem 0; } svg { display: block; width: 100%; height: auto; }
.method, figcaption, .machine { color: #555; font-size: .9rem; }
.warning { background: #fff4e0; border-left: 4px solid #e69f00; padding: .5rem .75rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem .2rem 0; text-align: left; border-bottom: 1px solid #eee; white-space: nowrap; }
td.number, th.number { text-align: right; } #ratios td.why { white-space: normal; } td.why { color: #555; padding-left: 1rem; }
summary { cursor: pointer; }
";

/// The page.
pub(super) fn html(report: &Report) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>prezero bench</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>prezero bench</h1>\n<p class=\"machine\">{}. prezero {}, {} rounds, {} threads.<br>prezero clears with: {}</p>\n",
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
    for reach in &report.reached {
        ratio(&mut out, reach)?;
    }
    out += "</table></div>\n";
    for part in &report.parts {
        section(&mut out, part)?;
    }
    out += "</body>\n</html>\n";
    Ok(out)
}

/// A row of the table, and what is behind it in one of its own.
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

fn section(out: &mut String, part: &Part) -> Result<(), Box<dyn Error>> {
    let (name, question, method) = (part.name, escape(part.question), escape(&part.method));
    writeln!(out, "<section id=\"{name}\">\n<h2>{name}</h2>\n<p>{question}</p>")?;
    for one in &part.charts {
        if let Some(svg) = chart::svg(part, one)? {
            let title = escape(one.title);
            writeln!(out, "<figure><h3>{title}</h3>\n{svg}</figure>")?;
        }
    }
    writeln!(out, "<p class=\"method\">{method}</p>")?;
    for note in &part.notes {
        writeln!(out, "<p>{}</p>", escape(note))?;
    }
    for skipped in &part.skipped {
        writeln!(out, "<p class=\"warning\">Skipped: {}</p>", escape(skipped))?;
    }
    if !part.rows.is_empty() {
        let (headings, rows, left) = columns(&part.rows);
        let class = |at: usize| if at < left { "" } else { " class=\"number\"" };
        write!(
            out,
            "<details><summary>{} rows</summary><div class=\"wide\"><table>\n<tr>",
            rows.len()
        )?;
        for (at, heading) in headings.iter().enumerate() {
            write!(out, "<th{}>{}", class(at), escape(heading))?;
        }
        out.push_str("</tr>\n");
        for row in &rows {
            out.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                write!(out, "<td{}>{}", class(at), escape(cell))?;
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table></div></details>\n");
    }
    out.push_str("</section>\n");
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
