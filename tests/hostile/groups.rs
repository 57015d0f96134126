// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control group with next to no CPU time, as a user with a delegated subtree can make one.

use std::time::{Duration, Instant};

use linux::Roots;
use linux::cgroup::{self, Group, Kind};
use testkit::skip;

const QUOTA_PERIOD: Duration = Duration::from_secs(1);
/// The least that the kernel grants.
const MIN_QUOTA_PERIOD: Duration = Duration::from_millis(1);

/// The group, in the hierarchy that bounds CPU time; removed when dropped.
#[derive(Debug)]
pub(crate) struct Throttled(Group);

impl Throttled {
    /// `None` is a skip, which was counted.
    pub(crate) fn make() -> Option<Self> {
        let path = format!("/prezero-hostile-{}", std::process::id());
        let groups = cgroup::everywhere(&Roots::default(), &path).expect("a good path");
        for group in groups.into_iter().filter(|g| matches!(g.kind(), Kind::V2 | Kind::V1Cpu)) {
            group.create().expect("root may");
            let throttled = Self(group);
            if throttled.0.limit_cpu(64 * QUOTA_PERIOD, QUOTA_PERIOD).expect("root may") {
                return Some(throttled);
            }
        }
        skip("no control group bounds CPU time here");
        None
    }

    /// The calling process has next to no CPU time from now on.
    pub(crate) fn join(&self) {
        self.0.join().expect("root may");
    }

    /// Lets go of all that are in it, so that they can end; or takes hold of them again.
    pub(crate) fn release(&self, free: bool) {
        let quota = if free { 64 * QUOTA_PERIOD } else { MIN_QUOTA_PERIOD };
        self.0.limit_cpu(quota, QUOTA_PERIOD).expect("root may");
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        self.release(true);
        let begun = Instant::now();
        // The kernel empties a group a moment after its last process was waited for.
        while self.0.remove().is_err() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
