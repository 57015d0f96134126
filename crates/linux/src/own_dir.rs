// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Directories with a path that no other user can redirect.
//!
//! Root that makes files below a directory of another user's makes them wherever that user's links
//! lead, also when the last directory of the path is root's own. So the walk looks at the whole
//! path, one component at a time, each by the descriptor of the one before and without following
//! links, as systemd's `chase()` does. A component is trusted if it belongs to root or to the
//! caller's user and no other user can write to it. The walk follows a link that an operator made
//! (`/var/run`), if the link and its directory are trusted like that. In a directory with the
//! sticky bit (`/tmp`) other users can add names and change none of root's: it may lie on the path,
//! and links in it are refused.
//!
//! After the look at a path, only root and the caller's user can change its meaning.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::error::{Errno, Error, ErrorContext, Result};

/// Links of one path that are followed, as in the kernel.
const MAX_LINKS: usize = 40;
/// What others than the owner may not have.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const O_PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A directory into which only root and the caller's user can put files, at a path that only these
/// can change.
#[derive(Debug)]
pub struct OwnDir(OwnedFd);

impl AsFd for OwnDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl OwnDir {
    /// Opens the directory, and makes missing parts of its path with `mode`.
    ///
    /// # Errors
    /// [`Error::Foreign`] with the component that another user can change; the errors of `openat`
    /// and `mkdirat`. New directories stay.
    pub fn make(path: &Path, mode: u32) -> Result<Self> {
        let mut walk = Walk::begin(path)?;
        while walk.step(mode)? {}
        // Others can put files into a sticky one.
        if mode_of(&walk.stat) & OTHERS_WRITE != 0 {
            return Err(walk.foreign(&walk.stat));
        }
        Ok(Self(walk.at))
    }
}

/// A walk from the root directory to a path's end.
struct Walk<'a> {
    path: &'a Path,
    /// Whom a component may belong to.
    trusted: [u32; 3],
    at: OwnedFd,
    stat: Stat,
    /// The same as text, for messages.
    reached: PathBuf,
    left: VecDeque<OsString>,
    links: usize,
}

impl<'a> Walk<'a> {
    fn begin(path: &'a Path) -> Result<Self> {
        let absolute = std::path::absolute(path).or_call(|| format!("getcwd() for {path:?}"))?;
        let (at, stat) = root()?;
        // The owner of the root directory has all of it: in a user namespace that is its maker.
        let trusted = [0, rustix::process::geteuid().as_raw(), stat.st_uid];
        let left = components(&absolute);
        let mut walk = Self { path, trusted, at, stat, reached: "/".into(), left, links: 0 };
        walk.is_trusted()?;
        walk.left.retain(|part| part != ".");
        Ok(walk)
    }

    /// One component further; whether there was one.
    fn step(&mut self, mode: u32) -> Result<bool> {
        let Some(name) = self.left.pop_front() else { return Ok(false) };
        let next = match self.open(&name) {
            Err(Errno::NOENT) if name != ".." => {
                match rustix::fs::mkdirat(&self.at, &name, Mode::from_raw_mode(mode)) {
                    Ok(()) | Err(Errno::EXIST) => self.open(&name),
                    Err(errno) => Err(errno),
                }
            }
            result => result,
        };
        let to = self.reached.join(&name);
        let (next, stat) = next.or_call(|| format!("mkdir({to:?}, {mode:#o})"))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => self.follow(&next, &stat, to)?,
            FileType::Directory => {
                // A file system of a user's own, mounted there, says what it likes of its owner.
                let is_mounted = takes_names(&self.stat) && stat.st_dev != self.stat.st_dev;
                (self.at, self.stat, self.reached) = (next, stat, to);
                if is_mounted {
                    return Err(self.foreign(&self.stat));
                }
                self.is_trusted()?;
            }
            _ => return Err(Errno::NOTDIR).or_call(|| format!("mkdir({to:?}, {mode:#o})")),
        }
        Ok(true)
    }

    fn open(&self, name: &OsStr) -> rustix::io::Result<(OwnedFd, Stat)> {
        let file = rustix::fs::openat(&self.at, name, O_PATH, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        Ok((file, stat))
    }

    fn follow(&mut self, link: &OwnedFd, stat: &Stat, at: PathBuf) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP).or_call(|| format!("open({:?}, O_PATH)", self.path));
        }
        if !self.trusted.contains(&stat.st_uid) || takes_names(&self.stat) {
            self.reached = at;
            return Err(self.foreign(stat));
        }
        let to = rustix::fs::readlinkat(link, "", Vec::new());
        let to = PathBuf::from(OsString::from_vec(
            to.or_call(|| format!("readlink({at:?})"))?.into_bytes(),
        ));
        if to.is_absolute() {
            (self.at, self.stat) = root()?;
            self.reached = "/".into();
        }
        for part in components(&to).into_iter().rev() {
            self.left.push_front(part);
        }
        Ok(())
    }

    fn is_trusted(&self) -> Result<()> {
        let mode = mode_of(&self.stat);
        let is_open = mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
        match self.trusted.contains(&self.stat.st_uid) && !is_open {
            true => Ok(()),
            false => Err(self.foreign(&self.stat)),
        }
    }

    fn foreign(&self, stat: &Stat) -> Error {
        Error::Foreign {
            path: self.path.into(),
            part: self.reached.clone().into(),
            owner: stat.st_uid,
            mode: mode_of(stat),
            user: self.trusted[1],
        }
    }
}

fn root() -> Result<(OwnedFd, Stat)> {
    let root = rustix::fs::open("/", O_PATH, Mode::empty()).or_call(|| "open(\"/\")".to_owned())?;
    let stat = rustix::fs::fstat(&root).or_call(|| "fstat(\"/\")".to_owned())?;
    Ok((root, stat))
}

fn components(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}

/// Permissions, with the bits before them.
fn mode_of(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// Whether other users can add names there.
fn takes_names(stat: &Stat) -> bool {
    mode_of(stat) & OTHERS_WRITE != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    fn part(path: &Path) -> PathBuf {
        match OwnDir::make(path, 0o755) {
            Err(Error::Foreign { part, .. }) => part.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_directories_are_made_and_own_links_followed() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().join("a/b");
        OwnDir::make(&real, 0o755).unwrap();
        assert_eq!(real.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        symlink("a", place.path().join("relative")).unwrap();
        symlink(place.path().join("relative"), place.path().join("absolute")).unwrap();
        let made = OwnDir::make(&place.path().join("absolute/../absolute/./c"), 0o700).unwrap();
        let seen = rustix::fs::fstat(&made).unwrap();
        let made =
            std::os::unix::fs::MetadataExt::ino(&place.path().join("a/c").metadata().unwrap());
        assert_eq!(seen.st_ino, made);
        symlink("loop", place.path().join("loop")).unwrap();
        let error = OwnDir::make(&place.path().join("loop"), 0o700).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::LOOP), "{error}");
        std::fs::write(place.path().join("file"), "").unwrap();
        let error = OwnDir::make(&place.path().join("file/below"), 0o700).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOTDIR), "{error}");
    }

    // Promise P262.
    #[test]
    fn directories_that_others_can_write_end_the_walk() {
        let place = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o775, 0o722] {
            let open = place.path().join(format!("{mode:o}"));
            create_dir(&open).unwrap();
            set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            assert_eq!(part(&open), open);
            assert_eq!(part(&open.join("below")), open);
            assert!(!open.join("below").exists());
        }
    }

    // Promise P262.
    #[test]
    fn sticky_directories_are_passed_but_links_in_them_are_not() {
        let place = tempfile::tempdir().unwrap();
        let sticky = place.path().join("sticky");
        create_dir(&sticky).unwrap();
        set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(part(&sticky), sticky, "others can put files there");
        OwnDir::make(&sticky.join("own"), 0o700).unwrap();
        symlink("own", sticky.join("link")).unwrap();
        assert_eq!(part(&sticky.join("link/below")), sticky.join("link"));
    }

    // Promise P262.
    #[test]
    fn directories_and_links_of_other_users_end_the_walk() {
        let place = tempfile::tempdir().unwrap();
        let (theirs, own) = (place.path().join("theirs"), place.path().join("own"));
        create_dir(&theirs).unwrap();
        create_dir(&own).unwrap();
        if chown(&theirs, Some(65534), None).is_err() {
            testkit::skip("giving a directory away needs root");
            return;
        }
        symlink(&own, theirs.join("run")).unwrap();
        assert_eq!(part(&theirs.join("run")), theirs, "what lies behind is not even looked at");
        symlink(&own, place.path().join("link")).unwrap();
        lchown(place.path().join("link"), Some(65534), None).unwrap();
        assert_eq!(part(&place.path().join("link")), place.path().join("link"));
    }
}
