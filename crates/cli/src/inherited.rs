// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loan that the commands which this process starts have, and how one takes this process's place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use client::Loan;
use rustix::io::FdFlags;

use crate::exit::{Exit, Failure};

/// Puts a command in this process's place; returns only why that failed.
pub(crate) fn become_command(command: &mut Command) -> Failure {
    let failure = command.exec();
    let exit = match failure.kind() {
        io::ErrorKind::NotFound => Exit::NoCommand,
        _ => Exit::CannotRun,
    };
    Failure::new(exit, format!("{}: {failure}", command.get_program().to_string_lossy()))
}

/// A loan with descriptors that survive `execve`.
#[derive(Debug)]
pub struct Inherited {
    lease: OwnedFd,
    memory: OwnedFd,
    bytes: u64,
    page_bytes: u64,
    kept: bool,
}

impl Inherited {
    /// A loan of one file, as [`client::LendRequest::single`] brings it. From now on every process
    /// that this one starts has its descriptors.
    ///
    /// # Errors
    /// A loan of several files; those of `fcntl`.
    pub fn new(loan: Loan) -> Result<Self, Failure> {
        let (bytes, page_bytes) = (loan.bytes().0, loan.page_size().bytes());
        let kept = loan.is_kept();
        let (lease, parts) = loan.into_fds();
        let (Some(lease), Ok([memory])) = (lease, <[OwnedFd; 1]>::try_from(parts)) else {
            return Err(Failure::failed("the daemon answered a loan of one file with several"));
        };
        for fd in [&lease, &memory] {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())
                .map_err(|errno| Failure::failed(format!("fcntl(F_SETFD): {errno}")))?;
        }
        Ok(Self { lease, memory, bytes, page_bytes, kept })
    }

    /// The path by which a process that inherited the memory opens it.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.memory.as_raw_fd())
    }

    /// Whether a command names the memory, in a word or as the variable of a script.
    pub(crate) fn is_named_by(words: &[OsString]) -> bool {
        let has = |word: &OsString, name: &str| {
            word.as_bytes().windows(name.len()).any(|part| part == name.as_bytes())
        };
        let names = ["{path}", "{fd}", "PREZERO_"];
        words.iter().any(|word| names.iter().any(|name| has(word, name)))
    }

    pub(crate) fn command(&self, words: &[OsString]) -> Command {
        let fd = self.memory.as_raw_fd().to_string();
        let (path, bytes) = (self.path(), self.bytes.to_string());
        let names = [("{path}", path.as_str()), ("{fd}", &fd), ("{bytes}", &bytes)];
        let mut command = Command::new(substitute(&words[0], &names));
        command
            .args(words[1..].iter().map(|word| substitute(word, &names)))
            .env("PREZERO_FD", &fd)
            .env("PREZERO_PATH", &path)
            .env("PREZERO_BYTES", &bytes)
            .env("PREZERO_PAGE_BYTES", self.page_bytes.to_string())
            .env("PREZERO_KEPT", u8::from(self.kept).to_string())
            .env("PREZERO_LEASE_FD", self.lease.as_raw_fd().to_string());
        command
    }
}

/// Replaces every name in braces; replaced text stays as it is.
fn substitute(word: &OsStr, names: &[(&str, &str)]) -> OsString {
    let mut rest = word.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    'next: while let Some((&first, tail)) = rest.split_first() {
        for (name, value) in names {
            if let Some(after) = rest.strip_prefix(name.as_bytes()) {
                out.extend_from_slice(value.as_bytes());
                rest = after;
                continue 'next;
            }
        }
        out.push(first);
        rest = tail;
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_replaced_wherever_they_stand() {
        let names = [("{path}", "/proc/self/fd/9"), ("{fd}", "9"), ("{bytes}", "{fd}")];
        for (word, expected) in [
            ("mem-path={path},size={bytes}", "mem-path=/proc/self/fd/9,size={fd}"),
            ("{fd}{fd}", "99"),
            ("{pathological} {}", "{pathological} {}"),
            ("", ""),
        ] {
            assert_eq!(substitute(OsStr::new(word), &names), expected, "{word}");
        }
        let is_named = |words: &[&str]| {
            Inherited::is_named_by(&words.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert!(is_named(&["qemu", "mem-path={path}"]) && is_named(&["sh", "-c", "x $PREZERO_FD"]));
        assert!(!is_named(&["true", "{bytes}", "path"]));
        let not_text = OsStr::from_bytes(b"\xff{fd}");
        assert_eq!(substitute(not_text, &names).as_bytes(), b"\xff9");
    }
}
