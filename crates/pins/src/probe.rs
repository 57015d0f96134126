// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program in the kernel, and one question to it.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::{Object, ObjectBuilder, ProgramInput};
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
    #[error("bpf(BPF_PROG_RUN) of the pin probe: {0}")]
    Run(#[from] libbpf_rs::Error),
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
    held: u32,
    first_held: u32,
    lowest: i32,
    highest: i32,
    status: u32,
    mapped: u32,
    names: i32,
}

const DONE: u32 = 1;
const NO_FILE: u32 = 2;
const OTHER_FILE: u32 = 3;

/// What one look at a file saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    /// Pages that have memory.
    pub pages: u32,
    /// Of these, pages with another number of references than at rest: somebody holds them, or
    /// the kernel has them in hand for a moment (compaction, memory failure).
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
}

/// The program, loaded.
#[derive(Debug)]
pub struct PinProbe(Object);

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
        object.load().map(Self).map_err(lacks)
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
            held: 0,
            first_held: u32::MAX,
            lowest: i32::MAX,
            highest: i32::MIN,
            status: 0,
            mapped: 0,
            names: 0,
        };
        let program = self.0.progs_mut().next();
        let program = program.ok_or(Error::NotLooked { fd, why: "it holds no program" })?;
        // The kernel writes the context back to where it was read from.
        let input =
            ProgramInput { context_in: Some(query.as_mut_bytes()), ..ProgramInput::default() };
        program.test_run(input)?;
        match query.status {
            DONE => Ok(References {
                pages: query.found,
                held: query.held,
                first_held: query.first_held,
                lowest: query.lowest,
                highest: query.highest,
                mapped: query.mapped != 0,
                names: query.names,
            }),
            NO_FILE => Err(Error::NotLooked { fd, why: "it is not open" }),
            OTHER_FILE => Err(Error::NotLooked { fd, why: "it is no file of hugetlbfs" }),
            _ => Err(Error::NotLooked { fd, why: "it changed meanwhile" }),
        }
    }
}
