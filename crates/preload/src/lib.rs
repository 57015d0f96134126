// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The preload shim: programs as they are get ready huge pages.
//!
//! Loaded by `LD_PRELOAD` (`prezero run -- CMD` sets that), it stands before the C library's calls
//! that ask for huge pages and answers them with a loan if it can keep what the call promises. In
//! every other case the untouched call is made, and `PREZERO_SHIM_LOG` says why.
//!
//! - [`calls`] are the exported functions: what is asked for, and the untouched call. Those that
//!   take descriptors are in [`memfd_calls`] and [`passing`].
//! - [`anonymous`] serves `mmap(MAP_ANONYMOUS | MAP_HUGETLB)`, shared and private.
//! - [`private`] keeps what private memory promises, [`fork`] its copies for a child; [`stays`] is
//!   what no child is to have.
//! - [`places`] knows which files are lent, and moves rows of them.
//! - [`memfd`] serves `memfd_create(MFD_HUGETLB)` when its size becomes known. [`bare`] has those
//!   that are made by number, and [`exchange`] gives a served one up again, with its content.
//! - [`rebind`] puts other memory in the place of what `mbind` wants elsewhere.
//! - [`lookup`] finds them for those who ask the C library's own handle.
//! - [`passing`] notices what is passed on to other processes.
//! - [`counts`] answers those who look how many huge pages are free.
//! - [`segment`] serves `shmget(SHM_HUGETLB)` where the operator allows it.
//! - [`daemon`] asks for loans, in bounded time; [`policy`] says from which nodes.
//! - [`guard`] is the one lock; behind it no signal, no cancellation, and no allocator of the
//!   program's ([`ALLOCATOR`]).
//! - [`next`] passes a program's own calls on to who stands behind this library.
//! - [`raw`] are the system calls themselves; [`defect`] is how a panic ends.
//!
//! # Whose the memory is
//!
//! A loan is held by its memory ([`client::Hold::Memory`]): it lasts as long as
//! somebody maps it or has it open, in this process, in its children, or wherever a descriptor was
//! passed to. The shim keeps no descriptor, so a program that closes all of them loses nothing,
//! and `munmap`, `exec`, exit and SIGKILL end a loan without the shim's help.

mod anonymous;
pub mod bare;
pub mod calls;
mod config;
mod copying;
pub mod counts;
mod daemon;
mod defect;
mod exchange;
mod fork;
mod guard;
pub mod lookup;
mod maps;
mod memfd;
pub mod memfd_calls;
mod next;
pub mod passing;
mod places;
mod policy;
mod private;
mod raw;
mod rebind;
mod say;
mod segment;
mod stays;
mod unlinked;

/// Where everything here allocates. Memory comes from `mmap` in pieces of 64 KiB and more.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
