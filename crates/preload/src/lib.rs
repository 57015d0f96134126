// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The preload shim: unmodified programs get ready huge pages.
//!
//! Loaded by `LD_PRELOAD` (`prezero run -- CMD` sets that), it stands before the C library's calls
//! that ask for huge pages. It answers them with a loan if the loan keeps what the call promises.
//! In every other case the untouched call is made, and `PREZERO_SHIM_LOG` says why.
//!
//! | room | what it does |
//! |---|---|
//! | [`memory_calls`], [`memfd_calls`], [`segment_calls`] | the exported functions |
//! | [`fd_passing`], [`raw_syscalls`] | `sendmsg`; `syscall` and `prctl` |
//! | [`meminfo_calls`] | `read` of `/proc/meminfo`, with `PREZERO_COUNT_READY=1` |
//! | [`lookup`], [`init`] | `dlsym`; the constructor and fork |
//! | [`anonymous`] | serves `mmap(MAP_ANONYMOUS / MAP_HUGETLB)` |
//! | [`private`] | what private memory promises, with `PREZERO_PRIVATE=1` |
//! | [`memfd`] | serves memfds, and unlinked files in a directory of huge pages |
//! | [`segment`] | serves `shmget(SHM_HUGETLB)`, with `PREZERO_SHM=1` |
//! | [`handback`] | pages for a call of the kernel's that found none |
//! | [`rebind`] | other memory in the place of what `mbind` wants elsewhere |
//! | [`guard`] | the one lock: no signal, no cancellation, no allocator of the program's |
//! | [`daemon`], [`policy`] | asks for loans in bounded time, from the nodes of the policy |
//! | [`lent_files`], [`lent_ranges`] | what is lent: files, addresses |
//! | [`watched_fds`], [`sharing`] | descriptors of interest; forks and passed descriptors |
//! | [`next`] | the registry of symbols, and the function behind each |
//! | [`seccomp`], [`config`], [`say`], [`defect`] | filters, environment, log, panics |
//! | [`maps`], [`raw`] | what the kernel says; the system calls |
//!
//! # Whose the memory is
//!
//! A loan is held by its memory ([`client::Hold::Memory`]): it lasts while any
//! process maps it or has it open. The shim keeps no descriptor, so a program that closes all of
//! them loses nothing. `munmap`, `exec`, exit and SIGKILL end a loan without the shim's help.

mod anonymous;
mod config;
mod daemon;
mod defect;
pub mod fd_passing;
mod guard;
mod handback;
mod init;
mod lent_files;
mod lent_ranges;
pub mod lookup;
mod maps;
mod memfd;
pub mod memfd_calls;
pub mod meminfo_calls;
pub mod memory_calls;
mod next;
mod policy;
mod private;
mod raw;
pub mod raw_syscalls;
mod rebind;
mod say;
mod seccomp;
mod segment;
pub mod segment_calls;
mod sharing;
mod watched_fds;

/// Where everything here allocates. Memory comes from `mmap` in pieces of 64 KiB and more.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The unwinder, linked statically: as a library of its own it costs each start of a program about
/// as much as all that this library does there.
mod unwinder {
    #![expect(unsafe_code, reason = "names a function of the compiler's library")]

    #[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
    unsafe extern "C" {
        fn _Unwind_Backtrace();
    }

    /// Makes the linker take the archive before it comes to the shared library.
    #[used]
    static FIRST: unsafe extern "C" fn() = _Unwind_Backtrace;
}
