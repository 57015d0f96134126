// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registry of interposed symbols, and the functions that stand behind this library.
//!
//! One row declares a symbol: its [`Next`] slot, its type, and its part in `dlsym`
//! ([`crate::lookup`]). A new symbol is a row here and a function that is exported.
//!
//! Behind this library stands the C library, another preloaded library, or one that patched the
//! C library's functions in memory. UCX does that to learn which registered memory is unmapped.
//! The program's own calls go there. This library's own mappings use [`raw`](crate::raw) alone.
//!
//! *Recursion*: a library behind this one may look up the C library's function by handle and find
//! this library's. The call then comes back. A call that is [`MAX_DEPTH`] deep becomes a bare
//! system call. Before the constructor has run, all calls are bare.
//!
//! # Safety
//!
//! The unsafe operation is calling an address with the type of its symbol. Each row states the
//! type that the C library's header gives.
#![expect(unsafe_code, reason = "calls functions of other libraries")]

use std::cell::Cell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, key_t, mmsghdr, msghdr, off64_t, shmid_ds,
    size_t, ssize_t, statfs,
};

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off64_t) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, ...) -> *mut c_void;
type Fallocate = extern "C" fn(c_int, c_int, off64_t, off64_t) -> c_int;
type PosixFallocate = extern "C" fn(c_int, off64_t, off64_t) -> c_int;
type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
type Statfs = unsafe extern "C" fn(*const c_char, *mut statfs) -> c_int;
type Fstatfs = unsafe extern "C" fn(c_int, *mut statfs) -> c_int;
type Mkstemp = unsafe extern "C" fn(*mut c_char) -> c_int;
type Mkostemp = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
type Prctl = unsafe extern "C" fn(c_int, ...) -> c_int;
type Sendmmsg = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
type Mbind =
    unsafe extern "C" fn(*mut c_void, size_t, c_int, *const c_ulong, size_t, c_uint) -> c_long;

macro_rules! interpose {
    ($($slot:ident = $symbol:literal: $kind:ty;)*) => {
        $(pub(crate) static $slot: Next<$kind> = Next::new($symbol);)*
        /// All rows.
        pub(crate) static ROWS: &[Row] = &[
            $(Row { name: $symbol, behind: &$slot.behind, in_libc: &$slot.in_libc },)*
        ];
    };
}

interpose! {
    MMAP = c"mmap": Mmap;
    MMAP64 = c"mmap64": Mmap;
    MUNMAP = c"munmap": unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
    MREMAP = c"mremap": Mremap;
    MADVISE = c"madvise": unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
    MBIND = c"mbind": Mbind;
    SHMGET = c"shmget": extern "C" fn(key_t, size_t, c_int) -> c_int;
    SHMAT = c"shmat": unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
    SHMDT = c"shmdt": unsafe extern "C" fn(*const c_void) -> c_int;
    SHMCTL = c"shmctl": unsafe extern "C" fn(c_int, c_int, *mut shmid_ds) -> c_int;
    MEMFD_CREATE = c"memfd_create": unsafe extern "C" fn(*const c_char, c_uint) -> c_int;
    FTRUNCATE = c"ftruncate": extern "C" fn(c_int, off64_t) -> c_int;
    FTRUNCATE64 = c"ftruncate64": extern "C" fn(c_int, off64_t) -> c_int;
    FALLOCATE = c"fallocate": Fallocate;
    FALLOCATE64 = c"fallocate64": Fallocate;
    POSIX_FALLOCATE = c"posix_fallocate": PosixFallocate;
    POSIX_FALLOCATE64 = c"posix_fallocate64": PosixFallocate;
    FCNTL = c"fcntl": Fcntl;
    FCNTL64 = c"fcntl64": Fcntl;
    STATFS = c"statfs": Statfs;
    STATFS64 = c"statfs64": Statfs;
    FSTATFS = c"fstatfs": Fstatfs;
    FSTATFS64 = c"fstatfs64": Fstatfs;
    MKSTEMP = c"mkstemp": Mkstemp;
    MKSTEMP64 = c"mkstemp64": Mkstemp;
    MKOSTEMP = c"mkostemp": Mkostemp;
    MKOSTEMP64 = c"mkostemp64": Mkostemp;
    READ = c"read": unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
    SENDMSG = c"sendmsg": unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
    SENDMMSG = c"sendmmsg": Sendmmsg;
    PRCTL = c"prctl": Prctl;
    SYSCALL = c"syscall": unsafe extern "C" fn(c_long, ...) -> c_long;
}

/// A registered symbol, without its type.
pub(crate) struct Row {
    pub(crate) name: &'static CStr,
    behind: &'static AtomicUsize,
    /// The address in the C library; [`crate::lookup`] fills it in.
    pub(crate) in_libc: &'static AtomicUsize,
}

/// The function of type `F` that stands behind this library. Its address comes first: code that
/// jumps there reads it from the start of the slot.
#[repr(C)]
pub(crate) struct Next<F> {
    behind: AtomicUsize,
    in_libc: AtomicUsize,
    name: &'static CStr,
    kind: PhantomData<F>,
}

/// A library behind this one may itself allocate and come here again, which is no recursion yet.
const MAX_DEPTH: u32 = 4;

thread_local! {
    /// Calls of this thread that are under way. It has no destructor, so a look at it allocates
    /// nothing and is valid until the thread's end.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl<F: Copy> Next<F> {
    const fn new(name: &'static CStr) -> Self {
        Self { behind: AtomicUsize::new(0), in_libc: AtomicUsize::new(0), name, kind: PhantomData }
    }

    /// Calls the function behind by `by`. Calls `bare` where none is known or the call recurses.
    pub(crate) fn call<R>(&self, by: impl FnOnce(F) -> R, bare: impl FnOnce() -> R) -> R {
        let at = self.behind.load(Ordering::Relaxed);
        let depth = DEPTH.get();
        if at == 0 || depth >= MAX_DEPTH {
            return bare();
        }
        DEPTH.set(depth + 1);
        // SAFETY: the row gives the type of the function at that address.
        let done = by(unsafe { std::mem::transmute_copy::<usize, F>(&at) });
        DEPTH.set(depth);
        done
    }

    /// Looks the function up.
    pub(crate) fn find(&self) -> usize {
        find(self.name, &self.behind)
    }
}

fn find(name: &CStr, behind: &AtomicUsize) -> usize {
    // SAFETY: a name that ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr();
    behind.store(found, Ordering::Relaxed);
    found
}

/// Looks all functions up while the process has one thread and the loader is idle. Later a caller
/// may hold locks that `dlsym` takes.
pub(crate) fn find_all() {
    for row in ROWS {
        find(row.name, row.behind);
    }
}
