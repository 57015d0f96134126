// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The service manager: what systemd hands over at start, and what it is told.
//!
//! | systemd's name | what it is here |
//! |---|---|
//! | socket `varlink` | the listening socket: clients that connect during a restart wait in it |
//! | socket `agent` | the same for agents, who lend by name |
//! | stored `pages-SIZEkB` | the root of a page size's hugetlbfs |
//!
//! Block files survive the daemon by their mount. A mount is seen in its mount namespace only. An
//! operator who adds `ProtectSystem=` or `PrivateTmp=` to the unit gives every start of the service
//! a new namespace without the mount of the last start. So the manager keeps a descriptor of each
//! mount's root: it keeps the file system, and the next daemon works relative to it, under any
//! mount.
//!
//! Without a service manager the calls do nothing.
//!
//! # Safety
//!
//! The one unsafe operation takes descriptors by number that the environment names
//! (`sd_listen_fds`). No other code in this process owns them: the numbers were checked to be meant
//! for this process id, [`InheritedSockets::take`] hands each out once, and runs before the daemon
//! opens anything.
#![expect(unsafe_code, reason = "inherited descriptors are known by number only")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The name under which a socket unit passes the listening socket, as systemd's own services do.
const SOCKET: &str = "varlink";
/// The same of the agents' socket.
const AGENT_SOCKET: &str = "agent";
/// The environment that is the daemon's alone, not its workers'.
pub(crate) const OWN_VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];
/// The shortest time between two texts for `systemctl status`.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// What the service manager handed over.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    /// The socket of a socket unit.
    pub(crate) listener: Option<UnixListener>,
    /// The same for agents.
    pub(crate) agent_listener: Option<UnixListener>,
    /// Stored descriptors by name.
    pub(crate) stored: BTreeMap<String, OwnedFd>,
}

impl InheritedSockets {
    /// Takes the present ones; the second call finds none. Unknown ones are closed.
    pub(crate) fn take() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut inherited = Self::default();
        if TAKEN.swap(true, Ordering::Relaxed) {
            return inherited;
        }
        let fds = match sd_notify::listen_fds_with_names() {
            Ok(fds) => fds,
            Err(error) => {
                tracing::warn!(%error, "what the service manager hands over cannot be read");
                return inherited;
            }
        };
        for (number, name) in fds {
            // SAFETY: the number is one of this process's inherited descriptors, open and meant for
            // it, and taken only here: see the module's text.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            if name == SOCKET && inherited.listener.is_none() {
                inherited.listener = Some(UnixListener::from(fd));
            } else if name == AGENT_SOCKET && inherited.agent_listener.is_none() {
                inherited.agent_listener = Some(UnixListener::from(fd));
            } else if name.starts_with("pages-") {
                inherited.stored.insert(name, fd);
            } else {
                tracing::warn!(%name, "the service manager hands over what nobody knows");
            }
        }
        inherited
    }
}

/// Tells the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Manager {
    /// How often it must hear from the daemon.
    watchdog: Option<Duration>,
    heard: Instant,
    status: String,
    status_at: Option<Instant>,
}

impl Manager {
    /// `managed` says whether this process is the service, and not a program that embeds a daemon.
    pub(crate) fn new(managed: bool) -> Option<Self> {
        let is_there = managed && std::env::var_os("NOTIFY_SOCKET").is_some();
        is_there.then(|| Self {
            watchdog: sd_notify::watchdog_enabled(),
            heard: Instant::now(),
            status: String::new(),
            status_at: None,
        })
    }

    /// The daemon serves, for the first time or with another configuration.
    pub(crate) fn ready(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// The configuration is being read again. [`Manager::ready`] ends that.
    pub(crate) fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            // Without the time systemd 253 and newer takes the reload for failed.
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "cannot tell the service manager the time"),
        }
    }

    /// The daemon ends.
    pub(crate) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// Has `fd` kept for the next daemon; one that is kept already is not kept twice.
    pub(crate) fn keep(&self, name: &str, fd: BorrowedFd<'_>) {
        let states = [NotifyState::FdStore, NotifyState::FdName(name)];
        if let Err(error) = sd_notify::notify_with_fds(&states, &[fd.as_fd()]) {
            tracing::warn!(%error, %name, "the service manager does not keep a descriptor");
        }
    }

    /// Called by the event loop each quarter of a second or so: a loop that hangs is not heard.
    pub(crate) fn tick(&mut self, status: impl FnOnce() -> String) {
        if self.watchdog.is_some_and(|limit| self.heard.elapsed() >= limit / 4) {
            self.heard = Instant::now();
            notify(&[NotifyState::Watchdog]);
        }
        if self.status_at.is_some_and(|at| at.elapsed() < STATUS_INTERVAL) {
            return;
        }
        self.status_at = Some(Instant::now());
        let status = status();
        if status != self.status {
            notify(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    let reported: io::Result<()> = sd_notify::notify(states);
    if let Err(error) = reported {
        // Not fatal: who runs the daemon sees its log, and a watchdog that hears nothing acts.
        tracing::warn!(%error, ?states, "cannot tell the service manager");
    }
}
