// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The race that prezero's choice comes from, with every candidate.

use ::clear::calibrate::{
    Basis, Cache, CacheError, Choice, Cpu, DEFAULT_RACE_PERIOD, Race, Scratch, defaults,
};

use super::Bench;
use crate::figure::{Chart, Part, Row, Shape};
use cli::exit::Failure;
use worker::engine;

pub(super) fn measure(bench: &Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "calibrate",
        "Which method and chunk does prezero choose on this CPU, and how sure is it?",
        format!(
            "{} ms of CPU time, or twice that while the winner is uncertain; the slower half of the candidates leaves \
             after 1, 3 and 6 rounds. What was measured is what workers clear with from now on.",
            DEFAULT_RACE_PERIOD.as_millis()
        ),
    );
    let cpu = Cpu::read(&bench.roots.proc)?;
    part.notes.push(format!("CPU: {cpu}"));
    bench.plan.go_on()?;
    let mut scratch = Scratch::new(Scratch::default_bytes())?;
    let race = Race::run(&mut scratch.extent(), DEFAULT_RACE_PERIOD);
    let choice = race.conclude(defaults::choice(&cpu).setting);
    part.notes.push(choice.to_string());
    if matches!(choice.basis, Basis::Measured { .. }) {
        part.notes.push(remember(&cpu, choice));
    }
    let most =
        race.candidates().iter().map(::clear::calibrate::Candidate::rounds).max().unwrap_or(0);
    for candidate in race.candidates() {
        let rate = f64::from(candidate.mb_per_s()) / 1e3;
        let stayed = if candidate.rounds() == most { "yes" } else { "no" };
        let labels = vec![
            ("method", candidate.setting.method.to_string()),
            ("chunk", candidate.setting.chunk.to_string()),
            ("to the end", stayed.to_owned()),
        ];
        let uncertainty = f64::from(candidate.uncertainty_permille()) / 10.0;
        let row = Row::new(labels).with("cpu", "GB/s", &[rate]);
        part.rows.push(row.with("uncertain", "%", &[uncertainty]));
    }
    part.charts.push(Chart {
        title: "Rate by chunk",
        shape: Shape::Lines,
        what: "cpu",
        x: &["chunk"],
        series: &["method"],
        only: Vec::new(),
    });
    Ok(part)
}

/// Puts a choice where workers look for it, and says how that went.
fn remember(cpu: &Cpu, choice: Choice) -> String {
    let path = engine::cache();
    let write = || {
        let mut cache = Cache::load(&path)?;
        cache.set(cpu, choice);
        cache.save()
    };
    match write() {
        Ok(()) => format!("written to {}", path.display()),
        Err(CacheError::Io { path, source }) => {
            format!("not written to {}: {source}", path.display())
        }
        Err(error) => format!("not written: {error}"),
    }
}
