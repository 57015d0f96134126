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

/// All of them, by the number that the kernel has for each.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl Handles {
    pub(super) fn add(&mut self, open: Open) -> u64 {
        self.last += 1;
        self.open.insert(self.last, open);
        self.last
    }

    pub(super) fn remove(&mut self, handle: u64) {
        self.open.remove(&handle);
    }

    pub(super) fn directory(&mut self, handle: u64) -> Result<&mut OpenDirectory, Errno> {
        match self.open.get_mut(&handle) {
            Some(Open::Directory(directory)) => Ok(directory),
            Some(_) => Err(Errno::NOTDIR),
            None => Err(Errno::BADF),
        }
    }

    /// EINVAL for what is no file of a domain: `hugepagectl` can neither be read nor written.
    pub(super) fn file(&mut self, handle: u64) -> Result<&mut OpenFile, Errno> {
        match self.open.get_mut(&handle) {
            Some(Open::File(file)) => Ok(file),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    /// ENOTTY for everything but `hugepagectl`.
    pub(super) fn device(&mut self, handle: u64) -> Result<&mut OpenDevice, Errno> {
        match self.open.get_mut(&handle) {
            Some(Open::Device(device)) => Ok(device),
            Some(_) => Err(Errno::NOTTY),
            None => Err(Errno::BADF),
        }
    }

    pub(super) fn get(&mut self, handle: u64) -> Result<&mut Open, Errno> {
        self.open.get_mut(&handle).ok_or(Errno::BADF)
    }

    pub(super) fn files(&mut self) -> impl Iterator<Item = &mut OpenFile> {
        self.open.values_mut().filter_map(|open| match open {
            Open::File(file) => Some(file),
            _ => None,
        })
    }

    pub(super) fn devices(&mut self) -> impl Iterator<Item = &mut OpenDevice> {
        self.open.values_mut().filter_map(|open| match open {
            Open::Device(device) => Some(device),
            _ => None,
        })
    }
}
