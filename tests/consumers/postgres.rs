// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL with `huge_pages = on`: shared anonymous memory, inherited by every backend.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linux::testkit::hugepages;
use linux::testkit::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use prezero_tests::{Daemon, Page};
use tempfile::TempDir;

use super::{
    Program, assert_returned, assert_served, is_wanted, measured, run, succeeded, until, warm,
    zero_all,
};

const PAGE: Page = Page::Mib2;
/// 512 MiB of shared buffers and what comes on top, twice: what a crash returns is not zeroed at once.
const PAGES: u64 = 600;

/// Where Debian has the server's programs.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<_> =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().collect();
    versions.sort_by_key(std::fs::DirEntry::file_name);
    let found = versions.pop().map(|version| version.path().join("bin"));
    if found.is_none() {
        skip("PostgreSQL is not installed: apt-get install postgresql");
    }
    found
}

struct Cluster {
    bin: PathBuf,
    dir: TempDir,
}

impl Cluster {
    fn make(bin: PathBuf) -> Self {
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

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The server does not run as root.
    fn as_postgres(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
        command.current_dir(self.dir.path());
        command
    }

    fn start(&self, command: &mut Command) -> (Program, Duration) {
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
    fn ask(&self, question: &str) -> String {
        self.try_ask(question).unwrap_or_else(|error| panic!("{question}: {error}{}", self.said()))
    }
}

fn dir_of(cluster: &Cluster) -> &str {
    cluster.dir.path().to_str().expect("a plain path")
}

const FILL: &str = "CREATE TABLE numbers AS SELECT n, repeat('x', 200) AS text \
                    FROM generate_series(1, 1000000) AS n";
const SUM: &str = "SELECT count(*), sum(n) FROM numbers";
const SUMMED: &str = "1000000|500000500000";

#[test]
fn it_starts_loads_answers_and_restarts_after_a_crash() {
    if is_wanted("setpriv", "util-linux").is_none() {
        return;
    }
    let Some(bin) = programs() else { return };
    let Some(reserved) = hugepages::reserve(PAGE.bytes(), PAGES) else { return };
    let cluster = Cluster::make(bin);
    let postgres = cluster.bin.join("postgres");
    let timed_fill = || {
        cluster.ask("DROP TABLE IF EXISTS numbers");
        let begin = Instant::now();
        cluster.ask(FILL);
        begin.elapsed()
    };

    let config = format!("lend_group = \"postgres\"\n{}", PAGE.pool("pages_per_block = 50"));
    let daemon = Daemon::start_with(Some(reserved), &config, &[]);
    warm(&daemon);
    let mut untouched = cluster.as_postgres(&postgres);
    let (mut server, cold) = cluster.start(untouched.arg("-D").arg(cluster.data()));
    let cold_fill = timed_fill();
    server.end(Signal::SIGINT);

    zero_all(&daemon, PAGE, PAGES);
    let log = cluster.dir.path().join("shim.log");
    let shimmed = || {
        let mut command = cluster.as_postgres(&prezero_tests::daemon::binary());
        let plain = run(&daemon, &log, &["--only", "postgres"]);
        command.args(plain.get_args()).env("PREZERO_WAIT_MS", "5000");
        command.arg(&postgres).arg("-D").arg(cluster.data());
        command
    };
    let (mut server, ready) = cluster.start(&mut shimmed());
    let ready_fill = timed_fill();
    measured("PostgreSQL, 512 MiB of shared buffers, to its first answer", cold, ready);
    measured("PostgreSQL, filling 250 MB of empty shared buffers", cold_fill, ready_fill);
    assert_eq!(cluster.ask(SUM), SUMMED);
    let first = assert_served(&log).len();
    assert!(daemon.pool().lent_pages >= 256, "{:?}", daemon.pool());
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
