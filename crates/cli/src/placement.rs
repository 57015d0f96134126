// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths at which programs find a loan by name: made when it is lent, removed at its end.
//!
//! Such a path lies where its user's program looks, so its directory is that user's, or open to all
//! (`/dev/shm`). Root acts there with the user's rights: a link or a name of another user's leads
//! nowhere that this user could not go by itself. The two calls that need root's rights go by
//! descriptor. Binding is done at the very file that was made with the user's rights. Unbinding
//! compares the file that it finds first ([`linux::bind`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use client::LoanPaths;
use linux::Roots;
use linux::bind::{self, FileNumber};
use nix::unistd::{Gid, Uid, User, getgroups, initgroups, setegid, seteuid, setgroups};
use rustix::fs::{Access, AtFlags};

use crate::exit::Failure;

/// A user other than the caller, if the caller is root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserRights {
    uid: u32,
    gid: Option<u32>,
}

impl UserRights {
    pub(crate) fn new(uid: u32, gid: Option<u32>) -> Self {
        Self { uid, gid }
    }

    /// Runs `act` with that user's rights and groups.
    fn run<T>(self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !Uid::effective().is_root() || self.uid == 0 {
            return act();
        }
        let own = (getgroups()?, Gid::effective());
        let user = User::from_uid(Uid::from_raw(self.uid)).ok().flatten();
        // A user without an entry has no groups but the one that is named.
        let gid = self.gid.map(Gid::from_raw).or(user.as_ref().map(|user| user.gid));
        let gid = gid.unwrap_or(Gid::from_raw(self.uid));
        match user.and_then(|user| std::ffi::CString::new(user.name).ok()) {
            Some(name) => initgroups(&name, gid)?,
            None => setgroups(&[gid])?,
        }
        setegid(gid)?;
        seteuid(Uid::from_raw(self.uid))?;
        let done = act();
        seteuid(Uid::from_raw(0))?;
        setegid(own.1)?;
        setgroups(&own.0)?;
        done
    }
}

/// How a path leads to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bind,
    Link,
}

/// A path that a loan is to have.
#[derive(Debug)]
pub(crate) struct LoanPlace {
    field: &'static str,
    way: Way,
    path: PathBuf,
    rights: UserRights,
}

impl LoanPlace {
    /// The paths that a caller makes for a loan.
    pub(crate) fn all(paths: &LoanPaths, rights: UserRights) -> Vec<Self> {
        let way = |field| if field == "bind" { Way::Bind } else { Way::Link };
        let made = paths.made_by_caller();
        made.map(|(field, path)| Self { field, way: way(field), path: path.into(), rights })
            .collect()
    }

    fn refused(&self, reason: impl std::fmt::Display) -> Failure {
        let path = self.path.display();
        client::Error::from(wire::Error::bad_value(self.field, format!("{path}: {reason}"))).into()
    }

    fn failed(&self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::AlreadyExists => self.refused("exists"),
            _ => self.refused(format!("user {} cannot make it: {error}", self.rights.uid)),
        }
    }

    /// Checks before the loan that the path is free and that its user can make it. Where a loan of
    /// that name is there already, the path may be its own.
    ///
    /// # Errors
    /// The path exists, or the user cannot make it.
    pub(crate) fn check(&self, is_lent: bool) -> Result<(), Failure> {
        let checked = self.rights.run(|| {
            match self.path.symlink_metadata() {
                Ok(_) if is_lent => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let dir = self.path.parent().unwrap_or(Path::new("/"));
            let rights = Access::WRITE_OK | Access::EXEC_OK;
            Ok(rustix::fs::accessat(rustix::fs::CWD, dir, rights, AtFlags::EACCESS)?)
        });
        checked.map_err(|error| self.failed(&error))
    }

    /// Makes the path lead to the memory at `memory`, with the user's rights. `is_found`: the loan
    /// was there before, and so may the path be.
    ///
    /// # Errors
    /// As [`check`](Self::check), and those of binding.
    pub(crate) fn make(&self, memory: &Path, is_found: bool) -> Result<(), Failure> {
        let leads_there = || match self.way {
            Way::Link => self.path.read_link().is_ok_and(|to| to == memory),
            Way::Bind => {
                let number = |path| FileNumber::of(path).ok();
                number(&self.path).is_some_and(|at| number(memory) == Some(at))
            }
        };
        if is_found && leads_there() {
            return Ok(());
        }
        match self.way {
            Way::Link => {
                let linked = self.rights.run(|| std::os::unix::fs::symlink(memory, &self.path));
                linked.map_err(|error| self.failed(&error))
            }
            Way::Bind => {
                let file = self.rights.run(|| self.mount_point(is_found));
                let file = file.map_err(|error| self.failed(&error))?;
                let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                bind::bind(memory, &by_descriptor).map_err(|error| {
                    drop(self.remove(memory));
                    error.into()
                })
            }
        }
    }

    /// An empty file of the user's to bind at. An earlier call that was killed may have left it.
    fn mount_point(&self, is_found: bool) -> io::Result<File> {
        let mut new = OpenOptions::new();
        new.write(true).create_new(true).mode(0o600).custom_flags(libc_flags());
        match new.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_found => {
                let left =
                    File::options().write(true).custom_flags(libc_flags()).open(&self.path)?;
                match self.is_mount_point(&left.metadata()?) {
                    true => Ok(left),
                    false => Err(error),
                }
            }
            made => made,
        }
    }

    fn is_mount_point(&self, file: &std::fs::Metadata) -> bool {
        file.is_file() && file.len() == 0 && file.uid() == self.rights.uid
    }

    /// Removes the path with the user's rights, if it is what [`make`](Self::make) made.
    ///
    /// # Errors
    /// Those of `unlink`.
    fn remove(&self, memory: &Path) -> io::Result<()> {
        self.rights.run(|| {
            let is_ours = match self.way {
                Way::Link => self.path.read_link().is_ok_and(|to| to == memory),
                Way::Bind => self.path.symlink_metadata().is_ok_and(|at| self.is_mount_point(&at)),
            };
            if is_ours { std::fs::remove_file(&self.path) } else { Ok(()) }
        })
    }
}

/// Never through a link, and never waiting for another end.
fn libc_flags() -> i32 {
    (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed()
}

/// Remove the paths of a loan that has ended
///
/// The daemon starts it with the directory of the loan's paths.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero unlend /run/prezero/named/17")]
pub(crate) struct Args {
    /// The directory, with the record of the paths
    dir: PathBuf,
}

/// One line of the record.
fn placement(line: &str) -> Option<LoanPlace> {
    let mut words = line.splitn(4, ' ');
    let (field, way) = match words.next()? {
        "bind" => ("bind", Way::Bind),
        "link" => ("link", Way::Link),
        _ => return None,
    };
    let uid = words.next()?.parse().ok()?;
    let gid = words.next()?.parse().ok();
    Some(LoanPlace { field, way, path: words.next()?.into(), rights: UserRights { uid, gid } })
}

/// The file, in the record's first line.
fn file_number(text: &str) -> Option<FileNumber> {
    let (device, inode) = text.lines().next()?.strip_prefix("file ")?.split_once(' ')?;
    Some(FileNumber { device: device.parse().ok()?, inode: inode.parse().ok()? })
}

pub(crate) fn run(args: &Args) -> crate::exit::Outcome {
    let record = args.dir.join("paths");
    let text = std::fs::read_to_string(&record)?;
    let memory = args.dir.join("memory");
    if let Some(file) = file_number(&text) {
        bind::unbind(&Roots::default(), file)?;
    }
    for place in text.lines().filter_map(placement) {
        if let Err(error) = place.remove(&memory) {
            // The user has made it so, and another try would find the same.
            crate::output::note(&format!("{} stays: {error}", place.path.display()));
        }
    }
    Ok(crate::exit::Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_reads_back_paths_with_spaces() {
        let text = "file 27 4711\nbind 1000 - /home/a b/x\nlink 7 8 /y\nelse\n";
        assert_eq!(file_number(text), Some(FileNumber { device: 27, inode: 4711 }));
        let places: Vec<_> = text.lines().filter_map(placement).collect();
        let [bind, link] = &places[..] else { panic!("{places:?}") };
        assert_eq!((bind.way, bind.path.as_path()), (Way::Bind, Path::new("/home/a b/x")));
        assert_eq!((bind.rights.uid, bind.rights.gid), (1000, None));
        assert_eq!((link.way, link.rights.uid, link.rights.gid), (Way::Link, 7, Some(8)));
    }
}
