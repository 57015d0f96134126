// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask soak --hours N`: the storm of tests/soak, with upgrades between the development and
//! the release build, and a picture of what it measured.
//!
//! What it leaves is in `target/soak`: `samples.jsonl`, a line a minute, and `soak.svg`.

use std::{env, fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::Value;

use crate::{apt, cache, command, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, in hours; its first third, an hour at most, is not looked at for growth.
    #[arg(long, value_name = "N", default_value_t = 3.0)]
    hours: f64,
    /// The events and their times, where we control them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a curve is of: its name, the field of a sample, its divisor.
const CURVES: [(&str, &str, f64); 5] = [
    ("resident memory, MiB", "resident_kib", 1024.0),
    ("descriptors", "descriptors", 1.0),
    ("threads", "threads", 1.0),
    ("a loan, microseconds, half of them", "p50_us", 1.0),
    ("a loan, microseconds, 99 of 100", "p99_us", 1.0),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    apt::need(&["gcc", "libfaketime"])?;
    let repo = cache::repo();
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let dir = cache::target("soak")?;
    say::step("building both builds");
    command::run(&mut command::new(&repo, &cargo, ["build", "--workspace"]))?;
    let release = ["build", "--release", "-p", "prezero-cli", "-p", "prezero-preload"];
    command::run(&mut command::new(&repo, &cargo, release))?;
    let build = |profile: &str| Ok::<_, anyhow::Error>(cache::target(profile)?.join("prezero"));
    let builds = env::join_paths([build("debug")?, build("release")?])?;
    let samples = dir.join("samples.jsonl");
    say::step(format_args!("{} hours of storm, seed {}", args.hours, args.seed));
    let test = ["test", "-p", "prezero-tests", "--test", "soak", "--", "--nocapture"];
    let mut storm = command::new(&repo, &cargo, test);
    storm
        .env("PREZERO_SOAK_SECONDS", format!("{:.0}", args.hours * 3600.0))
        .env("PREZERO_TEST_SEED", args.seed.to_string())
        .env("PREZERO_SOAK_BUILDS", builds)
        .env("PREZERO_SOAK_SAMPLES", &samples);
    let outcome = command::run(&mut storm);
    // Figures measured before a failure are better than none.
    let picture = dir.join("soak.svg");
    draw(&samples, &picture)?;
    say::result(picture.display());
    outcome.map(|()| ExitCode::SUCCESS)
}

/// A panel for each curve, one below the other, over the hours.
fn draw(samples: &Path, picture: &Path) -> Result<()> {
    let text = fs::read_to_string(samples)
        .with_context(|| format!("cannot read {}", samples.display()))?;
    let samples: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a sample")?;
    let drawn = panels(&samples).map_err(|error| anyhow::anyhow!("cannot draw: {error}"))?;
    fs::write(picture, drawn).with_context(|| format!("cannot write {}", picture.display()))
}

fn panels(samples: &[Value]) -> Result<String, Box<dyn std::error::Error>> {
    const INK: RGBColor = RGBColor(34, 34, 34);
    const FAINT: RGBColor = RGBColor(225, 225, 225);
    const LINE: RGBColor = RGBColor(0, 114, 178);
    const PANEL: u32 = 190;
    let hours = |sample: &Value| sample["seconds"].as_f64().unwrap_or_default() / 3600.0;
    let last = samples.last().map_or(1.0, hours).max(1e-3);
    let mut drawn = String::new();
    {
        let size = (760, PANEL * u32::try_from(CURVES.len())? + 10);
        let root = SVGBackend::with_string(&mut drawn, size).into_drawing_area();
        root.fill(&WHITE)?;
        for ((name, field, divisor), area) in
            CURVES.iter().zip(root.split_evenly((CURVES.len(), 1)))
        {
            let value = |sample: &Value| sample[*field].as_f64().unwrap_or_default() / divisor;
            let most = samples.iter().map(value).fold(0.0, f64::max) * 1.1;
            let mut axes = ChartBuilder::on(&area)
                .margin(8)
                .margin_top(26)
                .x_label_area_size(26)
                .y_label_area_size(64)
                .build_cartesian_2d(0.0..last, 0.0..most.max(1e-9))?;
            axes.configure_mesh()
                .light_line_style(WHITE)
                .bold_line_style(FAINT)
                .axis_style(INK)
                .y_labels(4)
                .x_label_formatter(&|hour| format!("{hour:.2} h"))
                .label_style(("sans-serif", 14).into_font().color(&INK))
                .draw()?;
            let points = samples.iter().map(|sample| (hours(sample), value(sample)));
            axes.draw_series(LineSeries::new(points, LINE.stroke_width(2)))?;
            let font = ("sans-serif", 16).into_font().color(&INK);
            let at_left = font.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new((*name).to_owned(), (12, 14), at_left))?;
        }
        root.present()?;
    }
    Ok(drawn)
}
