// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/dev/hugepagectl`: ask how many pages are zero, zero more of them, be told when they run low.
//!
//! The interface, its errors and versions are described in `kernel/uapi/hugepagectl.h`; tested
//! against a kernel with the series in `tests/vm/kernel-provider.toml`.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use units::{Counts, Domain, Pages};
use zerocopy::IntoBytes;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::hugepagectl::{Argument, IoctlNumber, Query, WATCH_ZEROABLE, Watch, Zero};
use crate::raw;
use crate::roots::Roots;

/// Bytes of a query that asks how large the kernel's own struct is: more than any version has.
const PROBE_SIZE: u32 = 512;

/// What a call of [`Device::zero`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stepped {
    /// Pages that this call has zeroed.
    pub pages: Pages,
    /// Whether a signal ended it before it had zeroed any.
    pub interrupted: bool,
}

/// When a watched device is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFor {
    /// Below this number of zeroed pages; 0 ends watching.
    pub min_zeroed: Pages,
    /// Only while there is also a page to zero.
    pub only_if_zeroable: bool,
    /// The least time between two wakeups in milliseconds; 0 is the kernel's own 100.
    pub min_interval_ms: u32,
}

/// An open device. Each one watches at most one node and page size.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    path: PathBuf,
}

impl Device {
    /// Opens it to ask and to watch. [`Device::zero`] needs more.
    ///
    /// # Errors
    /// [`Error::is_not_found`](crate::Error::is_not_found) on a kernel that lacks it.
    pub fn open(roots: &Roots) -> Result<Self> {
        Self::open_at(&roots.dev.join("hugepagectl"))
    }

    /// Opens a file to ask and to watch that speaks the same interface elsewhere.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_at(path: &Path) -> Result<Self> {
        Self::open_as(path, OFlags::RDONLY, "O_RDONLY")
    }

    /// Opens it to zero, and for every other call.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::is_denied`](crate::Error::is_denied) without the right to
    /// write it.
    pub fn open_to_zero(roots: &Roots) -> Result<Self> {
        Self::open_to_zero_at(&roots.dev.join("hugepagectl"))
    }

    /// Opens a file to zero that speaks the same interface elsewhere.
    ///
    /// # Errors
    /// As [`Device::open_to_zero`].
    pub fn open_to_zero_at(path: &Path) -> Result<Self> {
        Self::open_as(path, OFlags::RDWR, "O_RDWR")
    }

    fn open_as(path: &Path, access: OFlags, name: &str) -> Result<Self> {
        // Opened non-blocking: another file in its place may be a FIFO.
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .or_call(|| format!("open({path:?}, {name}|O_CLOEXEC|O_NONBLOCK)"))
            .advise(
                Errno::NOENT,
                "a kernel with neither module nor series, or a container without the device",
            )
            .advise(Errno::ACCESS, "its mode says who may ask (read) and who may zero (write)")?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Every count of one domain except `lent`, which is unknown to the kernel.
    ///
    /// # Errors
    /// ENODEV: the node or its pages of that size are missing. ENOTTY: the file is something else.
    pub fn query(&self, domain: Domain) -> Result<Counts> {
        let (node, page_shift) = numbers(domain)?;
        let mut query = Query { node, page_shift, ..Query::default() };
        self.call(&mut query)?;
        Ok(query.counts())
    }

    /// How many bytes the kernel's own query has: 88 in the first version, more in later ones.
    ///
    /// # Errors
    /// As [`Device::query`]; E2BIG from a kernel with versions against the header's rules.
    pub fn query_size(&self, domain: Domain) -> Result<u32> {
        let (node, page_shift) = numbers(domain)?;
        let query = Query { size: PROBE_SIZE, node, page_shift, ..Query::default() };
        let mut bytes = [0; PROBE_SIZE as usize];
        bytes[..size_of::<Query>()].copy_from_slice(query.as_bytes());
        self.ioctl(IoctlNumber::number::<Query>(bytes.len()), &mut bytes, &query)?;
        let mut size = [0; 4];
        size.copy_from_slice(&bytes[..4]);
        Ok(u32::from_ne_bytes(size))
    }

    /// Zeroes up to `pages` free pages of one pool in the calling thread: on its CPUs, charged to
    /// its cgroup. Several callers share the pages, and each page is zeroed once.
    ///
    /// Blocks until they are done, or until other callers work on every dirty page that is left. A
    /// signal ends it within 64 KiB, and so does throttling by a cgroup. Fewer pages than asked for
    /// may leave dirty ones; 0 without `interrupted` means that none is left. Zeroed pages stay
    /// zeroed. A page cut short does not count, and the next caller continues at the cut.
    ///
    /// # Errors
    /// EPERM on a device that was not opened [to zero](Device::open_to_zero); ENODEV as for
    /// [`Device::query`], also when the node goes away.
    pub fn zero(&self, domain: Domain, pages: Pages) -> Result<Stepped> {
        let (node, page_shift) = numbers(domain)?;
        let mut zero = Zero { node, page_shift, pages: pages.0, ..Zero::default() };
        match self.call(&mut zero) {
            Ok(()) => Ok(Stepped { pages: Pages(zero.zeroed), interrupted: false }),
            Err(error) if error.errno() == Some(Errno::INTR) => {
                Ok(Stepped { pages: Pages::ZERO, interrupted: true })
            }
            Err(error) => {
                Err(error).advise(Errno::PERM, "zeroing needs the right to write this file")
            }
        }
    }

    /// From now on this device polls readable (`POLLIN`) while the condition holds, and
    /// `POLLERR | POLLHUP` once the node is gone. Replaces what it watched before.
    ///
    /// # Errors
    /// As [`Device::query`].
    pub fn watch(&self, domain: Domain, condition: WatchFor) -> Result<()> {
        let (node, page_shift) = numbers(domain)?;
        let mut watch = Watch {
            node,
            page_shift,
            flags: if condition.only_if_zeroable { WATCH_ZEROABLE } else { 0 },
            min_zeroed: condition.min_zeroed.0,
            min_interval_ms: condition.min_interval_ms,
            ..Watch::default()
        };
        self.call(&mut watch).advise(Errno::PERM, "who serves this file does not let you watch")
    }

    /// A call with a struct of the age that we know.
    fn call<T: Argument + fmt::Debug>(&self, argument: &mut T) -> Result<()> {
        argument.set_size(u32::try_from(size_of::<T>()).unwrap_or(u32::MAX));
        let asked = *argument;
        let number = IoctlNumber::number::<T>(size_of::<T>());
        self.ioctl(number, argument.as_mut_bytes(), &asked)
    }

    fn ioctl(&self, number: u32, bytes: &mut [u8], asked: &impl fmt::Debug) -> Result<()> {
        raw::hugepagectl(self.fd.as_fd(), number, bytes)
            .or_call(|| format!("ioctl({}, {number:#x}, {asked:?})", self.path.display()))
            .advise(Errno::NODEV, "there is no such node, or it can have no pages of that size")
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The two numbers by which the interface names a pool.
fn numbers(domain: Domain) -> Result<(i32, u32)> {
    let Domain { node, page_size } = domain;
    let number = i32::try_from(node.0)
        .map_err(|_| Error::invalid("node", node, "is larger than any that a kernel has"))?;
    Ok((number, page_size.bytes().trailing_zeros()))
}
