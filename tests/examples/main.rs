// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of `examples/`, run as their first lines say, against a daemon of plain memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use prezero_tests::{Daemon, Page, daemon};
use tempfile::TempDir;
use units::Pages;

const PAGE: Page = Page::Mib2;
/// What the programs borrow at once: one block.
const BLOCK_PAGES: u64 = 32;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it")
}

fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

fn start() -> Daemon {
    let pool = format!("pages_per_block = {BLOCK_PAGES}\nmax = {}\n", 2 * BLOCK_PAGES);
    let config = PAGE.pool(&pool) + "[workers]\nmax = 0\n";
    let daemon = Daemon::start_with(None, &config, &["--plain"]);
    daemon.zero("max");
    daemon
}

fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a program to its end, after which nothing is lent; returns what it printed.
fn lends(program: &mut Command) -> String {
    let daemon = start();
    let text = succeeded(program.env("PREZERO_SOCKET", daemon.socket()));
    daemon.wait_for("returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
    let lent = daemon.status().counters.lent_ready_bytes;
    assert!(lent >= PAGE.times(BLOCK_PAGES), "{lent} lent:\n{text}");
    text
}

/// Whether there is such a program; `make test` installs it.
fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok_and(|out| out.status.success());
    if !found {
        testkit::skip(&format!("no `{program} {argument}` here"));
    }
    found
}

fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root());
    command
}

/// What cargo built beside this test; it is built if it is missing.
fn built(name: &str, words: &[&str]) -> PathBuf {
    let path = daemon::binary().with_file_name(name);
    if !path.exists() {
        succeeded(&mut cargo(words));
    }
    path
}

#[test]
fn rust_example_lends_and_falls_back() {
    let words = ["build", "--workspace", "--example", "lend"];
    let program = built("examples/lend", &words);
    let text = lends(&mut Command::new(&program));
    assert!(text.ends_with("67108864 bytes, all zero before \"hello\"\n"), "{text}");
    let nowhere = succeeded(Command::new(&program).env("PREZERO_SOCKET", "/nowhere/socket"));
    assert!(text.ends_with(&nowhere), "{nowhere}");
}

#[test]
fn c_example_lends() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().to_str().expect("a plain path");
    succeeded(&mut cargo(&["xtask", "capi", "--out", library]));
    let program = dir.path().join("lend");
    let rpath = format!("-Wl,-rpath,{library}");
    succeeded(
        Command::new("cc")
            .arg(example("c/lend.c"))
            .args(["-Wall", "-Wextra", "-Werror", "-I", library, "-L", library, "-lprezero"])
            .args([&rpath, "-o"])
            .arg(&program),
    );
    let text = lends(&mut Command::new(program));
    assert!(text.contains("67108864 bytes, all zero before \"hello\"\n"), "{text}");
}

/// A directory with the Python module.
fn python_module() -> TempDir {
    let library = built("libprezero_python.so", &["build", "-p", "prezero-python"]);
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(library, dir.path().join("prezero.abi3.so")).expect("a new name");
    dir
}

#[test]
fn python_example_lends_an_array_and_keeps_content() {
    if !has("python3", "-cimport numpy") {
        return;
    }
    let module = python_module();
    let mut program = Command::new("python3");
    let text = lends(program.arg(example("python/lend.py")).env("PYTHONPATH", module.path()));
    assert!(text.contains("16777216 floats, all zero but 12.0\nrun 1, new\n"), "{text}");
}

#[test]
fn python_example_makes_a_tensor_without_a_copy() {
    let python = std::env::var_os("PREZERO_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let has_torch = Command::new(&python).args(["-c", "import torch"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        // It is half a gigabyte, which `make test` downloads for no example.
        testkit::skip_always("no torch here: PREZERO_TORCH_PYTHON names a Python that has it");
        return;
    }
    let module = python_module();
    let mut program = Command::new(python);
    let text = lends(program.arg(example("python/tensor.py")).env("PYTHONPATH", module.path()));
    assert_eq!(text, "(4096, 8192) of torch.float16 in 67108864 bytes, sum 4096.0\n");
}

#[test]
fn go_example_lends() {
    if !has("go", "version") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("lend");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).current_dir(example("go")).env("GOPROXY", "off");
    succeeded(&mut build);
    let text = lends(&mut Command::new(program));
    assert!(text.contains("67108864 bytes, all zero before \"hello\"\n"), "{text}");
}

#[test]
fn shell_example_lends_and_finds_kept_content() {
    let binary = daemon::binary();
    let folder = binary.parent().expect("a folder").display();
    let path = std::env::var("PATH").expect("a path");
    let run = || {
        let mut program = Command::new(example("shell/lend.sh"));
        lends(program.env("PATH", format!("{folder}:{path}")))
    };
    let expected = |second: u32| {
        format!("67108864 bytes, all zero\nrun first: kept 0\nrun second: kept {second}\n")
    };
    // On a busy machine a command of a millisecond ends before its owner is on its files.
    let mut text = run();
    for _ in 0..4 {
        if text.ends_with(&expected(0)) {
            text = run();
        }
    }
    assert!(text.ends_with(&expected(1)), "{text}");
}
