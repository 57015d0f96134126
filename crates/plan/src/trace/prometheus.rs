// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans as the daemon's histograms in Prometheus have them.
//!
//! A range query's answer has, for each host and each step, how many loans of each size were
//! granted, and how many of each lifetime have ended. That makes loans again, with four
//! assumptions on the safe side. The loans of a step come together at its beginning. Each is as
//! large as its bucket allows. Lifetimes are those of its class of sizes, in turn. Loans beyond
//! the number that have ended last for ever.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;

use super::{Ask, ReadTrace};

const SIZES: &str = "prezero_loan_bytes_bucket";
const LIFETIMES: &str = "prezero_loan_seconds_bucket";
/// What to ask Prometheus for.
const QUERY: &str = "{__name__=~\"prezero_loan_(bytes|seconds)_bucket\"}";
/// The golden ratio's fraction: its multiples, without their whole parts, lie evenly.
const GOLDEN: f64 = 0.618_033_988_749_895;

#[derive(Deserialize)]
struct RangeAnswer {
    status: String,
    error: Option<String>,
    data: Option<RangeData>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeData {
    result_type: String,
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

/// Growth of the counters of one histogram, by bucket, without the buckets below.
#[derive(Debug, Default)]
struct Growth {
    /// By time in bits, which sort as numbers of at least 0 do.
    steps: BTreeMap<u64, BTreeMap<u64, f64>>,
}

impl Growth {
    /// Adds a bucket's counter. It begins at 0 again with a daemon that was started again.
    fn add(&mut self, bound: f64, values: &[(f64, String)]) -> Result<(), String> {
        let mut before: Option<f64> = None;
        for (time, value) in values {
            let wrong = || format!("`{value}` is no count");
            let now: f64 = value.parse().map_err(|_| wrong())?;
            if !now.is_finite() || now < 0.0 || !time.is_finite() || *time < 0.0 {
                return Err(wrong());
            }
            let grown = before.map_or(0.0, |before| if now < before { now } else { now - before });
            before = Some(now);
            *self.steps.entry(time.to_bits()).or_default().entry(bound.to_bits()).or_default() +=
                grown;
        }
        Ok(())
    }

    /// How many came in each step, by bounds.
    fn counts(self) -> impl Iterator<Item = (f64, Vec<(f64, u64)>)> {
        self.steps.into_iter().map(|(time, buckets)| {
            let mut below = 0.0;
            let each = |(bound, sum): (u64, f64)| {
                let own = (sum - below).max(0.0);
                below = f64::max(below, sum);
                (f64::from_bits(bound), whole(own))
            };
            (f64::from_bits(time), buckets.into_iter().map(each).collect())
        })
    }

    /// How many came in all.
    fn total(self) -> Vec<(f64, u64)> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, counts) in self.counts() {
            for (bound, count) in counts {
                *all.entry(bound.to_bits()).or_default() += count;
            }
        }
        all.into_iter().map(|(bound, count)| (f64::from_bits(bound), count)).collect()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates at both")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A bound as the label `le` has it.
fn bound(text: &str) -> Result<f64, String> {
    let bound = if text == "+Inf" { Ok(f64::INFINITY) } else { text.parse::<f64>() };
    let bound = bound.ok().filter(|bound| *bound > 0.0);
    bound.ok_or_else(|| format!("le=\"{text}\" is no bound"))
}

/// The lifetimes of one class of sizes.
#[derive(Debug, Default)]
struct Lifetimes {
    /// Ended loans, by the bounds of their lifetimes.
    ended: Vec<(f64, u64)>,
    /// Loans of this class that began.
    begun: u64,
    drawn: u64,
}

impl Lifetimes {
    /// The next one, evenly over all that have ended.
    fn draw(&mut self) -> f64 {
        let ended: u64 = self.ended.iter().map(|(_, count)| count).sum();
        self.drawn += 1;
        let mut place = (real(self.drawn) * GOLDEN).fract() * real(ended.max(self.begun));
        let mut least = 0.0;
        for (bound, count) in &self.ended {
            if place < real(*count) {
                let part = place / real(*count);
                // A lifetime of the last bucket is as long as twice the bound before.
                let most = if bound.is_finite() { *bound } else { 2.0 * least };
                return least + (most - least) * part;
            }
            place -= real(*count);
            least = *bound;
        }
        f64::INFINITY
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
fn real(number: u64) -> f64 {
    number as f64
}

/// What one host has told.
#[derive(Debug, Default)]
struct HostGrowth {
    sizes: Growth,
    /// By the largest size of each class.
    lifetimes: BTreeMap<u64, Growth>,
}

/// The loans of a range query's answer.
pub(super) fn loans(text: impl Read) -> Result<ReadTrace, String> {
    let answer: RangeAnswer =
        serde_json::from_reader(text).map_err(|error| match error.is_eof() {
            true => "the answer is cut: ask Prometheus again".to_owned(),
            false => error.to_string(),
        })?;
    if answer.status != "success" {
        let why = answer.error.unwrap_or_else(|| "no reason given".to_owned());
        return Err(format!("Prometheus answered {}: {why}", answer.status));
    }
    let data = answer.data.ok_or("the answer has no data")?;
    if data.result_type != "matrix" {
        return Err(format!(
            "it is a {}, and a range query's answer is a matrix: ask api/v1/query_range",
            data.result_type
        ));
    }
    let series: Vec<Series> =
        serde_json::from_value(data.result).map_err(|error| error.to_string())?;
    let mut hosts: BTreeMap<Option<String>, HostGrowth> = BTreeMap::new();
    let (mut has_sizes, mut has_lifetimes) = (false, false);
    for Series { metric, values } in &series {
        let label = |name: &str| metric.get(name).map(String::as_str);
        let host = hosts.entry(label("instance").map(str::to_owned)).or_default();
        let le = bound(label("le").unwrap_or_default());
        match label("__name__") {
            Some(SIZES) => {
                has_sizes = true;
                host.sizes.add(le?, values)?;
            }
            Some(LIFETIMES) => {
                has_lifetimes = true;
                let class = class_bound(label("up_to").unwrap_or_default())?;
                host.lifetimes.entry(class).or_default().add(le?, values)?;
            }
            _ => {}
        }
    }
    if !has_sizes {
        return Err(format!("there is no {SIZES} in it: query {QUERY}"));
    }
    let left_out = (!has_lifetimes).then(|| {
        format!("there is no {LIFETIMES} in it, so every loan lasts for ever: query {QUERY}")
    });
    let several = hosts.len() > 1;
    let mut asks = Vec::new();
    for (node, host) in hosts.into_values().enumerate() {
        let node = several.then_some(node);
        asks.extend(of_host(host)?.into_iter().map(|ask| Ask { node, ..ask }));
    }
    Ok(ReadTrace { asks, left_out })
}

/// The largest size of a class, as the label `up_to` has it.
fn class_bound(up_to: &str) -> Result<u64, String> {
    if up_to == "more" {
        return Ok(u64::MAX);
    }
    let size = up_to.parse::<units::Bytes>();
    size.map(|size| size.0).map_err(|_| format!("up_to=\"{up_to}\" is no size"))
}

fn of_host(host: HostGrowth) -> Result<Vec<Ask>, String> {
    let mut classes: BTreeMap<u64, Lifetimes> = host
        .lifetimes
        .into_iter()
        .map(|(most, growth)| (most, Lifetimes { ended: growth.total(), ..Lifetimes::default() }))
        .collect();
    let mut sizes = Vec::new();
    let mut largest = 0.0_f64;
    let steps: Vec<_> = host.sizes.counts().collect();
    for (_, counts) in &steps {
        for (bound, _) in counts.iter().filter(|(bound, _)| bound.is_finite()) {
            largest = largest.max(*bound);
        }
    }
    let mut before = None;
    for (time, counts) in steps {
        let begins = before.replace(time).unwrap_or(time);
        for (bound, count) in counts {
            let bytes = whole(if bound.is_finite() { bound } else { 2.0 * largest });
            for _ in 0..count {
                if let Some((_, class)) = classes.range_mut(bytes..).next() {
                    class.begun += 1;
                }
                sizes.push((begins, bytes));
            }
        }
    }
    let mut lasts = |bytes| match classes.range_mut(bytes..).next() {
        Some((_, class)) => class.draw(),
        None => f64::INFINITY,
    };
    sizes.into_iter().map(|(time, bytes)| Ask::new(time, (bytes, 1), lasts(bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series as Prometheus writes it, a minute a step.
    fn series(name: &str, labels: &[(&str, &str)], values: &[u64]) -> serde_json::Value {
        let mut metric: BTreeMap<_, _> = labels.iter().copied().collect();
        metric.insert("__name__", name);
        let values: Vec<_> = (values.iter().enumerate())
            .map(|(at, value)| serde_json::json!([600 + 60 * at, value.to_string()]))
            .collect();
        serde_json::json!({ "metric": metric, "values": values })
    }

    fn answer(result: &[serde_json::Value]) -> String {
        serde_json::json!({ "status": "success",
            "data": { "resultType": "matrix", "result": result } })
        .to_string()
    }

    const GIB: u64 = 1 << 30;

    // Promise P384 (operator): `prezero plan` makes loans of Prometheus' range query of the two
    // histograms, in which a restart of the daemon and an unfinished loan are seen.
    #[test]
    fn histograms_of_a_range_query_are_loans_again() {
        let sizes =
            |host, le, values: &[u64]| series(SIZES, &[("instance", host), ("le", le)], values);
        let lasts = |le, values: &[u64]| {
            series(LIFETIMES, &[("instance", "a"), ("le", le), ("up_to", "16G")], values)
        };
        let text = answer(&[
            // The counters of before the range are no loans; the third step has a restart.
            sizes("a", "1073741824.0", &[7, 7, 0, 0]),
            sizes("a", "8589934592.0", &[9, 11, 1, 1]),
            sizes("a", "+Inf", &[9, 11, 1, 2]),
            sizes("b", "8589934592.0", &[0, 0, 1, 1]),
            lasts("60.0", &[3, 4, 0, 0]),
            lasts("900.0", &[3, 5, 0, 0]),
            lasts("+Inf", &[3, 5, 0, 0]),
        ]);
        let ReadTrace { asks, left_out } = loans(text.as_bytes()).unwrap();
        assert_eq!(left_out, None);
        let found: Vec<_> =
            asks.iter().map(|ask| (ask.arrival, ask.bytes.0 / GIB, ask.node)).collect();
        let (a, b) = (Some(0), Some(1));
        assert_eq!(
            found,
            [(600.0, 8, a), (600.0, 8, a), (660.0, 8, a), (720.0, 16, a), (660.0, 8, b)]
        );
        let lifetimes: Vec<_> = asks.iter().map(|ask| ask.lifetime).collect();
        let ended = lifetimes.iter().filter(|lifetime| lifetime.is_finite());
        assert_eq!(ended.count(), 2, "two have ended: {lifetimes:?}");
        assert!(lifetimes.iter().any(|of| *of <= 60.0), "{lifetimes:?}");
        assert!(lifetimes.iter().any(|of| of.is_finite() && *of > 60.0), "{lifetimes:?}");
        let alone = answer(&[series(SIZES, &[("le", "+Inf")], &[0, 1])]);
        let read = loans(alone.as_bytes()).unwrap();
        assert_eq!(read.asks.iter().map(|ask| ask.node).collect::<Vec<_>>(), [None]);
        assert!(read.left_out.unwrap().contains("lasts for ever"));
    }

    #[test]
    fn lifetimes_are_drawn_evenly() {
        let mut class = Lifetimes { ended: vec![(10.0, 75), (20.0, 25)], begun: 200, drawn: 0 };
        let drawn: Vec<_> = (0..200).map(|_| class.draw()).collect();
        let within =
            |least: f64, most: f64| drawn.iter().filter(|of| (least..most).contains(*of)).count();
        assert!((74..=76).contains(&within(0.0, 10.0)), "{}", within(0.0, 10.0));
        assert!((24..=26).contains(&within(10.0, 20.0)), "{}", within(10.0, 20.0));
    }

    #[test]
    fn other_answers_of_prometheus_are_refused_with_a_hint() {
        let vector = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        let bad = answer(&[series(SIZES, &[("le", "much")], &[1])]);
        let class = answer(&[series(LIFETIMES, &[("le", "1"), ("up_to", "big")], &[1])]);
        for (text, says) in [
            (vector, "ask api/v1/query_range"),
            (r#"{"status":"error","error":"too many points"}"#, "error: too many points"),
            (&answer(&[])[..], "query {__name__=~"),
            (&answer(&[])[..30], "the answer is cut"),
            (&bad, "le=\"much\" is no bound"),
            (&class, "up_to=\"big\" is no size"),
            ("[]", "line 1"),
        ] {
            let why = loans(text.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
