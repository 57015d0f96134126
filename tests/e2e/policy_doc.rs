// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of docs/guides/write-a-policy.md and the commands of docs/start/first-loan.md do as
//! these pages say, exactly as they are printed there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use units::Pages;

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use tempfile::TempDir;
use testkit::skip;

use crate::tree::{daemon, domain};

const PAGES: u64 = 48;
/// Compiled in: virtual machines lack a checkout.
const DOCUMENT: &str = include_str!("../../docs/guides/write-a-policy.md");
const FIRST_LOAN: &str = include_str!("../../docs/start/first-loan.md");

fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it")
}

/// Writes every block of the document that has a file's name into a directory.
fn programs() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut blocks = DOCUMENT.split("\n```");
    blocks.next();
    // Begin and end of blocks take turns.
    for block in blocks.step_by(2) {
        let (head, body) = block.split_once('\n').expect("a block has lines");
        let (_, name) = head.split_once(' ').expect("a language and a name");
        std::fs::write(dir.path().join(name), format!("{body}\n")).expect("our own directory");
    }
    dir
}

/// A running policy; it ends with the test.
struct Policy(Child);

impl Policy {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("it can be run"))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // It ends by a signal, as the document says.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skip(&format!("no {program} here"));
    }
    found
}

fn compile(dir: &TempDir, name: &str) -> PathBuf {
    let program = dir.path().join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(repo().join("kernel/uapi"));
    gcc.arg("-o").arg(&program).arg(program.with_extension("c"));
    assert!(gcc.status().expect("gcc runs").success(), "{name}");
    program
}

/// Runs one policy after another, each from a clean start.
fn run_each(name: &str, mut check: impl FnMut(&Daemon)) {
    let dir = programs();
    let Some(daemon) = daemon(PAGES, "") else { return };
    let tree = domain(&daemon);
    let keep = if name == "keep_ready" { vec!["16"] } else { vec![] };
    let mut with = |command: &mut Command| {
        let policy = Policy::start(command);
        check(&daemon);
        drop(policy);
        daemon.wait_for("quiet", |p| p.zeroing_pages == Pages(0) && p.lent_pages == Pages(0));
        daemon.client().release(None, None, None).expect("root may");
        std::fs::write(tree.join("zeroed_low"), "0").expect("root may");
    };
    let script = |program: &str, ending: &str| {
        let mut command = Command::new(program);
        command.arg(dir.path().join(name).with_extension(ending)).arg(&tree).args(&keep);
        command
    };
    with(&mut script("sh", "sh"));
    if has("python3") {
        with(&mut script("python3", "py"));
    }
    if has("gcc") {
        let mut command = Command::new(compile(&dir, name));
        match name {
            "keep_ready" => {
                command.arg(daemon.tree().join("hugepagectl")).args(["0", "21"]).args(&keep)
            }
            _ => command.arg(&tree),
        };
        with(&mut command);
    }
}

// Promise P48 (tree): The programs of docs/guides/write-a-policy.md and the commands of
// docs/start/first-loan.md do as these say, as printed.
#[test]
fn printed_loops_zero_all_zeroable_pages() {
    run_each("zero_all", |daemon| {
        daemon.wait_for("all zeroed", |pool| pool.ready_pages == Pages(PAGES));
        drop(daemon.lend(Page::Mib2, 1));
        // What comes back dirty is zeroed, too.
        daemon.wait_for("zeroed again", |p| {
            p.ready_pages == Pages(PAGES) && p.lent_pages == Pages(0)
        });
    });
}

// Promise P48.
#[test]
fn printed_loops_keep_the_requested_number_ready() {
    run_each("keep_ready", |daemon| {
        daemon.wait_for("filled", |pool| pool.ready_pages == Pages(16));
        let loans = [daemon.lend(Page::Mib2, 1), daemon.lend(Page::Mib2, 1)];
        daemon.wait_for("filled again", |p| p.ready_pages == Pages(16) && p.lent_pages == Pages(2));
        drop(loans);
        let pool = daemon.wait_for("returned", |pool| pool.lent_pages == Pages(0));
        assert_eq!((pool.ready_pages, pool.zeroing_pages), (Pages(16), Pages(0)), "and no more");
    });
}

// Promise P48.
#[test]
fn first_loan_page_lends_zeros_as_printed() {
    let (_, rest) = FIRST_LOAN.split_once("\n```sh\n").expect("a block for the shell");
    let (script, _) = rest.split_once("\n```").expect("its end");
    let program = binary();
    let folder = program.parent().expect("it lies in a folder");
    let path = std::env::var("PATH").expect("a path");
    // A failure leaves no daemon behind, which would keep the output open.
    let script = format!("trap '(kill $daemon || :; rm -rf $dir) 2>/dev/null' EXIT\n{script}");
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &script]).env("PATH", format!("{}:{path}", folder.display()));
    let output = shell.stdin(Stdio::null()).output().expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaints}");
    assert!(said.contains("256M are ready") && said.contains("\nall zero\n"), "{said}{complaints}");
}
