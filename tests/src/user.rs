// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Somebody else than root.

use linux::testkit::child::fork;

/// The number of user and group `nobody`.
pub const NOBODY: u32 = 65534;

/// Runs `body` as user and group `nobody`; it must return true.
///
/// # Panics
/// If it does not, or without root.
pub fn as_nobody(body: impl FnOnce() -> bool) {
    let child = fork(|_| {
        nix::unistd::setgroups(&[]).expect("root");
        nix::unistd::setgid(NOBODY.into()).expect("root");
        nix::unistd::setuid(NOBODY.into()).expect("root");
        i32::from(!body())
    });
    assert_eq!(child.wait(), Some(0));
}
