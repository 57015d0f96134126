// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From events to passes, failures and skips.
//!
//! A program that prints TAP, KTAP or libtest's lines counts as many tests as
//! it reports; any other counts as one. The kernel's log is read line by line:
//! a complaint fails the program that ran when it came.

use std::{collections::BTreeSet, fmt, ops::AddAssign};

use vm_guest::{Event, MARK, Outcome};

use super::{races::Races, requirements::Requirements};
use crate::{
    say,
    tap::{self, Ending},
};

/// What the kernel says when something is wrong.
const COMPLAINTS: [&str; 21] = [
    "BUG:",
    "BUG at ",
    "WARNING:",
    "INFO: possible recursive locking",
    "INFO: possible circular locking",
    "INFO: inconsistent lock state",
    "INFO: rcu_",
    "rcu: INFO:",
    "soft lockup",
    "blocked for more than",
    "suspicious RCU usage",
    "invalid context",
    "general protection fault",
    "Kernel panic",
    "Oops:",
    "UBSAN:",
    "Bad page state",
    "Bad rss-counter state",
    "list_add corruption",
    "list_del corruption",
    "enqueued on deprecated workqueue",
];

/// Tests by result.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    /// One more test that ended like this.
    pub(crate) fn add(&mut self, ending: Ending) {
        let count = match ending {
            Ending::Ok => &mut self.passed,
            Ending::Failed => &mut self.failed,
            Ending::Skipped => &mut self.skipped,
        };
        *count += 1;
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Watches one machine.
#[derive(Debug)]
pub(crate) struct Verdict {
    machine: String,
    verbose: bool,
    /// Complaints that the test provokes.
    expected: Vec<String>,
    /// Results are compared with another machine's, not judged by themselves.
    compared: bool,
    total: Count,
    /// Each program's result, in the order in which they ended.
    results: Vec<(String, Count)>,
    /// The output of programs with requested cases.
    outputs: Vec<(String, Vec<String>)>,
    wanted: BTreeSet<String>,
    running: Option<Running>,
    /// Which program the kernel's log is at; it may lag behind the events.
    log_of: Option<String>,
    races: Races,
    off: bool,
}

#[derive(Debug)]
struct Running {
    name: String,
    tally: Tally,
    lines: Vec<String>,
}

impl Verdict {
    /// `compared`: what fails is not called a failure yet.
    pub(crate) fn new(machine: &str, of: &Requirements, compared: bool, verbose: bool) -> Self {
        say::result(format_args!("vm {machine}"));
        Self {
            machine: machine.to_owned(),
            verbose,
            expected: of.expect_log.clone(),
            compared,
            total: Count::default(),
            results: Vec::new(),
            outputs: Vec::new(),
            wanted: BTreeSet::new(),
            running: None,
            log_of: None,
            races: Races::new(&of.races_of),
            off: false,
        }
    }

    /// What this program prints will be asked for.
    pub(crate) fn keep_output(&mut self, program: &str) {
        self.wanted.insert(program.to_owned());
    }

    /// What the programs have printed that were asked for.
    pub(crate) fn outputs(&self) -> &[(String, Vec<String>)] {
        &self.outputs
    }

    /// Takes the next event.
    pub(crate) fn see(&mut self, event: &Event) {
        match event {
            Event::Booted { release, uptime_ms, preempt, nodes } => say::result(format_args!(
                "   Linux {release}, preempt {preempt}, {} nodes, up after {uptime_ms} ms",
                nodes.len()
            )),
            Event::Ready { pools } => {
                for pool in pools {
                    let (node, pages, page_kib) = (pool.node, pool.pages, pool.page_kib);
                    say::result(format_args!("   node {node}: {pages} pages of {page_kib} KiB"));
                }
            }
            Event::Begin { name } => {
                let tally = Tally::default();
                self.running = Some(Running { name: name.clone(), tally, lines: Vec::new() });
            }
            Event::Output { line, .. } => {
                if self.verbose {
                    say::result(format_args!("   | {line}"));
                }
                if let Some(running) = &mut self.running {
                    running.tally.see(line);
                    running.lines.push(line.clone());
                }
            }
            Event::End { outcome, elapsed_ms, .. } => self.end(outcome, *elapsed_ms),
            Event::Failed { reason } => {
                // Counted here: that no `Off` follows is no second failure.
                self.total.failed += 1;
                self.off = true;
                say::result(format_args!("   FAIL the machine: {reason}"));
            }
            Event::Off => self.off = true,
            Event::Console { line } => self.console(line),
        }
    }

    fn end(&mut self, outcome: &Outcome, elapsed_ms: u64) {
        let Some(running) = self.running.take() else { return };
        let (count, trouble) = running.tally.count(outcome);
        self.total += count;
        self.results.push((running.name.clone(), count));
        let word = match count {
            _ if self.compared => "seen",
            Count { failed: 1.., .. } => "FAIL",
            Count { passed: 0, .. } => "skip",
            _ => "ok  ",
        };
        let name = &running.name;
        say::result(format_args!("   {word} {name}: {count} ({elapsed_ms} ms){trouble}"));
        if self.wanted.contains(name) {
            self.outputs.push((name.clone(), running.lines.clone()));
        }
        if count.failed > 0 && !self.verbose && !self.compared {
            let tail = running.lines.len().saturating_sub(40);
            for line in &running.lines[tail..] {
                say::result(format_args!("   | {line}"));
            }
        }
    }

    fn console(&mut self, line: &str) {
        if let Some((_, mark)) = line.split_once(MARK) {
            self.log_of = mark.trim().strip_prefix("begin ").map(str::to_owned);
            return;
        }
        if let Some(race) = self.races.see(line) {
            self.complain(&race);
        }
        let complains = COMPLAINTS.iter().any(|complaint| line.contains(complaint));
        let expected = self.expected.iter().any(|part| line.contains(part.as_str()));
        if complains && !expected && !Races::is_headline(line) {
            self.complain(line);
        }
    }

    fn complain(&mut self, line: &str) {
        self.total.failed += 1;
        let during = self.log_of.as_deref().unwrap_or("no program");
        say::result(format_args!("   FAIL kernel log during {during}: {line}"));
    }

    /// The sum and the results; a machine that did not end as it should is a failure.
    pub(crate) fn finish(mut self) -> (Count, Vec<(String, Count)>) {
        if let Some(race) = self.races.end() {
            self.complain(&race);
        }
        if self.races.others() > 0 {
            let others = self.races.others();
            say::result(format_args!("   {others} races of others: the log has them"));
        }
        if let Some(running) = self.running.take() {
            self.total.failed += 1;
            say::result(format_args!("   FAIL {}: the machine ended in it", running.name));
        } else if !self.off {
            self.total.failed += 1;
            say::result(format_args!("   FAIL {}: no orderly power-off", self.machine));
        }
        (self.total, self.results)
    }
}

/// Compares two machines program by program: equal results pass.
pub(crate) fn compare(reference: &[(String, Count)], results: &[(String, Count)]) -> Count {
    let mut total = Count::default();
    for (name, expected) in reference {
        match results.iter().find(|(other, _)| other == name) {
            Some((_, got)) if got == expected => total.passed += 1,
            Some((_, got)) => {
                total.failed += 1;
                say::result(format_args!("   FAIL {name}: {got}, reference {expected}"));
            }
            None => {
                total.failed += 1;
                say::result(format_args!("   FAIL {name}: no result, reference {expected}"));
            }
        }
    }
    say::result(format_args!("   same result: {total}"));
    total
}

/// Counts the tests that a program reports.
#[derive(Debug, Default)]
struct Tally {
    count: Count,
    planned: Option<u64>,
    /// The test with a line that libtest began and the test's own output broke.
    broken: Option<String>,
    /// Tests that said that they skip, or skip a part.
    skips: BTreeSet<String>,
    /// Results indented since the last one that was not: that one sums them up.
    nested: bool,
    /// libtest was given a filter that matches no test.
    is_without_tests: bool,
}

impl Tally {
    fn see(&mut self, line: &str) {
        let text = line.trim_start();
        self.is_without_tests |= text == "running 0 tests";
        let tap = tap::Line::from(line);
        if let tap::Line::Plan { results, is_nested } = tap {
            if !is_nested {
                self.planned = results;
            }
            return;
        }
        // The test kit's, in a line of its own or behind libtest's `test name ... `.
        let said = text.split_once(" ... ").map_or(text, |(_, said)| said);
        if let Some((name, _)) = said.strip_prefix("skipped ").and_then(|s| s.split_once(": ")) {
            self.skips.insert(name.to_owned());
        }
        // libtest: `test name ... ok`; or, where the test writes past it, that in a line of its
        // own.
        if let Some((name, result)) =
            text.strip_prefix("test ").and_then(|t| t.rsplit_once(" ... "))
        {
            let word = result.split([',', ' ']).next().unwrap_or(result);
            self.broken = (!self.libtest(name, word)).then(|| name.to_owned());
            return;
        }
        if let Some(name) = self.broken.take() {
            if !self.libtest(&name, text) {
                self.broken = Some(name);
            }
            return;
        }
        let tap::Line::Result { ending, is_nested, .. } = tap else { return };
        if !is_nested && std::mem::take(&mut self.nested) {
            // KTAP: the result of a suite with cases that are counted already.
            self.planned = None;
            return;
        }
        self.nested |= is_nested;
        self.count.add(ending);
    }

    /// Counts a result of libtest's; false if `word` is none.
    fn libtest(&mut self, name: &str, word: &str) -> bool {
        let ending = match word {
            "ok" if self.skips.contains(name) => Ending::Skipped,
            "ok" => Ending::Ok,
            "FAILED" => Ending::Failed,
            "ignored" => Ending::Skipped,
            _ => return false,
        };
        self.count.add(ending);
        true
    }

    /// The count, made consistent with how the program ended, and what to say
    /// about it.
    fn count(&self, outcome: &Outcome) -> (Count, String) {
        let mut count = self.count;
        let seen = count.passed + count.failed + count.skipped;
        let mut trouble = match outcome {
            Outcome::Exit { status: 0 | 4 } => String::new(),
            Outcome::Exit { .. } if count.failed > 0 => String::new(),
            Outcome::Exit { status } => format!(", exit status {status}"),
            Outcome::Signal { signal } => format!(", killed by signal {signal}"),
            Outcome::Timeout => ", timed out".to_owned(),
            Outcome::NotStarted { reason } => format!(", not started: {reason}"),
        };
        if self.is_without_tests && seen == 0 {
            trouble += ", no test has the name that it asks for";
        }
        if let Some(planned) = self.planned.filter(|&planned| planned != seen) {
            trouble += &format!(", {seen} of {planned} planned results");
        }
        if !trouble.is_empty() {
            count.failed += 1;
        } else if seen == 0 {
            match outcome {
                Outcome::Exit { status: 4 } => count.skipped = 1,
                _ => count.passed = 1,
            }
        }
        (count, trouble)
    }
}

#[cfg(test)]
mod tests {
    use vm_guest::Outcome;

    use super::{Count, Tally, compare};

    #[test]
    fn only_equal_results_are_the_same() {
        let one = Count { passed: 1, failed: 0, skipped: 0 };
        let bad = Count { passed: 0, failed: 1, skipped: 0 };
        let reference = [("a".to_owned(), one), ("b".to_owned(), bad), ("c".to_owned(), one)];
        let results = [("a".to_owned(), one), ("b".to_owned(), one)];
        assert_eq!(compare(&reference, &results), Count { passed: 1, failed: 2, skipped: 0 });
    }

    fn count(output: &str, outcome: &Outcome) -> Count {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.see(line));
        tally.count(outcome).0
    }

    const FINE: Outcome = Outcome::Exit { status: 0 };

    #[test]
    fn tap_counts_each_result() {
        let output = "TAP version 13\n1..3\nok 1 a\nnot ok 2 b\nok 3 c # SKIP no memory\n";
        let expected = Count { passed: 1, failed: 1, skipped: 1 };
        assert_eq!(count(output, &Outcome::Exit { status: 1 }), expected);
    }

    #[test]
    fn ktap_counts_cases_but_not_the_suite() {
        let output = "KTAP version 1\n1..1\n    KTAP version 1\n    1..2\n    ok 1 a\n    ok 2 b\nok 1 suite\n";
        assert_eq!(count(output, &FINE), Count { passed: 2, failed: 0, skipped: 0 });
    }

    #[test]
    fn libtest_without_any_test_fails() {
        let output = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 209 filtered out\n";
        assert_eq!(count(output, &FINE), Count { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn libtest_counts_each_test() {
        let output = "running 2 tests\ntest a::b ... ok\ntest c ... ignored, slow\n\ntest result: ok. 1 passed\n";
        assert_eq!(count(output, &FINE), Count { passed: 1, failed: 0, skipped: 1 });
    }

    #[test]
    fn libtest_counts_a_test_that_writes_past_it() {
        let output = "running 4 tests\nskipped d: no C compiler\ntest d ... ok\n\
                      test a ... skipped a: one node\nok\ntest b ... a line\nanother\nok\n\
                      test c ... noise\nFAILED\n";
        let expected = Count { passed: 1, failed: 1, skipped: 2 };
        assert_eq!(count(output, &Outcome::Exit { status: 101 }), expected);
    }

    #[test]
    fn a_missing_result_is_a_failure() {
        let expected = Count { passed: 1, failed: 1, skipped: 0 };
        assert_eq!(count("1..2\nok 1 a\n", &FINE), expected);
    }

    #[test]
    fn a_silent_program_counts_by_its_end() {
        let one = Count { passed: 1, ..Count::default() };
        assert_eq!(count("", &FINE), one);
        let skipped = Count { skipped: 1, ..Count::default() };
        assert_eq!(count("", &Outcome::Exit { status: 4 }), skipped);
        let failed = Count { failed: 1, ..Count::default() };
        assert_eq!(count("", &Outcome::Timeout), failed);
        assert_eq!(count("", &Outcome::Signal { signal: 7 }), failed);
    }
}
