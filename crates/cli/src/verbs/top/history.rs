// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ready and lent memory over the last minutes, as a line of bars.

use std::collections::VecDeque;

use units::Bytes;
use wire::{PoolStatus, Status};

/// As many states as the widest screen shows.
const MAX_SAMPLES: usize = 400;

/// Bars from empty to full.
const BARS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];
/// The same in ASCII.
const ASCII_BARS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// The last states, the newest last.
#[derive(Debug, Default)]
pub(super) struct History {
    ready: VecDeque<Bytes>,
    lent: VecDeque<Bytes>,
}

impl History {
    /// Adds what was seen.
    pub(super) fn add(&mut self, status: &Status) {
        let sum = |of: fn(&PoolStatus) -> Bytes| status.pools.iter().map(of).sum();
        push(&mut self.ready, sum(|pool| pool.ready_pages.bytes(pool.page_size)));
        push(&mut self.lent, sum(|pool| pool.lent_pages.bytes(pool.page_size)));
    }

    /// Both as one line of that width, each with its bars in front of what it is now.
    pub(super) fn line(&self, width: usize, is_ascii: bool) -> String {
        let part = |name: &str, values: &VecDeque<Bytes>| {
            let now = values.back().copied().unwrap_or_default().to_string();
            let room = (width / 2).saturating_sub(name.len() + now.len() + 4);
            format!("{name} {} {now}", bars(values, room, is_ascii))
        };
        format!(" {}  {}", part("ready", &self.ready), part("lent", &self.lent))
    }
}

fn push(values: &mut VecDeque<Bytes>, value: Bytes) {
    values.push_back(value);
    if values.len() > MAX_SAMPLES {
        values.pop_front();
    }
}

/// The last `room` values in proportion to the largest of them.
fn bars(values: &VecDeque<Bytes>, room: usize, is_ascii: bool) -> String {
    let signs = if is_ascii { &ASCII_BARS } else { &BARS };
    let shown = || values.iter().skip(values.len().saturating_sub(room));
    let most = u128::from(shown().map(|value| value.0).max().unwrap_or(0).max(1));
    let last = signs.len() - 1;
    let sign = |value: &Bytes| {
        let height = (u128::from(value.0) * last as u128).div_ceil(most);
        signs[usize::try_from(height).unwrap_or(last).min(last)]
    };
    let line: String = shown().map(sign).collect();
    format!("{line:>room$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_to_the_largest_shown() {
        let values = [64, 0, 1, 4, 8].map(Bytes).into();
        assert_eq!(bars(&values, 4, true), "_.=#");
        assert_eq!(bars(&values, 6, true), " #_...");
        assert_eq!(bars(&VecDeque::new(), 3, true), "   ");
        assert_eq!(bars(&[0, 0].map(Bytes).into(), 2, false), "\u{2581}\u{2581}");
        assert_eq!(bars(&[u64::MAX].map(Bytes).into(), 1, false), "\u{2588}");
    }

    #[test]
    fn history_is_bounded_and_as_wide_as_the_screen() {
        let mut history = History::default();
        for _ in 0..MAX_SAMPLES + 7 {
            history.add(&super::super::view::tests::status());
        }
        assert_eq!(history.ready.len(), MAX_SAMPLES);
        for width in [40, 80, 200] {
            let line = history.line(width, true);
            assert!(line.chars().count() <= width, "{width}: {line}");
            assert!(line.contains("ready") && line.contains(" 48G"), "{line}");
        }
    }
}
