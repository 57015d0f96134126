// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The user with the quota that a borrower's loans count against.
//!
//! A user with subordinate numbers (subuid(5)) is 65,536 users in a namespace that it makes
//! (user_namespaces(7)), and would have as many quotas. So a loan counts against the user who made
//! the namespace, asked of the kernel, which knows it however the numbers were given out. A
//! subordinate number leaves its namespace on a set-user-ID file, which the kernel honours
//! everywhere: so a number that /etc/subuid gives to a user is that user's, wherever it runs.
//!
//! Root makes containers, and their users count each for itself.

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use linux::{Peer, Roots};
use units::Uid;

/// Interval of looks at the file's time of change: programs that add users do not reload the
/// daemon.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The numbers that users may use in their namespaces.
#[derive(Debug, Default)]
struct Subordinates(Vec<(Range<u64>, u32)>);

/// Finds accounts. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Accounts {
    roots: Roots,
    file: PathBuf,
    look_every: Duration,
    known: Arc<Mutex<Subordinates>>,
    /// When the file had changed that is known, and when that is looked at again.
    changed: Cell<Option<SystemTime>>,
    next_look: Cell<Instant>,
    is_warned: Cell<bool>,
}

impl Accounts {
    /// Blocks until the file was read, with the names of the users in it.
    pub(crate) fn new(roots: Roots) -> Self {
        Self::from_file(roots, Path::new("/etc/subuid"), CHECK_INTERVAL)
    }

    pub(crate) fn from_file(roots: Roots, file: &Path, look_every: Duration) -> Self {
        let changed = Cell::new(last_change(file));
        let known = Arc::new(Mutex::new(Subordinates::read(file)));
        let next_look = Cell::new(Instant::now() + look_every);
        let file = file.to_owned();
        Self { roots, file, look_every, known, changed, next_look, is_warned: Cell::default() }
    }

    /// The account of a connected peer.
    ///
    /// # Errors
    /// Those of asking the kernel; ESRCH if the process that connected has ended, and its user is
    /// unknown.
    pub(crate) fn of(&self, socket: impl AsFd, peer: &Peer) -> linux::Result<Uid> {
        // No user can multiply root's quota.
        if peer.uid == 0 {
            return Ok(Uid(0));
        }
        let maker = match linux::user_ns::maker(&self.roots, socket, peer) {
            Err(error) if error.is_denied() => {
                if !self.is_warned.replace(true) {
                    tracing::warn!(%error, "users of user namespaces have quotas of their own");
                }
                None
            }
            result => result?,
        };
        Ok(Uid(self.of_number(maker.unwrap_or(peer.uid))))
    }

    /// The user that has a number as subordinate, or the number itself.
    pub(crate) fn of_number(&self, uid: u32) -> u32 {
        self.look();
        lock(&self.known).owner(uid).unwrap_or(uid)
    }

    /// Has a changed file read, by a thread: names of users may come from afar.
    fn look(&self) {
        let now = Instant::now();
        if now < self.next_look.get() {
            return;
        }
        self.next_look.set(now + self.look_every);
        let changed = last_change(&self.file);
        if changed == self.changed.get() {
            return;
        }
        let (file, known) = (self.file.clone(), Arc::clone(&self.known));
        let thread = std::thread::Builder::new().name("subordinates".to_owned());
        match thread.spawn(move || {
            let read = Subordinates::read(&file);
            *lock(&known) = read;
        }) {
            Ok(_) => self.changed.set(changed),
            Err(error) => tracing::warn!(%error, "subordinates are not read again"),
        }
    }
}

fn last_change(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|found| found.modified()).ok()
}

fn lock(known: &Mutex<Subordinates>) -> MutexGuard<'_, Subordinates> {
    // It is replaced whole.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subordinates {
    /// The content of a file; empty if it is missing.
    fn read(file: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(file).unwrap_or_default())
    }

    /// Lines of `user:first:count`, the user by name or number. Other lines mean nothing, as to
    /// newuidmap(1); neither do unknown users.
    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut fields = line.split(':');
            let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
            let owner = user.parse().ok().or_else(|| {
                let found = nix::unistd::User::from_name(user).ok().flatten()?;
                Some(found.uid.as_raw())
            })?;
            let (first, count) = (u64::from(first), u64::from(count));
            (owner != 0).then_some((first..first + count, owner))
        };
        Self(text.lines().filter_map(range).collect())
    }

    fn owner(&self, uid: u32) -> Option<u32> {
        let uid = u64::from(uid);
        self.0.iter().find(|(range, _)| range.contains(&uid)).map(|(_, owner)| *owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P35.
    #[test]
    fn subordinates_are_their_users_by_name_and_number() {
        let text = "1000:100000:65536\ndaemon:165536:10\nroot:300000:9\nnobody_of_that_name:1:9\n\
                    \n# no range\n7:x:1\n8:4294967295:4294967295\n";
        let known = Subordinates::parse(text);
        let owners = [99_999, 100_000, 165_535, 165_536, 165_546, 300_000, 5, u32::MAX];
        let owners = owners.map(|uid| known.owner(uid));
        // Where the system lacks this user its range is unused.
        let daemon = nix::unistd::User::from_name("daemon").unwrap();
        let (user, daemon) = (Some(1000), daemon.map(|user| user.uid.as_raw()));
        assert_eq!(owners, [None, user, user, daemon, None, None, None, Some(8)]);
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_missing_one_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("subuid");
        let accounts = Accounts::from_file(Roots::default(), &file, Duration::ZERO);
        assert_eq!(accounts.of_number(100_001), 100_001);
        let becomes = |owner: u32| {
            let begun = Instant::now();
            while accounts.of_number(100_001) != owner {
                assert!(begun.elapsed() < Duration::from_secs(20), "it stays otherwise");
                std::thread::yield_now();
            }
        };
        std::fs::write(&file, "1000:100000:65536\n").unwrap();
        becomes(1000);
        std::fs::remove_file(&file).unwrap();
        becomes(100_001);
    }

    #[test]
    fn file_is_looked_at_once_in_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("subuid");
        std::fs::write(&file, "1000:100000:65536\n").unwrap();
        let accounts = Accounts::from_file(Roots::default(), &file, Duration::from_secs(3600));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(accounts.of_number(100_001), 1000, "as it was read at the start");
    }
}
