// SPDX-License-Identifier: Apache-2.0 OR MIT
//! OpenJDK with `-XX:+UseLargePages`: private anonymous memory, committed by `MAP_FIXED`, and the
//! memfd of ZGC.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{assert_returned, assert_served, is_wanted, measured, run, succeeded, warm, zero_all};

const PAGE: Page = Page::Mib2;
/// A heap of 1 GiB, its side tables, and the code cache.
const PAGES: u64 = 800;

pub(super) const FLAGS: [&str; 3] = ["-XX:+UseLargePages", "-Xms1g", "-Xmx1g"];

/// The same program as in virtual machines.
const WORK: &str = include_str!("../vm/programs/Work.java");

const STAY: &str = r#"
public class Stay {
    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
"#;

pub(super) fn compile(java: &Path, dir: &Path) {
    let mut compiler = Command::new(java.with_file_name("javac"));
    for (name, program) in [("Work.java", WORK), ("Stay.java", STAY)] {
        std::fs::write(dir.join(name), program).expect("a file");
        compiler.arg(name);
    }
    succeeded(&compiler.current_dir(dir).output().expect("javac runs"));
}

fn java(command: &mut Command, dir: &Path, words: &[&str]) -> (String, Duration) {
    command.current_dir(dir).args(FLAGS).args(words);
    let begin = Instant::now();
    let output = command.output().expect("java runs");
    let took = begin.elapsed();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("warning"), "{output:?}");
    (succeeded(&output), took)
}

/// Cold, lent, and at work on lent memory, with the flags of one collector; returns the served
/// part.
fn heap(collector: &[&str], pool: &str) -> Option<Vec<String>> {
    let program = is_wanted("java", "openjdk-17-jdk-headless")?;
    let reserved = hugepages::reserve(PAGE.size(), PAGES)?;
    let dir = tempfile::tempdir().expect("a directory");
    compile(&program, dir.path());
    let daemon = Daemon::start_with(Some(reserved), &PAGE.pool(pool), &[]);
    warm(&daemon);
    let flags = [collector, &["-XX:+AlwaysPreTouch"]].concat();
    let touch = [&flags[..], &["-version"]].concat();
    let (_, cold) = java(&mut Command::new(&program), dir.path(), &touch);
    zero_all(&daemon, PAGE, PAGES);
    let log = dir.path().join("shim.log");
    let shimmed = || {
        let mut command = run(&daemon, &log, &["--only", "java", "--private"]);
        command.arg(&program);
        command
    };
    let (_, ready) = java(&mut shimmed(), dir.path(), &touch);
    measured(&format!("java -Xms1g {}", touch.join(" ")), cold, ready);
    let served = assert_served(&log);
    assert_returned(&daemon);

    daemon.zero("max");
    let words = [&flags[..], &["Work", "96", "8"]].concat();
    assert_eq!(java(&mut shimmed(), dir.path(), &words).0.trim(), "4560 5");
    assert_returned(&daemon);
    Some(served)
}

// Promise P75.
#[test]
fn a_heap_of_large_pages_is_lent_used_collected_and_returned() {
    heap(&[], "pages_per_block = 64\nmax = 640");
}

// Promise P201.
#[test]
fn a_heap_of_zgc_is_lent_used_collected_and_returned() {
    // One file of the heap's size, which is one block's.
    let pool = "pages_per_block = 512\nmax = 512";
    let Some(served) = heap(&["-XX:+UseZGC"], pool) else { return };
    let heap = format!("a memfd of {} bytes", 1 << 30);
    assert!(served.iter().any(|line| line.contains(&heap)), "{served:#?}");
}
