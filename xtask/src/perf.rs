// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask perf FILE`: the ratios of `prezero bench --json > FILE`
//! against what the project wants of itself (tests/perf.toml).
//!
//! Neither a test nor a required part of CI: the figures are those of one machine, which must be
//! idle. Its limits are in the report.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::{cache, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `prezero bench --json` printed.
    report: PathBuf,
}

/// A bound of one ratio.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Met,
    Missed,
    NotMeasured,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let wanted = wanted(&cache::repo().join("tests/perf.toml"))?;
    let text = fs::read_to_string(&args.report)
        .with_context(|| format!("cannot read {}", args.report.display()))?;
    let report: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is no report in JSON", args.report.display()))?;
    let verdicts = judge(&wanted, &report)?;
    for (name, verdict) in &verdicts {
        let reached = report["reached"].as_array().into_iter().flatten();
        let behind = reached.into_iter().find(|reach| reach["name"] == name.as_str());
        let figures = behind.and_then(|reach| reach["figures"].as_str()).unwrap_or_default();
        let (word, bound) = (word(*verdict), wanted[name]);
        let measured = &report["ratios"][name];
        say::result(format_args!("{word} {name}: {measured}, wanted {bound:?}: {figures}"));
    }
    if let Some(cpus) = report["cpus_used_by_others"].as_f64() {
        say::result(format_args!("others used {cpus:.2} CPUs meanwhile"));
    }
    let missed = verdicts.values().any(|verdict| *verdict == Verdict::Missed);
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "ok  ",
        Verdict::Missed => "MISS",
        Verdict::NotMeasured => "skip",
    }
}

fn wanted(path: &Path) -> Result<BTreeMap<String, Wanted>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is no table of bounds", path.display()))
}

/// Each bound against its ratio; a ratio without a bound is an error, and so
/// is a bound without a ratio, null or not.
fn judge(wanted: &BTreeMap<String, Wanted>, report: &Value) -> Result<BTreeMap<String, Verdict>> {
    let Some(ratios) = report["ratios"].as_object() else { bail!("the report has no ratios") };
    if let Some(name) = ratios.keys().find(|name| !wanted.contains_key(*name)) {
        bail!("nothing is wanted of {name}: give it a bound in tests/perf.toml");
    }
    let verdict = |(name, wanted): (&String, &Wanted)| {
        let measured = ratios.get(name).with_context(|| format!("the report has no {name}"))?;
        let verdict = match measured.as_f64() {
            None => Verdict::NotMeasured,
            Some(value) if wanted.is_met_by(value) => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        Ok((name.clone(), verdict))
    };
    wanted.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bounds() -> BTreeMap<String, Wanted> {
        wanted(&cache::repo().join("tests/perf.toml")).unwrap()
    }

    fn report(ratio: impl Into<Value>, percent: impl Into<Value>) -> Value {
        let mut ratios: serde_json::Map<_, _> =
            bounds().into_keys().map(|name| (name, Value::Null)).collect();
        ratios.insert("inplace_over_populate_2m".to_owned(), ratio.into());
        ratios.insert("neighbour_slowdown_percent".to_owned(), percent.into());
        json!({ "ratios": ratios })
    }

    #[test]
    fn a_bound_is_met_at_its_very_value_and_missed_beyond() {
        for (ratio, percent, expected) in
            [(4.0, 3.0, Verdict::Met), (3.99, 3.01, Verdict::Missed), (9.0, -1.0, Verdict::Met)]
        {
            let verdicts = judge(&bounds(), &report(ratio, percent)).unwrap();
            assert_eq!(verdicts["inplace_over_populate_2m"], expected, "{ratio}");
            assert_eq!(verdicts["neighbour_slowdown_percent"], expected, "{percent}");
            assert_eq!(verdicts["cancel_p99_ms"], Verdict::NotMeasured);
        }
    }

    #[test]
    fn no_ratio_goes_unjudged_and_no_bound_without_its_ratio() {
        let mut report = report(4.0, 3.0);
        report["ratios"]["a_new_one"] = 1.0.into();
        let error = judge(&bounds(), &report).unwrap_err().to_string();
        assert!(error.contains("a_new_one"), "{error}");
        let error = judge(&bounds(), &json!({ "ratios": {} })).unwrap_err().to_string();
        assert!(error.contains("the report has no"), "{error}");
    }
}
