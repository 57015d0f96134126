// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Charts as SVG text, for a page that loads nothing.

use ::clear::Chunk;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figure::{Chart, Part, Row, Shape};

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Told apart by people who see colours differently, too (Okabe and Ito's palette).
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
    RGBColor(140, 86, 75),
];
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(225, 225, 225);
/// Units of the drawing: shown at half of that on a phone, so letters are twice as large as usual.
const WIDTH: u32 = 720;
const LETTER: u32 = 22;
const BAR: u32 = 34;

/// The drawing; `None` where there is nothing to draw.
pub(crate) fn svg(
    part: &Part,
    chart: &Chart,
) -> Result<Option<String>, Box<dyn std::error::Error>> {
    let rows = chart.rows(part);
    if rows.is_empty() {
        return Ok(None);
    }
    let mut text = String::new();
    match chart.shape {
        Shape::Bars => bars(&mut text, chart, &rows)?,
        Shape::Lines => lines(&mut text, chart, &rows)?,
    }
    // The page decides on its size: the view box is the drawn part.
    Ok(Some(scalable(&text)))
}

/// Takes the fixed size off the root element, so that the drawing fits its container.
fn scalable(svg: &str) -> String {
    let Some((root, rest)) = svg.split_once('>') else { return svg.to_owned() };
    let words = root
        .split(' ')
        .filter(|word| !word.starts_with("width=\"") && !word.starts_with("height=\""));
    format!("{} role=\"img\">{rest}", words.collect::<Vec<_>>().join(" "))
}

fn joined(row: &Row, keys: &[&str]) -> String {
    let values: Vec<_> =
        keys.iter().map(|key| row.label(key)).filter(|value| !value.is_empty()).collect();
    values.join(", ")
}

/// A number beside an axis, in as few digits as it takes: `0`, `20`, `0.25`.
fn tick(value: f64) -> String {
    let text = number(value);
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// Names above, bars below them, the value behind: reads well at any width.
fn bars(text: &mut String, chart: &Chart, rows: &[&Row]) -> Drawn {
    let step = BAR * 2;
    let height = step * u32::try_from(rows.len())? + 8;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = rows.iter().filter_map(|row| row.median(chart.what)).fold(0.0, f64::max);
    let font = ("sans-serif", LETTER).into_font().color(&INK);
    let middle = font.pos(Pos::new(HPos::Left, VPos::Center));
    let room = f64::from(WIDTH - 150);
    for (index, row) in rows.iter().enumerate() {
        let Some(value) = row.value(chart.what) else { continue };
        let median = value.stats.median;
        let top = i32::try_from(step)? * i32::try_from(index)? + 4;
        let bottom = top + i32::try_from(BAR)?;
        let colour = if joined(row, chart.x).contains("prezero") { COLOURS[1] } else { COLOURS[0] };
        let name = Text::new(joined(row, chart.x), (2, top + 16), middle.clone());
        root.draw(&name)?;
        #[expect(clippy::cast_possible_truncation, reason = "within the drawing's width")]
        let wide = |value: f64| (value.max(0.0) / most.max(1e-12) * room) as i32 + 2;
        let bar = [(2, bottom), (wide(median), bottom + i32::try_from(BAR)? - 10)];
        root.draw(&Rectangle::new(bar, colour.filled()))?;
        let behind = format!("{} {}", number(median), value.unit);
        let at = (wide(median) + 8, bottom + 12);
        root.draw(&Text::new(behind, at, middle.clone()))?;
    }
    root.present()?;
    Ok(())
}

fn lines(text: &mut String, chart: &Chart, rows: &[&Row]) -> Drawn {
    let mut steps: Vec<String> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let (step, name) = (joined(row, chart.x), joined(row, chart.series));
        if !steps.contains(&step) {
            steps.push(step);
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // A choice may have a chunk of its own, a line its own counts: they stand where their size is.
    steps.sort_by_key(|step| (step.parse::<u64>().ok(), step.parse::<Chunk>().ok()));
    let legend = 30 * u32::try_from(names.len().div_ceil(2))? + 10;
    let root = SVGBackend::with_string(text, (WIDTH, 420 + legend)).into_drawing_area();
    root.fill(&WHITE)?;
    let (plot, below) = root.split_vertically(420);
    let most = rows.iter().filter_map(|row| row.value(chart.what)).map(|value| value.stats.high);
    let most = most.fold(0.0, f64::max) * 1.08;
    let last = steps.len().saturating_sub(1).max(1);
    let unit = rows[0].value(chart.what).map_or("", |value| value.unit);
    #[expect(clippy::cast_precision_loss, reason = "a handful of steps")]
    let wide = -0.2..last as f64 + 0.2;
    let mut axes = ChartBuilder::on(&plot)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(wide, 0.0..most.max(1e-9))?;
    let label = |x: &f64| {
        let near = x.round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index of a handful, saturating below 0"
        )]
        let step = steps.get(near as usize);
        step.filter(|_| (x - near).abs() < 1e-6 && near >= 0.0).cloned().unwrap_or_default()
    };
    axes.configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .x_labels(steps.len() * 2)
        .x_label_formatter(&label)
        .y_labels(6)
        .y_label_formatter(&|y| tick(*y))
        .y_desc(unit)
        .label_style(("sans-serif", LETTER - 2).into_font().color(&INK))
        .draw()?;
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let is_ours = name.contains("prezero");
        let points: Vec<_> = rows
            .iter()
            .filter(|row| joined(row, chart.series) == *name)
            .filter_map(|row| {
                let at = steps.iter().position(|step| *step == joined(row, chart.x))?;
                #[expect(clippy::cast_precision_loss, reason = "a handful of steps")]
                Some((at as f64, row.median(chart.what)?))
            })
            .collect();
        let style = colour.stroke_width(if is_ours { 5 } else { 3 });
        axes.draw_series(LineSeries::new(points.iter().copied(), style))?;
        let size = if is_ours { 9 } else { 5 };
        axes.draw_series(points.iter().map(|&at| Circle::new(at, size, colour.filled())))?;
        let (column, line) = (i32::try_from(index % 2)?, i32::try_from(index / 2)?);
        let (x, y) = (14 + column * 350, 16 + line * 30);
        below.draw(&Rectangle::new([(x, y - 8), (x + 22, y + 8)], colour.filled()))?;
        let font = ("sans-serif", LETTER).into_font().color(&INK);
        let font = font.pos(Pos::new(HPos::Left, VPos::Center));
        below.draw(&Text::new(name.clone(), (x + 30, y), font))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_an_axis_have_no_empty_digits() {
        for (value, text) in
            [(0.0, "0"), (20.0, "20"), (100.0, "100"), (0.25, "0.25"), (2.5, "2.5")]
        {
            assert_eq!(tick(value), text, "{value}");
        }
    }
}
