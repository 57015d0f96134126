// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The races that prezero's choices come from, with every lane.

use ::clear::calibrate::{
    Basis, Cache, CacheError, Choice, Cpu, DEFAULT_BUDGET, Race, Scratch, Use, defaults,
};

use super::Bench;
use super::figure::{Chart, Part, Row, Shape};
use cli::exit::Failure;
use cli::worker::engine;

pub(super) fn measure(bench: &Bench) -> Result<Part, Failure> {
    let mut part = Part::new(
        "calibrate",
        "Which method and chunk does prezero choose on this CPU, and how sure is it?",
        format!(
            "{} ms of CPU time per use, or twice that while the winner is uncertain; the slower half of the lanes leaves \
             after 1, 3 and 6 rounds. What was measured is what workers clear with from now on.",
            DEFAULT_BUDGET.as_millis()
        ),
    );
    let cpu = Cpu::read(&bench.roots.proc)?;
    part.notes.push(format!("CPU: {cpu}"));
    for what_for in Use::ALL {
        bench.plan.go_on()?;
        let mut scratch = Scratch::new(Scratch::default_bytes())?;
        let race = Race::run(&mut scratch.extent(), what_for, DEFAULT_BUDGET);
        let choice = race.conclude(defaults::choice(&cpu, what_for).setting);
        part.notes.push(format!("{what_for}: {choice}"));
        if matches!(choice.basis, Basis::Measured { .. }) {
            part.notes.push(remember(&cpu, what_for, choice));
        }
        let most = race.lanes().iter().map(::clear::calibrate::Lane::rounds).max().unwrap_or(0);
        for lane in race.lanes() {
            let rate = f64::from(lane.mb_per_s()) / 1e3;
            let stayed = if lane.rounds() == most { "yes" } else { "no" };
            let labels = vec![
                ("use", what_for.to_string()),
                ("method", lane.setting.method.to_string()),
                ("near", lane.setting.near.to_string()),
                ("chunk", lane.setting.chunk.to_string()),
                ("to the end", stayed.to_owned()),
            ];
            let uncertainty = f64::from(lane.uncertainty_permille()) / 10.0;
            part.rows.push(Row::new(labels).with("cpu", "GB/s", &[rate]).with(
                "uncertain",
                "%",
                &[uncertainty],
            ));
        }
    }
    part.charts.push(Chart {
        title: "Background: rate by chunk",
        shape: Shape::Lines,
        what: "cpu",
        x: &["chunk"],
        series: &["method"],
        only: vec![("use", Use::Background.to_string())],
    });
    Ok(part)
}

/// Puts a choice where workers look for it, and says how that went.
fn remember(cpu: &Cpu, what_for: Use, choice: Choice) -> String {
    let path = engine::cache();
    let write = || {
        let mut cache = Cache::load(&path)?;
        cache.set(cpu, what_for, choice);
        cache.save()
    };
    match write() {
        Ok(()) => format!("{what_for}: written to {}", path.display()),
        Err(CacheError::Io { path, source }) => {
            format!("{what_for}: not written to {}: {source}", path.display())
        }
        Err(error) => format!("{what_for}: not written: {error}"),
    }
}
