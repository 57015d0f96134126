// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that do not outlive this one.
//!
//! # Safety
//!
//! The one unsafe call runs a function in the child between `fork` and `execve`, where nothing may
//! be called that is not async-signal-safe: it makes one system call and touches no memory of the
//! parent's.
#![expect(unsafe_code, reason = "a child that is ended with its parent")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Sends the child a signal when the thread that starts it ends, however that comes: what waits for
/// ever would keep its huge pages if this process is killed.
pub(crate) fn end_with_parent(command: &mut Command, signal: Signal) -> &mut Command {
    let with_parent = move || Ok(set_parent_process_death_signal(Some(signal))?);
    // SAFETY: the function makes the system call prctl(PR_SET_PDEATHSIG) and nothing else; an
    // error is turned into an `io::Error` without allocating. The standard library runs it after it
    // has changed the child's user, which would undo it.
    unsafe { command.pre_exec(with_parent) }
}
