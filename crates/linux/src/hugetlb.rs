// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's hugetlb pools: which page sizes exist, how many pages, how many are free.
//!
//! Read from `/sys/kernel/mm/hugepages` for the whole machine and from
//! `/sys/devices/system/node/nodeN/hugepages` for one node (the kernel's
//! `admin-guide/mm/hugetlbpage.rst`). The files are read one after the other, so a set of counters
//! is no snapshot: `free` may be a moment older than `total`.

use std::fs::File;
use std::path::{Path, PathBuf};

use units::{Node, PageSize};

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::files;
use crate::roots::Roots;

/// The pages of one size, on one node or on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugetlbCounters {
    /// All pages of the pool, lent, mapped, reserved or free; surplus pages included.
    pub total: u64,
    /// Pages outside all files and mappings; some may be promised, see `reserved`.
    pub free: u64,
    /// Pages beyond the configured size, which vanish when freed.
    pub surplus: u64,
    /// Free pages promised to existing mappings; the kernel counts them for the whole machine only.
    pub reserved: Option<u64>,
}

impl HugetlbCounters {
    /// Free and unpromised pages.
    pub fn unreserved_free(&self) -> u64 {
        self.free.saturating_sub(self.reserved.unwrap_or(0))
    }

    /// The configured size of the pool, surplus pages excluded.
    pub fn configured(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }
}

/// The hugetlb page sizes of this kernel, smallest first; empty where it was built without them.
pub fn page_sizes(roots: &Roots) -> Result<Vec<PageSize>> {
    let dir = roots.sys.join("kernel/mm/hugepages");
    let names = match files::names(&dir) {
        Ok(names) => names,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut sizes = Vec::new();
    for name in &names {
        let size = name
            .strip_prefix("hugepages-")
            .and_then(|rest| rest.strip_suffix("kB"))
            .and_then(|kib| kib.parse().ok())
            .and_then(PageSize::from_kib)
            .ok_or_else(|| Error::malformed(&dir, "names like hugepages-2048kB", name))?;
        sizes.push(size);
    }
    sizes.sort();
    Ok(sizes)
}

/// The counters of one page size, of `node` or of the whole machine.
///
/// # Errors
/// [`Error::is_not_found`] where the kernel lacks this page size or node.
pub fn counters(roots: &Roots, page: PageSize, node: Option<Node>) -> Result<HugetlbCounters> {
    Meter::open(roots, page, node)?.read()
}

/// The size that the pool of `node`, or of the machine, is configured to have: what
/// [`set_total`] sets. Surplus pages are programs' own, and vanish with them.
///
/// # Errors
/// Those of [`counters`].
pub fn configured(roots: &Roots, page: PageSize, node: Option<Node>) -> Result<u64> {
    counters(roots, page, node).map(|now| now.configured())
}

/// The counters of one page size, by files that stay open: every open or close of a sysfs file
/// takes one lock, shared by all processes.
#[derive(Debug)]
pub struct Meter {
    total: Number,
    free: Number,
    surplus: Number,
    reserved: Option<Number>,
}

/// A file that is one number.
#[derive(Debug)]
struct Number(PathBuf, File);

impl Meter {
    /// Of `node`, or of the whole machine.
    ///
    /// # Errors
    /// [`Error::is_not_found`] where the kernel lacks this page size or node.
    pub fn open(roots: &Roots, page: PageSize, node: Option<Node>) -> Result<Self> {
        let dir = pool_dir(roots, page, node);
        Ok(Self {
            total: Number::open(&dir, "nr_hugepages")?,
            free: Number::open(&dir, "free_hugepages")?,
            surplus: Number::open(&dir, "surplus_hugepages")?,
            reserved: match node {
                None => Some(Number::open(&dir, "resv_hugepages")?),
                Some(_) => None,
            },
        })
    }

    /// The present values. Takes no lock that others hold.
    ///
    /// # Errors
    /// Those of `pread`: ENODEV once the node is gone.
    pub fn read(&self) -> Result<HugetlbCounters> {
        let Self { total, free, surplus, reserved } = self;
        Ok(HugetlbCounters {
            total: total.read()?,
            free: free.read()?,
            surplus: surplus.read()?,
            reserved: reserved.as_ref().map(|it| it.read().map(promised)).transpose()?,
        })
    }
}

impl Number {
    fn open(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::open(&path).or_call(|| format!("open({path:?})"))?;
        Ok(Self(path, file))
    }

    fn read(&self) -> Result<u64> {
        let Self(path, file) = self;
        let mut text = [0; 32];
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut text, 0))
            .or_call(|| format!("pread64({path:?})"))?;
        files::parse(path, "a number", String::from_utf8_lossy(&text[..read]).trim())
    }
}

/// What `resv_hugepages` means: the kernel prints a number that it lets fall below zero as an
/// unsigned one.
///
/// Linux 6.18 shows this while a process lives with a parent that has unmapped private huge pages
/// shared since the fork. Two pages make it 18446744073709551614, and the pool can still give all
/// of its free pages.
fn promised(reserved: u64) -> u64 {
    if reserved.cast_signed() < 0 { 0 } else { reserved }
}

/// Asks for a pool of `pages` pages and returns the size that the kernel reached. That may be less
/// (too little contiguous memory) or more (pages in use stay).
///
/// Blocks while the kernel migrates and compacts memory, for gigabytes many seconds; a signal ends
/// that early, and the reached size is still returned. Growing does not zero the pages.
///
/// # Errors
/// [`Error::is_denied`] without root.
pub fn set_total(roots: &Roots, page: PageSize, node: Option<Node>, pages: u64) -> Result<u64> {
    let file = pool_dir(roots, page, node).join("nr_hugepages");
    match files::write(&file, &pages.to_string()) {
        Err(error) if error.errno() == Some(Errno::INTR) => {}
        result => result
            .advise(Errno::ACCESS, "run as root")
            .advise(Errno::PERM, "run as root")
            .advise(Errno::INVAL, "this kernel allocates pages of this size at boot only: add hugepagesz= and hugepages= to its command line")?,
    }
    files::read_number(&file)
}

/// Gathers free memory into larger pieces: clean page cache, dentries and inodes are dropped, and
/// the rest is compacted. For when [`set_total`] reached less than was asked for.
///
/// Blocks for up to seconds; programs that used the caches must refill them.
///
/// # Errors
/// [`Error::is_denied`] without root; ENOENT for compaction on a kernel without it.
pub fn make_room(roots: &Roots) -> Result<()> {
    files::write(&roots.proc.join("sys/vm/drop_caches"), "3")?;
    files::write(&roots.proc.join("sys/vm/compact_memory"), "1")
}

/// A kernel built without NUMA lacks node directories; its node 0 is the whole machine.
pub(crate) fn pool_dir(roots: &Roots, page: PageSize, node: Option<Node>) -> PathBuf {
    let nodes = roots.sys.join("devices/system/node");
    let parent = match node {
        Some(Node(0)) if !nodes.exists() => roots.sys.join("kernel/mm"),
        Some(Node(number)) => nodes.join(format!("node{number}")),
        None => roots.sys.join("kernel/mm"),
    };
    parent.join(format!("hugepages/hugepages-{}kB", page.kib()))
}
