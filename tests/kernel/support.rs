// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon over the kernel's pool, what that kernel says of it, and other programs that take
//! pages.

use linux::Mapping;
use linux::kernel::{Device, Support, offer};
use linux::{BlockFile, Roots};
use prezero_tests::{Daemon, Page};
use testkit::{hugepages, skip_always};
use units::{Counts, Domain, Node};

/// Whether this kernel has the series; if not, that is a counted skip.
pub(crate) fn has_series() -> bool {
    let offer = offer::probe(&Roots::default()).expect("a kernel can be asked");
    if offer.effective() == Support::Stock {
        skip_always("this kernel lacks the series");
        return false;
    }
    true
}

/// Whether the daemon can see the users of a file of huge pages: by a lease, which Linux 7.3 always
/// refuses there, or by its program that sees pins.
pub(crate) fn shows_descriptors(daemon: &Daemon) -> bool {
    let log = daemon.log();
    log.contains("pins are seen") || !log.contains("this kernel grants no leases")
}

/// A daemon with one pool of dirty pages on node 0.
pub(crate) fn daemon(page: Page, pages: u64, fields: &str) -> Option<Daemon> {
    if !has_series() {
        return None;
    }
    let guard = hugepages::reserve_all(&[(page.size(), Some(Node(0)), pages)])?;
    soil_pool(page, pages);
    Some(Daemon::start_with(Some(guard), &page.pool(fields), &[]))
}

/// Makes every free page of node 0 dirty, whatever earlier tests left.
pub(crate) fn soil_pool(page: Page, pages: u64) {
    let program = Program::take(page, pages);
    program.memory.fill(0..program.memory.len(), 0x5A);
    drop(program);
    let counts = kernel(page, 0);
    assert_eq!((counts.ready.0, counts.zeroable.0), (0, pages), "{counts:?}");
}

/// What the kernel says of its pool.
pub(crate) fn kernel(page: Page, node: u32) -> Counts {
    let device = Device::open(&Roots::default()).expect("a kernel with the series");
    device.query(Domain { node: Node(node), page_size: page.size() }).expect("a pool of that node")
}

/// A program without knowledge of prezero that has this number of huge pages of node 0.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) memory: Mapping,
}

impl Program {
    pub(crate) fn take(page: Page, pages: u64) -> Self {
        Self::try_take(page, pages).expect("free pages")
    }

    /// The same where there may be none left.
    pub(crate) fn try_take(page: Page, pages: u64) -> linux::Result<Self> {
        use rustix::fs::MemfdFlags;
        let size = match page {
            Page::Mib2 => MemfdFlags::HUGE_2MB,
            Page::Gib1 => MemfdFlags::HUGE_1GB,
        };
        let file = rustix::fs::memfd_create("program", MemfdFlags::HUGETLB | size);
        let file = BlockFile::from(file.expect("a memfd of huge pages"));
        let bytes = page.times(pages).0;
        file.set_len(bytes).expect("whole pages");
        linux::numa::bind_thread_to(Node(0)).expect("node 0 has memory");
        let memory = Mapping::map(&file, bytes, page.size());
        let memory = memory.and_then(|memory| memory.populate().map(|()| memory));
        linux::numa::reset_policy().expect("the default policy");
        Ok(Self { memory: memory? })
    }
}
