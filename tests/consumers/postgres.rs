// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL with `huge_pages = on`: shared anonymous memory, inherited by every backend.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use units::Pages;

use linux::{Roots, hugetlb};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use tempfile::TempDir;
use testkit::hugepages;
use testkit::skip;

use super::{
    Program, assert_returned, assert_served, is_wanted, measured, run, succeeded, until, warm,
    zero_all,
};

const PAGE: Page = Page::Mib2;
/// 512 MiB of shared buffers and what comes on top, twice: what a crash returns is not zeroed at
/// once.
const PAGES: u64 = 600;

/// Where Debian has the server's programs.
pub(super) fn programs() -> Option<PathBuf> {
    let mut versions: Vec<_> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().collect();
    versions.sort_by_key(std::fs::DirEntry::file_name);
    let found = versions.pop().map(|version| version.path().join("bin"));
    if found.is_none() {
        skip("PostgreSQL is not installed: apt-get install postgresql");
    }
    found
}

pub(super) struct Cluster {
    bin: PathBuf,
    dir: TempDir,
}

impl Cluster {
    pub(super) fn make(bin: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let user = User::from_name("postgres").expect("users").expect("the package makes it");
        std::os::unix::fs::chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .expect("root may");
        let cluster = Self { bin, dir };
        let mut initdb = cluster.as_postgres(&cluster.bin.join("initdb"));
        initdb.args(["-A", "trust", "--no-sync", "-D"]).arg(cluster.data());
        succeeded(&initdb.output().expect("initdb runs"));
        let settings = format!(
            "huge_pages = on\nshared_buffers = 512MB\nfsync = off\nlisten_addresses = ''\n\
             unix_socket_directories = '{}'\n",
            dir_of(&cluster)
        );
        let config = cluster.data().join("postgresql.conf");
        let text = std::fs::read_to_string(&config).expect("a configuration");
        std::fs::write(&config, text + &settings).expect("our own file");
        cluster
    }

    pub(super) fn bin(&self) -> &Path {
        &self.bin
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The server does not run as root.
    pub(super) fn as_postgres(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
        command.current_dir(self.dir.path());
        command
    }

    pub(super) fn start(&self, command: &mut Command) -> (Program, Duration) {
        let begin = Instant::now();
        let mut server = Program::start(command, &self.dir.path().join("server.log"));
        until("a server", || {
            assert!(server.is_running(), "the server ended: {}", self.said());
            self.try_ask("SELECT 1").ok()
        });
        (server, begin.elapsed())
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    fn try_ask(&self, question: &str) -> Result<String, String> {
        let output = Command::new(self.bin.join("psql"))
            .args(["-X", "-A", "-t", "-q", "-U", "postgres", "-h", dir_of(self), "-c", question])
            .args(["-d", "postgres"])
            .output()
            .expect("psql runs");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    #[track_caller]
    pub(super) fn ask(&self, question: &str) -> String {
        self.try_ask(question).unwrap_or_else(|error| panic!("{question}: {error}{}", self.said()))
    }
}

fn dir_of(cluster: &Cluster) -> &str {
    cluster.dir.path().to_str().expect("a plain path")
}

/// Not `CREATE TABLE AS`: that goes round in a ring of 16 MiB and leaves the other buffers empty.
pub(super) const FILL: &str = "CREATE TABLE numbers (n integer, text text); \
                    INSERT INTO numbers SELECT n, repeat('x', 200) FROM generate_series(1, 1000000) AS n";
pub(super) const SUM: &str = "SELECT count(*), sum(n) FROM numbers";
pub(super) const SUMMED: &str = "1000000|500000500000";

// Promise P75 (programs): PostgreSQL, OpenJDK and MariaDB use lent memory and return all of it.
#[test]
fn it_starts_loads_answers_and_restarts_after_a_crash() {
    if is_wanted("setpriv", "util-linux").is_none() {
        return;
    }
    let Some(bin) = programs() else { return };
    let Some(reserved) = hugepages::reserve(PAGE.size(), PAGES) else { return };
    let cluster = Cluster::make(bin);
    let postgres = cluster.bin.join("postgres");

    let config = format!("lend_group = \"postgres\"\n{}", PAGE.pool("pages_per_block = 50"));
    let daemon = Daemon::start_with(Some(reserved), &config, &[]);
    warm(&daemon);
    let mut untouched = cluster.as_postgres(&postgres);
    let (mut server, cold) = cluster.start(untouched.arg("-D").arg(cluster.data()));
    cluster.ask(FILL);
    server.end(Signal::SIGINT);

    zero_all(&daemon, PAGE, PAGES);
    let log = cluster.dir.path().join("shim.log");
    let shimmed = || {
        let mut command = cluster.as_postgres(&binary());
        let plain = run(&daemon, &log, &["--only", "postgres"]);
        command.args(plain.get_args()).env("PREZERO_WAIT_MS", "5000");
        command.arg(&postgres).arg("-D").arg(cluster.data());
        command
    };
    let (mut server, ready) = cluster.start(&mut shimmed());
    cluster.ask(&format!("DROP TABLE numbers; {FILL}"));
    measured("PostgreSQL, 512 MiB of shared buffers, to its first answer", cold, ready);
    assert_eq!(cluster.ask(SUM), SUMMED);
    let first = assert_served(&log).len();
    assert!(daemon.pool().lent_pages >= Pages(256), "{:?}", daemon.pool());
    assert_eq!(daemon.status().loans.len(), 1);

    // A backend that dies takes the others and the shared memory with it; the server makes it anew.
    let backend =
        cluster.ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
    kill(Pid::from_raw(backend.parse().expect("a pid")), Signal::SIGKILL).expect("root may");
    until("the server again", || {
        assert!(server.is_running(), "the server ended: {}", cluster.said());
        let said = cluster.said();
        let again = said.matches("database system is ready to accept connections").count() >= 2;
        again.then(|| cluster.try_ask("SELECT 1").ok()).flatten()
    });
    assert_eq!(cluster.ask(SUM), SUMMED);
    assert!(assert_served(&log).len() > first, "the new shared memory is lent as well");
    assert_eq!(daemon.status().loans.len(), 1, "and the old was returned");
    server.end(Signal::SIGINT);
    assert_returned(&daemon);
}

/// `prezero bench start` until its server runs, and the server's process.
fn bench_until_its_server_runs(temporary: &Path, log: &Path) -> (Program, Pid) {
    let mut command = Command::new(binary());
    command.args(["bench", "start", "--quick", "--rounds", "3"]).env("TMPDIR", temporary);
    let mut bench = Program::start(&mut command, log);
    let server = until("a server", || {
        let said = || fs::read_to_string(log).unwrap_or_default();
        assert!(bench.is_running(), "the benchmark ended: {}", said());
        let homes = fs::read_dir(temporary).expect("our own directory").flatten();
        let files = homes.map(|home| home.path().join("cluster/data/postmaster.pid"));
        let mut texts = files.filter_map(|file| fs::read_to_string(file).ok());
        let pid = texts.find(|text| text.lines().count() >= 8)?.lines().next()?.parse().ok()?;
        is_alive(Pid::from_raw(pid)).then(|| Pid::from_raw(pid))
    });
    (bench, server)
}

fn is_alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

// Promise P69.
#[test]
fn stopped_or_killed_benchmark_leaves_no_server_files_or_pages() {
    if is_wanted("setpriv", "util-linux").is_none() || programs().is_none() {
        return;
    }
    let Some(_reserved) = hugepages::reserve(PAGE.size(), 128) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (temporary, log) = (dir.path().join("tmp"), dir.path().join("bench.log"));
    fs::create_dir(&temporary).expect("a directory");
    for path in [dir.path(), &temporary] {
        fs::set_permissions(path, Permissions::from_mode(0o711)).expect("our own directory");
    }
    let total = || hugetlb::counters(&Roots::default(), PAGE.size(), None).expect("counters").total;
    let left = || fs::read_dir(&temporary).expect("our own directory").count();
    let before = total();

    let (mut bench, server) = bench_until_its_server_runs(&temporary, &log);
    bench.end(Signal::SIGKILL);
    until("the end of the server without its parent", || (!is_alive(server)).then_some(()));
    assert_eq!(left(), 1, "nobody could remove the killed run's cluster");

    // The next one removes that, too, and puts the pages back that the killed one had reserved.
    let (mut bench, server) = bench_until_its_server_runs(&temporary, &log);
    assert_eq!(left(), 1, "its own cluster");
    kill(bench.pid(), Signal::SIGINT).expect("our own child");
    let status = until("the end of the benchmark", || bench.child.try_wait().ok().flatten());
    assert_eq!(status.code(), Some(130), "{}", fs::read_to_string(&log).unwrap_or_default());
    assert!(!is_alive(server));
    assert_eq!((left(), total()), (0, before));
}
