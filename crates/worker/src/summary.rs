// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a worker says in the end: one record, and how its process ends.

use serde::{Deserialize, Serialize};

use crate::run::WorkDone;

/// What `prezero zero --json` prints, and who started the worker reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Pages zeroed.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// Blocks worked on, partly or to the end.
    pub blocks: u64,
    /// From its start to its end, waiting included.
    pub seconds: f64,
    /// Of all threads together.
    pub bytes_per_second: f64,
    /// How many worked on it.
    pub threads: usize,
    /// Whether it was told to stop before everything was done.
    pub interrupted: bool,
}

impl Summary {
    /// Of that work.
    #[must_use]
    pub fn new(work: &WorkDone, interrupted: bool) -> Self {
        let seconds = work.took.as_secs_f64();
        Self {
            pages: work.pages,
            bytes: work.bytes,
            blocks: work.blocks,
            seconds,
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            bytes_per_second: if seconds > 0.0 { work.bytes as f64 / seconds } else { 0.0 },
            threads: work.threads,
            interrupted,
        }
    }

    /// What a worker printed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// How a worker's process ends that has done what could be done. Any other code is a failure, after
/// which [`Summary`] may say how far it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything meant is zeroed.
    Done = 0,
    /// Others took the pages meanwhile.
    NotEnough = 5,
    /// A signal, or the end of its input, told it to stop.
    Interrupted = 130,
}

impl Exit {
    /// What an exit code means; `None` for a failure.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        [Self::Done, Self::NotEnough, Self::Interrupted]
            .into_iter()
            .find(|exit| i32::from(*exit as u8) == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn printed_summary_reads_back() {
        let work = WorkDone {
            pages: 3,
            bytes: 6 << 20,
            blocks: 2,
            took: Duration::from_millis(250),
            threads: 2,
        };
        let summary = Summary::new(&work, true);
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(Summary::parse(&text), Some(summary));
        assert_eq!(Summary::parse(""), None);
    }

    #[test]
    fn only_the_codes_of_work_done_have_a_meaning() {
        for exit in [Exit::Done, Exit::NotEnough, Exit::Interrupted] {
            assert_eq!(Exit::from_code(exit as u8 as i32), Some(exit));
        }
        for code in [1, 2, 3, 4, 6, 126, 127, 137, -1, 256] {
            assert_eq!(Exit::from_code(code), None, "{code}");
        }
    }
}
