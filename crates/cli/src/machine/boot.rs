// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growing the kernel's pool for good, as at boot: in steps, so that progress can be told and a
//! signal ends it.
//!
//! A pool is never made smaller, and reserved pages stay reserved in every case: only the operator
//! shrinks the kernel's pool.

use book::config::Reserve;
use linux::{Result, Roots, hugetlb};
use units::Pages;

/// One step: 1 GiB takes the kernel up to a second where it has to move memory out of the way.
const STEP_BYTES: u64 = 1 << 30;

/// How far one pool has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReserveProgress {
    /// The pages that it has, used ones included and surplus ones not.
    pub(crate) pages: Pages,
    /// Whether the kernel gave less than it was asked for.
    pub(crate) is_short: bool,
}

/// Grows the pool until it has what `wanted` says, the kernel finds no more, or `go_on` says no,
/// which is told of each step.
///
/// Blocks while the kernel looks for pages: milliseconds on an idle machine, and seconds for each
/// GiB on one with scattered memory.
///
/// # Errors
/// EACCES without root, EINVAL for a size that can be had on the kernel's command line only, ENOENT
/// for a node or size that there is not.
pub(crate) fn grow(
    roots: &Roots,
    wanted: &Reserve,
    mut go_on: impl FnMut(ReserveProgress) -> bool,
) -> Result<ReserveProgress> {
    let (size, at) = (wanted.page_size, Some(wanted.node));
    let look = || hugetlb::configured(roots, size, at);
    let step = (STEP_BYTES / size.bytes()).max(1);
    let mut progress = ReserveProgress { pages: Pages(look()?), is_short: false };
    while go_on(progress) && !progress.is_short && progress.pages < wanted.pages {
        let next = (progress.pages.0 + step).min(wanted.pages.0);
        hugetlb::set_total(roots, size, at, next)?;
        let pages = look()?;
        progress = ReserveProgress { pages: Pages(pages), is_short: pages < next };
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use units::{Node, PageSize};

    /// A pool of 3 pages of 2 MiB that takes any size.
    fn tree(surplus: &str) -> (tempfile::TempDir, Roots, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().join("sys");
        let pool = sys.join("devices/system/node/node0/hugepages/hugepages-2048kB");
        fs::create_dir_all(&pool).unwrap();
        for (name, value) in [("nr", "3"), ("free", "0"), ("surplus", surplus)] {
            fs::write(pool.join(format!("{name}_hugepages")), value).unwrap();
        }
        let roots = Roots { sys, ..Roots::default() };
        (dir, roots, pool.join("nr_hugepages"))
    }

    fn wanted(pages: u64) -> Reserve {
        Reserve { node: Node(0), page_size: PageSize::MIB_2, pages: Pages(pages) }
    }

    #[test]
    fn pool_grows_in_steps_and_each_is_reported() {
        let (_dir, roots, total) = tree("0");
        let mut reported = Vec::new();
        let done = grow(&roots, &wanted(1100), |progress| {
            reported.push(progress.pages.0);
            true
        });
        assert_eq!(done.unwrap(), ReserveProgress { pages: Pages(1100), is_short: false });
        assert_eq!(reported, [3, 515, 1027, 1100]);
        assert_eq!(fs::read_to_string(total).unwrap(), "1100");
    }

    #[test]
    fn a_pool_that_is_large_enough_is_left_alone() {
        let (_dir, roots, total) = tree("0");
        let done = grow(&roots, &wanted(2), |_| true).unwrap();
        assert_eq!((done.pages, fs::read_to_string(total).unwrap().as_str()), (Pages(3), "3"));
    }

    // Promise P67.
    #[test]
    fn stopped_reserve_keeps_its_pages() {
        let (_dir, roots, total) = tree("0");
        let done = grow(&roots, &wanted(2000), |progress| progress.pages.0 < 500).unwrap();
        assert_eq!(done.pages, Pages(515));
        assert_eq!(fs::read_to_string(total).unwrap(), "515");
    }

    #[test]
    fn a_kernel_that_gives_less_is_asked_once() {
        // With two of its pages surplus the pool cannot show the size that is written.
        let (_dir, roots, _) = tree("2");
        let done = grow(&roots, &wanted(4), |_| true).unwrap();
        assert_eq!(done, ReserveProgress { pages: Pages(2), is_short: true });
    }
}
