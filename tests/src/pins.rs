// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What pins pages of lent memory, so that the kernel writes to them after their mapping is gone.
//!
//! # Safety
//!
//! Every buffer is a live local or slice, or a [`Mapping`] that outlives the call, and its length
//! is passed from the same value. The kernel keeps a reference to the pages of a mapping after the
//! call, which is the purpose of this file. It writes through it only on a caller's request, to
//! memory that no Rust value has then.
#![expect(unsafe_code, reason = "system calls that pin pages")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use io_uring::IoUring;
use libc::c_int;
use linux::Mapping;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The pinned part of a page.
pub const PINNED: usize = 4096;

fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Puts a page of lent memory into a pipe without copying it: the pipe holds the page from then on.
///
/// # Errors
/// The kernel's.
pub fn pin_in_pipe(pipe: impl AsFd, memory: &Mapping) -> io::Result<()> {
    let piece = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: PINNED };
    // SAFETY: the one iovec describes the first bytes of a live mapping.
    let ret = unsafe { libc::vmsplice(pipe.as_fd().as_raw_fd(), &raw const piece, 1, 0) };
    check(ret as i64).map(drop)
}

/// Has the kernel take a page of lent memory for broken (`MADV_HWPOISON`, root's): who
/// touches the page later is killed by SIGBUS, on some kernels the caller at once. The page is lost
/// until the machine is booted again.
///
/// # Errors
/// EINVAL without `CONFIG_MEMORY_FAILURE`.
pub fn break_page(memory: &Mapping, at: usize) -> io::Result<()> {
    assert!(at < memory.len(), "{at} is no byte of the mapping");
    let start = memory.as_ptr().wrapping_add(at).cast();
    // SAFETY: a page inside of a live mapping.
    check(i64::from(unsafe { libc::madvise(start, PINNED, libc::MADV_HWPOISON) })).map(drop)
}

/// A ring that has the mapping's first bytes registered: they are pinned as long as it lives.
///
/// # Errors
/// The kernel's.
pub fn pin_in_ring(memory: &Mapping) -> io::Result<IoUring> {
    let ring = IoUring::new(4)?;
    let piece = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: PINNED };
    // SAFETY: the iovec describes a live mapping; the kernel pins its pages, whatever becomes of
    // it.
    unsafe { ring.submitter().register_buffers(&[piece]) }?;
    Ok(ring)
}

fn complete(ring: &mut IoUring, entry: &io_uring::squeue::Entry) -> io::Result<()> {
    // SAFETY: the buffer is the registered one, which the kernel holds; the descriptor is open.
    unsafe { ring.submission().push(entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().map_or(-1, |done| done.result());
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// Has the ring copy the bytes of its registered buffer, `at` which it was mapped, to a pipe.
///
/// # Errors
/// The kernel's.
pub fn read_pinned(ring: &mut IoUring, at: usize, into: impl AsFd) -> io::Result<()> {
    let into = io_uring::types::Fd(into.as_fd().as_raw_fd());
    let length = u32::try_from(PINNED).map_err(io::Error::other)?;
    complete(ring, &io_uring::opcode::WriteFixed::new(into, at as *const u8, length, 0).build())
}

/// Has the ring fill its registered buffer, `at` which it was mapped, from a pipe.
///
/// # Errors
/// The kernel's.
pub fn write_pinned(ring: &mut IoUring, at: usize, from: impl AsFd) -> io::Result<()> {
    let from = io_uring::types::Fd(from.as_fd().as_raw_fd());
    let length = u32::try_from(PINNED).map_err(io::Error::other)?;
    complete(ring, &io_uring::opcode::ReadFixed::new(from, at as *mut u8, length, 0).build())
}

/// Whether this kernel has AF_XDP.
#[must_use]
pub fn has_packet_sockets() -> bool {
    packet_socket().is_ok()
}

fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, kind, 0) }.into())?;
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A packet socket that has all of the memory as its frames' (AF_XDP): pinned as long as it lives.
///
/// # Errors
/// The kernel's: EAFNOSUPPORT where it is built without.
pub fn pin_in_packet_socket(memory: &Mapping) -> io::Result<OwnedFd> {
    // include/uapi/linux/if_xdp.h: address, length, chunk size, headroom, flags, metadata's length.
    #[repr(C)]
    struct Registration {
        address: u64,
        length: u64,
        chunk: u32,
        headroom: u32,
        flags: u32,
        metadata: u32,
    }
    const SOL_XDP: c_int = 283;
    const XDP_UMEM_REG: c_int = 4;
    let socket = packet_socket()?;
    let registration = Registration {
        address: memory.as_ptr().addr() as u64,
        length: memory.len() as u64,
        chunk: 4096,
        headroom: 0,
        flags: 0,
        metadata: 0,
    };
    let length = libc::socklen_t::try_from(size_of::<Registration>()).map_err(io::Error::other)?;
    let at = (&raw const registration).cast();
    // SAFETY: a live struct of that length; the range in it is a live mapping's.
    let ret = unsafe { libc::setsockopt(socket.as_raw_fd(), SOL_XDP, XDP_UMEM_REG, at, length) };
    check(ret.into())?;
    Ok(socket)
}

/// Reads from `file` into the mapping's first bytes and does not return before the kernel has
/// written them, whatever becomes of the mapping.
///
/// # Errors
/// The kernel's.
pub fn read_into(file: impl AsFd, memory: usize) -> io::Result<usize> {
    let fd = file.as_fd().as_raw_fd();
    let at = std::ptr::with_exposed_provenance_mut(memory);
    // SAFETY: the address is a mapping's that nothing of Rust's points into; if it is gone, the
    // kernel says EFAULT.
    let ret = unsafe { libc::pread(fd, at, PINNED, 0) };
    check(ret as i64).map(|read| usize::try_from(read).unwrap_or_default())
}

/// The command without the right to ask for programs in the kernel: bpf(2) is EPERM to it.
///
/// # Panics
/// If the filter is none.
#[must_use]
pub fn without_bpf(mut command: Command) -> Command {
    let filter = SeccompFilter::new(
        [(libc::SYS_bpf, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        std::env::consts::ARCH.try_into().expect("an architecture with filters"),
    );
    let filter: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    let apply = move || seccompiler::apply_filter(&filter).map_err(io::Error::other);
    // SAFETY: only system calls between fork and exec; the filter was made before.
    unsafe { command.pre_exec(apply) };
    command
}
