// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU quota for single threads: a cgroup of their own.

use std::time::Duration;

use linux::Roots;
use linux::cgroup::{self, Group, Kind};

use linux::Result;

/// A cgroup with a CPU quota, made below the caller's own. Dropping it removes it, once its threads
/// have ended.
#[derive(Debug)]
pub(crate) struct Throttle(Group);

impl Throttle {
    /// A group that gets `quota` of CPU time in each `period`, all its threads together. `None`
    /// where no hierarchy limits CPU time, or the caller may not make a group.
    ///
    /// # Errors
    /// EINVAL for a period outside 1 ms to 1 s, or a quota below 1 ms.
    pub(crate) fn new(
        roots: &Roots,
        name: &str,
        quota: Duration,
        period: Duration,
    ) -> Result<Option<Self>> {
        for own in cgroup::own(roots)? {
            let path = format!("{}/{name}", own.path().trim_end_matches('/'));
            let limits = matches!(own.kind(), Kind::V2 | Kind::V1Cpu);
            let Some(group) = Group::at(roots, own.kind(), &path)?.filter(|_| limits) else {
                continue;
            };
            if group.create().is_err() {
                continue;
            }
            let throttle = Self(group);
            if throttle.0.limit_cpu(quota, period)? {
                return Ok(Some(throttle));
            }
        }
        Ok(None)
    }

    /// Puts the calling thread, and no other, under the quota, until it ends.
    ///
    /// # Errors
    /// EOPNOTSUPP where v2 has no threaded groups for this process.
    pub(crate) fn join(&self) -> Result<()> {
        self.0.join_thread()
    }

    /// What it limits by, as in `cgroup v1 cpu`.
    #[must_use]
    pub(crate) fn kind(&self) -> String {
        format!("cgroup {}", self.0.kind())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A thread that was joined may still be on its way out of its group for a moment.
        for _ in 0..100 {
            if self.0.remove().is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        tracing::warn!(group = ?self.0.dir(), "a cgroup is left: somebody is in it");
    }
}
