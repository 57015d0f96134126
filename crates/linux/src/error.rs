// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one error type: the request, the kernel's answer, and advice where there is some.
//!
//! A failed call prints as `strace` would print it, so that a user can search for it and a
//! developer can repeat it: `fallocate(7</run/prezero/huge/zeroable/3>, 0, 0, 2097152) = ENOSPC (no
//! space left on device): no free huge page is left ...`.

use std::fmt;
use std::path::{Path, PathBuf};

pub use rustix::io::Errno;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why the kernel refused a request, or why it was never asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call, or a read or write of a virtual file, failed.
    #[error("{call} = {}{}", Named(*errno), Advice(*advice))]
    Call {
        /// The call with its arguments, as `strace` prints it.
        call: Box<str>,
        /// What the kernel answered.
        errno: Errno,
        /// What to do, where that is known.
        advice: Option<&'static str>,
    },
    /// The kernel's text is not of the form that its documentation promises.
    #[error("{}: expected {expected}, found {found:?}", path.display())]
    Malformed {
        /// The file that was read.
        path: Box<Path>,
        /// The form that was expected.
        expected: &'static str,
        /// The unexpected part, at most 80 characters of it.
        found: Box<str>,
    },
    /// Another user can change where a path leads.
    #[error(
        "{} is of uid {owner} with mode {mode:o}: others than root and uid {user} can change where {} leads",
        part.display(), path.display()
    )]
    Foreign {
        /// The path.
        path: Box<Path>,
        /// Its directory, or the link on it, that the other user can change.
        part: Box<Path>,
        /// Whose that is.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// The caller's user.
        user: u32,
    },
    /// An argument was refused before the kernel was asked.
    #[error("{what} {value} {rule}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: Box<str>,
        /// The rule it breaks.
        rule: &'static str,
    },
}

impl Error {
    /// What the kernel answered, if it was asked.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::Malformed { .. } | Self::Foreign { .. } | Self::Invalid { .. } => None,
        }
    }

    /// The pool is exhausted, or lacks room for the size: try again when pages came back, or with
    /// fewer.
    pub fn is_no_space(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOSPC | Errno::NOMEM))
    }

    /// The file, directory, process or group is missing (by now).
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(Errno::NOENT | Errno::NODEV | Errno::SRCH))
    }

    /// The caller lacks privileges.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(Errno::PERM | Errno::ACCESS))
    }

    /// A process has a lease on the file (fcntl(2), F_SETLEASE): it is open elsewhere.
    pub fn is_leased(&self) -> bool {
        self.errno() == Some(Errno::AGAIN)
    }

    /// Another process has a lease on the file, or runs it as a program (execve(2)). Opening it for
    /// writing fails meanwhile.
    pub fn is_in_use(&self) -> bool {
        self.is_leased() || self.errno() == Some(Errno::TXTBSY)
    }

    pub(crate) fn invalid(
        what: &'static str,
        value: impl fmt::Display,
        rule: &'static str,
    ) -> Self {
        Self::Invalid { what, value: value.to_string().into(), rule }
    }

    pub(crate) fn malformed(path: impl Into<PathBuf>, expected: &'static str, found: &str) -> Self {
        let found = found.chars().take(80).collect::<String>();
        Self::Malformed { path: path.into().into(), expected, found: found.into() }
    }
}

/// Turns a bare errno into an [`Error`] by naming the call.
pub(crate) trait ErrorContext<T>: Sized {
    /// Names the call; `call` runs only on failure.
    fn or_call(self, call: impl FnOnce() -> String) -> Result<T>;
}

impl<T> ErrorContext<T> for std::result::Result<T, Errno> {
    fn or_call(self, call: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Call { call: call().into(), errno, advice: None })
    }
}

impl<T> ErrorContext<T> for std::io::Result<T> {
    fn or_call(self, call: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).or_call(call)
    }
}

/// Adds what to do about one particular errno.
pub(crate) trait Advise: Sized {
    /// Adds `text` if the call failed with `when`.
    fn advise(self, when: Errno, text: &'static str) -> Self;
}

impl<T> Advise for Result<T> {
    fn advise(mut self, when: Errno, text: &'static str) -> Self {
        if let Err(Error::Call { errno, advice, .. }) = &mut self
            && *errno == when
        {
            *advice = Some(text);
        }
        self
    }
}

struct Advice(Option<&'static str>);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |text| write!(f, ": {text}"))
    }
}

/// Prints an errno by its symbolic name, which is what people search for.
struct Named(Errno);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = match self.0 {
            Errno::PERM => ("EPERM", "operation not permitted"),
            Errno::NOENT => ("ENOENT", "no such file or directory"),
            Errno::SRCH => ("ESRCH", "no such process"),
            Errno::INTR => ("EINTR", "interrupted by a signal"),
            Errno::IO => ("EIO", "input/output error"),
            Errno::NXIO => ("ENXIO", "no such device or address"),
            Errno::BADF => ("EBADF", "bad file descriptor"),
            Errno::AGAIN => ("EAGAIN", "resource temporarily unavailable"),
            Errno::NOMEM => ("ENOMEM", "cannot allocate memory"),
            Errno::ACCESS => ("EACCES", "permission denied"),
            Errno::FAULT => ("EFAULT", "bad address"),
            Errno::BUSY => ("EBUSY", "device or resource busy"),
            Errno::EXIST => ("EEXIST", "file exists"),
            Errno::NODEV => ("ENODEV", "no such device"),
            Errno::NOTDIR => ("ENOTDIR", "not a directory"),
            Errno::ISDIR => ("EISDIR", "is a directory"),
            Errno::INVAL => ("EINVAL", "invalid argument"),
            Errno::MFILE => ("EMFILE", "too many open files in this process"),
            Errno::NFILE => ("ENFILE", "too many open files in the system"),
            Errno::TXTBSY => ("ETXTBSY", "text file busy"),
            Errno::FBIG => ("EFBIG", "file too large"),
            Errno::NOSPC => ("ENOSPC", "no space left on device"),
            Errno::ROFS => ("EROFS", "read-only file system"),
            Errno::RANGE => ("ERANGE", "result too large"),
            Errno::NOSYS => ("ENOSYS", "function not implemented"),
            Errno::LOOP => ("ELOOP", "too many symbolic links"),
            Errno::NOTEMPTY => ("ENOTEMPTY", "directory not empty"),
            Errno::OPNOTSUPP => ("EOPNOTSUPP", "operation not supported"),
            Errno::HWPOISON => ("EHWPOISON", "memory page has a hardware error"),
            // Kernels may answer with codes that no header of ours knows.
            other => return write!(f, "errno {}", other.raw_os_error()),
        };
        write!(f, "{name} ({text})")
    }
}
