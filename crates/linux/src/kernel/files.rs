// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three files per node and page size, beside `nr_hugepages`:
//! `zeroable_hugepages`, `zeroed_hugepages` and `zeroed_low`.
//!
//! Described in the series' `Documentation/ABI/testing/sysfs-devices-node-hugepages-zero`. The
//! daemon asks the device for numbers, since there they belong to one instant, and uses these files
//! as events. A file that was read polls `POLLPRI | POLLERR` at the next change, at most each 100
//! ms, and every change is reported. A userspace provider's tree has the same files under the same
//! names.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use units::Domain;

use crate::error::{Error, ErrorContext, Result};
use crate::hugetlb::pool_dir;
use crate::roots::Roots;

/// Which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Pages that could be zeroed now.
    Zeroable,
    /// Pages known to be zero.
    Zeroed,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::Zeroable => "zeroable_hugepages",
            Self::Zeroed => "zeroed_hugepages",
        }
    }
}

/// One open file of numbers, to be polled for `POLLPRI | POLLERR` between two reads.
#[derive(Debug)]
pub struct CountFile {
    file: File,
    path: PathBuf,
}

impl CountFile {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::is_not_found`] where the kernel lacks the series, the node or the page size.
    pub fn open(roots: &Roots, domain: Domain, name: Name) -> Result<Self> {
        let path = pool_dir(roots, domain.page_size, Some(domain.node)).join(name.as_str());
        let file = File::open(&path).or_call(|| format!("open({path:?}, O_RDONLY)"))?;
        Ok(Self { file, path })
    }

    /// The number now. From this read on the file polls for the next change.
    ///
    /// # Errors
    /// ENODEV once the node is gone.
    pub fn read(&mut self) -> Result<u64> {
        let mut text = String::new();
        self.file
            .rewind()
            .and_then(|()| self.file.read_to_string(&mut text))
            .or_call(|| format!("read({:?})", self.path))?;
        text.trim().parse().map_err(|_| Error::malformed(&self.path, "a number of pages", &text))
    }
}

impl AsFd for CountFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether the files are there for that pool.
pub fn exist(roots: &Roots, domain: Domain) -> bool {
    let dir = pool_dir(roots, domain.page_size, Some(domain.node));
    [Name::Zeroable, Name::Zeroed].iter().all(|name| dir.join(name.as_str()).exists())
}
