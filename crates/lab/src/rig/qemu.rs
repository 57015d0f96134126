// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU, started and spoken to.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use rustix::process::Signal;
use units::{Bytes, PageSize};

use super::child::end_with_parent;
use cli::exit::Failure;
use worker::Stop;

/// How long QEMU may take to its greeting: 16 GiB at 250 ms for 1 GiB is 4 s, times 30.
const GREETING_TIMEOUT: Duration = Duration::from_secs(120);
/// How often a wait looks at the wish to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The machine that QEMU emulates: this one's architecture.
struct Target {
    program: &'static str,
    package: &'static str,
    machine: &'static str,
    cpu: Option<&'static str>,
    /// The guest's name of its serial console.
    console: &'static str,
}

#[cfg(target_arch = "x86_64")]
const TARGET: Target = Target {
    program: "qemu-system-x86_64",
    package: "qemu-system-x86",
    machine: "q35",
    cpu: None,
    console: "ttyS0",
};

#[cfg(not(target_arch = "x86_64"))]
const TARGET: Target = Target {
    program: "qemu-system-aarch64",
    package: "qemu-system-arm",
    machine: "virt",
    cpu: Some("max"),
    console: "ttyAMA0",
};

/// An installed QEMU.
#[derive(Debug)]
pub(crate) struct Qemu {
    accel: String,
    version: String,
}

/// Where a guest's memory comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// No huge pages, nothing preallocated: QEMU's default.
    Untouched,
    /// QEMU takes the pages itself and preallocates them with this many threads.
    Prealloc { page: PageSize, threads: usize },
    /// A file that has its pages.
    File(&'a str),
}

/// What to boot; without it the guest stays stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
}

/// A running QEMU. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    qmp: BufReader<UnixStream>,
}

/// Whether guests run by hardware. A `/dev/kvm` on a CPU without virtualization is PVM, which
/// boots only kernels that know it.
fn kvm_boots_any_kernel() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_hardware = flags.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag));
    (has_hardware || !cfg!(target_arch = "x86_64"))
        && std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

impl Qemu {
    /// Looks for it, or says how to get it. `auto` is kvm where this process may use it for the
    /// kernel of any distribution.
    pub(crate) fn find(accel: &str) -> Result<Self, String> {
        let accel = match accel {
            "auto" if kvm_boots_any_kernel() => "kvm",
            "auto" => "tcg",
            named => named,
        };
        let Target { program, package, .. } = TARGET;
        let output = Command::new(program).arg("--version").output().map_err(|error| {
            format!("no QEMU ({program}: {error}), so no virtual machine is started: apt-get install {package}")
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let words: Vec<_> = text.split_whitespace().collect();
        let at = words.iter().position(|&word| word == "version");
        let version = at.and_then(|at| words.get(at + 1)).copied().unwrap_or("unknown");
        Ok(Self { accel: accel.to_owned(), version: version.to_owned() })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn accel(&self) -> &str {
        &self.accel
    }

    /// A machine without devices, to which the caller adds what it boots.
    pub(crate) fn machine(&self) -> Command {
        let mut command = Command::new(TARGET.program);
        command.args(["-accel", &self.accel, "-machine", TARGET.machine]);
        command.args(["-display", "none", "-nodefaults"]);
        command
    }

    /// Starts it and waits for its QMP greeting, which comes when its memory is there.
    ///
    /// A descriptor that `memory` names must be inherited: not close-on-exec.
    pub(crate) fn start(
        &self,
        size: Bytes,
        memory: Memory<'_>,
        boot: Option<Boot<'_>>,
        stop: &Stop,
    ) -> Result<Running, Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(io::Error::from)?;
        ours.set_read_timeout(Some(POLL_INTERVAL))?;
        let mut command = Command::new(TARGET.program);
        command
            .args(self.args(size, memory, boot, theirs.as_raw_fd()))
            .stdin(Stdio::null())
            .stdout(if boot.is_some() { Stdio::piped() } else { Stdio::null() })
            .stderr(Stdio::piped());
        // Ctrl-C is for this process, which ends it.
        let child = end_with_parent(command.process_group(0), Signal::KILL)
            .spawn()
            .map_err(|error| Failure::failed(format!("{}: {error}", TARGET.program)))?;
        drop(theirs);
        let mut running = Running { child, qmp: BufReader::new(ours) };
        let greeting = running.read_line(GREETING_TIMEOUT, stop)?;
        if greeting.is_empty() {
            // It closes its descriptors before it has ended.
            running.child.wait()?;
            return Err(running.died());
        }
        if !greeting.contains("\"QMP\"") {
            return Err(Failure::failed(format!("QEMU greeted with {greeting:?}")));
        }
        Ok(running)
    }

    fn args(
        &self,
        size: Bytes,
        memory: Memory<'_>,
        boot: Option<Boot<'_>>,
        qmp: i32,
    ) -> Vec<OsString> {
        let bytes = size.0;
        let backend = match memory {
            Memory::Untouched => None,
            Memory::Prealloc { page: PageSize::KIB_4, threads } => Some(format!(
                "memory-backend-ram,id=ram,size={bytes},prealloc=on,prealloc-threads={threads}"
            )),
            Memory::Prealloc { page, threads } => Some(format!(
                "memory-backend-memfd,id=ram,size={bytes},hugetlb=on,hugetlbsize={},prealloc=on,prealloc-threads={threads}",
                page.bytes()
            )),
            Memory::File(path) => {
                Some(format!("memory-backend-file,id=ram,size={bytes},mem-path={path},share=on"))
            }
        };
        let with_backend = if backend.is_some() { ",memory-backend=ram" } else { "" };
        let mut args: Vec<OsString> = [
            "-accel",
            &self.accel,
            "-machine",
            &format!("{}{with_backend}", TARGET.machine),
            "-m",
            &format!("{}M", bytes >> 20),
            "-display",
            "none",
            "-nodefaults",
            "-chardev",
            &format!("socket,id=qmp,fd={qmp}"),
            "-mon",
            "chardev=qmp,mode=control",
        ]
        .map(OsString::from)
        .into();
        let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
        if let Some(cpu) = TARGET.cpu {
            add(&["-cpu", cpu]);
        }
        if let Some(backend) = backend {
            add(&["-object", &backend]);
        }
        match boot {
            None => add(&["-S"]),
            Some(Boot { kernel, initramfs }) => {
                let line = format!("console={} panic=-1", TARGET.console);
                add(&["-serial", "stdio", "-no-reboot", "-append", &line]);
                args.extend(["-kernel".into(), kernel.into()]);
                args.extend(["-initrd".into(), initramfs.into()]);
            }
        }
        args
    }
}

impl Running {
    /// The guest's serial console, once.
    pub(crate) fn console(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Asks it to quit, and waits until it has.
    pub(crate) fn quit(mut self, stop: &Stop) -> Result<(), Failure> {
        for command in ["qmp_capabilities", "quit"] {
            writeln!(self.qmp.get_mut(), "{{\"execute\":\"{command}\"}}")?;
        }
        // It closes the connection when it ends; events and answers come before that.
        while !self.read_line(GREETING_TIMEOUT, stop)?.is_empty() {}
        self.child.wait()?;
        Ok(())
    }

    /// One line of QMP; empty at its end.
    fn read_line(&mut self, timeout: Duration, stop: &Stop) -> Result<String, Failure> {
        let begin = Instant::now();
        let mut line = String::new();
        loop {
            match self.qmp.read_line(&mut line) {
                Ok(0) if line.is_empty() => match self.child.try_wait()? {
                    Some(status) if !status.success() => return Err(self.died()),
                    _ => return Ok(line),
                },
                Ok(_) => return Ok(line),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) =>
                {
                    if stop.is_set() {
                        return Err(Failure::stopped(stop));
                    }
                    if begin.elapsed() > timeout {
                        return Err(Failure::failed(format!("QEMU said nothing for {timeout:?}")));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(line),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Its last words.
    fn died(&mut self) -> Failure {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // What can be read is told; it has exited, so this does not block.
            let _ = stderr.read_to_string(&mut text);
        }
        let words: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        Failure::failed(format!("QEMU ended: {}", words.join("; ")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already after `quit`; killing a child that was waited for is refused by std.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
