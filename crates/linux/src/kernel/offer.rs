// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The offer of this kernel, found out by asking it instead of by its version.
//!
//! Support is a promise with a number: a program at level n knows all levels below it. The kernel's
//! level is its answer, ours is [`Support::OURS`], and both use the lesser of the two. So an old
//! prezero on a new kernel and a new one on an old kernel both work. `docs/reference/kernels.md` is
//! the table.

use std::cmp::Ordering;
use std::fmt;

use units::{Domain, Pages};

use super::device::{Device, WatchFor};
use super::files;
use super::origin::{self, Origin};
use crate::error::Result;
use crate::hugepagectl::{Argument, Query};
use crate::hugetlb;
use crate::numa;
use crate::roots::Roots;

/// What a kernel's pool can do, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// It knows free pages only: the daemon owns the ready ones.
    Stock,
    /// The kernel knows its zero pages. The number is the version of the uapi: the query's struct
    /// has 88 bytes in version 0 and 104 in version 1, and every later version adds its fields.
    Zeroed(u32),
}

impl Support {
    /// What this prezero knows how to use.
    pub const OURS: Self = Self::Zeroed(1);

    /// The version with a query of `bytes` bytes, if there is one.
    ///
    /// An unknown version is larger than ours, and counts as the version after ours.
    fn from_query_size(bytes: u32) -> Option<Self> {
        let bytes = bytes as usize;
        match bytes.cmp(&size_of::<Query>()) {
            Ordering::Less => (bytes >= Query::SIZE_VER0).then_some(Self::Zeroed(0)),
            Ordering::Equal => Some(Self::Zeroed(1)),
            Ordering::Greater => Some(Self::Zeroed(2)),
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stock => f.write_str("stock"),
            Self::Zeroed(version) => write!(f, "zeroed pages, version {version}"),
        }
    }
}

/// The findings, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What the kernel offers.
    pub kernel: Support,
    /// Bytes of the kernel's query, where there is a device.
    pub query_bytes: Option<u32>,
    /// Whether the files are beside every pool.
    pub files: bool,
    /// Whether a watch can be told to wait for something to zero; `None` if that may not be tried.
    pub watch_zeroable: Option<bool>,
    /// Why it is stock although part of the interface is there.
    pub missing: Option<&'static str>,
    /// The module or the series, for any kernel but stock.
    pub origin: Option<Origin>,
}

impl Offer {
    /// The level in use: the lesser of the kernel's level and ours.
    pub fn effective(&self) -> Support {
        self.kernel.min(Support::OURS)
    }

    fn stock(files: bool, missing: Option<&'static str>) -> Self {
        let kernel = Support::Stock;
        Self { kernel, query_bytes: None, files, watch_zeroable: None, missing, origin: None }
    }
}

/// Asks this kernel. Changes nothing.
///
/// # Errors
/// Unreadable nodes and page sizes; a stock kernel is no error.
pub fn probe(roots: &Roots) -> Result<Offer> {
    let nodes = numa::nodes(roots)?;
    let sizes = hugetlb::page_sizes(roots)?;
    let domains: Vec<_> = nodes
        .iter()
        .flat_map(|node| {
            sizes.iter().map(|size| Domain { node: *node, page_size: *size }).collect::<Vec<_>>()
        })
        .collect();
    let files = !domains.is_empty() && domains.iter().all(|at| files::exist(roots, *at));
    let Some(domain) = domains.first().copied() else { return Ok(Offer::stock(false, None)) };
    let device = match Device::open(roots) {
        Ok(device) => device,
        Err(_) if files => {
            let missing = "the files are there, but /dev/hugepagectl cannot be opened";
            return Ok(Offer::stock(true, Some(missing)));
        }
        Err(_) => return Ok(Offer::stock(false, None)),
    };
    let offer = ask(&device, domain, files);
    let origin = match offer.kernel {
        Support::Stock => None,
        Support::Zeroed(_) => Some(origin::read(roots)?),
    };
    Ok(Offer { origin, ..offer })
}

/// The same of one device, which may be any file.
pub(super) fn ask(device: &Device, domain: Domain, files: bool) -> Offer {
    let Ok(bytes) = device.query_size(domain) else {
        return Offer::stock(files, Some("/dev/hugepagectl does not answer HUGEPAGECTL_QUERY"));
    };
    let Some(kernel) = Support::from_query_size(bytes) else {
        return Offer::stock(files, Some("/dev/hugepagectl answers with less than version 0 has"));
    };
    // Watches nothing, and an unknown flag is still refused.
    let nothing = WatchFor { min_zeroed: Pages::ZERO, only_if_zeroable: true, min_interval_ms: 0 };
    let watch_zeroable = match device.watch(domain, nothing) {
        Ok(()) => Some(true),
        Err(error) if error.is_denied() => None,
        Err(_) => Some(false),
    };
    Offer { kernel, query_bytes: Some(bytes), files, watch_zeroable, missing: None, origin: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Node, PageSize};

    #[test]
    fn the_lesser_of_two_levels_is_used() {
        let offer = |kernel| Offer { kernel, ..Offer::stock(true, None) };
        assert_eq!(offer(Support::Stock).effective(), Support::Stock);
        assert_eq!(offer(Support::Zeroed(0)).effective(), Support::Zeroed(0));
        assert_eq!(offer(Support::Zeroed(7)).effective(), Support::OURS);
    }

    #[test]
    fn a_querys_size_says_its_version() {
        assert_eq!(Support::from_query_size(80), None);
        assert_eq!(Support::from_query_size(88), Some(Support::Zeroed(0)));
        assert_eq!(Support::from_query_size(104), Some(Support::OURS));
        assert!(Support::from_query_size(112) > Some(Support::OURS));
    }

    #[test]
    fn a_file_that_is_no_device_is_stock_and_says_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = Device::open_to_zero_at(file.path()).unwrap();
        let offer = ask(&device, Domain { node: Node(0), page_size: PageSize::MIB_2 }, false);
        assert_eq!(offer.kernel, Support::Stock);
        assert!(offer.missing.unwrap().contains("HUGEPAGECTL_QUERY"));
    }
}
