// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program in the kernel, and one question to it.

#![expect(
    unsafe_code,
    reason = "runs a program by its descriptor, which libbpf-rs offers to one thread only"
)]
//! # Safety
//!
//! `bpf(BPF_PROG_RUN)` reads the options and the query, and writes the query back: both are locals
//! that live until the call has returned. `bpf(BPF_MAP_LOOKUP_ELEM)` and `bpf(BPF_MAP_UPDATE_ELEM)`
//! read a key and write or read a value of the map's own size: locals and a buffer of that size.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, ObjectBuilder, libbpf_sys};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::measure::Rest;

/// An object file, at an address that an ELF reader accepts.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/pins.bpf.o")));

/// The reason why pins are invisible here.
#[derive(Debug, thiserror::Error)]
#[error("pins cannot be seen: {0}")]
pub struct Unavailable(pub(crate) String);

/// The reason why one look failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} = {errno}")]
    Call {
        /// As `strace` prints it.
        call: String,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// Mapping a page of the measured file failed.
    #[error(transparent)]
    Linux(#[from] linux::Error),
    /// The program failed to run.
    #[error("bpf(BPF_PROG_RUN) of the pin probe = {0}")]
    Run(rustix::io::Errno),
    /// It ran, and looked at something else.
    #[error("the pin probe could not look at descriptor {fd}: {why}")]
    NotLooked {
        /// The descriptor.
        fd: i32,
        /// The obstacle.
        why: &'static str,
    },
    /// An invalid page size, length or count.
    #[error("{what} {value} {why}")]
    Value {
        /// What it is.
        what: &'static str,
        /// Which one.
        value: u64,
        /// The defect.
        why: &'static str,
    },
}

/// What a look gives.
pub type Result<T> = std::result::Result<T, Error>;

/// `struct query` of `pins.bpf.c`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Query {
    inode: u64,
    next: u64,
    end: u64,
    sum: u64,
    first: u64,
    first_held: u64,
    fd: u32,
    watcher: u32,
    step: u32,
    steps: u32,
    idle: i32,
    keeps: u32,
    found: u32,
    behind: u32,
    poisoned: u32,
    held: u32,
    lowest: i32,
    highest: i32,
    status: u32,
    mapped: u32,
    names: i32,
    writers: i32,
    readers: i32,
    inodes: i32,
    watches: u32,
    own: u32,
    locks: u32,
    unused: u32,
}

/// `struct asked` of it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Asked {
    pages: u32,
    held: u32,
}

/// Addresses that the map has room for.
const KEPT: usize = 4096;

/// Where the walk is when it is over.
const OVER: u64 = u64::MAX;
/// Slots of the index that one run looks at: 40 ms. A file may have few pages far apart.
const STEPS: u32 = 1 << 18;
/// An unused descriptor number.
const NO_WATCHER: u32 = u32::MAX;

const DONE: u32 = 1;
const NO_FILE: u32 = 2;
const OTHER_FILE: u32 = 3;

/// What one look at a file saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    /// Pages that have memory, wherever they are.
    pub pages: u32,
    /// Of these, pages that lie where the file has ended.
    pub behind: u32,
    /// Pages with a memory error, which the kernel holds for good.
    pub poisoned: u32,
    /// Of the others, pages with another number of references than at rest: a process holds them,
    /// or the kernel has them in hand for a moment (compaction).
    pub held: u32,
    /// The first of all, counted in entries of the index; without meaning if there is none.
    pub(crate) first: u64,
    /// The first of the held pages, counted in pages of the file; as above.
    pub first_held: u64,
    /// The fewest references of any page.
    pub lowest: i32,
    /// The most.
    pub highest: i32,
    /// Which pages these are, and where, in one number.
    pub(crate) sum: u64,
    /// Whether any process maps the file, the caller's included.
    pub mapped: bool,
    /// References of its directory entry: each description has one, and so has each descriptor
    /// opened with `O_PATH`, and each admitted `open` of the file that has yet to return.
    pub names: i32,
    /// Descriptions that may write, and those that may only read; a mapping has one, too.
    pub open: (i32, i32),
    /// What hangs on the inode.
    pub inode: Inode,
}

/// Things that hang on a file's inode, apart from its descriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// References of the inode itself: its directory entry has one, all watches together another.
    pub references: i32,
    /// Watches (inotify) and marks (fanotify) of others than the caller.
    pub watches: u32,
    /// Whether the caller watches it by the descriptor that it has named.
    pub is_watched: bool,
    /// Whether there are locks (flock, fcntl) or leases.
    pub has_locks: bool,
}

impl Inode {
    /// Whether anything of others hangs on it.
    pub(crate) fn is_marked(&self) -> bool {
        self.watches > 0 || self.has_locks
    }
}

/// The program, loaded. Threads may ask it at the same time.
#[derive(Debug)]
pub struct PinProbe {
    references: OwnedFd,
    stray: OwnedFd,
    /// Where pages go out of a program and into one.
    kept: Mutex<OwnedFd>,
}

fn lock(kept: &Mutex<OwnedFd>) -> MutexGuard<'_, OwnedFd> {
    // The holder of the lock writes the map, from its start.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PinProbe {
    /// Loads the program. About 20 ms, most of it for reading the kernel's BTF.
    ///
    /// # Errors
    /// [`Unavailable`] says what this kernel, or this process, lacks.
    pub fn load() -> std::result::Result<Self, Unavailable> {
        let lacks = |error: libbpf_rs::Error| {
            let advice = match error.kind() {
                libbpf_rs::ErrorKind::PermissionDenied => {
                    "; needs CAP_BPF and CAP_PERFMON, and a kernel without lockdown"
                }
                libbpf_rs::ErrorKind::NotFound => "; needs /sys/kernel/btf/vmlinux",
                _ => "; needs Linux 5.17 or later with BTF",
            };
            Unavailable(format!("bpf(BPF_PROG_LOAD): {error}{advice}"))
        };
        // libbpf's own words go nowhere: what matters is in the error.
        libbpf_rs::set_print(None);
        let object = ObjectBuilder::default().open_memory(&PROGRAM.0).map_err(lacks)?;
        let object = object.load().map_err(lacks)?;
        let own = |fd: BorrowedFd<'_>| {
            // What libbpf knows of it goes here; the kernel keeps it for as long as its descriptor.
            let own = fd.try_clone_to_owned();
            own.map_err(|error| Unavailable(format!("fcntl(F_DUPFD_CLOEXEC) = {error}")))
        };
        let program = |name: &str| {
            let program = object.progs().find(|program| program.name() == name);
            own(program.ok_or_else(|| Unavailable(format!("no program {name}")))?.as_fd())
        };
        let map = object.maps().find(|map| map.name() == "pages");
        let map = map.ok_or_else(|| Unavailable("no map".to_owned()))?;
        let (references, stray) = (program("references")?, program("stray")?);
        Ok(Self { references, stray, kept: Mutex::new(own(map.as_fd())?) })
    }

    /// Looks at all pages of `file`, and says which of them lie behind its first `end`. 0.15 us for
    /// each. `watcher` is the caller's inotify descriptor, if it may watch the file by one.
    ///
    /// Takes nothing and changes nothing. The answer lasts only while no process can make a new
    /// pin: see [`prove`](Self::prove).
    ///
    /// # Errors
    /// [`Error::NotLooked`] if `file` is outside hugetlbfs; the kernel's for the program.
    pub fn look(
        &self,
        file: BorrowedFd<'_>,
        end: u64,
        rest: Rest,
        watcher: Option<BorrowedFd<'_>>,
    ) -> Result<References> {
        let mut query = Query::new(file, rest, watcher)?;
        query.end = end.saturating_mul(u64::from(rest.step()));
        query.next = 0;
        while query.next != OVER {
            self.ask(&mut query)?;
        }
        Ok(query.seen(rest))
    }

    /// The same for descriptions only, pages left alone: 1 us.
    pub(crate) fn look_at_name(
        &self,
        file: BorrowedFd<'_>,
        rest: Rest,
        watcher: Option<BorrowedFd<'_>>,
    ) -> Result<References> {
        let mut query = Query::new(file, rest, watcher)?;
        self.ask(&mut query)?;
        Ok(query.seen(rest))
    }

    /// The addresses of all pages of `file`, and their sum as a [look](Self::look) says it.
    pub(crate) fn addresses(&self, file: BorrowedFd<'_>, rest: Rest) -> Result<(Vec<u64>, u64)> {
        let mut query = Query::new(file, rest, None)?;
        (query.next, query.keeps) = (0, 1);
        let mut addresses = Vec::new();
        let kept = lock(&self.kept);
        let mut room = vec![0_u64; KEPT];
        while query.next != OVER {
            let before = query.found;
            self.ask(&mut query)?;
            let new = usize::try_from(query.found - before).unwrap_or(usize::MAX);
            read(&kept, &mut room)?;
            addresses.extend_from_slice(room.get(..new).unwrap_or(&room));
        }
        Ok((addresses, query.sum))
    }

    /// The pages, by their addresses, that are in no file and still in use.
    pub(crate) fn strays(&self, addresses: &[u64]) -> Result<Vec<u64>> {
        let mut strays = Vec::new();
        let kept = lock(&self.kept);
        for some in addresses.chunks(KEPT) {
            let mut room = vec![0_u64; KEPT];
            room[..some.len()].copy_from_slice(some);
            write(&kept, &room)?;
            // A chunk of the map's size fits.
            let mut asked = Asked { pages: u32::try_from(some.len()).unwrap_or(0), held: 0 };
            run(&self.stray, asked.as_mut_bytes()).map_err(Error::Run)?;
            if asked.held > 0 {
                read(&kept, &mut room)?;
                strays.extend(room[..some.len()].iter().copied().filter(|address| *address != 0));
            }
        }
        Ok(strays)
    }

    /// Runs the program on one question.
    fn ask(&self, query: &mut Query) -> Result<()> {
        let fd = query.fd.cast_signed();
        run(&self.references, query.as_mut_bytes()).map_err(Error::Run)?;
        match query.status {
            DONE => Ok(()),
            NO_FILE => Err(Error::NotLooked { fd, why: "it is not open" }),
            OTHER_FILE => Err(Error::NotLooked { fd, why: "it is no file of hugetlbfs" }),
            _ => Err(Error::NotLooked { fd, why: "it changed meanwhile" }),
        }
    }
}

impl Query {
    /// A question apart from pages.
    fn new(file: BorrowedFd<'_>, rest: Rest, watcher: Option<BorrowedFd<'_>>) -> Result<Self> {
        let fd = file.as_raw_fd();
        let stat = rustix::fs::fstat(file)
            .map_err(|errno| Error::Call { call: format!("fstat({fd})"), errno })?;
        Ok(Self {
            inode: stat.st_ino,
            next: OVER,
            end: u64::MAX,
            sum: 0,
            first: u64::MAX,
            first_held: u64::MAX,
            fd: fd.cast_unsigned(),
            watcher: watcher.map_or(NO_WATCHER, |fd| fd.as_raw_fd().cast_unsigned()),
            step: rest.step(),
            steps: STEPS,
            idle: rest.references(),
            keeps: 0,
            found: 0,
            behind: 0,
            poisoned: 0,
            held: 0,
            lowest: i32::MAX,
            highest: i32::MIN,
            status: 0,
            mapped: 0,
            names: 0,
            writers: 0,
            readers: 0,
            inodes: 0,
            watches: 0,
            own: 0,
            locks: 0,
            unused: 0,
        })
    }

    fn seen(&self, rest: Rest) -> References {
        References {
            pages: self.found,
            behind: self.behind,
            poisoned: self.poisoned,
            held: self.held,
            first: self.first,
            first_held: self.first_held / u64::from(rest.step()),
            lowest: self.lowest,
            highest: self.highest,
            sum: self.sum,
            mapped: self.mapped != 0,
            names: self.names,
            open: (self.writers, self.readers),
            inode: Inode {
                references: self.inodes,
                watches: self.watches,
                is_watched: self.own > 0,
                has_locks: self.locks != 0,
            },
        }
    }
}

/// Runs a program on the request, which it writes back.
fn run(program: &OwnedFd, asked: &mut [u8]) -> std::result::Result<(), rustix::io::Errno> {
    let length = u32::try_from(asked.len()).map_err(|_| rustix::io::Errno::INVAL)?;
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        // The kernel writes the context back to where it was read from.
        ctx_in: asked.as_mut_ptr().cast_const().cast(),
        ctx_size_in: length,
        ..Default::default()
    };
    // SAFETY: the options are a live local, the request is a live buffer of the length that is
    // passed with it, and the descriptor is a loaded program's.
    let ret = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    checked(ret)
}

/// Reads the map.
fn read(map: &OwnedFd, into: &mut [u64]) -> Result<()> {
    assert_eq!(into.len(), KEPT, "the map's value has a size");
    let (key, value) = (0_u32, into.as_mut_ptr());
    // SAFETY: a live key of the map's size, and a buffer of the size of its values.
    let ret = unsafe {
        libbpf_sys::bpf_map_lookup_elem(map.as_raw_fd(), (&raw const key).cast(), value.cast())
    };
    let call = || "bpf(BPF_MAP_LOOKUP_ELEM)".to_owned();
    checked(ret).map_err(|errno| Error::Call { call: call(), errno })
}

/// Writes all of it.
fn write(map: &OwnedFd, from: &[u64]) -> Result<()> {
    assert_eq!(from.len(), KEPT, "the map's value has a size");
    let (key, value, any) = (0_u32, from.as_ptr(), u64::from(libbpf_sys::BPF_ANY));
    // SAFETY: a live key of the map's size, and a buffer of the size of its values.
    let ret = unsafe {
        libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), (&raw const key).cast(), value.cast(), any)
    };
    let call = || "bpf(BPF_MAP_UPDATE_ELEM)".to_owned();
    checked(ret).map_err(|errno| Error::Call { call: call(), errno })
}

/// libbpf returns a negative number of an error.
fn checked(ret: i32) -> std::result::Result<(), rustix::io::Errno> {
    if ret == 0 { Ok(()) } else { Err(rustix::io::Errno::from_raw_os_error(-ret)) }
}
