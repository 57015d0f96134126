// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon under test: the real binary, as an operator starts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use client::{Client, LendRequest, Loan};
use linux::Roots;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testkit::MOUNTS_PREFIX;
use testkit::hugepages::{self, Guard};
use units::{Bytes, Node, Owner, PageSize, Pages};
use wire::{PoolStatus, Status};

/// How long anything that ought to happen may take before the test fails.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The page sizes that every test of one kind runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl Page {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Mib2, Self::Gib1];

    /// As the type of `units`.
    #[must_use]
    pub fn size(self) -> PageSize {
        match self {
            Self::Mib2 => PageSize::MIB_2,
            Self::Gib1 => PageSize::GIB_1,
        }
    }

    /// Pages of it, in bytes.
    #[must_use]
    pub fn times(self, pages: u64) -> Bytes {
        Pages(pages).bytes(self.size())
    }

    /// A pool of it on node 0, or on the node that `fields` says, as in the configuration file;
    /// `fields` is further lines.
    #[must_use]
    pub fn pool(self, fields: &str) -> String {
        let node =
            if fields.lines().any(|line| line.starts_with("node ")) { "" } else { "node = 0\n" };
        format!("[[pool]]\npage_size = \"{}\"\n{node}{fields}\n", self.size())
    }
}

/// The binary under test: `PREZERO_BIN`, or the one that cargo built beside this test.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("PREZERO_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test has a path");
    let built = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("prezero");
    assert!(built.exists(), "{} is missing: cargo build -p prezero-cli", built.display());
    built
}

/// A running daemon and the huge pages it works with. Dropped, nothing of either is left.
#[derive(Debug)]
pub struct Daemon {
    dir: TempDir,
    child: Option<Child>,
    arguments: Vec<String>,
    /// Dropped last: gives the pages back.
    pages: Option<Guard>,
}

impl Daemon {
    /// Reserves `pages` pages of one size and starts a daemon with a configuration file of that
    /// content. `None` is a skip, which was counted.
    #[must_use]
    pub fn start(page: Page, pages: u64, config: &str) -> Option<Self> {
        // Node 0 is the pools' default, and where machines with several nodes must have them.
        let guard = hugepages::reserve_all(&[(page.size(), Some(Node(0)), pages)])?;
        Some(Self::start_with(Some(guard), config, &[]))
    }

    /// Starts a daemon on pages that the caller has reserved.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(pages: Option<Guard>, config: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix(MOUNTS_PREFIX).tempdir().expect("a directory");
        // Borrowers of other users must reach the socket.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("our own directory");
        std::fs::write(dir.path().join("config.toml"), config).expect("a file in it");
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut daemon = Self { dir, child: None, arguments, pages };
        daemon.launch();
        daemon
    }

    /// With which arguments the process is started from now on.
    pub fn use_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
    }

    /// Starts the process (again).
    ///
    /// # Panics
    /// If it does not come up.
    pub fn launch(&mut self) {
        self.spawn();
        self.wait_until_up();
    }

    /// Starts the process without waiting for anything.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(&mut self) {
        self.spawn_as(|command| command);
    }

    /// The same with the command changed, as another user would start it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn_as(&mut self, change: impl FnOnce(Command) -> Command) {
        assert!(self.child.is_none(), "it runs already");
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.dir.path().join("log"))
            .expect("a log");
        let mut command = Command::new(binary());
        command
            .arg("serve")
            .arg("--config")
            .arg(self.dir.path().join("config.toml"))
            .arg("--socket")
            .arg(self.socket())
            .arg("--run-dir")
            .arg(self.run_dir())
            .args(&self.arguments)
            .env("RUST_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(change(command).spawn().expect("the daemon starts"));
    }

    /// # Panics
    /// If it does not answer in time.
    pub fn wait_until_up(&mut self) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while Client::connect(self.socket()).and_then(|mut c| c.status()).is_err() {
            let ended = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten());
            assert!(ended.is_none(), "the daemon ended with {ended:?}:\n{}", self.log());
            assert!(Instant::now() < deadline, "the daemon is not up:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Its socket for agents.
    #[must_use]
    pub fn agent_socket(&self) -> PathBuf {
        self.dir.path().join("socket.agent")
    }

    /// Where its files are.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Its control tree.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.run_dir().join("tree")
    }

    /// A directory of the test's own.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The daemon's process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Writes its configuration anew; SIGHUP or a start makes it read that.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_config(&self, config: &str) {
        std::fs::write(self.dir.path().join("config.toml"), config).expect("our own file");
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        kill(pid, signal).expect("our own child");
    }

    /// Waits until its log has `text`.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "never logged `{text}`:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether its process has ended by itself.
    ///
    /// # Panics
    /// If it was not started.
    pub fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("it was started");
        child.try_wait().expect("our own child").is_some()
    }

    /// Forgets a process that has ended, so that another can be started.
    ///
    /// # Panics
    /// If it lives.
    pub fn forget_process(&mut self) {
        assert!(self.has_ended(), "it lives");
        self.child = None;
    }

    /// Kills it by SIGKILL.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Stops it by SIGTERM and waits.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn terminate(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("our own child");
        let status = child.wait().expect("our own child");
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.log());
    }

    /// A connection.
    ///
    /// # Panics
    /// If there is no daemon.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(self.socket()).expect("the daemon listens")
    }

    /// An agent's connection.
    ///
    /// # Panics
    /// If there is no daemon.
    #[must_use]
    pub fn agent(&self) -> Client {
        Client::connect(self.agent_socket()).expect("the daemon listens to agents")
    }

    /// Its status.
    ///
    /// # Panics
    /// If there is no daemon.
    #[must_use]
    pub fn status(&self) -> Status {
        self.client().status().expect("the daemon answers")
    }

    /// The status of its first pool.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn pool(&self) -> PoolStatus {
        self.status().pools.into_iter().next().expect("a pool")
    }

    /// Waits until the first pool is as `wanted`.
    ///
    /// # Panics
    /// If that does not happen in time; `what` names the expected event.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
        self.wait_for_pool(|_| true, what, wanted)
    }

    /// The same of that node's first pool.
    ///
    /// # Panics
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_for_on(
        &self,
        node: u32,
        what: &str,
        wanted: impl Fn(&PoolStatus) -> bool,
    ) -> PoolStatus {
        self.wait_for_pool(|pool| pool.node == Node(node), what, wanted)
    }

    fn wait_for_pool(
        &self,
        which: impl Fn(&PoolStatus) -> bool,
        what: &str,
        wanted: impl Fn(&PoolStatus) -> bool,
    ) -> PoolStatus {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            let pool = self.status().pools.into_iter().find(&which).expect("a pool");
            if wanted(&pool) {
                return pool;
            }
            assert!(Instant::now() < deadline, "never {what}: {pool:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Zeroes as `prezero zero` does for a user: all zeroable pages, or this number.
    ///
    /// # Panics
    /// If it fails.
    pub fn zero(&self, amount: &str) {
        let output = self.command(&["zero", amount]).output().expect("prezero runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "prezero zero {amount}: {stderr}\n{}", self.log());
    }

    /// A prezero command that talks to this daemon.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(&arguments[..1]).arg("--socket").arg(self.socket()).args(&arguments[1..]);
        command
    }

    /// Borrows this number of pages of one size as one file.
    ///
    /// # Panics
    /// If the daemon refuses.
    #[must_use]
    pub fn lend(&self, page: Page, pages: u64) -> Loan {
        let request = LendRequest { single: true, ..LendRequest::new(page.times(pages)) };
        self.client().lend(&request).expect("the daemon lends")
    }

    /// The same for a named owner, with content kept for this long.
    ///
    /// # Panics
    /// If the daemon refuses.
    #[must_use]
    pub fn lend_to(&self, owner: &str, keep: Duration, page: Page, pages: u64) -> Loan {
        let owner: Owner = owner.parse().expect("a good name");
        let request = LendRequest {
            single: true,
            owner: Some(owner),
            keep: Some(keep),
            ..LendRequest::new(page.times(pages))
        };
        self.client().lend(&request).expect("the daemon lends")
    }

    /// Whether it keeps ready pages in blocks, as it does unless the kernel knows which are zero.
    ///
    /// # Panics
    /// If there is no daemon.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        self.status().provider != wire::Provider::Kernel
    }

    /// Pages that the kernel has free.
    ///
    /// # Panics
    /// If the test reserved none.
    #[must_use]
    pub fn kernel_free(&self, page: Page) -> u64 {
        self.pages.as_ref().expect("reserved pages").free(page.size())
    }

    /// Records that this number of pages is the kernel's from now on: it keeps broken ones.
    ///
    /// # Panics
    /// If none were reserved.
    pub fn lose(&mut self, page: Page, pages: u64) {
        self.pages.as_mut().expect("reserved pages").lose(page.size(), pages);
    }

    /// Takes away what a daemon that has ended leaves mounted: every block is gone then.
    ///
    /// # Panics
    /// If it cannot.
    pub fn unmount(&self) {
        let trees = linux::fuse::find(&Roots::default(), &self.tree(), "prezero");
        for tree in trees.unwrap_or_default() {
            tree.detach().expect("our own mount");
        }
        for page in Page::ALL {
            let mounts = linux::mount::find(&Roots::default(), page.size()).unwrap_or_default();
            for mounted in mounts.into_iter().filter(|m| m.dir.starts_with(self.dir.path())) {
                mounted.detach().expect("our own mount");
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0));
            // Asked first, so that its workers end with it.
            let _ = kill(pid, Signal::SIGTERM);
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        self.unmount();
    }
}
