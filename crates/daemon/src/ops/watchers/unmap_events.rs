// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptions of blocks that go: each has its block looked at.

use std::time::{Duration, Instant};

use tokio::io::Interest;

use super::polled::register;
use crate::ops::Shared;

/// The event comes before the description is quite gone (0.3 ms), so that the first look may still
/// see it; and page tables of the daemon's own, which are dropped then, take as long.
const CHECK_INTERVALS: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(3)];

/// Handling events takes at most one part in this number of the daemon's time, also when a process
/// opens and closes its file in a loop.
const MAX_TIME_SHARE: u32 = 10;

/// Looks at every block with a description that went.
pub(super) async fn apply(shell: Shared) {
    let Some(descriptor) = shell.borrow().watched().descriptor() else { return };
    let events = match register(descriptor, Interest::READABLE) {
        Ok(events) => events,
        Err(error) => {
            tracing::warn!(%error, "returns are looked for by the clock");
            return;
        }
    };
    loop {
        let Ok(mut ready) = events.readable().await else { return };
        let begin = Instant::now();
        let Some(mut blocks) = shell.borrow_mut().closed_blocks() else {
            ready.clear_ready();
            continue;
        };
        drop(ready);
        let mut took = begin.elapsed();
        for wait in CHECK_INTERVALS {
            if blocks.is_empty() {
                break;
            }
            tokio::time::sleep(wait).await;
            let begin = Instant::now();
            blocks.retain(|block| shell.borrow_mut().look_at_closed(*block));
            took += begin.elapsed();
        }
        tokio::time::sleep(rest_after(took)).await;
    }
}

/// How long events wait after this much work for them.
fn rest_after(took: Duration) -> Duration {
    took * (MAX_TIME_SHARE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_daemons_time_is_the_most() {
        for took in [Duration::ZERO, Duration::from_micros(300), Duration::from_secs(2)] {
            assert_eq!(took + rest_after(took), took * 10);
        }
    }
}
