// SPDX-License-Identifier: Apache-2.0 OR MIT
//! End to end over a kernel that knows its zeroed pages: every verb and the policy, with the real
//! binary. On other kernels each test is skipped; the virtual machines `kernel-provider*` run them.

mod crash;
mod lending;
mod policy;
mod storm;
mod support;
mod verbs;
