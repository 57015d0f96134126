// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which data races that KCSAN reports are the series'.
//!
//! The rest of the kernel has some accepted ones, in its timers and its file systems. A report
//! names the function of each access, which may be a helper, and a stack for each: its first frames
//! decide.

/// A report begins with it, followed by the functions.
const REPORT: &str = "BUG: KCSAN: ";
/// And ends with this line.
const RULER: &str = "==========";
/// The number of frames that identify an access: a helper, the helper's caller, and theirs.
const FRAMES: usize = 3;

/// Reads the kernel's log.
#[derive(Debug)]
pub(crate) struct Races {
    /// Parts of names of functions; none: all are.
    of: Vec<String>,
    report: Option<RaceReport>,
    others: u64,
}

#[derive(Debug)]
struct RaceReport {
    headline: String,
    is_ours: bool,
    /// Frames of the stack at hand.
    frames: usize,
}

impl Races {
    pub(crate) fn new(functions: &[String]) -> Self {
        Self { of: functions.to_vec(), report: None, others: 0 }
    }

    /// Takes the next line; the headline of a report of ours once it is over.
    pub(crate) fn see(&mut self, line: &str) -> Option<String> {
        if let Some((_, functions)) = line.split_once(REPORT) {
            let before = self.end();
            let is_ours = self.of.is_empty() || self.names(functions);
            let headline = line.to_owned();
            self.report = Some(RaceReport { headline, is_ours, frames: 0 });
            return before;
        }
        if line.contains(RULER) {
            return self.end();
        }
        let is_ours = self.names(line);
        let report = self.report.as_mut()?;
        if line.contains(" by task ") || line.contains(" by interrupt ") {
            report.frames = 0;
        } else if line.contains("+0x") {
            report.frames += 1;
            report.is_ours |= is_ours && report.frames <= FRAMES;
        }
        None
    }

    /// The same at the end of the log, which may be the end of a report.
    pub(crate) fn end(&mut self) -> Option<String> {
        let report = self.report.take()?;
        if !report.is_ours {
            self.others += 1;
        }
        report.is_ours.then_some(report.headline)
    }

    /// Reports of others' races.
    pub(crate) fn others(&self) -> u64 {
        self.others
    }

    /// Whether a line begins a report, which says nothing by itself.
    pub(crate) fn is_headline(line: &str) -> bool {
        line.contains(REPORT)
    }

    fn names(&self, line: &str) -> bool {
        self.of.iter().any(|part| line.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::Races;

    fn report(functions: &str, first: &[&str], second: &[&str]) -> Vec<String> {
        let frame = |name: &&str| format!("[  1.0]  {name}+0x36/0x156");
        let mut lines = vec![
            "[  1.0] ========".to_owned(),
            format!("[  1.0] BUG: KCSAN: data-race in {functions}"),
        ];
        lines.push("[  1.0] write to 0xffff of 8 bytes by task 41 on cpu 3:".to_owned());
        lines.extend(first.iter().map(frame));
        lines.push("[  1.0] read to 0xffff of 8 bytes by interrupt on cpu 0:".to_owned());
        lines.extend(second.iter().map(frame));
        lines.push("[  1.0] ==================================".to_owned());
        lines
    }

    fn ours(of: &[&str], lines: &[String]) -> usize {
        let of: Vec<_> = of.iter().map(ToString::to_string).collect();
        let mut races = Races::new(&of);
        let counted = lines.iter().filter_map(|line| races.see(line)).count();
        counted + races.end().iter().count()
    }

    #[test]
    fn race_belongs_to_its_function_or_nearest_caller() {
        let timers =
            report("do_nanosleep / hrtimer_wakeup", &["do_nanosleep"], &["hrtimer_wakeup"]);
        let named = report("hugetlb_zero_unit / f", &["hugetlb_zero_unit"], &["f"]);
        let helper = report("f / __list_add", &["f"], &["__list_add", "enqueue_hugetlb_folio"]);
        let far = report("f / g", &["f", "a", "b", "hugetlb_fault"], &["g"]);
        for (lines, expected) in [(&timers, 0), (&named, 1), (&helper, 1), (&far, 0)] {
            assert_eq!(ours(&["huge"], lines), expected, "{lines:?}");
            assert_eq!(ours(&[], lines), 1, "without names all count: {lines:?}");
        }
    }

    #[test]
    fn a_report_that_the_logs_end_cuts_off_counts() {
        let named = report("hugetlb_zero_unit / f", &["hugetlb_zero_unit"], &["f"]);
        assert_eq!(ours(&["huge"], &named[..3]), 1);
    }
}
