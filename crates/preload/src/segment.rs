// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `shmget(SHM_HUGETLB)`, where the operator allows it (`PREZERO_SHM=1`).
//!
//! Every process on the machine can attach a segment by its number. Only the program that made lent
//! memory and its forked children can attach that. So segments with a key are never served, and
//! private ones only on request. All other processes find the number unknown (`EINVAL`), and
//! never other memory under it.
//!
//! The number comes from the kernel, as do owner, times and the like: a segment of one page that is
//! asked for them and removed at once, so that no other segment has the number. What changes later
//! lies in a page that the program and its forks share.
//!
//! Where a segment is attached is not noted but looked up ([`maps`]): so `munmap` detaches, and
//! `shm_nattch` counts mappings as the kernel does, though of this process alone. A removed segment
//! is let go of when it is attached nowhere: at the next of these calls, or at the `munmap` of it.
//!
//! # Safety
//!
//! Ranges are unmapped in which the kernel says that a segment is attached which the program now
//! detaches. The program's structures are read and written by the kernel, which checks them.
#![expect(unsafe_code, reason = "attaches and detaches memory, and shares a page with forks")]

use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, shmid_ds};

use crate::anonymous::page_of;
use crate::config::config;
use crate::daemon::{Ask, Lender};
use crate::lent_files::LentFiles;
use crate::lent_ranges::{self, Kind, Range};
use crate::maps;
use crate::raw::{self, Errno, File, Mapping, READ_WRITE};
use crate::say::say;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any segment is served.
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// The mode's bit of a removed segment (`SHM_DEST`).
const REMOVED: u32 = 0o1000;

/// The changing part of a segment, for the program and its forks alike.
#[derive(Debug)]
struct Shared {
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    last: AtomicU32,
    attached_at: AtomicI64,
    detached_at: AtomicI64,
    changed_at: AtomicI64,
}

/// A page for it.
#[derive(Debug)]
struct SharedPage(usize);

impl SharedPage {
    fn new() -> raw::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        unsafe { raw::mmap(0, raw::base_page(), READ_WRITE, flags, -1, 0) }.map(Self)
    }

    fn get(&self) -> &Shared {
        // SAFETY: this value's own mapping, zero at first, which is a value, and only ever this.
        unsafe { &*(self.0 as *const Shared) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping.
        let _ = unsafe { raw::munmap(self.0, raw::base_page()) };
    }
}

struct Segment {
    id: c_int,
    /// The program may close any descriptor: this one counts while it is still of that file.
    fd: c_int,
    file: File,
    page: usize,
    /// The kernel's answer when it was made.
    made: shmid_ds,
    shared: SharedPage,
}

/// The served segments of this process.
pub(crate) struct Segments(Vec<Segment>);

impl Segments {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn find(&mut self, id: c_int) -> Option<&mut Segment> {
        self.tidy();
        self.0.iter_mut().find(|segment| segment.id == id)
    }

    /// Whether a mapping is one of a segment.
    pub(crate) fn is_of(&self, mapping: &Mapping) -> bool {
        self.0.iter().any(|segment| mapping.is_of(segment.file))
    }

    /// Lets go of segments that were removed and are attached nowhere.
    pub(crate) fn tidy(&mut self) {
        self.0.retain(|segment| {
            // Where that cannot be looked up it stays.
            let is_gone =
                segment.is_removed() && segment.attached().is_ok_and(|all| all.is_empty());
            if is_gone && segment.is_open() {
                raw::close(segment.fd);
            }
            !is_gone
        });
        COUNT.store(self.0.len(), Ordering::Relaxed);
    }

    /// `shmat`.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn attach(
        &mut self,
        id: c_int,
        address: usize,
        flags: c_int,
    ) -> Option<raw::Result<usize>> {
        let segment = self.find(id)?;
        // SAFETY: the caller's contract.
        let mapped = unsafe { segment.map(address, flags) };
        Some(mapped.inspect(|at| {
            segment.touched(|shared| &shared.attached_at);
            // A full table leaves a removed segment lent until the next call about segments.
            let _ = lent_ranges::add(Range::new(*at, segment.bytes()), Kind::Segment);
        }))
    }

    /// `shmdt`: the parts of a segment that lie where an attachment at that address has them.
    ///
    /// # Safety
    /// As the call itself.
    pub(crate) unsafe fn detach(&mut self, address: usize) -> Option<raw::Result<usize>> {
        let end = |segment: &Segment| address.saturating_add(segment.bytes());
        let (segment, mappings) = self.0.iter().find_map(|segment| {
            let mut mappings = maps::mappings(address, end(segment)).ok()?;
            mappings.retain(|mapping| {
                mapping.is_of(segment.file) && (mapping.start - address) as u64 == mapping.offset
            });
            (!mappings.is_empty()).then_some((segment, mappings))
        })?;
        for mapping in mappings {
            // SAFETY: the program detaches this memory.
            if let Err(error) = unsafe { raw::munmap(mapping.start, mapping.bytes()) } {
                return Some(Err(error));
            }
            lent_ranges::remove(Range::new(mapping.start, mapping.bytes()));
        }
        segment.touched(|shared| &shared.detached_at);
        self.tidy();
        Some(Ok(0))
    }

    /// `shmctl`; `None` if that is the kernel's to answer.
    pub(crate) fn control(
        &mut self,
        id: c_int,
        command: c_int,
        structure: usize,
    ) -> Option<raw::Result<usize>> {
        /// By a segment's place in the kernel's table, or about all of them: `IPC_INFO`,
        /// `SHM_STAT`, `SHM_INFO`, `SHM_STAT_ANY`.
        const OF_ALL: [c_int; 4] = [3, 13, 14, 15];
        if OF_ALL.contains(&command) {
            return None;
        }
        let segment = self.find(id)?;
        let done = match command {
            libc::IPC_RMID => {
                segment.shared.get().mode.fetch_or(REMOVED, Ordering::Relaxed);
                self.tidy();
                Ok(())
            }
            libc::IPC_STAT if !segment.may(0o4) => Err(Errno(libc::EACCES)),
            libc::IPC_STAT => {
                segment.status().and_then(|status| raw::put_checked(&status, structure))
            }
            libc::IPC_SET => segment.set(structure),
            // Huge pages are never swapped.
            libc::SHM_LOCK | libc::SHM_UNLOCK => Ok(()),
            _ => Err(Errno(libc::EINVAL)),
        };
        Some(done.map(|()| 0))
    }
}

fn now() -> i64 {
    // SAFETY: takes no pointer.
    unsafe { libc::time(std::ptr::null_mut()) }
}

impl Segment {
    fn bytes(&self) -> usize {
        usize::try_from(self.file.bytes).unwrap_or(usize::MAX)
    }

    fn is_open(&self) -> bool {
        raw::file(self.fd).is_ok_and(|file| file.is(self.file))
    }

    fn is_removed(&self) -> bool {
        self.shared.get().mode.load(Ordering::Relaxed) & REMOVED != 0
    }

    /// Where this process has it.
    fn attached(&self) -> raw::Result<Vec<Mapping>> {
        let mut mappings = maps::mappings(0, usize::MAX)?;
        mappings.retain(|mapping| mapping.is_of(self.file));
        Ok(mappings)
    }

    /// Whether this process may read (4), write (2) or execute (1) it, by its mode.
    fn may(&self, wanted: u32) -> bool {
        let shared = self.shared.get();
        let mode = shared.mode.load(Ordering::Relaxed);
        let (uid, gid) = raw::effective_ids();
        let perm = &self.made.shm_perm;
        let of = match () {
            // CAP_IPC_OWNER.
            () if uid == 0 => return true,
            () if uid == shared.uid.load(Ordering::Relaxed) || uid == perm.cuid => mode >> 6,
            () if gid == shared.gid.load(Ordering::Relaxed) || gid == perm.cgid => mode >> 3,
            () => mode,
        };
        of & wanted == wanted
    }

    fn touched(&self, when: impl Fn(&Shared) -> &AtomicI64) {
        when(self.shared.get()).store(now(), Ordering::Relaxed);
        self.shared.get().last.store(raw::process(), Ordering::Relaxed);
    }

    /// # Safety
    /// As `shmat`.
    unsafe fn map(&self, address: usize, flags: c_int) -> raw::Result<usize> {
        // SHM_RND rounds to a base page (SHMLBA), also where pages are larger.
        let base = raw::base_page();
        let address = match address % base {
            0 => address,
            rest if flags & libc::SHM_RND != 0 => address - rest,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let replaces = flags & libc::SHM_REMAP != 0;
        if !address.is_multiple_of(self.page) || address == 0 && replaces {
            return Err(Errno(libc::EINVAL));
        }
        let (mut wanted, mut prot) = (0o4, libc::PROT_READ);
        if flags & libc::SHM_RDONLY == 0 {
            (wanted, prot) = (wanted | 0o2, prot | libc::PROT_WRITE);
        }
        if flags & libc::SHM_EXEC != 0 {
            (wanted, prot) = (wanted | 0o1, prot | libc::PROT_EXEC);
        }
        if !self.may(wanted) {
            return Err(Errno(libc::EACCES));
        }
        if !self.is_open() {
            return Err(Errno(libc::EIDRM));
        }
        let fixed = match address {
            0 => 0,
            _ if replaces => libc::MAP_FIXED,
            _ => libc::MAP_FIXED_NOREPLACE,
        };
        let flags = libc::MAP_SHARED | fixed;
        // SAFETY: something is replaced only where the program said SHM_REMAP.
        let mapped = unsafe { raw::mmap(address, self.bytes(), prot, flags, self.fd, 0) };
        mapped.map_err(|error| if error.0 == libc::EEXIST { Errno(libc::EINVAL) } else { error })
    }

    fn status(&self) -> raw::Result<shmid_ds> {
        let shared = self.shared.get();
        let mut status = self.made;
        let mode = shared.mode.load(Ordering::Relaxed);
        status.shm_perm.mode = number_of(mode);
        status.shm_perm.uid = shared.uid.load(Ordering::Relaxed);
        status.shm_perm.gid = shared.gid.load(Ordering::Relaxed);
        status.shm_nattch = self.attached()?.len() as libc::shmatt_t;
        status.shm_lpid = shared.last.load(Ordering::Relaxed).cast_signed();
        status.shm_atime = shared.attached_at.load(Ordering::Relaxed);
        status.shm_dtime = shared.detached_at.load(Ordering::Relaxed);
        status.shm_ctime = shared.changed_at.load(Ordering::Relaxed);
        Ok(status)
    }

    /// `IPC_SET`, which takes owner, group and mode.
    fn set(&self, structure: usize) -> raw::Result<()> {
        // SAFETY: all bytes zero is a value of the structure, which is plain numbers.
        let mut given: shmid_ds = unsafe { std::mem::zeroed() };
        raw::get_checked(structure, &mut given)?;
        let shared = self.shared.get();
        let (uid, _) = raw::effective_ids();
        let owner = shared.uid.load(Ordering::Relaxed);
        // CAP_SYS_ADMIN.
        if uid != 0 && uid != owner && uid != self.made.shm_perm.cuid {
            return Err(Errno(libc::EPERM));
        }
        let kept = shared.mode.load(Ordering::Relaxed) & !0o777;
        shared.mode.store(kept | u32::from(given.shm_perm.mode) & 0o777, Ordering::Relaxed);
        shared.uid.store(given.shm_perm.uid, Ordering::Relaxed);
        shared.gid.store(given.shm_perm.gid, Ordering::Relaxed);
        shared.changed_at.store(now(), Ordering::Relaxed);
        Ok(())
    }
}

/// `shmget` of huge pages: a number, or `None` to make the untouched call.
pub(crate) fn get(
    lender: &mut Lender,
    files: &mut LentFiles,
    segments: &mut Segments,
    key: libc::key_t,
    bytes: usize,
    flags: c_int,
) -> Option<c_int> {
    let not = |why: &dyn std::fmt::Display| -> Option<c_int> {
        say(format_args!("a segment of {bytes} bytes is not served: {why}"));
        None
    };
    let config = config();
    if !config.enabled {
        return None;
    }
    if key != libc::IPC_PRIVATE {
        return not(&"it has a key, so that processes that do not know of the loan may attach it");
    }
    if !config.segments {
        return not(&"other processes may attach it by number; PREZERO_SHM=1 if none does");
    }
    let page = page_of(flags.cast_unsigned(), config.default_page);
    let Some(rounded) = (bytes as u64).checked_next_multiple_of(page).filter(|b| *b > 0) else {
        return not(&"its size is no number of pages");
    };
    let ask = Ask { bytes: rounded, page, single: true, last_hope: false, node: None };
    let loan = match lender.lend(ask) {
        Ok(loan) if loan.ready_bytes().0 > 0 => loan,
        Ok(_) => return not(&"nothing is ready"),
        Err(why) => return not(&why),
    };
    let page = usize::try_from(page).ok()?;
    if let Err(error) = files.add(&loan, page, false, None) {
        return not(&error);
    }
    let (_, mut files) = loan.into_fds();
    let ((id, mut made), shared) = match number().and_then(|made| Ok((made, SharedPage::new()?))) {
        Ok(both) => both,
        Err(error) => return not(&error),
    };
    made.shm_segsz = bytes;
    let fd = files.pop()?.into_raw_fd();
    let file = raw::file(fd).ok()?;
    let first = shared.get();
    first.mode.store(flags.cast_unsigned() & 0o777, Ordering::Relaxed);
    first.uid.store(made.shm_perm.uid, Ordering::Relaxed);
    first.gid.store(made.shm_perm.gid, Ordering::Relaxed);
    first.changed_at.store(made.shm_ctime, Ordering::Relaxed);
    segments.0.push(Segment { id, fd, file, page, made, shared });
    segments.tidy();
    say(format_args!("a segment of {rounded} bytes is served as {id}"));
    Some(id)
}

/// A number that no other segment has or gets soon, and the kernel's status of it.
fn number() -> raw::Result<(c_int, shmid_ds)> {
    let int = |value: c_int| value.cast_unsigned() as usize;
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    // SAFETY: numbers alone.
    let id = unsafe { raw::shm(libc::SYS_shmget, [0, raw::base_page(), int(flags)]) }?;
    // SAFETY: all bytes zero is a value of the structure, which is plain numbers.
    let mut made: shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one structure, with libc's layout on these architectures.
    let asked =
        unsafe { raw::shm(libc::SYS_shmctl, [id, int(libc::IPC_STAT), (&raw mut made).addr()]) };
    // SAFETY: removing takes no structure.
    unsafe { raw::shm(libc::SYS_shmctl, [id, int(libc::IPC_RMID), 0]) }?;
    asked?;
    let id = c_int::try_from(id).map_err(|_| Errno(libc::EINVAL))?;
    Ok((id, made))
}

/// The type of the field differs between architectures.
fn number_of<T: TryFrom<u32> + Default>(mode: u32) -> T {
    T::try_from(mode).unwrap_or_default()
}
