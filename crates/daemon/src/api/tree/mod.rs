// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control tree: on a kernel without our series, the files that it has in sysfs, by FUSE.
//!
//! # Theory of operation
//!
//! Like the varlink service, the tree takes a request apart, asks [`Shell`](crate::ops::Shell), and
//! answers. Users take turns ([`serving`]). A request that zeroes starts a *delegated worker*
//! ([`crate::tasks::delegated`]), which works in the caller's place, in a task of its own, until it
//! is done or the kernel reports a signal of the caller's. [`device`] is the daemon's end
//! of `/dev/fuse`, [`wire`] what travels through it, [`item`] what is in the tree, [`open`] what is
//! open, [`permits`] who asks, [`session`] and [`ioctl`] the answers, [`notify`] the rules of
//! waking, [`tell`] the waking.
//!
//! # Why not a FUSE crate's session
//!
//! A writer is stopped by FUSE_INTERRUPT, waits by FUSE_POLL and its wake-ups, and talks by
//! FUSE_IOCTL; and all of it has to happen on the daemon's one thread, whose operations never wait.
//! No crate has the four: fuser (0.18) answers FUSE_INTERRUPT with ENOSYS, upon which the kernel
//! never sends it again, and calls back from threads of its own; fuse3 (0.10) has no ioctl, and
//! asks for `Send` futures; polyfuse (0.5) has neither ioctl nor poll; fuse-backend-rs (0.14) drops
//! interrupts and has no wake-ups. What is used is `polyfuse-kernel`, the structs of the protocol;
//! the protocol's part that such a small and static tree needs is [`wire`].

mod device;
mod ioctl;
mod item;
mod notify;
mod open;
mod permits;
mod serving;
mod session;
mod tell;
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
use crate::tasks::delegated::Deputies;
use device::Device;
use item::Access;
use permits::Permits;
use session::{Session, State};

/// What the kernel calls the file system: `fuse.prezero`.
const KIND: &str = "prezero";
/// How long a mount that is found at the tree's place may take to say whether anybody serves it.
const ALIVE_PATIENCE: Duration = Duration::from_secs(2);

/// Where the tree is and whose it is.
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
        Self::of(config, Path::new(""), false).map(drop)
    }

    /// What the configuration says; `None` for no tree. An embedded daemon has one only if asked.
    pub(crate) fn of(
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
    mount: FuseMount,
    tasks: Vec<JoinHandle<()>>,
}

impl Tree {
    /// Mounts the tree and serves it. `None`, and one line in the log, where that cannot be done
    /// and was not demanded.
    pub(crate) async fn start(
        settings: Settings,
        shell: &Shared,
        deputies: &Rc<Deputies>,
        groups: SharedGroups,
        roots: &Roots,
    ) -> Result<Option<Self>> {
        let required = settings.required;
        let path = settings.path.clone();
        match Self::mount(settings, shell, deputies, groups, roots).await {
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
        deputies: &Rc<Deputies>,
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
        let mount = fuse::mount(&path, &fd, KIND)?;
        let failed = |source| Error::Runtime { what: "cannot wait for FUSE requests", source };
        let session = Rc::new(Session {
            device: Device::new(fd).map_err(failed)?,
            shell: Rc::clone(shell),
            deputies: Rc::clone(deputies),
            permits: Permits::new(groups, roots.clone()),
            access,
            state: RefCell::new(State::default()),
            listens: Notify::new(),
            stopping: Cell::new(false),
        });
        let tasks = vec![
            tokio::task::spawn_local(Rc::clone(&session).serve()),
            tokio::task::spawn_local(Rc::clone(&session).tell()),
        ];
        Ok(Self { session, mount, tasks })
    }

    /// Unmounts the tree, ends the deputies, which report what they have done, and answers whom
    /// they worked for: ENODEV, unless they were done. Open files answer ENOTCONN from then on.
    pub(crate) async fn stop(self, patience: Duration) {
        let end = Instant::now() + patience;
        if let Err(error) = self.mount.detach() {
            tracing::warn!(%error, "the control tree was unmounted before");
        }
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

/// Whether anybody answers for the file system at `path`: a dead one says ENOTCONN at once. Asked
/// by a thread of its own, since who serves it may sleep.
async fn is_served(path: &Path) -> bool {
    let (say, said) = oneshot::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        // Not stat, which the kernel may answer from what it remembers.
        let dead = rustix::fs::statfs(&path).is_err_and(|errno| errno == linux::Errno::NOTCONN);
        // Nobody may wait any more.
        let _ = say.send(!dead);
    });
    !matches!(timeout(ALIVE_PATIENCE, said).await, Ok(Ok(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(enabled: Option<bool>, embedded: bool) -> Option<Settings> {
        let tree = config::Tree { enabled, ..config::Tree::default() };
        let config = config::Config { tree, ..config::Config::default() };
        Settings::of(&config, Path::new("/run/x"), embedded).unwrap()
    }

    #[test]
    fn an_embedded_daemon_has_a_tree_only_if_it_is_asked_for() {
        assert!(settings(None, true).is_none());
        assert!(settings(Some(true), true).is_some_and(|tree| tree.required));
        assert!(settings(Some(false), false).is_none());
        let auto = settings(None, false).expect("a served one, where that can be");
        assert_eq!((auto.required, auto.access.mode), (false, 0o644));
        assert_eq!(auto.path, Path::new("/run/x/tree"));
    }

    #[test]
    fn its_files_belong_to_the_group_that_may_zero_unless_said_otherwise() {
        let access = |toml: &str| {
            let config = config::Config::from_toml(toml).unwrap();
            Settings::of(&config, Path::new("/run/x"), false).unwrap().unwrap().access
        };
        let zero = access("zero_group = \"17\"");
        assert_eq!((zero.gid, zero.mode), (17, 0o664));
        let own = access("zero_group = \"17\"\n[tree]\ngroup = \"18\"\nmode = 0o640");
        assert_eq!((own.gid, own.mode), (18, 0o640));
    }
}
