// SPDX-License-Identifier: Apache-2.0 OR MIT
//! MariaDB with `large-pages`: one private mapping for the buffer pool.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use units::Pages;

use nix::sys::signal::Signal;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{
    Program, assert_returned, assert_served, is_wanted, measured, run, succeeded, until, warm,
    zero_all,
};

const PAGE: Page = Page::Mib2;
/// A buffer pool of 512 MiB, and what InnoDB adds to it.
const PAGES: u64 = 400;

fn ask(socket: &Path, question: &str) -> Result<String, String> {
    let mut command = Command::new("mariadb");
    command.arg("--no-defaults").arg("-N").arg("-S").arg(socket).args(["-u", "root", "-e"]);
    let output = command.arg(question).output().expect("the client runs");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

// Promise P75.
#[test]
fn a_buffer_pool_of_large_pages_is_lent_filled_and_returned() {
    let Some(program) = is_wanted("mariadbd", "mariadb-server") else { return };
    if is_wanted("mariadb", "mariadb-client").is_none() {
        return;
    }
    let Some(reserved) = hugepages::reserve(PAGE.size(), PAGES) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut install = Command::new("mariadb-install-db");
    install.arg("--no-defaults").arg("--user=root").arg("--auth-root-authentication-method=normal");
    install.arg(format!("--datadir={}", data.display()));
    succeeded(&install.output().expect("mariadb-install-db runs"));
    let socket = dir.path().join("s");
    let log = dir.path().join("shim.log");
    let start = |command: &mut Command| -> (Program, Duration) {
        command.args(["--no-defaults", "--user=root", "--skip-networking", "--large-pages"]);
        command.args(["--innodb-buffer-pool-size=512M", "--innodb-log-file-size=16M"]);
        command.arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--pid-file={}", dir.path().join("pid").display()));
        let begin = Instant::now();
        let mut server = Program::start(command, &dir.path().join("server.log"));
        until("a server", || {
            let said = || std::fs::read_to_string(dir.path().join("server.log"));
            assert!(server.is_running(), "the server ended: {}", said().unwrap_or_default());
            ask(&socket, "SELECT 1").ok()
        });
        (server, begin.elapsed())
    };
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool("pages_per_block = 50"), &[]);
    warm(&daemon);
    let (mut server, cold) = start(&mut Command::new(&program));
    server.end(Signal::SIGTERM);
    zero_all(&daemon, PAGE, PAGES);
    let (mut server, ready) = start(run(&daemon, &log, &["--private"]).arg(&program));
    measured("MariaDB, buffer pool of 512 MiB, to its first answer", cold, ready);
    assert_served(&log);
    let said = std::fs::read_to_string(&log);
    assert!(daemon.pool().lent_pages >= Pages(256), "{:?} {said:?}", daemon.pool());
    let fill = "CREATE DATABASE d; USE d; CREATE TABLE d.t (n INT PRIMARY KEY, s VARCHAR(200)) ENGINE=InnoDB; \
                INSERT INTO d.t SELECT seq, REPEAT('x', 200) FROM seq_1_to_300000; \
                SELECT COUNT(*), SUM(n) FROM d.t";
    assert_eq!(ask(&socket, fill).expect("an answer"), "300000\t45000150000");
    server.end(Signal::SIGTERM);
    assert_returned(&daemon);
}
