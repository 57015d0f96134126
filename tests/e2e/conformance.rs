// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C programs of `tests/c`, which are written for the kernel's files, on the daemon's.

use std::path::{Path, PathBuf};
use std::process::Command;
use units::Pages;

use prezero_tests::daemon::Daemon;
use tempfile::TempDir;
use testkit::skip;

use crate::tree::daemon;

/// Compiles programs of `tests/c` into one directory, as they are.
fn compile(names: &[&str]) -> Option<TempDir> {
    if Command::new("gcc").arg("--version").output().is_err() {
        skip("no C compiler here: the programs are run in a table of tests/vm");
        return None;
    }
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it");
    let dir = tempfile::tempdir().expect("a directory");
    for name in names {
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-O2", "-pthread", "-Wall", "-Werror", "-I"]);
        gcc.arg(repo.join("kernel/uapi")).arg("-o").arg(dir.path().join(name));
        gcc.arg(repo.join("tests/c").join(format!("{name}.c")));
        assert!(gcc.status().expect("gcc runs").success(), "{name}.c");
    }
    Some(dir)
}

/// Runs a program that prints TAP, and demands that every case of it passes. Returns their names.
fn run(program: PathBuf, tree: &Path) -> Vec<String> {
    let output = Command::new(&program).arg(tree).output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut cases = Vec::new();
    for line in text.lines() {
        assert!(!line.starts_with("not ok "), "{line}\n{text}");
        if let Some(case) = line.strip_prefix("ok ") {
            assert!(!case.contains("# SKIP"), "{line}");
            cases.push(case.split_once(' ').expect("a number and a name").1.to_owned());
        }
    }
    let plan = format!("1..{}", cases.len());
    assert_eq!(text.lines().last(), Some(plan.as_str()), "{text}");
    assert!(output.status.success(), "{text}");
    cases
}

// Promise P40 (tree): On a kernel without the series the daemon serves its files and ioctls by
// FUSE: values, errors, growing structs, poll, partial counts, signals. The programs written for
// the series run unchanged.
// Promise P247.
#[test]
fn the_tree_keeps_the_rules_of_the_kernels_files() {
    let Some(dir) = compile(&["conformance"]) else { return };
    let Some(daemon) = daemon(160, "") else { return };
    let cases = run(dir.path().join("conformance"), &daemon.tree());
    assert!(cases.len() > 100, "{}", cases.len());
}

// Promise P40.
#[test]
fn programs_written_for_the_kernels_files_run_on_the_tree() {
    let Some(dir) = compile(&["operators", "keep_ready", "watch_and_zero"]) else { return };
    let Some(daemon) = daemon(160, "") else { return };
    run(dir.path().join("operators"), &daemon.tree());
    let pool = daemon.pool();
    assert_eq!((pool.ready_pages, pool.zeroing_pages), (Pages(160), Pages(0)));
}

/// The results of seeded calls on a pool of dirty pages.
fn calls(program: &Path, daemon: &Daemon, seed: u64) -> String {
    daemon.command(&["release", "all"]).output().expect("prezero runs");
    std::fs::write(daemon.tree().join("node0/hugepages/hugepages-2048kB/zeroed_low"), "0")
        .expect("it can be written");
    let mut calls = Command::new(program);
    let output = calls.arg(daemon.tree()).args([&seed.to_string(), "2000"]).output();
    let output = output.expect("it can be run");
    assert!(output.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

// Promise P208 (years): Any call on the tree's files and its `hugepagectl` gives the result of the
// kernel's own, where FUSE hands it on.
/// That what comes of them is what the kernel's own files give is seen where there are such files:
/// machine `calls` of `tests/vm`.
#[test]
fn any_calls_on_the_tree_have_the_same_outcome_each_time() {
    let Some(dir) = compile(&["calls"]) else { return };
    let Some(daemon) = daemon(24, "") else { return };
    for seed in 0..5 {
        let program = dir.path().join("calls");
        let [once, again] = [(); 2].map(|()| calls(&program, &daemon, seed));
        assert_eq!(once.lines().count(), 2000, "seed {seed}: {once}");
        assert!(once == again, "seed {seed}");
    }
}
