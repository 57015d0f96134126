// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths by which others reach a loan by name.
//!
//! Block files lie in directories of root's. A loan with paths has a directory of its own below the
//! run directory, named after its lease: `memory` is its file, bound there and reachable by the
//! file's user alone, and `paths` records what the caller made elsewhere. The record is on disk
//! before the caller makes any of it, so every end of the loan finds it: a return, a revocation,
//! and the next daemon's start.
//!
//! Paths that a caller made lie in directories of other users. A program of the daemon's removes
//! them, with the rights that made them. Such a directory may be a file system of the user's own
//! that never answers, so a thread of the user's queue waits for the program, [`REMOVE_TIMEOUT`]
//! at most.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::bind::{self, FileNumber};
use linux::{Roots, mount};
use units::{LeaseId, Uid};
use wire::LoanPaths;

use crate::base::error::{Error, Result};
use crate::base::files;

/// How long a program may take to remove the paths of one loan.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often its end is looked for.
const REMOVE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// With whose rights a caller makes paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathOwner {
    pub(crate) uid: Uid,
    /// The group; `None` is the user's own.
    pub(crate) gid: Option<u32>,
}

/// The paths of all loans.
#[derive(Debug)]
pub(crate) struct LoanPathDirs {
    dir: PathBuf,
    roots: Roots,
    /// The program that removes what a caller made; `None` where the daemon is part of another
    /// program.
    program: Option<PathBuf>,
    /// The leases with a directory.
    leases: BTreeSet<LeaseId>,
}

impl LoanPathDirs {
    /// The directories that an earlier daemon left.
    pub(crate) fn take_over(run_dir: &Path, roots: &Roots) -> Self {
        let dir = run_dir.join("named");
        let found = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let lease = |name: std::ffi::OsString| name.to_str()?.parse().ok().map(LeaseId);
        let leases = found.filter_map(|entry| lease(entry.file_name())).collect();
        Self { dir, roots: roots.clone(), program: None, leases }
    }

    /// Names the program that removes what callers made.
    pub(crate) fn use_program(&mut self, program: Option<&Path>) {
        self.program = program.map(Path::to_owned);
    }

    /// Whether paths that callers make can be removed.
    pub(crate) fn has_program(&self) -> bool {
        self.program.is_some()
    }

    /// The leases that have paths.
    pub(crate) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.iter().copied()
    }

    fn of(&self, lease: LeaseId) -> PathBuf {
        self.dir.join(lease.0.to_string())
    }

    /// The path that the file's user can open, if the loan has one.
    pub(crate) fn reachable(&self, lease: LeaseId) -> Option<PathBuf> {
        let path = self.leases.contains(&lease).then(|| self.of(lease).join("memory"))?;
        path.exists().then_some(path)
    }

    /// Gives a loan its paths, beside those that it has. `file` is its file, `user` the file's
    /// user.
    ///
    /// # Errors
    /// Those of the file system. What was made by then goes with the loan.
    pub(crate) fn add(
        &mut self,
        lease: LeaseId,
        (file, user): (&Path, Uid),
        paths: &LoanPaths,
        owner: PathOwner,
    ) -> Result<()> {
        let failed = |source| Error::Runtime { what: "cannot record the paths of a loan", source };
        let dir = self.of(lease);
        self.leases.insert(lease);
        let make = |dir: &Path, mode| {
            std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(failed)
        };
        make(&self.dir, 0o711)?;
        make(&dir, 0o700)?;
        let record = dir.join("paths");
        let number = FileNumber::of(file)?;
        let mut text = std::fs::read_to_string(&record)
            .unwrap_or_else(|_| format!("file {} {}\n", number.device, number.inode));
        for (field, path) in paths.made_by_caller() {
            let gid = owner.gid.map_or("-".to_owned(), |gid| gid.to_string());
            let line = format!("{field} {} {gid} {path}", owner.uid.0);
            if !text.lines().any(|there| there == line) {
                let _ = writeln!(text, "{line}");
            }
        }
        files::replace(&record, text.as_bytes()).map_err(failed)?;
        let is_reachable = paths.reachable || paths.link.is_some();
        if is_reachable && self.reachable(lease).is_none() {
            let memory = dir.join("memory");
            std::fs::File::create(&memory).map_err(failed)?;
            bind::let_enter(&dir, user.0)?;
            bind::bind(file, &memory).inspect_err(|_| drop(std::fs::remove_file(&memory)))?;
        }
        Ok(())
    }

    /// Forgets the paths of a loan that ends. Returns the work of removing them, which may wait for
    /// other users' file systems.
    pub(crate) fn remove(&mut self, lease: LeaseId) -> Option<impl FnOnce() + Send + use<>> {
        self.leases.remove(&lease).then(|| {
            let (dir, program, roots) = (self.of(lease), self.program.clone(), self.roots.clone());
            move || {
                let removed = program.map_or(Ok(()), |program| run(&program, &dir));
                let is_done = removed.is_ok();
                if let Err(error) = removed {
                    tracing::warn!(%error, lease = lease.0, "paths may stay until the next start");
                }
                if let Err(error) = unbind_own(&roots, &dir, is_done) {
                    tracing::warn!(%error, lease = lease.0, "it stays until the next start");
                }
            }
        })
    }
}

/// Has the paths of one loan removed.
fn run(program: &Path, dir: &Path) -> std::io::Result<()> {
    let mut command = Command::new(program);
    command.arg("unlend").arg(dir).env_clear().current_dir("/");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let end = Instant::now() + REMOVE_TIMEOUT;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(std::io::Error::other(format!("it ended by {status}"))),
            None if Instant::now() >= end => {
                // It may hang in another user's file system, and then it ends with that.
                child.kill()?;
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            None => std::thread::sleep(REMOVE_POLL_INTERVAL),
        }
    }
}

/// Unbinds the daemon's own path of a loan. Removes the loan's directory too, unless the record is
/// needed again (`is_done`).
fn unbind_own(roots: &Roots, dir: &Path, is_done: bool) -> Result<()> {
    let failed = |source| Error::Runtime { what: "cannot remove the paths of a loan", source };
    let memory = dir.join("memory");
    // The program has unbound the file everywhere, if it got that far.
    if mount::is_mounted(roots, &memory)? {
        mount::detach(&memory)?;
    }
    if is_done { std::fs::remove_dir_all(dir).map_err(failed) } else { Ok(()) }
}
