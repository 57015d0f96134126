// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that rustix lacks, each behind a safe function of the same name.
//!
//! # Safety
//!
//! The unsafe operation of this file is `libc::syscall` and its typed relatives `fcntl`, `ioctl`,
//! `getsockopt`. Two things can go wrong: the kernel writes past the end of a buffer, or reads a
//! mask past its end. So every buffer is a live slice or local of this file, its length is passed
//! from the same value, and lengths that the kernel counts in bits are derived from the slice's
//! length. Descriptors are borrowed for the call. No call here maps, unmaps or frees memory, and
//! none keeps a pointer after it returns.
#![expect(unsafe_code, reason = "system calls that rustix lacks")]

use std::cmp::Ordering;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_long, c_ulong, c_void};
use rustix::io::Errno;

use crate::hugepagectl::IoctlNumber;

/// `MPOL_F_NODE | MPOL_F_ADDR`: answer with the node of the page at an address.
const NODE_OF_ADDRESS: c_ulong = 1 | 2;

type Result<T> = std::result::Result<T, Errno>;

/// Bits set in an array of longs, the form in which the kernel takes sets of nodes and CPUs.
pub(crate) struct Mask(Vec<c_ulong>);

impl Mask {
    pub(crate) fn from_bits(bits: impl IntoIterator<Item = u32>) -> Self {
        let mut words = vec![0; 1];
        for bit in bits {
            let (word, shift) = (bit as usize / c_ulong::BITS as usize, bit % c_ulong::BITS);
            if word >= words.len() {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << shift;
        }
        Self(words)
    }

    pub(crate) fn bits(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.0).flat_map(|(index, word)| {
            (0..c_ulong::BITS)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| index * c_ulong::BITS + bit)
        })
    }

    fn byte_len(&self) -> usize {
        size_of_val(self.0.as_slice())
    }

    fn bit_len(&self) -> c_ulong {
        (self.byte_len() as c_ulong) * 8
    }
}

/// `set_mempolicy(mode, nodes, maxnode)` for the calling thread.
pub(crate) fn set_mempolicy(mode: c_int, nodes: &Mask) -> Result<()> {
    // The kernel reads maxnode - 1 bits, so one more than there are is passed.
    let bits = nodes.bit_len() + 1;
    // SAFETY: the kernel reads `bits - 1` bits from the mask, which is exactly its length.
    let ret = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.0.as_ptr(), bits) };
    check(ret).map(drop)
}

/// `get_mempolicy(&node, NULL, 0, address, MPOL_F_NODE | MPOL_F_ADDR)`: faults the page in.
pub(crate) fn node_of_address(address: *const c_void) -> Result<c_int> {
    let mut node: c_int = -1;
    // SAFETY: `node` is a live int; the mask is null with length 0; an address that is not mapped
    // gives EFAULT, the kernel does not follow it.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            ptr::null_mut::<c_ulong>(),
            0 as c_ulong,
            address,
            NODE_OF_ADDRESS,
        )
    };
    check(ret).map(|_| node)
}

/// `move_pages(0, count, addresses, NULL, status, 0)`: moves nothing; the node of each address, or
/// a negative errno where no page is in the page tables.
pub(crate) fn move_pages_query(addresses: &[*const c_void]) -> Result<Vec<c_int>> {
    let mut status: Vec<c_int> = vec![0; addresses.len()];
    // SAFETY: both arrays have `addresses.len()` elements; without a target array no page is moved;
    // addresses that are not mapped give a status, the kernel does not follow them.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as c_int,
            addresses.len() as c_ulong,
            addresses.as_ptr(),
            ptr::null::<c_int>(),
            status.as_mut_ptr(),
            0 as c_int,
        )
    };
    check(ret).map(|_| status)
}

/// `ioctl(fd, number, argument)` for the calls of [`crate::hugepagectl`]: each number encodes the
/// argument's length. On any other file: ENOTTY.
///
/// # Panics
/// If the number is of another interface, or says more bytes than the argument has.
pub(crate) fn hugepagectl(fd: BorrowedFd<'_>, number: u32, argument: &mut [u8]) -> Result<()> {
    let request = IoctlNumber::parse(number);
    assert!(request.is_ok_and(|r| r.size() <= argument.len()), "{number:#x} is not about it");
    let number = libc::c_ulong::from(number);
    // SAFETY: the descriptor is borrowed for the call. The number's type is the interface's own,
    // and its provider reads and writes at most the bytes that the number counts, which are there.
    let ret = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, argument.as_mut_ptr()) };
    check(ret.into()).map(drop)
}

/// `fcntl(fd, F_SETLEASE, kind)`.
pub(crate) fn set_lease(fd: BorrowedFd<'_>, kind: c_int) -> Result<()> {
    // SAFETY: the descriptor is borrowed for the call; F_SETLEASE takes an int.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) };
    check(ret.into()).map(drop)
}

/// `fcntl(fd, F_SETSIG, signal)`: the signal that tells the holder that its lease is broken.
pub(crate) fn set_lease_signal(fd: BorrowedFd<'_>, signal: c_int) -> Result<()> {
    // asm-generic/fcntl.h; libc does not export it for every target.
    const F_SETSIG: c_int = 10;
    // SAFETY: the descriptor is borrowed for the call; F_SETSIG takes an int.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, signal) };
    check(ret.into()).map(drop)
}

/// `sched_setscheduler(0, policy, {0})` for the calling thread.
pub(crate) fn sched_setscheduler(policy: c_int) -> Result<()> {
    let param = [0 as c_int; 1];
    // SAFETY: the kernel's `struct sched_param` is one int, read from `param`.
    let ret = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0 as c_int, policy, &raw const param)
    };
    check(ret).map(drop)
}

/// `sched_getscheduler(0)` of the calling thread.
pub(crate) fn sched_getscheduler() -> Result<c_int> {
    // SAFETY: takes a number only.
    let ret = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0 as c_int) };
    check(ret).and_then(|policy| c_int::try_from(policy).map_err(|_| Errno::OVERFLOW))
}

/// The kernel's `struct sched_attr` of 48 bytes, which every version since 3.14 takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchedAttr {
    pub(crate) size: u32,
    pub(crate) policy: u32,
    pub(crate) flags: u64,
    pub(crate) nice: i32,
    pub(crate) priority: u32,
    pub(crate) runtime: u64,
    pub(crate) deadline: u64,
    pub(crate) period: u64,
}

impl SchedAttr {
    const SIZE: u32 = 48;
}

const _: () = assert!(size_of::<SchedAttr>() == SchedAttr::SIZE as usize);

/// `sched_getattr(thread, &attr, size, 0)`.
pub(crate) fn sched_getattr(thread: c_int) -> Result<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most the given number of bytes, the size of `attr`. Its fields
    // are plain integers.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            thread,
            &raw mut attr,
            SchedAttr::SIZE,
            0 as libc::c_uint,
        )
    };
    check(ret).map(|_| attr)
}

/// `sched_setattr(0, &attr, 0)` for the calling thread.
pub(crate) fn sched_setattr(attr: SchedAttr) -> Result<()> {
    let attr = SchedAttr { size: SchedAttr::SIZE, ..attr };
    // SAFETY: the kernel reads `attr.size` bytes, which is the size of `attr`.
    let ret = unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0 as c_int, &raw const attr, 0 as libc::c_uint)
    };
    check(ret).map(drop)
}

/// `sched_setaffinity(0, size, cpus)` for the calling thread; rustix stops at 1024 CPUs.
pub(crate) fn sched_setaffinity(cpus: &Mask) -> Result<()> {
    // SAFETY: the kernel reads `byte_len()` bytes from the mask, which is exactly its length.
    let ret = unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, 0 as c_int, cpus.byte_len(), cpus.0.as_ptr())
    };
    check(ret).map(drop)
}

/// `sched_getaffinity(thread, size, cpus)`; 0 is the calling thread.
pub(crate) fn sched_getaffinity(thread: c_int) -> Result<Mask> {
    // The kernel answers EINVAL while the mask is shorter than its CPU count: 1024 to 65536 CPUs.
    let mut cpus = Mask(vec![0; 1024 / c_ulong::BITS as usize]);
    loop {
        // SAFETY: the kernel writes at most `byte_len()` bytes to the mask.
        let ret = unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, thread, cpus.byte_len(), cpus.0.as_mut_ptr())
        };
        match check(ret) {
            Err(Errno::INVAL) if cpus.bit_len() < 65_536 => {
                let words = cpus.0.len() * 2;
                cpus.0.resize(words, 0);
            }
            result => return result.map(|_| cpus),
        }
    }
}

/// `getsockopt(fd, SOL_SOCKET, SO_PEERCRED)`: pid (0 where the peer is in another pid namespace),
/// uid and gid. rustix gives a non-zero pid type, which that 0 does not fit.
pub(crate) fn peer_cred(fd: BorrowedFd<'_>) -> Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = socklen(size_of::<libc::ucred>())?;
    // SAFETY: the kernel writes at most `len` bytes, the size of `cred`. Its fields are plain ints.
    let ret = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    check(ret.into()).map(|_| cred)
}

/// `getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS)`: supplementary groups (Linux 4.13), and how many
/// there are. For more than there is room for ERANGE, upon which none was copied.
pub(crate) fn peer_groups(fd: BorrowedFd<'_>, room: &mut [u32]) -> Result<usize> {
    const SO_PEERGROUPS: c_int = 59;
    let mut len = socklen(size_of_val(room))?;
    // SAFETY: the kernel writes at most `len` bytes, the length of `room`, and sets `len`.
    let ret = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERGROUPS,
            room.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(ret.into()).map(|_| len as usize / size_of::<u32>())
}

/// `getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD)` (Linux 6.5).
pub(crate) fn peer_pidfd(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    const SO_PEERPIDFD: c_int = 77;
    let mut pidfd: c_int = -1;
    let mut len = socklen(size_of::<c_int>())?;
    // SAFETY: the kernel writes at most `len` bytes, the size of an int.
    let ret = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut len,
        )
    };
    check(ret.into())?;
    // SAFETY: on success the kernel installed a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// `ioctl(namespace, NS_GET_OWNER_UID)`: the user who made a user namespace.
pub(crate) fn owner_of_namespace(namespace: BorrowedFd<'_>) -> Result<u32> {
    let mut uid: libc::uid_t = u32::MAX;
    // SAFETY: the descriptor is borrowed for the call; the kernel writes one uid_t.
    let ret =
        unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_OWNER_UID as _, &raw mut uid) };
    check(ret.into()).map(|_| uid)
}

/// `ioctl(namespace, NS_GET_PARENT)`: the namespace it was made in, of those below the caller's.
pub(crate) fn parent_of_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed for the call, which takes no argument.
    let ret = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_PARENT as _) };
    check(ret.into())?;
    // SAFETY: on success the kernel installed a new descriptor, owned by this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(ret) })
}

/// `kcmp(first, second, KCMP_FILES)`: how the descriptor tables of two threads lie in an order that
/// holds until the next boot. Needs the rights of ptrace(2).
pub(crate) fn compare_descriptors(first: u32, second: u32) -> Result<Ordering> {
    const KCMP_FILES: c_int = 2;
    let none: c_ulong = 0;
    // SAFETY: the call takes numbers alone.
    let ret = unsafe { libc::syscall(libc::SYS_kcmp, first, second, KCMP_FILES, none, none) };
    match check(ret)? {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Errno::NOTSUP),
    }
}

fn socklen(bytes: usize) -> Result<libc::socklen_t> {
    bytes.try_into().map_err(|_| Errno::RANGE)
}

fn check(ret: c_long) -> Result<c_long> {
    if ret < 0 { Err(last_errno()) } else { Ok(ret) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
