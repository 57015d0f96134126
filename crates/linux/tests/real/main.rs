// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's promises that prezero stands on, asked of this machine's kernel: on tmpfs and on
//! hugetlbfs of both page sizes. Needs root and about 4 GiB of memory that can become huge pages;
//! what cannot run is skipped and counted.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod block_dir;
mod block_file;
mod exclusive;
mod host;
mod lease;
mod mapping;
mod memory;
mod mount;
mod numa;
mod peer;
mod process;
mod unmap_events;
mod user_ns;
