// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory policies.
//!
//! # Safety
//!
//! As [`super`] has it.
#![expect(unsafe_code, reason = "system calls that write values of ours")]

use libc::c_int;

use super::{Result, call, int, plain};

/// The calling thread's memory policy: its mode, and its first 1024 nodes.
pub(crate) fn memory_policy() -> Result<(c_int, [u64; 16])> {
    let (mut mode, mut nodes) = (0 as c_int, [0_u64; 16]);
    // One more than there are, since the kernel subtracts one.
    let bits = 16 * 64 + 1;
    let args = [(&raw mut mode).addr(), (&raw mut nodes).addr(), bits, 0, 0, 0];
    // SAFETY: the kernel writes an int, and at most 1024 bits to an array of that size.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok((mode, nodes))
}

/// The memory policy of the mapping at an address.
pub(crate) fn range_policy(address: usize) -> Result<(c_int, [u64; 16])> {
    /// `MPOL_F_ADDR`.
    const OF_ADDRESS: usize = 1 << 1;
    let (mut mode, mut nodes) = (0 as c_int, [0_u64; 16]);
    let places = [(&raw mut mode).addr(), (&raw mut nodes).addr()];
    let args = [places[0], places[1], 16 * 64 + 1, address, OF_ADDRESS, 0];
    // SAFETY: the kernel writes an int, and at most 1024 bits to an array of that size.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok((mode, nodes))
}

/// `mbind`; the program answers for the pointer to its nodes, which the kernel checks.
pub(crate) fn mbind(
    address: usize,
    bytes: usize,
    mode: c_int,
    nodes: usize,
    most: usize,
    flags: libc::c_uint,
) -> Result<usize> {
    plain(libc::SYS_mbind, [address, bytes, int(mode), nodes, most, flags as usize])
}

/// The nodes that the calling thread's cpuset allows it.
pub(crate) fn allowed_nodes() -> Result<[u64; 16]> {
    /// `MPOL_F_MEMS_ALLOWED`.
    const ALLOWED: usize = 1 << 2;
    let mut nodes = [0_u64; 16];
    let args = [0, (&raw mut nodes).addr(), 16 * 64 + 1, 0, ALLOWED, 0];
    // SAFETY: the kernel writes at most 1024 bits to an array of that size.
    unsafe { call(libc::SYS_get_mempolicy, args) }?;
    Ok(nodes)
}

/// The node of the CPU that the thread runs on.
pub(crate) fn current_node() -> Option<u32> {
    let mut node = 0_u32;
    // SAFETY: the kernel writes one unsigned int; the other pointers are null.
    let result = unsafe { call(libc::SYS_getcpu, [0, (&raw mut node).addr(), 0, 0, 0, 0]) };
    result.is_ok().then_some(node)
}
