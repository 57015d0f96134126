// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program in the kernel, and one question to it.

#![expect(
    unsafe_code,
    reason = "runs a program by its descriptor, which libbpf-rs offers to one thread only"
)]
//! # Safety
//!
//! `bpf(BPF_PROG_RUN)` reads the options and the query, and writes the query back: both are locals
//! that live until the call has returned.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{ObjectBuilder, libbpf_sys};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::measure::Rest;

/// An object file, at an address that an ELF reader accepts.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/pins.bpf.o")));

/// Why pins cannot be seen here.
#[derive(Debug, thiserror::Error)]
#[error("pins cannot be seen: {0}")]
pub struct Unavailable(pub(crate) String);

/// Why one look gave no answer.
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
    /// The program did not run.
    #[error("bpf(BPF_PROG_RUN) of the pin probe = {0}")]
    Run(rustix::io::Errno),
    /// It ran, and looked at something else.
    #[error("the pin probe could not look at descriptor {fd}: {why}")]
    NotLooked {
        /// The descriptor.
        fd: i32,
        /// What was in the way.
        why: &'static str,
    },
    /// A page size, length or count that is none.
    #[error("{what} {value} {why}")]
    Value {
        /// What it is.
        what: &'static str,
        /// Which one.
        value: u64,
        /// What is wrong with it.
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
    fd: u32,
    step: u32,
    pages: u32,
    idle: i32,
    found: u32,
    poisoned: u32,
    held: u32,
    first_held: u32,
    lowest: i32,
    highest: i32,
    status: u32,
    mapped: u32,
    names: i32,
    writers: i32,
    readers: i32,
    unused: u32,
}

const DONE: u32 = 1;
const NO_FILE: u32 = 2;
const OTHER_FILE: u32 = 3;

/// What one look at a file saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    /// Pages that have memory.
    pub pages: u32,
    /// Of these, pages with a memory error, which the kernel holds for good.
    pub poisoned: u32,
    /// Of the others, pages with another number of references than at rest: somebody holds them, or
    /// the kernel has them in hand for a moment (compaction).
    pub held: u32,
    /// The first of them, counted in pages of the file; without meaning if there is none.
    pub first_held: u32,
    /// The fewest references of any page.
    pub lowest: i32,
    /// The most.
    pub highest: i32,
    /// Whether any process maps the file, the caller's included.
    pub mapped: bool,
    /// References of its directory entry: each description has one, and each descriptor opened with
    /// `O_PATH`, and who is about to open the file and has been let in.
    pub names: i32,
    /// Descriptions that may write, and those that may only read; a mapping has one, too.
    pub open: (i32, i32),
}

/// The program, loaded. Threads may ask it at the same time.
#[derive(Debug)]
pub struct PinProbe(OwnedFd);

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
        let program = object.progs().next().ok_or_else(|| Unavailable("no program".to_owned()))?;
        let own = program.as_fd().try_clone_to_owned();
        // What libbpf knows of it goes here; the kernel keeps it for as long as its descriptor.
        own.map(Self).map_err(|error| Unavailable(format!("fcntl(F_DUPFD_CLOEXEC) = {error}")))
    }

    /// Looks at the first `pages` pages of `file`. 0.15 us for each.
    ///
    /// Takes nothing and changes nothing. What it says holds for good only while nobody can make a
    /// new pin: see [`prove`](Self::prove).
    ///
    /// # Errors
    /// [`Error::NotLooked`] if `file` is not of hugetlbfs; the kernel's for the program.
    pub fn look(&self, file: BorrowedFd<'_>, pages: u32, rest: Rest) -> Result<References> {
        let fd = file.as_raw_fd();
        let stat = rustix::fs::fstat(file)
            .map_err(|errno| Error::Call { call: format!("fstat({fd})"), errno })?;
        let mut query = Query {
            inode: stat.st_ino,
            fd: fd.cast_unsigned(),
            step: rest.step(),
            pages,
            idle: rest.references(),
            found: 0,
            poisoned: 0,
            held: 0,
            first_held: u32::MAX,
            lowest: i32::MAX,
            highest: i32::MIN,
            status: 0,
            mapped: 0,
            names: 0,
            writers: 0,
            readers: 0,
            unused: 0,
        };
        self.ask(&mut query).map_err(Error::Run)?;
        match query.status {
            DONE => Ok(References {
                pages: query.found,
                poisoned: query.poisoned,
                held: query.held,
                first_held: query.first_held,
                lowest: query.lowest,
                highest: query.highest,
                mapped: query.mapped != 0,
                names: query.names,
                open: (query.writers, query.readers),
            }),
            NO_FILE => Err(Error::NotLooked { fd, why: "it is not open" }),
            OTHER_FILE => Err(Error::NotLooked { fd, why: "it is no file of hugetlbfs" }),
            _ => Err(Error::NotLooked { fd, why: "it changed meanwhile" }),
        }
    }

    /// Runs the program on one question.
    fn ask(&self, query: &mut Query) -> std::result::Result<(), rustix::io::Errno> {
        let bytes = query.as_mut_bytes();
        let length = u32::try_from(bytes.len()).map_err(|_| rustix::io::Errno::INVAL)?;
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            // The kernel writes the context back to where it was read from.
            ctx_in: bytes.as_mut_ptr().cast_const().cast(),
            ctx_size_in: length,
            ..Default::default()
        };
        let program = self.0.as_raw_fd();
        // SAFETY: options and query are live locals of the lengths that are passed with them, and
        // the descriptor is a loaded program's.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut options) } {
            0 => Ok(()),
            negative => Err(rustix::io::Errno::from_raw_os_error(-negative)),
        }
    }
}
