// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel's virtual files are, so that tests can put trees of their own there.

use std::path::PathBuf;

/// The mount points that everything read or written by path lies below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
    /// Usually `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// Usually `/dev`.
    pub dev: PathBuf,
    /// Usually `/`: what packages install, such as `lib/modules` and `boot`.
    pub root: PathBuf,
}

/// The real ones of this machine.
impl Default for Roots {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            cgroup: "/sys/fs/cgroup".into(),
            dev: "/dev".into(),
            root: "/".into(),
        }
    }
}
