// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open files and directories.

use std::collections::BTreeMap;

use linux::Errno;
use units::Domain;

use super::item::{FileKind, Item};
use super::notify::LevelWatch;

/// An open directory, with its entries as of the read from its begin.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) item: Item,
    pub(super) entries: Vec<(String, Item)>,
}

/// An open file of a domain.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) domain: Domain,
    pub(super) kind: FileKind,
    /// The last text read, from its begin.
    pub(super) text: Vec<u8>,
    /// Where the last read ended.
    pub(super) end: usize,
    /// How often the file had notified by then; 0 before the first time.
    pub(super) seen: u64,
    /// The kernel's number for it, if it is polled.
    pub(super) waiter: Option<u64>,
}

/// An open `hugepagectl`.
#[derive(Debug, Default)]
pub(super) struct OpenDevice {
    pub(super) watch: Option<(Domain, LevelWatch)>,
    pub(super) waiter: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Open {
    Directory(OpenDirectory),
    File(OpenFile),
    Device(OpenDevice),
}

/// Open files of all users but masters, and as many again of masters. Each takes 0.3 KiB of the
/// daemon's memory, and of its time 20 ns a look at who polls.
const MAX_OPEN_FILES: usize = 8192;
/// Of one ordinary user. Monitors have a few each; a change wakes all that are polled.
const MAX_OPEN_FILES_OF_USER: usize = 512;

/// The user of an open file: an account, and whether it is a master's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileOwner {
    pub(super) account: u32,
    pub(super) is_master: bool,
}

/// All of them, by the number that the kernel has for each.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: BTreeMap<u64, (FileOwner, Open)>,
    last: u64,
    /// How many each user has.
    users: BTreeMap<FileOwner, usize>,
    masters: usize,
}

impl Handles {
    /// # Errors
    /// EMFILE for a user that has [`MAX_OPEN_FILES_OF_USER`], ENFILE when all have
    /// [`MAX_OPEN_FILES`].
    pub(super) fn add(&mut self, owner: FileOwner, open: Open) -> Result<u64, Errno> {
        let own = self.users.get(&owner).copied().unwrap_or(0);
        let (all, most) = match owner.is_master {
            true => (self.masters, MAX_OPEN_FILES),
            false => (self.open.len() - self.masters, MAX_OPEN_FILES_OF_USER),
        };
        if own >= most {
            return Err(Errno::MFILE);
        }
        if all >= MAX_OPEN_FILES {
            return Err(Errno::NFILE);
        }
        self.users.insert(owner, own + 1);
        self.masters += usize::from(owner.is_master);
        self.last += 1;
        self.open.insert(self.last, (owner, open));
        Ok(self.last)
    }

    pub(super) fn remove(&mut self, handle: u64) {
        let Some((owner, _)) = self.open.remove(&handle) else { return };
        self.masters -= usize::from(owner.is_master);
        match self.users.get_mut(&owner) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.users.remove(&owner)),
        }
    }

    pub(super) fn directory(&mut self, handle: u64) -> Result<&mut OpenDirectory, Errno> {
        match self.open.get_mut(&handle) {
            Some((_, Open::Directory(directory))) => Ok(directory),
            Some(_) => Err(Errno::NOTDIR),
            None => Err(Errno::BADF),
        }
    }

    /// EINVAL for files outside of a domain: `hugepagectl` can neither be read nor written.
    pub(super) fn file(&mut self, handle: u64) -> Result<&mut OpenFile, Errno> {
        match self.open.get_mut(&handle) {
            Some((_, Open::File(file))) => Ok(file),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    /// ENOTTY for everything but `hugepagectl`.
    pub(super) fn device(&mut self, handle: u64) -> Result<&mut OpenDevice, Errno> {
        match self.open.get_mut(&handle) {
            Some((_, Open::Device(device))) => Ok(device),
            Some(_) => Err(Errno::NOTTY),
            None => Err(Errno::BADF),
        }
    }

    pub(super) fn get(&mut self, handle: u64) -> Result<&mut Open, Errno> {
        self.open.get_mut(&handle).map(|(_, open)| open).ok_or(Errno::BADF)
    }

    pub(super) fn files(&mut self) -> impl Iterator<Item = &mut OpenFile> {
        self.open.values_mut().filter_map(|open| match open {
            (_, Open::File(file)) => Some(file),
            _ => None,
        })
    }

    pub(super) fn devices(&mut self) -> impl Iterator<Item = &mut OpenDevice> {
        self.open.values_mut().filter_map(|open| match open {
            (_, Open::Device(device)) => Some(device),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(handles: &mut Handles, account: u32, is_master: bool) -> (Vec<u64>, Errno) {
        let owner = FileOwner { account, is_master };
        let mut opened = Vec::new();
        loop {
            match handles.add(owner, Open::Device(OpenDevice::default())) {
                Ok(handle) => opened.push(handle),
                Err(errno) => return (opened, errno),
            }
        }
    }

    // Promise P248 (tree): One user has at most 512 open files of the tree, all users together
    // 8192; root has as many of its own. A file that is held by its name alone takes no memory of
    // the daemon.
    #[test]
    fn open_files_are_bounded_per_user_and_in_total() {
        let mut handles = Handles::default();
        let (first, errno) = fill(&mut handles, 1, false);
        assert_eq!((first.len(), errno), (MAX_OPEN_FILES_OF_USER, Errno::MFILE));
        let rest: Vec<_> = (2..40).map(|account| fill(&mut handles, account, false)).collect();
        let opened: usize = rest.iter().map(|(opened, _)| opened.len()).sum();
        assert_eq!((opened, rest[37].1), (MAX_OPEN_FILES - MAX_OPEN_FILES_OF_USER, Errno::NFILE));
        assert_eq!(fill(&mut handles, 1, true).0.len(), MAX_OPEN_FILES, "its own places");
        first.iter().for_each(|handle| handles.remove(*handle));
        first.iter().for_each(|handle| handles.remove(*handle));
        assert_eq!(
            fill(&mut handles, 7000, false).0.len(),
            MAX_OPEN_FILES_OF_USER,
            "places come back"
        );
    }

    #[test]
    fn users_without_open_files_are_forgotten() {
        let mut handles = Handles::default();
        let (opened, _) = fill(&mut handles, 1, false);
        opened.iter().for_each(|handle| handles.remove(*handle));
        assert!(handles.users.is_empty() && handles.open.is_empty() && handles.masters == 0);
    }
}
