// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of several threads by seed: what `tests/c/shim_threads.c` finds is the same untouched
//! and under the shim, with forks beside every call.

use super::differ::same_by_seed;

// Promise P101.
#[test]
fn threads_by_seed_find_the_same_under_the_shim() {
    same_by_seed("shim_threads", 200, 100);
}
