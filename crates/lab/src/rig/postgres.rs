// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PostgreSQL on a cluster of its own: a temporary directory, a Unix socket, no TCP.
//!
//! Everything of it runs as the user `postgres`, in a process group of its own, so that Ctrl-C
//! reaches this process alone, which then ends the server in order.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::User;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use units::{Bytes, PageSize};

use super::child::{end_with_parent, last_lines, watch};
use cli::exit::Failure;
use worker::Stop;

/// Where packages put the server, outside of PATH: Debian's, and PostgreSQL's own RPMs.
const PLACES: [(&str, &str); 2] = [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")];
const PROGRAMS: [&str; 3] = ["postgres", "initdb", "psql"];
/// The user that packages make: the server refuses to run as root.
const USER: &str = "postgres";
/// Of the temporary directories, so that a run finds what a killed one has left.
const PREFIX: &str = "prezero-bench-postgresql-";
/// How long a start, an end or a statement may take.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an immediate shutdown may take: the server itself kills its children after 5 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at a server that starts or ends.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The line of `postmaster.pid` that says how far the server is, since PostgreSQL 10: `pg_ctl -w`
/// waits for it.
const STATUS_LINE: usize = 7;

/// An installed server.
#[derive(Debug)]
pub(crate) struct Postgres {
    bin: PathBuf,
    version: String,
    user: User,
}

impl Postgres {
    /// The newest one that is installed; `Err` with the missing package.
    pub(crate) fn find() -> Result<Self, String> {
        let bin = newest(&PLACES.map(|(dir, prefix)| (PathBuf::from(dir), prefix)))
            .or_else(in_path)
            .ok_or("PostgreSQL is not installed: apt-get install postgresql")?;
        let user = User::from_name(USER).ok().flatten();
        let user = user.ok_or_else(|| format!("PostgreSQL needs a user of its own: no {USER}"))?;
        let said = Command::new(bin.join("postgres")).arg("--version").output();
        let said = said.map_err(|error| format!("{}: {error}", bin.join("postgres").display()))?;
        let said = String::from_utf8_lossy(&said.stdout);
        // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
        let version = said.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
        Ok(Self { bin, version, user })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The group that must be allowed to borrow, as a number.
    pub(crate) fn group(&self) -> String {
        self.user.gid.to_string()
    }

    fn major(&self) -> Option<u32> {
        self.version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Runs as the server's user, with nothing of this process's environment.
    fn command(&self, program: &str, dir: &Path) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command
            .env_clear()
            .env("LC_ALL", "C")
            .uid(self.user.uid.as_raw())
            .gid(self.user.gid.as_raw())
            .current_dir(dir)
            .process_group(0)
            .stdin(Stdio::null());
        command
    }
}

/// The `bin` directory of the highest version below one of these directories.
fn newest(places: &[(PathBuf, &str)]) -> Option<PathBuf> {
    let versions = places.iter().flat_map(|(dir, prefix)| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let name = entry.file_name().into_string().ok()?;
            let version: u32 = name.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
    });
    versions.filter(|(_, bin)| is_whole(bin)).max().map(|(_, bin)| bin)
}

fn in_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|dir| is_whole(dir))
}

fn is_whole(bin: &Path) -> bool {
    PROGRAMS.iter().all(|program| bin.join(program).is_file())
}

/// What shared buffers are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// `huge_pages = off`.
    Ordinary,
    /// `huge_pages = on`.
    Huge(PageSize),
    /// The same under the preload shim.
    Lent { page: PageSize, shim: &'a Path, socket: &'a Path },
}

/// A database cluster. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Cluster<'a> {
    postgres: &'a Postgres,
    /// root's, for others to pass through: logs are here.
    home: TempDir,
    /// The server's own: data and socket are in it.
    dir: PathBuf,
    buffers: Bytes,
}

impl<'a> Cluster<'a> {
    /// Makes one; its servers have this many shared buffers. Removes what a killed run has left:
    /// only for a caller that knows it is alone, as the owner of a rig does.
    pub(crate) fn make(
        postgres: &'a Postgres,
        buffers: Bytes,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        remove_left(&std::env::temp_dir());
        let home = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        fs::set_permissions(home.path(), Permissions::from_mode(0o711))?;
        let dir = home.path().join("cluster");
        DirBuilder::new().mode(0o700).create(&dir)?;
        let User { uid, gid, .. } = postgres.user;
        chown(&dir, Some(uid.as_raw()), Some(gid.as_raw()))?;
        let cluster = Self { postgres, home, dir, buffers };
        let mut initdb = postgres.command("initdb", &cluster.dir);
        initdb.args(["--auth=peer", "--locale=C", "--encoding=UTF8", "--no-sync", "-D"]);
        watch(initdb.arg(cluster.data()), START_TIMEOUT, stop)?;
        Ok(cluster)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    /// What the shim said of its calls.
    fn shim_log(&self) -> PathBuf {
        self.dir.join("shim.log")
    }

    /// Starts a server, and returns how long it took until it accepts connections.
    pub(crate) fn start(
        &'a self,
        memory: Memory<'_>,
        stop: &Stop,
    ) -> Result<(Server<'a>, Duration), Failure> {
        let mut command = self.postgres.command("postgres", &self.dir);
        let log = File::create(self.log())?;
        command.stdout(log.try_clone()?).stderr(log).arg("-D").arg(self.data());
        command.arg("-k").arg(&self.dir);
        let mut set = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        set("listen_addresses", "");
        set("shared_buffers", &format!("{}kB", self.buffers.0 >> 10));
        // It does only the requested work, and no part of that waits for a disk.
        for name in ["fsync", "full_page_writes", "autovacuum"] {
            set(name, "off");
        }
        set("max_wal_senders", "0");
        set("wal_level", "minimal");
        let page = match memory {
            Memory::Ordinary => None,
            Memory::Huge(page) | Memory::Lent { page, .. } => Some(page),
        };
        set("huge_pages", if page.is_some() { "on" } else { "off" });
        // Before 14 it takes the kernel's default size and knows no setting.
        if let (Some(page), Some(14..)) = (page, self.postgres.major()) {
            set("huge_page_size", &format!("{}kB", page.bytes() >> 10));
        }
        if let Memory::Lent { shim, socket, .. } = memory {
            command.env("LD_PRELOAD", shim).env("PREZERO_SOCKET", socket);
            command.env("PREZERO_SHIM_LOG", self.shim_log());
        }
        // Immediate shutdown: it takes its children with it.
        let command = end_with_parent(&mut command, Signal::QUIT);
        let begin = Instant::now();
        let child =
            command.spawn().map_err(|error| Failure::failed(format!("postgres: {error}")))?;
        let mut server = Server { cluster: self, child };
        while !server.is_ready() {
            if stop.is_set() {
                return Err(Failure::stopped(stop));
            }
            if server.child.try_wait()?.is_some() || begin.elapsed() > START_TIMEOUT {
                return Err(Failure::failed(format!("postgres did not start: {}", self.said())));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok((server, begin.elapsed()))
    }

    /// The end of the server's log.
    fn said(&self) -> String {
        last_lines(&fs::read_to_string(self.log()).unwrap_or_default())
    }

    /// The end of what the shim said.
    pub(crate) fn shim_said(&self) -> String {
        last_lines(&fs::read_to_string(self.shim_log()).unwrap_or_default())
    }
}

/// Directories of runs that could not remove them: no other user can have made them.
fn remove_left(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let is_ours =
            entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == geteuid().as_raw());
        if is_named && is_ours {
            // A directory that cannot be removed does no harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A server that runs. Dropped, it is ended at once.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    cluster: &'a Cluster<'a>,
    child: Child,
}

impl Server<'_> {
    fn is_ready(&self) -> bool {
        let text = fs::read_to_string(self.cluster.data().join("postmaster.pid"));
        let text = text.unwrap_or_default();
        let mut lines = text.lines();
        // The file may still be that of the server before.
        let is_its_own = lines.next().is_some_and(|pid| pid == self.child.id().to_string());
        is_its_own && lines.nth(STATUS_LINE - 1).is_some_and(|status| status.trim() == "ready")
    }

    /// What `psql` prints for a statement, without its last line's end.
    pub(crate) fn ask(&self, sql: &str, stop: &Stop) -> Result<String, Failure> {
        let Cluster { postgres, dir, .. } = self.cluster;
        let mut psql = postgres.command("psql", dir);
        psql.args(["-X", "-A", "-t", "-q", "-d", "postgres", "-U", USER, "-c", sql]);
        Ok(watch(psql.arg("-h").arg(dir), START_TIMEOUT, stop)?.stdout.trim().to_owned())
    }

    /// Ends it in order, and waits for that.
    pub(crate) fn end(mut self, stop: &Stop) -> Result<(), Failure> {
        self.notify(Signal::INT);
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if stop.is_set() {
                return Err(Failure::stopped(stop));
            }
            if begin.elapsed() > START_TIMEOUT {
                let said = self.cluster.said();
                return Err(Failure::failed(format!("postgres did not end: {said}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn notify(&self, signal: Signal) {
        // It may have ended already; it is not waited for before that, so the number is its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let is_gone = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if is_gone(&mut self.child) {
            return;
        }
        self.notify(Signal::QUIT);
        let begin = Instant::now();
        while !is_gone(&mut self.child) && begin.elapsed() < STOP_TIMEOUT {
            thread::sleep(POLL_INTERVAL);
        }
        // Its children see that it is gone and end, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(dir: &Path, programs: &[&str]) {
        fs::create_dir_all(dir).unwrap();
        for program in programs {
            fs::write(dir.join(program), "").unwrap();
        }
    }

    #[test]
    fn the_newest_version_that_is_whole_is_taken_by_number() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["9", "15", "pgsql-16", "pgsql-x", "common"] {
            install(&dir.path().join(version).join("bin"), &PROGRAMS);
        }
        install(&dir.path().join("17/bin"), &["psql"]);
        let place = |prefix| (dir.path().to_owned(), prefix);
        assert_eq!(newest(&[place("")]), Some(dir.path().join("15/bin")));
        assert_eq!(newest(&[place(""), place("pgsql-")]), Some(dir.path().join("pgsql-16/bin")));
        assert_eq!(newest(&[(dir.path().join("15"), "")]), None);
    }

    #[test]
    fn remains_of_a_killed_run_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["prezero-bench-postgresql-Ab1/cluster/data", "postgresql", "prezero-bench-x"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("postgresql", dir.path().join("prezero-bench-postgresql-l"))
            .unwrap();
        remove_left(dir.path());
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["postgresql", "prezero-bench-postgresql-l", "prezero-bench-x"]);
    }
}
