// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What readers of the report came for, in plain sentences: how much sooner a program can be used,
//! and what a loan costs in all. Of medians of the same run; an unmeasured part has no sentence.

use super::evidence::Evidence;
use super::{jvm, postgres, start};
use crate::figure::{Part, Row, short};

/// The sentences, for the measured parts.
pub(super) fn of(parts: &[Part], evidence: &Evidence) -> Vec<String> {
    let rows = parts.iter().find(|part| part.name == "start").map_or(&[][..], |part| &part.rows);
    let programs = [
        (start::QEMU, "time", "a virtual machine is there"),
        (jvm::PROGRAM, "time", "a JVM is through its start"),
        (postgres::PROGRAM, "filled", "PostgreSQL has filled half of its buffers"),
    ];
    let sooner: Vec<_> = programs
        .iter()
        .filter_map(|(program, what, done)| compared(rows, program, what, done))
        .collect();
    let mut answers = Vec::new();
    if !sooner.is_empty() {
        answers.push(format!("With memory that prezero lends, {}.", sooner.join("; ")));
    }
    if let Ok(found) = &evidence.churn {
        answers.push(format!(
            "A GB that is lent, touched and given back costs {} CPU seconds in all, wherever they are spent: {} times \
             what the kernel takes to make it ready at first touch ({}).",
            short(found.prezero),
            short(found.prezero / found.kernel),
            short(found.kernel),
        ));
    }
    answers
}

/// Lent memory against the fastest other way to have all of it ready on huge pages.
fn compared(rows: &[Row], program: &str, what: &str, done: &str) -> Option<String> {
    let median = |fits: fn(&str) -> bool| {
        let rows =
            rows.iter().filter(|row| row.label("program") == program && fits(row.label("way")));
        rows.filter_map(|row| row.median(what)).min_by(f64::total_cmp)
    };
    let lent = median(|way| way == start::LENT)?;
    let kernel = median(|way| way.starts_with("QEMU preallocates") || way == start::KERNEL)?;
    let ms = |seconds: f64| short(seconds * 1e3);
    Some(format!("{done} after {} ms instead of {}", ms(lent), ms(kernel)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: &str, way: &str, what: &'static str, seconds: f64) -> Row {
        let labels = vec![("program", program.to_owned()), ("way", way.to_owned())];
        Row::new(labels).with(what, "s", &[seconds])
    }

    #[test]
    fn a_program_is_compared_with_the_best_that_the_kernel_does() {
        let rows = [
            row("QEMU", "no huge pages, nothing preallocated", "time", 0.017),
            row("QEMU", "QEMU preallocates, 1 thread", "time", 0.12),
            row("QEMU", "QEMU preallocates, all threads", "time", 0.1),
            row("QEMU", start::LENT, "time", 0.02),
            row("JVM", start::KERNEL, "time", 0.1),
        ];
        let reported = compared(&rows, "QEMU", "time", "it runs");
        assert_eq!(reported.as_deref(), Some("it runs after 20.0 ms instead of 100"));
        assert_eq!(compared(&rows, "JVM", "time", "it runs"), None, "was not measured lent");
    }
}
