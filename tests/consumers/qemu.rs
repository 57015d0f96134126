// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU: by path, by descriptor, and with a memfd of its own.
//!
//! The guest (`tests/c/guest.c`) finds its memory zero, writes all of it and reads it back.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use units::Pages;

use nix::sys::signal::Signal;
use prezero_tests::daemon::binary;
use prezero_tests::memory::at;
use prezero_tests::{Daemon, Page, c};
use tempfile::TempDir;
use testkit::hugepages;

use super::{
    Program, assert_returned, assert_served, installed, is_wanted, measured, run, served, until,
    warm,
};

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 128;
/// The guest's mark in the first page that it uses, see `guest.c`.
const FIRST: usize = 16 << 20;
const MARK: [u8; 4] = 0x5a3c_0f69_u32.to_le_bytes();

pub(super) struct Stage {
    pub(super) daemon: Daemon,
    dir: TempDir,
    guest: PathBuf,
}

impl Stage {
    /// A daemon with `pages` ready in one block, and a guest.
    fn set(pages: u64) -> Option<Self> {
        Self::set_beside(0, pages)
    }

    /// The same, and `spare` pages that stay the kernel's: less than a block.
    fn set_beside(spare: u64, pages: u64) -> Option<Self> {
        installed("qemu-system-x86_64", "qemu-system-x86")?;
        let reserved = hugepages::reserve(PAGE.size(), pages + spare)?;
        let config = PAGE.pool(&format!("pages_per_block = {pages}"));
        Some(Self::with(Daemon::start_with(Some(reserved), &config, &[])))
    }

    /// A guest, and a daemon that is there.
    pub(super) fn with(daemon: Daemon) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let guest = c::compile_with("guest", dir.path(), c::GUEST);
        Self { daemon, dir, guest }
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// QEMU's arguments for a guest with memory from `object`.
    pub(super) fn arguments(&self, object: &str, pages: u64) -> Vec<String> {
        let size = format!("{}M", PAGE.times(pages).0 >> 20);
        let console = format!("file,id=dbg,path={}", self.path("console").display());
        let qmp = format!("unix:{},server=on,wait=off", self.path("qmp").display());
        let kernel = self.guest.display().to_string();
        let words = [
            "-accel",
            "tcg",
            "-machine",
            "q35,memory-backend=ram",
            "-m",
            &size,
            "-object",
            object,
            "-display",
            "none",
            "-nodefaults",
            "-no-user-config",
            "-kernel",
            &kernel,
            "-chardev",
            &console,
            "-device",
            "isa-debugcon,chardev=dbg,iobase=0xe9",
            "-qmp",
            &qmp,
        ];
        words.map(ToOwned::to_owned).to_vec()
    }

    /// What the guest says once it is done.
    pub(super) fn verdict(&self, qemu: &mut Program) -> String {
        until("the guest's verdict", || {
            assert!(qemu.is_running(), "QEMU ended: {}", self.said());
            let said = std::fs::read_to_string(self.path("console")).unwrap_or_default();
            said.ends_with('\n').then(|| said.trim().to_owned())
        })
    }

    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(self.path("qemu.log")).unwrap_or_default()
    }

    pub(super) fn start(&self, command: &mut Command) -> Program {
        Program::start(command, &self.path("qemu.log"))
    }
}

pub(super) fn memfd(more: &str, pages: u64) -> String {
    let size = PAGE.times(pages).0;
    format!("memory-backend-memfd,id=ram,size={size},hugetlb=on,hugetlbsize=2M{more}")
}

/// The descriptor of another process that is of the lent file: what a vhost-user backend is passed.
fn lent_file_of(pid: nix::unistd::Pid, run_dir: &Path) -> std::os::fd::OwnedFd {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
    let number = entries.filter_map(Result::ok).find_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_lent = target.starts_with(run_dir) && target.to_string_lossy().contains("/lent/");
        is_lent.then(|| entry.file_name().to_string_lossy().parse::<i32>().ok()).flatten()
    });
    let number = number.expect("QEMU has the lent file open");
    let pid = rustix::process::Pid::from_raw(pid.as_raw()).expect("a pid");
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    let flags = rustix::process::PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(process.expect("a process of ours"), number, flags)
        .expect("its descriptor")
}

// Promise P71.
#[test]
fn a_memfd_of_its_own_is_lent_memory_and_can_be_passed_on() {
    let Some(stage) = Stage::set(PAGES) else { return };
    stage.daemon.zero("max");
    let log = stage.path("shim.log");
    let mut command = run(&stage.daemon, &log, &[]);
    // Sealed, as QEMU has it by default.
    command.arg("qemu-system-x86_64").args(stage.arguments(&memfd(",share=on", PAGES), PAGES));
    let mut qemu = stage.start(&mut command);
    assert_eq!(stage.verdict(&mut qemu), "zero kept");
    let served = assert_served(&log);
    assert!(served.iter().any(|line| line.contains("a memfd of 268435456 bytes")), "{served:?}");
    assert_eq!(stage.daemon.pool().lent_pages, Pages(PAGES));

    let passed = lent_file_of(qemu.pid(), &stage.daemon.run_dir());
    let memory = linux::Mapping::map(passed.as_fd(), PAGE.times(PAGES).0, PAGE.size());
    let memory = memory.expect("a mapping");
    drop(passed);
    assert_eq!(at::<4>(&memory, FIRST), MARK, "a backend sees what the guest wrote");
    qemu.end(Signal::SIGKILL);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(stage.daemon.pool().lent_pages, Pages(PAGES), "the backend still has it");
    assert_eq!(at::<4>(&memory, FIRST), MARK);
    drop(memory);
    assert_returned(&stage.daemon);
}

// Promise P72 (programs): A memfd that is mapped private before anything else takes no lent pages.
#[test]
fn a_memfd_mapped_private_is_left_to_the_kernel() {
    // The daemon keeps returned pages: private memory takes other pages, and once only.
    let small = PAGES / 2;
    let Some(stage) = Stage::set_beside(small, PAGES) else { return };
    let log = stage.path("shim.log");
    stage.daemon.zero("max");
    let mut command = run(&stage.daemon, &log, &[]);
    command.arg("qemu-system-x86_64").args(stage.arguments(&memfd(",share=off", small), small));
    let mut qemu = stage.start(&mut command);
    assert_eq!(stage.verdict(&mut qemu), "zero kept");
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(!log.contains("is served"), "{log}");
    assert!(qemu.is_running());
    assert_returned(&stage.daemon);
}

// Promise P180.
/// What libvirt, Proxmox and nova write where a guest has huge pages: QEMU makes a file in the
/// directory, unlinks it and maps it, private by default.
#[test]
fn a_file_of_its_own_in_a_directory_is_lent_memory() {
    if is_wanted("qemu-system-x86_64", "qemu-system-x86").is_none() {
        return;
    }
    let Some(stage) = Stage::set(PAGES) else { return };
    let directory = stage.path("huge");
    std::fs::create_dir(&directory).expect("our own directory");
    let mounted = linux::mount::mount(&directory, PAGE.size()).expect("root mounts");
    let size = PAGE.times(PAGES).0;
    for share in ["on", "off"] {
        stage.daemon.zero("max");
        let log = stage.path(share);
        let path = directory.display();
        let more = format!("mem-path={path},share={share},prealloc=on");
        let object = format!("memory-backend-file,id=ram,size={size},{more}");
        let _ = std::fs::remove_file(stage.path("console"));
        let mut command = run(&stage.daemon, &log, &["--private"]);
        command.arg("qemu-system-x86_64").args(stage.arguments(&object, PAGES));
        let mut qemu = stage.start(&mut command);
        assert_eq!(stage.verdict(&mut qemu), "zero kept", "{share}: {}", stage.said());
        assert_served(&log);
        assert_eq!(stage.daemon.pool().lent_pages, Pages(PAGES), "share={share}");
        qemu.end(Signal::SIGKILL);
        assert_returned(&stage.daemon);
    }
    mounted.detach().expect("our own mount");
}

// Promise P80.
#[test]
fn lent_memory_is_taken_by_path_and_by_descriptor() {
    if is_wanted("qemu-system-x86_64", "qemu-system-x86").is_none() {
        return;
    }
    let Some(stage) = Stage::set(PAGES) else { return };
    let size = PAGE.times(PAGES).0;
    for path in ["{path}", "/proc/self/fd/{fd}", "/dev/fd/{fd}"] {
        stage.daemon.zero("max");
        let object = format!("memory-backend-file,id=ram,size={size},mem-path={path},share=on");
        let _ = std::fs::remove_file(stage.path("console"));
        let mut command = Command::new(binary());
        command.arg("lend").arg("--socket").arg(stage.daemon.socket());
        command.arg(size.to_string()).arg("--").arg("qemu-system-x86_64");
        command.args(stage.arguments(&object, PAGES));
        let mut qemu = stage.start(&mut command);
        assert_eq!(stage.verdict(&mut qemu), "zero kept", "{path}: {}", stage.said());
        assert_eq!(stage.daemon.pool().lent_pages, Pages(PAGES));
        qemu.end(Signal::SIGTERM);
        assert_returned(&stage.daemon);
    }
}

/// With nothing beside it that would take the number of the memfd by which QEMU finds out whether
/// it can have one: that it closes again, and the next one gets the same number.
#[test]
fn its_own_memfd_is_served_without_any_other_device() {
    if is_wanted("qemu-system-x86_64", "qemu-system-x86").is_none() {
        return;
    }
    let Some(stage) = Stage::set(PAGES) else { return };
    stage.daemon.zero("max");
    let log = stage.path("shim.log");
    let mut command = Command::new(binary());
    command.args(["run", "--socket"]).arg(stage.daemon.socket()).arg("--log").arg(&log);
    command.env("PREZERO_WAIT_MS", "5000").args(["--", "qemu-system-x86_64", "-nodefaults"]);
    command.args(["-display", "none", "-S", "-m", "64", "-machine", "q35,memory-backend=ram"]);
    command.args(["-object", &memfd("", 32)]);
    let mut qemu = stage.start(&mut command);
    until("the loan", || (stage.daemon.pool().lent_pages == Pages(32)).then_some(()));
    // The line comes once it is mapped.
    until("a line of it", || (!served(&log).is_empty()).then_some(()));
    qemu.end(Signal::SIGTERM);
    assert_returned(&stage.daemon);
}

// Promise P80.
/// As libvirt calls the program of `<emulator>`: by an absolute path, with its own arguments, also
/// to ask what it can do.
#[test]
fn the_emulator_wrapper_for_libvirt_serves_memfds() {
    if is_wanted("qemu-system-x86_64", "qemu-system-x86").is_none() {
        return;
    }
    let Some(stage) = Stage::set(PAGES) else { return };
    stage.daemon.zero("max");
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/prezero-qemu");
    let log = stage.path("shim.log");
    let wrapped = || {
        let mut command = Command::new("sh");
        command.arg(&wrapper).env("PREZERO", binary()).env("PREZERO_SHIM_LOG", &log);
        command.env("PREZERO_SOCKET", stage.daemon.socket()).env("PREZERO_WAIT_MS", "5000");
        command
    };
    let version = wrapped().arg("-version").output().expect("the wrapper runs");
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("QEMU emulator version"));
    // The form that libvirt writes for <source type='memfd'/> with huge pages and shared access.
    let object = memfd(",share=yes,prealloc=yes", PAGES).replace("=on", "=yes");
    let mut qemu = stage.start(wrapped().args(stage.arguments(&object, PAGES)));
    assert_eq!(stage.verdict(&mut qemu), "zero kept", "{}", stage.said());
    assert_served(&log);
    assert_eq!(stage.daemon.pool().lent_pages, Pages(PAGES));
}

/// To the QMP greeting, when a manager can go on.
fn greeting(stage: &Stage, command: &mut Command) -> Duration {
    let _ = std::fs::remove_file(stage.path("qmp"));
    let _ = std::fs::remove_file(stage.path("console"));
    let begin = Instant::now();
    let mut qemu = stage.start(command);
    let socket = until("QMP", || UnixStream::connect(stage.path("qmp")).ok());
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).expect("a greeting");
    let took = begin.elapsed();
    assert!(line.contains("QMP"), "{line}");
    qemu.end(Signal::SIGKILL);
    took
}

#[test]
fn its_start_is_measured_cold_and_ready() {
    if is_wanted("qemu-system-x86_64", "qemu-system-x86").is_none() {
        return;
    }
    let pages = 1024;
    let Some(stage) = Stage::set(pages) else { return };
    let object = memfd(",share=on,prealloc=on", pages);
    let arguments = stage.arguments(&object, pages);
    warm(&stage.daemon);
    let cold = greeting(&stage, Command::new("qemu-system-x86_64").args(&arguments));
    stage.daemon.zero("max");
    let log = stage.path("shim.log");
    let mut command = run(&stage.daemon, &log, &[]);
    let ready = greeting(&stage, command.arg("qemu-system-x86_64").args(&arguments));
    assert_served(&log);
    measured("QEMU, memfd of 2 GiB with prealloc, to its QMP greeting", cold, ready);
}
