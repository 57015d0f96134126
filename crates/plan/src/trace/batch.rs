// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces of batch systems: the standard workload format, and Slurm's accounting.

use std::io::BufRead;

use units::Bytes;

use super::Ask;

/// Jobs that ran, in the standard workload format: 18 numbers in a line, -1 for unknown ones.
pub(super) fn swf(text: impl BufRead) -> Result<Vec<Ask>, String> {
    let mut asks = Vec::new();
    let mut unsized_jobs = 0_usize;
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &dyn std::fmt::Display| format!("line {}: {why}", number + 1);
        let line = line.map_err(|error| wrong(&error))?;
        if line.trim_start().starts_with(';') || line.trim().is_empty() {
            continue;
        }
        let fields: Vec<f64> = line
            .split_whitespace()
            .map(|word| word.parse().map_err(|_| wrong(&format!("`{word}` is no number"))))
            .collect::<Result<_, _>>()?;
        let field = |number: usize| fields.get(number - 1).copied().unwrap_or(-1.0);
        if fields.len() < 5 {
            return Err(wrong(&format!("{} fields, and a job has 18", fields.len())));
        }
        let (ran, processors) = (field(4), field(5));
        if ran <= 0.0 || processors <= 0.0 {
            continue;
        }
        let memory = [7, 10].map(field).into_iter().find(|kib| *kib > 0.0);
        let Some(memory) = memory else {
            unsized_jobs += 1;
            continue;
        };
        let bytes = whole(memory * processors);
        let ask = Ask::new(field(2) + field(3).max(0.0), (bytes, 1 << 10), ran);
        asks.push(ask.map_err(|why| wrong(&why))?);
    }
    if asks.is_empty() && unsized_jobs > 0 {
        return Err(format!("none of {unsized_jobs} jobs says its memory (field 7 or 10)"));
    }
    Ok(asks)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates at both")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Jobs as `sacct -P` prints them: a heading, and columns between bars in any order.
pub(super) fn sacct(text: impl BufRead) -> Result<Vec<Ask>, String> {
    let mut lines = text.lines().enumerate();
    let heading = lines.next().map(|(_, line)| line).transpose();
    let heading = heading.map_err(|error| error.to_string())?.unwrap_or_default();
    let columns: Vec<_> = heading.trim().split('|').collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let needed = |name: &str| {
        place(name).ok_or_else(|| {
            format!("there is no column {name}: use sacct -P --format=JobID,Start,End,ReqMem,AllocCPUS,AllocNodes")
        })
    };
    let (id, start, end, memory) =
        (needed("JobID")?, needed("Start")?, needed("End")?, needed("ReqMem")?);
    let (cpus, nodes) = (place("AllocCPUS"), place("AllocNodes"));
    let mut asks = Vec::new();
    for (number, line) in lines {
        let wrong = |why: &dyn std::fmt::Display| format!("line {}: {why}", number + 1);
        let line = line.map_err(|error| wrong(&error))?;
        let fields: Vec<_> = line.trim().split('|').collect();
        if line.trim().is_empty() {
            continue;
        }
        let field = |at: usize| fields.get(at).copied().unwrap_or_default();
        let count = |at: Option<usize>| at.and_then(|at| field(at).parse().ok()).unwrap_or(1);
        // Steps are parts of their job, and jobs that never started borrow nothing.
        let Some(arrival) = seconds(field(start)).map_err(|why| wrong(&why))? else { continue };
        if field(id).contains('.') || field(memory).is_empty() {
            continue;
        }
        let lifetime = seconds(field(end)).map_err(|why| wrong(&why))?;
        let lifetime = lifetime.map_or(f64::INFINITY, |end| end - arrival);
        let bytes =
            requested(field(memory), count(cpus), count(nodes)).map_err(|why| wrong(&why))?;
        if bytes.0 > 0 {
            asks.push(Ask::new(arrival, (bytes.0, 1), lifetime).map_err(|why| wrong(&why))?);
        }
    }
    Ok(asks)
}

/// `16G`, or as before Slurm 21.08 of each CPU (`4Gc`) or node (`4Gn`).
fn requested(text: &str, cpus: u64, nodes: u64) -> Result<Bytes, String> {
    let (amount, times) = match text.strip_suffix('c') {
        Some(amount) => (amount, cpus),
        None => text.strip_suffix('n').map_or((text, 1), |amount| (amount, nodes)),
    };
    // Fractions as 3.50G.
    let digits = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: Bytes = match &amount[digits.len()..] {
        "" => Bytes(1 << 20),
        unit => format!("1{unit}").parse().map_err(|_| format!("`{text}` is no size"))?,
    };
    let number: f64 = digits.parse().map_err(|_| format!("`{text}` is no size"))?;
    #[expect(clippy::cast_precision_loss, reason = "a unit is a power of two")]
    let bytes = whole(number * unit.0 as f64);
    bytes.checked_mul(times).map(Bytes).ok_or_else(|| format!("`{text}` is too much"))
}

/// `2026-11-26T08:00:00` as seconds, or seconds as they are; none for `Unknown` and `None`.
fn seconds(text: &str) -> Result<Option<f64>, String> {
    if matches!(text, "Unknown" | "None" | "") {
        return Ok(None);
    }
    if let Ok(seconds) = text.parse::<f64>() {
        return Ok(Some(seconds));
    }
    let wrong = || format!("`{text}` is no time");
    let numbers: Vec<i64> = text
        .split(['-', 'T', ':'])
        .map(|word| word.parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    let [year, month, day, hour, minute, second] = numbers[..] else { return Err(wrong()) };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return Err(wrong());
    }
    // Days since 1970, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    #[expect(clippy::cast_precision_loss, reason = "seconds of our time have fewer than 53 bits")]
    let seconds = (((days * 24 + hour) * 60 + minute) * 60 + second) as f64;
    Ok(Some(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn swf_jobs_have_the_memory_of_all_their_processors() {
        let text = "; Version: 2\n\n\
                    1 10 5 60 4 -1 1048576 4 -1 2097152 1 1 1 1 1 1 -1 -1\n\
                    2 20 -1 30 2 -1 -1 2 -1 1048576 1 1 1 1 1 1 -1 -1\n\
                    3 30 0 -1 2 -1 1024 2 -1 -1 5 1 1 1 1 1 -1 -1\n\
                    4 40 0 9 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1\n";
        let asks = swf(text.as_bytes()).unwrap();
        let found: Vec<_> =
            asks.iter().map(|ask| (ask.arrival, ask.bytes.0 / GIB, ask.lifetime)).collect();
        assert_eq!(found, [(15.0, 4, 60.0), (20.0, 2, 30.0)]);
        for (text, says) in [
            ("1 2\n", "line 1: 2 fields"),
            (";\n1 a 0 1 1\n", "line 2: `a` is no number"),
            ("1 1 1 1 1\n", "none of 1 jobs says its memory"),
        ] {
            let why = swf(text.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{text:?}: {why}");
        }
    }

    #[test]
    fn slurm_jobs_are_read_without_their_steps() {
        let text = "JobID|Start|End|ReqMem|AllocCPUS|AllocNodes\n\
                    1|2026-02-28T23:59:50|2026-03-01T00:00:10|16G|4|1\n\
                    1.batch|2026-02-28T23:59:50|2026-03-01T00:00:10|16G|4|1\n\
                    2|2026-03-01T00:00:00|Unknown|2Gc|4|2\n\
                    3|2026-03-01T00:00:00|2026-03-01T00:01:00|1.50Gn|4|2\n\
                    4|Unknown|Unknown|1G|0|0\n\
                    5|1000000000|1000000060|512M|1|1\n";
        let asks = sacct(text.as_bytes()).unwrap();
        let found: Vec<_> = asks.iter().map(|ask| (ask.bytes.0 >> 20, ask.lifetime)).collect();
        assert_eq!(found, [(16384, 20.0), (8192, f64::INFINITY), (3072, 60.0), (512, 60.0)]);
        assert_eq!(seconds("2026-03-01T00:00:00").unwrap(), Some(1_772_323_200.0));
        for (text, says) in [
            ("JobID|Start|End\n", "no column ReqMem: use sacct -P"),
            ("JobID|Start|End|ReqMem\n1|soon|Unknown|1G\n", "line 2: `soon` is no time"),
            ("JobID|Start|End|ReqMem\n1|5|9|much\n", "line 2: `much` is no size"),
            ("JobID|Start|End|ReqMem\n1|9|5|1G\n", "line 2: arrival 9 and lifetime -4"),
        ] {
            let why = sacct(text.as_bytes()).unwrap_err();
            assert!(why.contains(says), "{text:?}: {why}");
        }
    }
}
