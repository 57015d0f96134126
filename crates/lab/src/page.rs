// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTML pages that load nothing: no script, no style, no picture from elsewhere.

use std::error::Error;
use std::fmt::Write;

use crate::chart;
use crate::figure::{Part, columns};

const STYLE: &str = "
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; color: #222; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { margin: 2.5rem 0 .25rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
figure { margin: 1rem 0; } svg { display: block; width: 100%; height: auto; }
.method, figcaption, .machine { color: #555; font-size: .9rem; }
.answer { font-size: 1.15rem; }
.warning { background: #fff4e0; border-left: 4px solid #e69f00; padding: .5rem .75rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem .2rem 0; text-align: left; border-bottom: 1px solid #eee; white-space: nowrap; }
td.number, th.number { text-align: right; } #ratios td.why { white-space: normal; } td.why { color: #555; padding-left: 1rem; }
summary { cursor: pointer; }
";

/// What stands before everything else, the title as its heading.
pub(crate) fn begin(out: &mut String, title: &str) -> Result<(), Box<dyn Error>> {
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n",
    )?;
    Ok(())
}

/// What stands behind everything else.
pub(crate) fn end(out: &mut String) {
    out.push_str("</body>\n</html>\n");
}

/// A part with its charts, and its rows folded away.
pub(crate) fn section(out: &mut String, part: &Part) -> Result<(), Box<dyn Error>> {
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

/// Text that HTML takes as text.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
