// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One table for a whole host: a guest, a JVM, a database and a packet processor at once, from a
//! pool that was told how many bytes to have ready and nothing else.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use units::Pages;

use nix::sys::signal::Signal;
use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::postgres::{self, Cluster};
use super::qemu::{self, Stage};
use super::{
    Program, assert_returned, assert_served, dpdk, is_wanted, java, measured, run, said, until,
    warm,
};

const PAGE: Page = Page::Mib2;
/// What the four have together, and a tenth for what the kernel is to give beside it.
const PAGES: u64 = 1900;
/// 3.4 GiB of the 3.7.
const TABLE: &str = "lend_group = \"postgres\"\n[[pool]]\nnode = 0\npage_size = \"2M\"\n\
                     ready = \"3500M\"\n";
const GUEST_PAGES: u64 = 512;

const NAMES: [&str; 4] = [
    "QEMU, 1 GiB preallocated, to its first word",
    "java -Xms1g -XX:+AlwaysPreTouch, to its first line",
    "PostgreSQL, 512 MiB of shared buffers, start and a million rows",
    "dpdk-testpmd, 100,000 packet buffers, to its first packet",
];

/// The programs as they are installed, and what they work on.
struct Host {
    stage: Stage,
    cluster: Cluster,
    java: PathBuf,
    testpmd: PathBuf,
}

/// All four at work at the same time.
struct Running {
    guest: Program,
    java: Program,
    postgres: Program,
    testpmd: Program,
    took: [Duration; 4],
}

impl Host {
    fn set() -> Option<Self> {
        is_wanted("setpriv", "util-linux")?;
        is_wanted("qemu-system-x86_64", "qemu-system-x86")?;
        let java = is_wanted("java", "openjdk-17-jdk-headless")?;
        let testpmd = is_wanted("dpdk-testpmd", "dpdk-dev")?;
        let bin = postgres::programs()?;
        let reserved = hugepages::reserve(PAGE.size(), PAGES)?;
        let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("pages_per_block = 50"), &[]);
        let host = Self { stage: Stage::with(daemon), cluster: Cluster::make(bin), java, testpmd };
        java::compile(&host.java, host.stage.dir());
        Some(host)
    }

    fn log(&self, name: &str) -> PathBuf {
        // The server's own user writes one of them.
        self.cluster.dir().join(format!("{name}.shim.log"))
    }

    /// `program`, by itself or under the shim.
    fn command(&self, program: &Path, name: &str, is_lent: bool) -> Command {
        if !is_lent {
            return Command::new(program);
        }
        let mut command = run(&self.stage.daemon, &self.log(name), &["--only", name, "--private"]);
        command.arg(program);
        command
    }

    fn start(&self, is_lent: bool) -> Running {
        let mut took = [Duration::ZERO; 4];
        let mut begin = Instant::now();
        let mut lap = |n: usize| {
            took[n] = begin.elapsed();
            begin = Instant::now();
        };
        let guest = self.start_guest(is_lent);
        lap(0);
        let mut command = self.command(&self.java, "java", is_lent);
        command.current_dir(self.stage.dir()).args(java::FLAGS);
        let log = self.stage.path("java.log");
        let mut java = Program::start(command.args(["-XX:+AlwaysPreTouch", "Stay"]), &log);
        wait_for(&mut java, &log, "ready");
        lap(1);
        let postgres = self.start_postgres(is_lent);
        lap(2);
        let log = self.stage.path("testpmd.log");
        // Its lines would wait in a buffer otherwise.
        let mut command = self.command(Path::new("stdbuf"), "dpdk-testpmd", is_lent);
        command.arg("-oL").arg(&self.testpmd).args(dpdk::ARGUMENTS);
        let mut testpmd = Program::start(&mut command, &log);
        wait_for(&mut testpmd, &log, "packet forwarding");
        lap(3);
        Running { guest, java, postgres, testpmd, took }
    }

    fn start_guest(&self, is_lent: bool) -> Program {
        for name in ["qmp", "console"] {
            let _ = std::fs::remove_file(self.stage.path(name));
        }
        let object = qemu::memfd(",share=on,prealloc=on", GUEST_PAGES);
        let program = Path::new("qemu-system-x86_64");
        let mut command = self.command(program, "qemu-system-x86_64", is_lent);
        let mut guest = self.stage.start(command.args(self.stage.arguments(&object, GUEST_PAGES)));
        let greeting = until("QEMU's greeting", || {
            assert!(guest.is_running(), "QEMU ended: {}", self.stage.said());
            let stream = UnixStream::connect(self.stage.path("qmp")).ok()?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            Some(line)
        });
        assert!(greeting.contains("QMP"), "{greeting}");
        guest
    }

    fn start_postgres(&self, is_lent: bool) -> Program {
        let postgres = self.cluster.bin().join("postgres");
        let mut command = if is_lent {
            let mut command = self.cluster.as_postgres(&binary());
            let plain = self.command(&postgres, "postgres", true);
            command.args(plain.get_args()).env("PREZERO_WAIT_MS", "5000");
            command
        } else {
            self.cluster.as_postgres(&postgres)
        };
        let (server, _) = self.cluster.start(command.arg("-D").arg(self.cluster.data()));
        self.cluster.ask(&format!("DROP TABLE IF EXISTS numbers; {}", postgres::FILL));
        server
    }

    /// All four on lent memory, from ready memory only; the ready share of bytes.
    fn lend(&self) -> (Running, f64) {
        let daemon = &self.stage.daemon;
        daemon.wait_for("the pool is full", |pool| pool.ready_high.0 - pool.ready_pages.0 < 64);
        let before = daemon.status().counters;
        let mut running = self.start(true);
        assert_eq!(self.stage.verdict(&mut running.guest), "zero kept");
        assert_eq!(self.cluster.ask(postgres::SUM), postgres::SUMMED);
        let status = daemon.status();
        let [pool] = &status.pools[..] else { panic!("one table is one pool: {status:?}") };
        // A GiB each of guest and heap, half of one of buffers, and the packets'.
        let least = GUEST_PAGES + 512 + 256 + 100;
        assert!(pool.lent_pages >= Pages(least), "{pool:?}");
        for name in ["qemu-system-x86_64", "java", "postgres", "dpdk-testpmd"] {
            assert_served(&self.log(name));
        }
        let hit = status.counters.lent_ready_bytes.0 - before.lent_ready_bytes.0;
        let miss = status.counters.lent_unbacked_bytes.0 - before.lent_unbacked_bytes.0;
        (running, hit as f64 / (hit + miss) as f64)
    }
}

fn wait_for(program: &mut Program, log: &Path, text: &str) {
    until(text, || {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        assert!(program.is_running(), "it ended: {said}");
        said.contains(text).then_some(())
    });
}

impl Running {
    fn end(mut self) -> [Duration; 4] {
        self.testpmd.end(Signal::SIGINT);
        self.postgres.end(Signal::SIGINT);
        self.java.end(Signal::SIGTERM);
        self.guest.end(Signal::SIGTERM);
        self.took
    }
}

#[test]
fn one_table_serves_guest_jvm_database_and_packet_processor() {
    let Some(mut host) = Host::set() else { return };
    warm(&host.stage.daemon);
    host.stage.daemon.terminate();
    let cold = host.start(false).end();

    host.stage.daemon.write_config(TABLE);
    host.stage.daemon.launch();
    // The first day teaches the pool its sizes, which it keeps over a restart.
    let (running, first) = host.lend();
    running.end();
    assert_returned(&host.stage.daemon);
    host.stage.daemon.terminate();
    host.stage.daemon.launch();
    let (running, second) = host.lend();
    let ready = running.end();
    assert_returned(&host.stage.daemon);

    for (name, (cold, ready)) in NAMES.into_iter().zip(cold.into_iter().zip(ready)) {
        measured(name, cold, ready);
    }
    said(&format!("of all bytes lent were ready: at first {first:.3}, after that {second:.3}"));
    assert!(second >= 0.9, "of what four programs were lent only {second} was ready");
}
