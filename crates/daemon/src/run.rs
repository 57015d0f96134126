// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starting, keeping house, stopping.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use book::config::Config;
use linux::Roots;
use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};
use wire::DEFAULT_SOCKET;

use crate::control::{ConfigSource, Control};
use crate::deputy::Deputies;
use crate::error::{Error, Result};
use crate::kernel::Events;
use crate::manager::{Inherited, Manager};
use crate::rights::Groups;
use crate::server;
use crate::service::{Shared, watch_lease};
use crate::shell::{ReturnedBlocks, Shell, Started, boot_seconds};
use crate::tree::{Settings, Tree};
use crate::workers::Crew;

/// How often the house is kept when nothing happens: the kernel's free counts have no event.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// The same where the kernel tells of its pool: CPU pressure, and workers that achieved nothing,
/// are looked at again then, and whatever an event did not reach us for.
const TOLD_TICK: Duration = Duration::from_secs(1);
/// The first look at a lingering block after its return; doubles up to [`IDLE_TICK`].
const FIRST_LOOK: Duration = Duration::from_millis(2);
/// Blocks, loans and files that are looked at in one go, each 10 us. Whoever leaves more of them
/// waits for them, and nobody else.
const LOOKS: usize = 64;
/// Keeping house takes at most one part of so many of the daemon's time.
const SHARE: u32 = 5;
/// How long workers may take to report when the daemon stops: one 1 GiB page takes up to 2 s on
/// memory that the machine itself has yet to get from its host.
const WORKERS_PATIENCE: Duration = Duration::from_secs(5);

/// How to run a daemon.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// Where block files, leases and mounts are.
    pub run_dir: PathBuf,
    /// What to keep ready, for whom.
    pub config: Config,
    /// Plain memory (files in `run_dir`, which should be a tmpfs) instead of huge pages.
    pub plain: bool,
    /// The command that starts one of its own workers, `prezero zero --socket PATH`; `--node`,
    /// `--cpus` and so on are appended. Empty for none.
    pub worker_command: Vec<OsString>,
    /// How SIGHUP reads the configuration again; without it SIGHUP changes nothing.
    pub source: Option<ConfigSource>,
    /// Whether this process is a service of systemd, if systemd has started it: takes sockets and
    /// descriptors from it, and tells it how things are.
    pub managed: bool,
    /// Where the kernel's files are.
    pub roots: Roots,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: PathBuf::from(DEFAULT_SOCKET),
            run_dir: PathBuf::from("/run/prezero"),
            config: Config::default(),
            plain: false,
            worker_command: Vec::new(),
            source: None,
            managed: false,
            roots: Roots::default(),
        }
    }
}

/// Runs a daemon until SIGTERM or SIGINT. Blocks. SIGHUP reads the configuration again.
///
/// Files and mounts stay: the next daemon takes every ready block over. `prezero give-back all`
/// before stopping returns the pages to the kernel.
///
/// # Errors
/// Those of starting; nothing is left behind then but directories.
pub fn serve(options: Options) -> Result<()> {
    run(options, None, false)
}

/// A daemon on a thread of its own. Dropping it stops it; [`Embedded::stop`] says how that went.
#[derive(Debug)]
pub struct Embedded {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Embedded {
    /// Starts a daemon and waits until it listens.
    ///
    /// # Errors
    /// Those of starting.
    pub fn start(options: Options) -> Result<Self> {
        let socket = options.socket.clone();
        let (stop, stopped) = oneshot::channel();
        let (ready, listens) = mpsc::channel();
        let body = move || run(options, Some((stopped, ready)), true);
        let thread = std::thread::Builder::new()
            .name("prezero".to_owned())
            .spawn(body)
            .map_err(|source| Error::Runtime { what: "cannot start a thread", source })?;
        if listens.recv().is_err() {
            return Err(thread.join().ok().and_then(Result::err).unwrap_or(Error::Gone));
        }
        Ok(Self { socket, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops it: every block file is removed and every mount is gone. What clients still map
    /// stays theirs until they let go.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        drop(self.stop.take());
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| Error::Gone)?,
            None => Ok(()),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "an embedded daemon did not end well");
        }
    }
}

type Embedding = (oneshot::Receiver<()>, mpsc::Sender<()>);

fn run(options: Options, embedding: Option<Embedding>, clean_up: bool) -> Result<()> {
    raise_descriptor_limit();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Runtime { what: "cannot make an event loop", source })?;
    LocalSet::new().block_on(&runtime, main(options, embedding, clean_up))
}

/// Each loan takes one descriptor and each connection two: a thousand of both are common.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

async fn main(options: Options, embedding: Option<Embedding>, clean_up: bool) -> Result<()> {
    let inherited = if options.managed { Inherited::take() } else { Inherited::default() };
    let groups = Rc::new(Cell::new(Groups::of(&options.config)?));
    let tree = Settings::of(&options.config, &options.run_dir, embedding.is_some())?;
    // The socket first: it is what tells two daemons apart.
    let (listener, socket) = listen(inherited.listener, &options.socket)?;
    let nice = options.config.nice;
    let roots = options.roots.clone();
    let started = crate::files::make_dir(&options.run_dir).and_then(|()| {
        let Options { config, run_dir, roots, plain, .. } = options;
        Shell::start(config, &run_dir, roots, plain, inherited.stored)
    });
    let Started { shell, leases, returned } = started.inspect_err(|_| socket.remove())?;
    // After the threads that work aside, which keep the nice value they were started with.
    if let Err(error) = linux::sched::set_nice(nice.into()) {
        tracing::debug!(%error, "the daemon competes with its clients");
    }
    let shell: Shared = Rc::new(RefCell::new(shell));
    tokio::task::spawn_local(settle(Rc::clone(&shell), returned));
    for (lease, end) in leases {
        tokio::task::spawn_local(watch_lease(Rc::clone(&shell), lease, end));
    }
    let deputies = Deputies::new(options.worker_command.clone());
    let tree = match tree {
        Some(tree) if !tree.is_required() && shell.borrow().is_told() => {
            tracing::info!("the control tree is the kernel's: /sys/devices/system/node");
            None
        }
        Some(tree) => {
            let started = Tree::start(tree, &shell, &deputies, Rc::clone(&groups), &roots).await;
            started.inspect_err(|_| socket.remove())?
        }
        None => None,
    };
    let mut crew = Crew::new(options.worker_command);
    let manager = Manager::new(options.managed);
    let control =
        Control::new(Rc::clone(&shell), Rc::clone(&groups), crew.pids(), options.source, manager);
    control.serve_metrics().inspect_err(|_| socket.remove())?;
    let runtime = |source| Error::Runtime { what: "cannot wait for signals", source };
    {
        let serving = server::accept(listener, Rc::clone(&shell), groups);
        let housekeeping = keep_house(&shell, &mut crew, &control);
        match embedding {
            Some((stopped, ready)) => {
                // Whoever started it may be gone already; then `stopped` says so at once.
                let _ = ready.send(());
                tokio::select! {
                    () = serving => {}
                    () = housekeeping => {}
                    _ = stopped => {}
                }
            }
            None => {
                let mut terminate = signal(SignalKind::terminate()).map_err(runtime)?;
                let mut interrupt = signal(SignalKind::interrupt()).map_err(runtime)?;
                let hangup = signal(SignalKind::hangup()).map_err(runtime)?;
                tracing::info!(socket = %options.socket.display(), "serves");
                control.ready();
                tokio::select! {
                    () = serving => {}
                    () = housekeeping => {}
                    () = control.reload_at(hangup) => {}
                    _ = terminate.recv() => tracing::info!("SIGTERM"),
                    _ = interrupt.recv() => tracing::info!("SIGINT"),
                }
            }
        }
    }
    control.stopping();
    if let Some(tree) = tree {
        tree.stop(WORKERS_PATIENCE).await;
    }
    crew.drain(WORKERS_PATIENCE).await;
    socket.remove();
    if clean_up {
        shell.borrow_mut().clean_up()?;
    }
    Ok(())
}

/// Takes what the lanes find out about returned blocks.
async fn settle(shell: Shared, mut returned: ReturnedBlocks) {
    while let Some(block) = returned.recv().await {
        shell.borrow_mut().settled(block);
    }
}

/// The listening socket, and its path if it is the daemon's own. That of a socket unit stays, and
/// clients wait in it for the next daemon.
fn listen(
    inherited: Option<std::os::unix::net::UnixListener>,
    path: &Path,
) -> Result<(UnixListener, OwnPath)> {
    let failed = |source| Error::Listen { path: path.to_owned(), source };
    let (listener, own) = match inherited {
        Some(listener) => {
            listener.set_nonblocking(true).map_err(failed)?;
            (listener, OwnPath(None))
        }
        None => (crate::files::listen(path)?, OwnPath(Some(path.to_owned()))),
    };
    Ok((UnixListener::from_std(listener).map_err(failed)?, own))
}

struct OwnPath(Option<PathBuf>);

impl OwnPath {
    /// The next start would take a socket that is left behind for a crash's.
    fn remove(&self) {
        if let Some(Err(error)) = self.0.as_ref().map(std::fs::remove_file) {
            tracing::debug!(%error, "the socket was gone already");
        }
    }
}

/// Looks after lingering blocks, kept content, other users of the kernel's pool, and workers.
async fn keep_house(shell: &Shared, crew: &mut Crew, control: &Control) {
    let mut changes = shell.borrow().changes();
    let mut events = Events::default();
    let idle = if shell.borrow().is_told() { TOLD_TICK } else { IDLE_TICK };
    let waiting = shell.borrow().waiting();
    let mut look = FIRST_LOOK;
    let mut next = Instant::now();
    // Not before this is there another look, whatever happens.
    let mut earliest = next;
    loop {
        // A change is worth a look at once, but a burst of them no more than one each 2 ms.
        tokio::select! {
            () = sleep_until(next) => {}
            // For all that wait at once: each of them is woken when something comes of it.
            () = waiting.begun() => sleep_until(earliest).await,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                look = FIRST_LOOK;
                sleep_until(earliest.max(Instant::now() + FIRST_LOOK)).await;
            }
        }
        let begin = Instant::now();
        let (lingering, expiry) = {
            let mut shell = shell.borrow_mut();
            let lingering = shell.settle_some(LOOKS);
            let expiry = shell.expire();
            shell.observe();
            shell.relieve();
            (lingering, expiry)
        };
        events.tend(shell);
        crew.tend(shell);
        control.tick();
        changes.mark_unchanged();
        let mut wait = idle;
        if lingering > 0 {
            wait = look;
            look = (look * 2).min(IDLE_TICK);
        }
        if let Some(second) = expiry {
            wait = wait
                .min(Duration::from_secs(second.saturating_sub(boot_seconds())).max(FIRST_LOOK));
        }
        if waiting.is_anybody() {
            wait = FIRST_LOOK;
        }
        earliest = Instant::now() + FIRST_LOOK.max(begin.elapsed() * (SHARE - 1));
        next = earliest.max(Instant::now() + wait);
    }
}
