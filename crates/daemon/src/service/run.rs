// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From start to end: taking over, listening, and leaving.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use book::config::{Config, PoolConfig, PoolSize};
use linux::Roots;
use rustix::fs::Mode;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use units::{Bytes, Domain, Node, PageSize, Pages, PoolKey};
use wire::DEFAULT_SOCKET;

use crate::api::tree::{Settings, Tree};
use crate::api::varlink::{Api, accept};
use crate::base::error::{Error, Result};
use crate::base::files::{ALL_USERS_MODE, OWNER_ONLY, SocketName};
use crate::base::manager::{InheritedSockets, Manager};
use crate::ops::watchers;
use crate::ops::{Dirs, PoolSizes, Shared, Shell};
use crate::peers::rights::{Groups, SharedGroups};
use crate::service::control::{ConfigSource, Control};
use crate::service::maintenance;
use crate::service::signals::{self, Signals};
use crate::storage::provider::PoolProvider;
use crate::tasks::delegated::DelegatedWorkers;
use crate::tasks::workers::Workers;

/// How long workers may take to report when the daemon stops: one 1 GiB page takes up to 2 s on
/// memory that the machine itself has yet to get from its host.
const WORKERS_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a drained daemon takes to give back what it has added to the kernel's pool: 0.4 us a
/// page.
const RESIZE_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long draining without a daemon waits for pages to be free: 256 GiB take 50 ms.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a start waits for an earlier daemon to be gone, with its open files: a worker that it
/// was about to start has copies of them, until it runs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Descriptors that there is room for from the start: 20,000 loans have 60,000.
const DESCRIPTOR_TABLE_SIZE: u64 = 1 << 16;

/// Where block files, leases and mounts are unless that is said.
pub const DEFAULT_RUN_DIR: &str = "/run/prezero";

/// How to run a daemon.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// Where agents are listened to, who lend by name; `None` is nowhere.
    pub agent_socket: Option<PathBuf>,
    /// Where block files, leases and mounts are.
    pub run_dir: PathBuf,
    /// The directory that outlives a boot of the machine, with what pools have learnt about the
    /// sizes of loans; default: the run directory, which does not.
    pub state_dir: Option<PathBuf>,
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
            agent_socket: None,
            run_dir: PathBuf::from(DEFAULT_RUN_DIR),
            state_dir: None,
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
/// Files and mounts stay: the next daemon takes every ready block over. `prezero drain`
/// returns the pages to the kernel, before or after.
///
/// # Errors
/// Those of starting; nothing is left behind then but directories.
pub fn serve(options: Options) -> Result<()> {
    // What it makes has a mode said for it; an inherited umask could take the daemon's own part.
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let runtime = event_loop()?;
    let signals = {
        let _runs = runtime.enter();
        Signals::for_start()?
    };
    run(&runtime, options, Until::Signal(signals))
}

/// Says whether a daemon would start with these options, by what a start asks itself, and changes
/// nothing: the configuration's rules, its groups, and what it wants of this machine. Whether the
/// socket and the run directory are free is not looked at. Returns a line for each thing that the
/// daemon could not do.
///
/// # Errors
/// What the start would say.
pub fn check(options: &Options) -> Result<Vec<String>> {
    let Options { roots, plain, .. } = options;
    options.config.check()?;
    let config = &on_this_machine(&options.config, *plain, roots)?;
    Groups::from_config(config)?;
    Settings::check(config)?;
    let provider = PoolProvider::choose(config, *plain, roots)?;
    provider.check(config, roots)?;
    warnings(config, &provider, roots)
}

/// The configuration with a pool on each node with memory for one without a node.
pub(crate) fn on_this_machine(config: &Config, plain: bool, roots: &Roots) -> Result<Config> {
    let nodes = if plain { vec![Node(0)] } else { linux::numa::nodes(roots)? };
    let mut config = config.clone();
    config.spread(&nodes);
    Ok(config)
}

/// What a daemon would start with and not do well.
fn warnings(config: &Config, provider: &PoolProvider, roots: &Roots) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let nodes = provider.nodes(roots)?;
    for node in nodes.iter().filter(|node| config.pools.iter().all(|pool| pool.node != **node)) {
        let remedy = "leave `node` out of a [[pool]], which is for all nodes then";
        all.push(format!("node {node} has memory and no pool: {remedy}"));
    }
    if config.workers.max == 0 && config.pools.iter().any(|pool| pool.ready_high > Pages::ZERO) {
        all.push(
            "workers.max is 0: pools that want memory ready are filled by `prezero zero` alone"
                .to_owned(),
        );
    }
    for pool in config.pools.iter().filter(|pool| nodes.contains(&pool.node)) {
        let size = pool.page_size;
        let wanted = (pool.ready_high + pool.leave_free).bytes(size);
        let memory = Bytes(linux::meminfo::node_memory(roots, pool.node)?.total_bytes);
        if wanted > memory {
            let node = pool.node;
            all.push(format!(
                "pool {}: {wanted} are wanted of {memory} on node {node}",
                pool.key()
            ));
            continue;
        }
        let reserved =
            config.reserve.iter().filter(|one| (one.node, one.page_size) == (pool.node, size));
        let reserved = reserved.map(|one| one.pages).max().unwrap_or_default();
        let there = linux::hugetlb::configured(roots, size, Some(pool.node))?;
        let has = reserved.max(Pages(there)).max(pool.resize.size_max.unwrap_or_default());
        if has < pool.ready_high {
            let (key, has) = (pool.key(), has.bytes(size));
            let remedy = "reserve more by [[reserve]], or set size_max";
            all.push(format!(
                "pool {key}: {wanted} are wanted, and the kernel's pool has {has}: {remedy}"
            ));
        }
    }
    Ok(all)
}

/// Does the work of the interface's `Drain` without a daemon: all unused blocks below `run_dir` go
/// back to the kernel, the kernel's pools lose the pages that daemons have added, and the next
/// daemon keeps nothing ready. Blocks until the pages are free, at most 15 s.
///
/// # Errors
/// [`Error::Locked`] where a daemon runs; those of a start.
pub fn drain(run_dir: &Path, roots: &Roots) -> Result<wire::Drained> {
    crate::base::files::make_run_dir(run_dir)?;
    let _lock =
        crate::base::files::lock(run_dir)?.ok_or_else(|| Error::Locked(run_dir.to_owned()))?;
    // A pool for each size of pages that an earlier daemon left; its blocks may be of any shape.
    let node = linux::numa::nodes(roots)?.first().copied().unwrap_or(Node(0));
    let left =
        |size: &PageSize| run_dir.join(crate::storage::store::directory_name(*size)).exists();
    let sizes = linux::hugetlb::page_sizes(roots)?;
    let blocks = sizes.into_iter().filter(left).map(|page_size| Domain { node, page_size });
    let mut pools: BTreeMap<_, _> = blocks.map(|domain| (domain, PoolSize::default())).collect();
    // And for each of the kernel's that it made larger, which goes back to what it was.
    for (domain, total) in PoolSizes::enlarged(run_dir, roots) {
        pools.entry(domain).or_default().size_max = Some(total);
    }
    let pool = |(Domain { node, page_size }, resize)| {
        let key = PoolKey { node, page_size, pages_per_block: Pages(1) };
        PoolConfig { resize, ..PoolConfig::new(key) }
    };
    let config = Config { pools: pools.into_iter().map(pool).collect(), ..Config::default() };
    let runtime = event_loop()?;
    let _runs = runtime.enter();
    let dirs = Dirs { run: run_dir, state: None };
    let mut shell = Shell::start(config, dirs, roots.clone(), false, BTreeMap::new())?.shell;
    let drained = shell.drain(true).map_err(|error| Error::Drain(error.to_string()))?;
    shell.queues().wait(DRAIN_TIMEOUT);
    let end = Instant::now() + RESIZE_STOP_TIMEOUT;
    while shell.restores_sizes() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(drained)
}

/// How long a daemon runs.
pub(crate) enum Until {
    /// Until a signal; its files and mounts stay.
    Signal(Signals),
    /// Until another caller says so, which is told when it listens; nothing of it stays.
    Requested { stopped: oneshot::Receiver<()>, listens: mpsc::Sender<()> },
}

/// Runs a daemon on this thread.
pub(crate) fn run(runtime: &Runtime, options: Options, until: Until) -> Result<()> {
    raise_descriptor_limit();
    LocalSet::new().block_on(runtime, main(options, until))
}

/// What a daemon runs on: one thread, its caller's.
pub(crate) fn event_loop() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Runtime { what: "cannot make an event loop", source })
}

/// Each loan takes one descriptor and each connection two: a thousand of both are common.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map(|()| hard));
    match raised {
        Ok(most) => make_room_for_descriptors(most.min(DESCRIPTOR_TABLE_SIZE)),
        Err(error) => tracing::warn!(%error, "the limit on open files stays as it is"),
    }
}

/// Has the kernel make the table of descriptors as large as it may become: 0.5 MiB. It grows with
/// them else, and a process that has threads waits 10 to 22 ms for that each time.
fn make_room_for_descriptors(count: u64) {
    use rustix::fs::{OFlags, open};
    let Ok(any) = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return };
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(0);
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(&any, last) {
        tracing::debug!(%error, last, "the table of descriptors grows when it has to");
    }
}

/// From start to end, step by step. What fails leaves nothing behind but directories.
async fn main(mut options: Options, until: Until) -> Result<()> {
    options.config = on_this_machine(&options.config, options.plain, &options.roots)?;
    let is_embedded = matches!(until, Until::Requested { .. });
    signals::keep_children()?;
    let inherited =
        if options.managed { InheritedSockets::take() } else { InheritedSockets::default() };
    let groups = Rc::new(RefCell::new(Rc::new(Groups::from_config(&options.config)?)));
    let tree = Settings::from_config(&options.config, &options.run_dir, is_embedded)?;
    // The socket first: it is what tells two daemons apart.
    let (listener, socket) = listen(inherited.listener, &options.socket, ALL_USERS_MODE)?;
    let _lock = lock(&options.run_dir).await?;
    let (agents, unserved) = match &options.agent_socket {
        Some(path) => match listen_for_agents(inherited.agent_listener, path, &groups) {
            Ok(listening) => (Some(listening), None),
            Err(error) => (None, Some(error.to_string())),
        },
        None => (None, None),
    };
    let (agents, agent_socket) = agents.unzip();
    let shell = take_over(&options, inherited.stored)?;
    if let Some(error) = &unserved {
        tracing::error!(%error, "agents are not served; all else is");
    }
    shell.borrow_mut().incidents.listens("the agents' socket", unserved);
    give_way(options.config.nice);
    let tree = plant(tree, &shell, &groups, &options).await?;
    let mut workers = Workers::new(options.worker_command.clone(), &shell);
    let manager = Manager::new(options.managed);
    let read_again = (options.source.clone(), options.agent_socket.clone());
    let control = Control::new(&shell, &groups, workers.pids(), read_again, manager);
    control.serve_metrics();
    shell.borrow_mut().keep_mounts();
    tokio::select! {
        () = accept::accept(Api::Borrowers, listener, Rc::clone(&shell), Rc::clone(&groups)) => {}
        () = listen_to_agents(agents, &shell, &groups) => {}
        () = maintenance::keep(&shell, &mut workers, &control) => {}
        reported = end(until, &control, &options.socket) => reported?,
    }
    control.stopping();
    if let Some(tree) = tree {
        tree.stop(WORKERS_STOP_TIMEOUT).await;
    }
    workers.drain(WORKERS_STOP_TIMEOUT).await;
    let end = Instant::now() + RESIZE_STOP_TIMEOUT;
    while shell.borrow_mut().restores_sizes() && Instant::now() < end {
        sleep(Duration::from_millis(10)).await;
    }
    drop((socket, agent_socket));
    shell.borrow_mut().keep_learnt(true);
    if is_embedded {
        shell.borrow_mut().clean_up()?;
    }
    Ok(())
}

/// The listening socket, and its name if that is the daemon's own. That of a socket unit stays, and
/// clients wait in it for the next daemon.
fn listen(
    inherited: Option<std::os::unix::net::UnixListener>,
    path: &Path,
    mode: u32,
) -> Result<(UnixListener, Option<SocketName>)> {
    let failed = |source| Error::Listen { path: path.to_owned(), source };
    let (listener, own) = match inherited {
        Some(listener) => {
            listener.set_nonblocking(true).map_err(failed)?;
            (listener, None)
        }
        None => {
            let (listener, name) = crate::base::files::listen(path, mode, LOCK_TIMEOUT)?;
            (listener, Some(name))
        }
    };
    Ok((UnixListener::from_std(listener).map_err(failed)?, own))
}

/// The agents' socket, with its group. Memory is lent without agents, too.
fn listen_for_agents(
    inherited: Option<std::os::unix::net::UnixListener>,
    path: &Path,
    groups: &SharedGroups,
) -> Result<(UnixListener, Option<SocketName>)> {
    let listening = listen(inherited, path, OWNER_ONLY)?;
    crate::base::files::restrict(path, groups.borrow().agent())?;
    Ok(listening)
}

/// Serves agents for ever, if there is a socket for them.
async fn listen_to_agents(agents: Option<UnixListener>, shell: &Shared, groups: &SharedGroups) {
    match agents {
        Some(listener) => {
            accept::accept(Api::Agents, listener, Rc::clone(shell), Rc::clone(groups)).await;
        }
        None => std::future::pending().await,
    }
}

/// The run directory is this daemon's for as long as the file is open. A daemon that was killed
/// has it until the last page of its memory is gone, and its successor waits for that.
pub(crate) async fn lock(run_dir: &Path) -> Result<std::fs::File> {
    crate::base::files::make_run_dir(run_dir)?;
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        if let Some(lock) = crate::base::files::lock(run_dir)? {
            return Ok(lock);
        }
        if Instant::now() >= end {
            return Err(Error::Locked(run_dir.to_owned()));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// What an earlier daemon left, and who watches over it.
fn take_over(options: &Options, stored: BTreeMap<String, OwnedFd>) -> Result<Shared> {
    let Options { config, run_dir, state_dir, roots, plain, .. } = options;
    let dirs = Dirs { run: run_dir, state: state_dir.as_deref() };
    let started = Shell::start(config.clone(), dirs, roots.clone(), *plain, stored)?;
    let shell = Rc::new(RefCell::new(started.shell));
    shell.borrow_mut().use_path_program(options.worker_command.first().map(Path::new));
    watchers::returned(&shell, started.returned);
    watchers::unmap_events(&shell);
    for (lease, end) in started.leases {
        watchers::lease(&shell, lease, end);
    }
    watchers::leases(&shell, started.later);
    Ok(shell)
}

/// After the threads that work aside, which keep the nice value they were started with.
fn give_way(nice: i8) {
    if let Err(error) = linux::sched::set_nice(nice.into()) {
        tracing::debug!(%error, "the daemon competes with its clients");
    }
}

/// The control tree, unless the kernel has its own.
async fn plant(
    tree: Option<Settings>,
    shell: &Shared,
    groups: &SharedGroups,
    options: &Options,
) -> Result<Option<Tree>> {
    let Some(tree) = tree else { return Ok(None) };
    if !tree.is_required() && shell.borrow().provider().is_notified() {
        tracing::info!("the control tree is the kernel's: /sys/devices/system/node");
        return Ok(None);
    }
    let delegated = DelegatedWorkers::new(options.worker_command.clone(), shell);
    Tree::start(tree, shell, &delegated, Rc::clone(groups), &options.roots).await
}

/// Says that the daemon serves, and waits for its end.
async fn end(until: Until, control: &Control, socket: &Path) -> Result<()> {
    let (stopped, listens) = match until {
        Until::Signal(signals) => {
            let serves = || {
                tracing::info!(socket = %socket.display(), "serves");
                control.ready();
            };
            return signals.end(control, serves).await;
        }
        Until::Requested { stopped, listens } => (stopped, listens),
    };
    // Its starter may be gone already; then `stopped` says so at once.
    let _ = listens.send(());
    let _ = stopped.await;
    Ok(())
}
