// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open files and directories.

use std::collections::BTreeMap;

use linux::Errno;
use units::Domain;

use super::item::{Item, Kind};
use super::notify::Watch;

/// An open directory: what was in it when it was read from its begin.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) item: Item,
    pub(super) entries: Vec<(String, Item)>,
}

/// An open file of a domain.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) domain: Domain,
    pub(super) kind: Kind,
    /// What was read last, from its begin.
    pub(super) text: Vec<u8>,
    /// Where the last read ended.
    pub(super) end: usize,
    /// How often the file had notified by then; 0 before the first time.
    pub(super) seen: u64,
    /// What the kernel calls it, if somebody polls it.
    pub(super) waiter: Option<u64>,
}

/// An open `hugepagectl`.
#[derive(Debug, Default)]
pub(super) struct OpenDevice {
    pub(super) watch: Option<(Domain, Watch)>,
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
const MOST: usize = 8192;
/// Of one user that is no master. Monitors have a few each; a change wakes all that are polled.
const MOST_OF_ONE: usize = 512;

/// Whose an open file is: an account, and whether it is a master's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) account: u32,
    pub(super) is_master: bool,
}

/// All of them, by the number that the kernel has for each.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: BTreeMap<u64, (Owner, Open)>,
    last: u64,
    /// How many each user has.
    users: BTreeMap<Owner, usize>,
    masters: usize,
}

impl Handles {
    /// # Errors
    /// EMFILE for a user that has [`MOST_OF_ONE`], ENFILE when all have [`MOST`].
    pub(super) fn add(&mut self, owner: Owner, open: Open) -> Result<u64, Errno> {
        let own = self.users.get(&owner).copied().unwrap_or(0);
        let (all, most) = match owner.is_master {
            true => (self.masters, MOST),
            false => (self.open.len() - self.masters, MOST_OF_ONE),
        };
        if own >= most {
            return Err(Errno::MFILE);
        }
        if all >= MOST {
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

    /// EINVAL for what is no file of a domain: `hugepagectl` can neither be read nor written.
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
        let owner = Owner { account, is_master };
        let mut opened = Vec::new();
        loop {
            match handles.add(owner, Open::Device(OpenDevice::default())) {
                Ok(handle) => opened.push(handle),
                Err(errno) => return (opened, errno),
            }
        }
    }

    #[test]
    fn open_files_are_bounded_by_user_and_in_all_and_masters_have_their_own() {
        let mut handles = Handles::default();
        let (first, errno) = fill(&mut handles, 1, false);
        assert_eq!((first.len(), errno), (MOST_OF_ONE, Errno::MFILE));
        let rest: Vec<_> = (2..40).map(|account| fill(&mut handles, account, false)).collect();
        let opened: usize = rest.iter().map(|(opened, _)| opened.len()).sum();
        assert_eq!((opened, rest[37].1), (MOST - MOST_OF_ONE, Errno::NFILE));
        assert_eq!(fill(&mut handles, 1, true).0.len(), MOST, "its own places");
        first.iter().for_each(|handle| handles.remove(*handle));
        first.iter().for_each(|handle| handles.remove(*handle));
        assert_eq!(fill(&mut handles, 7000, false).0.len(), MOST_OF_ONE, "places come back");
    }

    #[test]
    fn users_without_open_files_are_forgotten() {
        let mut handles = Handles::default();
        let (opened, _) = fill(&mut handles, 1, false);
        opened.iter().for_each(|handle| handles.remove(*handle));
        assert!(handles.users.is_empty() && handles.open.is_empty() && handles.masters == 0);
    }
}
