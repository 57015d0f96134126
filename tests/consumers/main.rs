// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that people run, as their packages install them, on lent memory.
//!
//! Each test starts the real program, has it use the memory, and looks that it was lent memory and
//! that all of it came back. What each gains is printed as times of one run, cold against ready,
//! and never asserted: `docs/evidence/programs.md` returns the result.
//!
//! `make test` runs QEMU alone. `make test-all` installs the packages and sets
//! `PREZERO_TEST_CONSUMERS=1`, which runs all; a package that is missing then is a skip like any
//! other.

mod allocator;
mod dpdk;
mod fio;
mod java;
mod libvirt;
mod mariadb;
mod one_table;
mod ovs;
mod postgres;
mod python;
mod qemu;
mod restart;
mod selftests;
mod slurm;
mod ucx;
mod vllm;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use units::Pages;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prezero_tests::daemon::{WAIT_TIMEOUT, binary};
use prezero_tests::{Daemon, Page};
use testkit::{skip, skip_always};

/// Set to `1` to run all of them.
const ALL: &str = "PREZERO_TEST_CONSUMERS";

/// Whether the slow tests are to run, and this program is there for them; says so if not.
fn is_wanted(program: &str, package: &str) -> Option<PathBuf> {
    if std::env::var(ALL).as_deref() != Ok("1") {
        skip_always(&format!("{ALL}=1 runs the consumers that take long"));
        return None;
    }
    installed(program, package)
}

fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|path| path.exists());
    if found.is_none() {
        skip(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}

/// `prezero run` with a daemon and a log, before a program and its arguments.
fn run(daemon: &Daemon, log: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(binary());
    // The wait for a busy machine, as in the tests of the shim.
    command.env("PREZERO_WAIT_MS", "5000").arg("run").arg("--socket").arg(daemon.socket());
    command.arg("--log").arg(log).args(options).arg("--");
    command
}

/// The lines of a log that say that something was served.
fn served(log: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().filter(|line| line.contains("is served")).map(ToOwned::to_owned).collect()
}

#[track_caller]
fn assert_served(log: &Path) -> Vec<String> {
    let served = served(log);
    let all = std::fs::read_to_string(log).unwrap_or_default();
    assert!(!served.is_empty(), "nothing was served:\n{all}");
    served
}

/// Everything that was lent came back.
fn assert_returned(daemon: &Daemon) {
    daemon.wait_for("all is returned", |pool| pool.lent_pages + pool.draining_pages == Pages(0));
}

/// Waits for something.
#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT * 3;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has every page of the pool touched once and gives them all back: on a virtual machine the first
/// touch of a page waits for the machine's own host, which is nobody's gain or loss here.
fn warm(daemon: &Daemon) {
    daemon.zero("max");
    daemon.client().release(None, None, None).expect("all of them");
}

/// Zeroes everything, once the kernel has the pages back that the program before had.
fn zero_all(daemon: &Daemon, page: Page, pages: u64) {
    until("all pages free", || (daemon.kernel_free(page) == pages).then_some(()));
    daemon.zero("max");
}

/// Prints the figures, past the harness, which swallows the output of passing tests.
fn measured(what: &str, cold: Duration, ready: Duration) {
    let ratio = cold.as_secs_f64() / ready.as_secs_f64();
    said(&format!("{what}: cold {cold:.2?}, ready {ready:.2?}, ratio {ratio:.2}"));
}

fn said(what: &str) {
    let line = format!("measured {what}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written");
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}:\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// An unused port.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A program that is ended with the test.
struct Program {
    child: Child,
    name: String,
}

impl Program {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("a log");
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { child, name }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    /// Ends it by a signal and waits.
    fn end(&mut self, signal: Signal) {
        kill(self.pid(), signal).expect("our own child");
        until(&format!("the end of {}", self.name), || self.child.try_wait().ok().flatten());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
