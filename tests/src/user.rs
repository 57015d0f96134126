// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user other than root.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use testkit::child::fork;

/// The number of user and group `nobody`.
pub const NO_USER: u32 = 65534;

/// Runs `body` as user and group `nobody`; it must return true.
///
/// # Panics
/// If it does not, or without root.
pub fn as_other_user(body: impl FnOnce() -> bool) {
    let child = fork(|_| {
        nix::unistd::setgroups(&[]).expect("root");
        nix::unistd::setgid(NO_USER.into()).expect("root");
        nix::unistd::setuid(NO_USER.into()).expect("root");
        i32::from(!body())
    });
    assert_eq!(child.wait(), Some(0));
}

/// Runs `body` on a thread of its own with user and group `number` and no further groups: sockets
/// that it connects are that user's, also in other hands.
///
/// # Panics
/// If it does, or without root.
pub fn run_as_user<T: Send>(number: u32, body: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user().expect("root");
            body()
        });
        thread.join().expect("the thread of another user")
    })
}
