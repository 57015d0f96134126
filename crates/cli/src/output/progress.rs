// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The progress bar: on a terminal only, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that counts to `total` bytes and shows the rate; hidden without a terminal.
pub fn bytes(total: u64, what: &'static str) -> ProgressBar {
    let target = if super::is_watched() {
        // Ten times a second: drawing takes a lock that every thread's tick would wait for.
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let template = "{msg} [{bar:40}] {bytes}/{total_bytes} {decimal_bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
