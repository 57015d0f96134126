// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control tree: on a kernel without our series, the files that it has in sysfs, by FUSE.
//!
//! # Theory of operation
//!
//! Like the varlink service, the tree takes a request apart, asks [`Shell`](crate::ops::Shell), and
//! answers. Users take turns ([`serving`]). A request that zeroes starts a *delegated worker*
//! ([`crate::tasks::delegated`]), which works in the caller's place, in a task of its own, until it
//! is done or the kernel reports a signal of the caller's. [`device`] is the daemon's end of
//! `/dev/fuse`, [`wire`] the protocol, [`item`] the items of the tree, [`open`] the open files,
//! [`permits`] the callers. [`session`] and [`ioctl`] are the answers, [`notify`] the rules of
//! waking, [`wake`] the waking.
//!
//! # Why not a FUSE crate's session
//!
//! A writer is stopped by FUSE_INTERRUPT, waits by FUSE_POLL and its wake-ups, and talks by
//! FUSE_IOCTL. All of it must happen on the daemon's one thread, where operations never wait. No
//! crate has the four. The crate `fuser` (0.18) answers FUSE_INTERRUPT with ENOSYS, upon which the
//! kernel never sends it again, and calls back from threads of its own. In `fuse3` (0.10) ioctl is
//! missing, and it asks for `Send` futures. The crate `polyfuse` (0.5) has neither ioctl nor poll.
//! The crate `fuse-backend-rs` (0.14) drops interrupts and has no wake-ups. The code uses
//! `polyfuse-kernel`, the structs of the protocol; [`wire`] is the part of the protocol that a
//! small and static tree needs.

mod device;
mod ioctl;
mod item;
mod notify;
mod open;
mod permits;
mod serving;
mod session;
mod wake;
mod wire;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use book::config;
use linux::{FuseMount, Roots, fuse};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use units::Domain;

use crate::base::error::{Error, Result};
use crate::ops::Shared;
use crate::peers::rights::{self, SharedGroups};
use crate::tasks::delegated::DelegatedWorkers;
use device::TreeDevice;
use item::Access;
use permits::Permits;
use session::{Session, SessionState};

/// What the kernel calls the file system: `fuse.prezero`.
const KIND: &str = "prezero";
/// How long a mount found at the tree's place may take to show that it has a server.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The tree's place and owners.
#[derive(Debug)]
pub(crate) struct Settings {
    path: PathBuf,
    access: Access,
    required: bool,
}

impl Settings {
    /// Whether a daemon without it must not start.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// Whether the system has the group that a configuration names.
    pub(crate) fn check(config: &config::Config) -> Result<()> {
        Self::from_config(config, Path::new(""), false).map(drop)
    }

    /// What the configuration says; `None` for no tree. An embedded daemon has one only if asked.
    pub(crate) fn from_config(
        config: &config::Config,
        run_dir: &Path,
        embedded: bool,
    ) -> Result<Option<Self>> {
        let tree = &config.tree;
        if !tree.enabled.unwrap_or(!embedded) {
            return Ok(None);
        }
        let group = match &tree.group {
            Some(group) => Some(rights::number("tree.group", group)?),
            None => {
                config.zero_group.as_deref().map(|g| rights::number("zero_group", g)).transpose()?
            }
        };
        let own = rustix::process::geteuid().as_raw();
        let access = Access {
            uid: own,
            gid: group.unwrap_or_else(|| rustix::process::getegid().as_raw()),
            mode: tree.mode.unwrap_or(if group.is_some() { 0o664 } else { 0o644 }),
        };
        Ok(Some(Self {
            path: tree.path.clone().unwrap_or_else(|| run_dir.join("tree")),
            access,
            required: tree.enabled == Some(true),
        }))
    }
}

/// A mounted tree, served by tasks of the daemon's one thread.
#[derive(Debug)]
pub(crate) struct Tree {
    session: Rc<Session>,
    mount: Mounted,
    tasks: Vec<JoinHandle<()>>,
}

/// The mount, which ends with this value: also where a later step of the start fails.
#[derive(Debug)]
struct Mounted(Option<FuseMount>);

impl Mounted {
    fn detach(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|mount| mount.detach()) {
            tracing::warn!(%error, "the control tree was unmounted before");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Tree {
    /// Mounts the tree and serves it. `None`, and one line in the log, where that cannot be done
    /// and was not demanded.
    pub(crate) async fn start(
        settings: Settings,
        shell: &Shared,
        delegated: &Rc<DelegatedWorkers>,
        groups: SharedGroups,
        roots: &Roots,
    ) -> Result<Option<Self>> {
        let required = settings.required;
        let path = settings.path.clone();
        match Self::mount(settings, shell, delegated, groups, roots).await {
            Ok(tree) => {
                shell.borrow_mut().tree = Some(path.clone());
                tracing::info!(path = %path.display(), "the control tree is mounted");
                Ok(Some(tree))
            }
            Err(error) if required => Err(error),
            Err(error) => {
                tracing::info!(path = %path.display(), %error, "there is no control tree");
                Ok(None)
            }
        }
    }

    async fn mount(
        Settings { path, access, .. }: Settings,
        shell: &Shared,
        delegated: &Rc<DelegatedWorkers>,
        groups: SharedGroups,
        roots: &Roots,
    ) -> Result<Self> {
        crate::base::files::make_tree_dir(path.parent().unwrap_or(&path))?;
        remove_stale(roots, &path).await?;
        crate::base::files::make_tree_dir(&path)?;
        let domains = shell.borrow().domains();
        for Domain { node, .. } in domains {
            // Opened before the tree is served: an open of sysfs waits for other readers.
            if let Err(error) = shell.borrow_mut().observed.node_memory(node) {
                tracing::warn!(%error, %node, "cannot see a node's memory");
            }
        }
        let fd = fuse::open_device()?;
        let mount = Mounted(Some(fuse::mount(&path, &fd, KIND)?));
        let failed = |source| Error::Runtime { what: "cannot wait for FUSE requests", source };
        let session = Rc::new(Session {
            device: TreeDevice::new(fd).map_err(failed)?,
            shell: Rc::clone(shell),
            delegated: Rc::clone(delegated),
            permits: Permits::new(groups, roots.clone()),
            access,
            state: RefCell::new(SessionState::default()),
            listens: Notify::new(),
            stopping: Cell::new(false),
        });
        let tasks = vec![
            tokio::task::spawn_local(Rc::clone(&session).serve()),
            tokio::task::spawn_local(Rc::clone(&session).wake_pollers()),
        ];
        Ok(Self { session, mount, tasks })
    }

    /// Unmounts the tree, ends the delegated workers, which report what they have done, and answers
    /// whom they worked for: ENODEV, unless they were done. Open files answer ENOTCONN from then
    /// on.
    pub(crate) async fn stop(mut self, timeout: Duration) {
        let end = Instant::now() + timeout;
        self.mount.detach();
        self.session.stop_zeroing();
        while self.session.state.borrow().is_zeroing() && Instant::now() < end {
            sleep(Duration::from_millis(2)).await;
        }
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Removes what a daemon that was killed has left mounted.
async fn remove_stale(roots: &Roots, path: &Path) -> Result<()> {
    for mount in fuse::find(roots, path, KIND)? {
        if is_served(path).await {
            return Err(Error::TreeTaken(path.to_owned()));
        }
        tracing::info!(path = %path.display(), "unmounted what an earlier daemon left");
        mount.detach()?;
    }
    Ok(())
}

/// Whether the file system at `path` has a server: a dead one says ENOTCONN at once. Asked by a
/// thread of its own, since the server may sleep.
async fn is_served(path: &Path) -> bool {
    let (say, said) = oneshot::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        // An open, since the kernel may answer stat from its cache.
        let dead = rustix::fs::statfs(&path).is_err_and(|errno| errno == linux::Errno::NOTCONN);
        // Later waits end at once.
        let _ = say.send(!dead);
    });
    !matches!(timeout(ALIVE_TIMEOUT, said).await, Ok(Ok(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(enabled: Option<bool>, embedded: bool) -> Option<Settings> {
        let tree = config::TreeConfig { enabled, ..config::TreeConfig::default() };
        let config = config::Config { tree, ..config::Config::default() };
        Settings::from_config(&config, Path::new("/run/x"), embedded).unwrap()
    }

    // Promise P47.
    #[test]
    fn an_embedded_daemon_has_a_tree_only_if_it_is_asked_for() {
        assert!(settings(None, true).is_none());
        assert!(settings(Some(true), true).is_some_and(|tree| tree.required));
        assert!(settings(Some(false), false).is_none());
        let auto = settings(None, false).expect("a served one, where that can be");
        assert_eq!((auto.required, auto.access.mode), (false, 0o644));
        assert_eq!(auto.path, Path::new("/run/x/tree"));
    }

    // Promise P45.
    #[test]
    fn tree_files_belong_to_the_zero_group_by_default() {
        let access = |toml: &str| {
            let config = config::Config::from_toml(toml).unwrap();
            Settings::from_config(&config, Path::new("/run/x"), false).unwrap().unwrap().access
        };
        let zero = access("zero_group = \"17\"");
        assert_eq!((zero.gid, zero.mode), (17, 0o664));
        let own = access("zero_group = \"17\"\n[tree]\ngroup = \"18\"\nmode = 0o640");
        assert_eq!((own.gid, own.mode), (18, 0o640));
    }
}
