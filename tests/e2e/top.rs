// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero top` on a real terminal, 80 by 24, and as lines for programs.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use units::Pages;

use prezero_tests::daemon::{WAIT_TIMEOUT, binary};
use prezero_tests::terminal::Terminal;
use prezero_tests::{Daemon, Page};

/// `prezero top` on a terminal of its own.
struct Top {
    screen: Arc<Mutex<vt100::Parser>>,
    keys: File,
    terminal: Terminal,
}

impl Top {
    fn start(daemon: &Daemon) -> Self {
        let mut command = Command::new(binary());
        command.args(["top", "--interval", "50ms", "--socket"]).arg(daemon.socket());
        let terminal = Terminal::start(&command, 80, 24);
        let mut output = terminal.other_end();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let parser = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read) = output.read(&mut bytes) {
                if read == 0 {
                    return;
                }
                parser.lock().expect("no panic").process(&bytes[..read]);
            }
        });
        let keys = terminal.other_end();
        Self { screen, keys, terminal }
    }

    fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    fn wait_for(&self, part: &str) -> String {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            let text = self.text();
            if text.contains(part) {
                return text;
            }
            assert!(Instant::now() < deadline, "never showed `{part}`:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
        self.keys.flush().expect("a terminal");
    }

    /// Its exit code, after it has put the terminal back.
    fn end(mut self) -> Option<i32> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let status = loop {
            if let Some(status) = self.terminal.child.try_wait().expect("our own child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        let left = || self.screen.lock().expect("no panic").screen().alternate_screen();
        while left() {
            assert!(Instant::now() < deadline, "the terminal was not put back");
            std::thread::sleep(Duration::from_millis(10));
        }
        status.code()
    }
}

// Promise P66.
#[test]
fn top_shows_and_changes_pools_and_waits_for_a_lost_daemon() {
    let page = Page::Mib2;
    let Some(mut daemon) = Daemon::start(page, 8, &page.pool("")) else { return };
    let mut top = Top::start(&daemon);
    let text = top.wait_for(">node 0 2M x 1");
    assert!(text.contains("ready 0 ") && text.contains("zeroable 16M "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("q leave") && text.lines().count() == 24, "{text}");

    top.press("z\r");
    top.wait_for("zeroed 16M at");
    top.wait_for("ready 16M ");
    let loan = daemon.lend(page, 2);
    top.wait_for("lent 4M ");
    top.wait_for(&daemon.status().loans[0].lease.0.to_string());
    top.press("h4M\rl1\r");
    top.wait_for("ready_low 2M, ready_high 4M");
    top.press("l5\r");
    top.wait_for("refused: ");
    top.press("g3\r");
    top.wait_for("gave 6M back");
    top.wait_for("ready 6M ");

    daemon.kill();
    let text = top.wait_for("no daemon at");
    assert!(text.contains("below is what was seen last") && text.contains("ready 6M "), "{text}");
    daemon.launch();
    top.wait_for("provider stock");
    top.wait_for("lent 4M ");
    drop(loan);
    top.wait_for("lent 0 ");

    top.press("k");
    top.wait_for("q leave");
    top.terminal.resize(100, 30);
    top.screen.lock().expect("no panic").screen_mut().set_size(30, 100);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !top.text().lines().nth(29).is_some_and(|line| line.contains("q leave")) {
        assert!(Instant::now() < deadline, "never grew:\n{}", top.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

// Promise P66.
#[test]
fn top_restores_the_terminal_at_a_signal_and_reports_zeroing() {
    let page = Page::Mib2;
    let Some(daemon) = Daemon::start(page, 512, &page.pool("")) else { return };
    let mut top = Top::start(&daemon);
    top.wait_for(">node 0 2M x 1");
    top.press("z\r");
    top.wait_for("zeroing here");
    let pid = top.terminal.child.id();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("our own child");
    assert_eq!(top.end(), Some(143));
    let pool = daemon.pool();
    assert_eq!(pool.zeroing_pages, Pages(0));
    assert_eq!(daemon.status().counters.lost_workers, 0, "every job was reported");
}

#[test]
fn top_prints_a_line_per_interval_and_a_missing_daemon() {
    let mut daemon = Daemon::start_with(None, "", &["--plain"]);
    let lines = |daemon: &Daemon| -> Vec<serde_json::Value> {
        let mut command = daemon.command(&["top", "--json", "--lines", "2", "--interval", "50ms"]);
        let output = command.stdin(Stdio::null()).output().expect("prezero runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let there = lines(&daemon);
    assert_eq!(there.len(), 2);
    assert_eq!(there[1]["pid"], daemon.pid());
    assert!(there[1]["rates"]["loans_per_second"].is_number(), "{}", there[1]);
    daemon.terminate();
    let gone = lines(&daemon);
    assert!(gone[1]["error"].as_str().is_some_and(|why| why.contains("no daemon")), "{}", gone[1]);
}
