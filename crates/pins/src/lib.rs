// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a process pins pages of a hugetlbfs file.
//!
//! `vmsplice`, `io_uring` registered buffers, `O_DIRECT`, VFIO and RDMA hold *pages*, not files:
//! the write lease on a file is granted while they still read and write its memory. But each of
//! them takes a reference of the page, and an unpinned page has a known number of them: 512 for a
//! page of 2 MiB on Linux 6.18, one per base page, all the page cache's. [`PinProbe`] reads these
//! numbers with a BPF program of type `syscall`, which is hooked to nothing.
//!
//! [`PinProbe::prove`] puts the three looks together: the file is closed, unmapped and unpinned
//! everywhere. Only it makes an [`Unheld`]. [`PinProbe::opened`] is the first of them alone.
//!
//! What it needs: Linux 5.17 or later (`bpf_loop`), the kernel's BTF, `CAP_BPF` and `CAP_PERFMON`,
//! and a kernel that is not locked down against reading its memory. Where any of it lacks,
//! [`PinProbe::load`] says so and nothing else changes.
//!
//! Nothing is assumed of a kernel: [`PinProbe::measure`] looks at a page that was never lent, pins
//! it itself, and must see exactly that.
//!
//! Why a crate of its own: libbpf is linked here, and programs that link prezero's library, or run
//! under its shim, can do without it.

mod measure;
mod probe;
mod proof;

pub use measure::Rest;
pub use probe::{Error, Inode, PinProbe, References, Result, Unavailable};
pub use proof::{Holder, LentPages, Opened, Unheld};
