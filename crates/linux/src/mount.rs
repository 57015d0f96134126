// SPDX-License-Identifier: Apache-2.0 OR MIT
//! hugetlbfs mounts: making one, finding existing ones, telling whether a path is on one.

use std::ffi::CString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatFs;
use rustix::mount::{MountFlags, UnmountFlags};
use units::PageSize;

use crate::error::{Advise, Errno, Error, ErrorContext, Result};
use crate::mountinfo;
use crate::roots::Roots;

/// A mounted hugetlbfs. Dropping this leaves it mounted: the files on it outlive the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugetlbMount {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The size of its pages.
    pub page: PageSize,
}

/// Mounts a hugetlbfs of one page size on `dir`, mode 0700, `nosuid,nodev`. The directory is made
/// if it is missing. Mounting takes no pages.
///
/// Not `noexec`: programs map code into huge pages, anonymous ones and memfds, and nothing forbids
/// it.
///
/// # Errors
/// [`Error::is_denied`] without `CAP_SYS_ADMIN`; EINVAL where the kernel has no such page size.
pub fn mount(dir: &Path, page: PageSize) -> Result<HugetlbMount> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .or_call(|| format!("mkdir({dir:?}, 0700)"))?;
    let options = format!("pagesize={},mode=0700", page.bytes());
    let data = CString::new(options.as_str())
        .map_err(|_| Error::invalid("mount options", &options, "contain a zero byte"))?;
    rustix::mount::mount("prezero", dir, "hugetlbfs", FLAGS, data.as_c_str())
        .or_call(|| {
            format!("mount(\"prezero\", {dir:?}, \"hugetlbfs\", nosuid|nodev, {options:?})")
        })
        .advise(Errno::PERM, "needs CAP_SYS_ADMIN: run as root")
        .advise(Errno::INVAL, "/sys/kernel/mm/hugepages lists the page sizes of this kernel")
        .advise(Errno::NODEV, "this kernel was built without CONFIG_HUGETLBFS")?;
    Ok(HugetlbMount { dir: dir.to_owned(), page })
}

/// What every mount of prezero's has.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

impl HugetlbMount {
    /// Unmounts it; the pages of all files on it return to the kernel's pool.
    ///
    /// # Errors
    /// EBUSY while a process has a file on it open or mapped.
    pub fn unmount(self) -> Result<()> {
        rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW)
            .or_call(|| format!("umount2({:?}, UMOUNT_NOFOLLOW)", self.dir))
            .advise(Errno::BUSY, "a file on it is still open or mapped")
            .advise(Errno::PERM, "needs CAP_SYS_ADMIN: run as root")
    }

    /// Takes it out of the tree at once; mapped pages stay until their processes let go.
    pub fn detach(self) -> Result<()> {
        mountinfo::detach(&self.dir)
    }
}

/// Whether a file system or a file is mounted exactly there.
///
/// # Errors
/// Those of reading mountinfo.
pub fn is_mounted(roots: &Roots, at: &Path) -> Result<bool> {
    Ok(mountinfo::read(roots)?.iter().any(|entry| entry.dir == at))
}

/// Takes what is mounted there out of the tree at once; open and mapped files stay usable.
///
/// # Errors
/// EINVAL where nothing is mounted.
pub fn detach(at: &Path) -> Result<()> {
    mountinfo::detach(at)
}

/// The hugetlbfs mounts of one page size that this process sees, in the order they were mounted,
/// without single files that are bound elsewhere.
pub fn find(roots: &Roots, page: PageSize) -> Result<Vec<HugetlbMount>> {
    let mut mounts = Vec::new();
    let is_whole = |entry: &mountinfo::MountEntry| entry.root == Path::new("/");
    let all = mountinfo::read(roots)?.into_iter().filter(|entry| entry.kind == "hugetlbfs");
    for entry in all.filter(is_whole) {
        let mut options = entry.options.split(',');
        let size = options.find_map(|option| option.strip_prefix("pagesize=")).and_then(parse_size);
        if size.ok_or_else(|| entry.malformed(roots))? == page {
            mounts.push(HugetlbMount { dir: entry.dir, page });
        }
    }
    Ok(mounts)
}

/// The page size of the hugetlbfs that `path` lies on; `None` for every other file system.
pub fn is_hugetlbfs(path: &Path) -> Result<Option<PageSize>> {
    let stat = rustix::fs::statfs(path).or_call(|| format!("statfs({path:?})"))?;
    Ok(hugetlb_page(&stat))
}

/// The same for a directory that is open.
pub fn is_on_hugetlbfs(dir: impl std::os::fd::AsFd) -> Result<Option<PageSize>> {
    let stat = rustix::fs::fstatfs(dir).or_call(|| "fstatfs(directory)".into())?;
    Ok(hugetlb_page(&stat))
}

/// hugetlbfs reports its page size as the block size.
pub(crate) fn hugetlb_page(stat: &StatFs) -> Option<PageSize> {
    #[expect(clippy::unnecessary_cast, reason = "the types differ between architectures")]
    let (kind, size) = (stat.f_type as i64, u64::try_from(stat.f_bsize).ok()?);
    #[expect(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    let hugetlbfs = libc::HUGETLBFS_MAGIC as i64;
    if kind == hugetlbfs { PageSize::new(size) } else { None }
}

/// `2M`, `1024M`, `64K`: the kernel prints KiB below 1 MiB and MiB above.
fn parse_size(text: &str) -> Option<PageSize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    PageSize::new(digits.parse::<u64>().ok()?.checked_mul(1 << shift)?)
}
