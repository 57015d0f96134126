// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The progress bar: on a terminal only, on standard error, in one line of any width.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use units::Bytes;

/// A bar that counts to `total` bytes and shows the rate; hidden without a terminal.
pub fn bytes(total: u64, what: &'static str) -> ProgressBar {
    let target = if super::is_watched() {
        // Ten times a second: drawing takes a lock that every thread's tick would wait for.
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    if let Some(style) = style() {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A bar that counts to `total` loans and says how long the rest will take; hidden without a
/// terminal.
pub fn loans(total: u64, what: &'static str) -> ProgressBar {
    let bar = bytes(total, what);
    let template = "{msg} [{wide_bar}] {pos} of {len} loans, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Sizes and rates as all other lines have them.
fn style() -> Option<ProgressStyle> {
    let template = "{msg} [{wide_bar}] {done} of {all}, {rate}, {eta} left";
    let size = |bytes: u64, out: &mut dyn Write| {
        // A line that cannot be written is the next line's matter.
        let _ = write!(out, "{}", Bytes(bytes));
    };
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        let _ = write!(out, "{}", super::rate(state.per_sec()));
    };
    let style = ProgressStyle::with_template(template).ok()?;
    let style = style
        .with_key("done", move |state: &ProgressState, out: &mut dyn Write| size(state.pos(), out))
        .with_key("all", move |state: &ProgressState, out: &mut dyn Write| {
            size(state.len().unwrap_or(0), out);
        })
        .with_key("rate", rate);
    Some(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{InMemoryTerm, TermLike};

    // Promise P323.
    #[test]
    fn bar_is_one_line_at_every_width() {
        for columns in [60, 80, 120] {
            let screen = InMemoryTerm::new(5, columns);
            let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
            let bar = ProgressBar::with_draw_target(Some(3 << 30), target);
            bar.set_style(style().expect("a good template"));
            bar.set_message("zeroing");
            bar.inc(352 << 20);
            bar.tick();
            let text = screen.contents();
            assert_eq!(text.lines().count(), 1, "{columns}: {text}");
            assert!(text.contains("352M of 3G"), "{text}");
            bar.finish_and_clear();
            assert_eq!((screen.contents().as_str(), screen.width()), ("", columns));
        }
    }
}
