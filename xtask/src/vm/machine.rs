// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One QEMU: started, listened to, ended.
//!
//! Two ports leave the guest. The console is QEMU's stdout; the events come through a socket. A
//! thread reads each and both feed one channel, so that the observer sees one stream. In every case
//! QEMU is gone and waited for when [`Vm::run`] returns.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use vm_guest::{Event, Module, PLAN, Plan};

use super::{
    disk::Disk, hotplug::Slot, image::Image, initramfs::Initramfs, matrix::Cell,
    requirements::Requirements,
};
use crate::{apt, cache, command, kernel::Arch};

/// From power-on to `Ready`: 4 s are usual under emulation, 40 with KASAN.
const BOOT_TIMEOUT: Duration = Duration::from_secs(240);

/// A program that is made, with what it needs around it in the guest.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) program: vm_guest::Program,
    /// Programs of the host by their path in the guest; their libraries follow.
    pub(crate) programs: BTreeMap<PathBuf, PathBuf>,
    /// Other files of the host by their path in the guest.
    pub(crate) files: BTreeMap<PathBuf, PathBuf>,
    /// Where its results go besides the count.
    pub(crate) matrix: Option<Cell>,
}

/// A machine to be run once.
#[derive(Debug)]
pub(crate) struct Vm {
    requirements: Requirements,
    programs: Vec<Made>,
}

impl Vm {
    /// A machine that meets `requirements`.
    pub(crate) fn new(requirements: Requirements) -> Self {
        Self { requirements, programs: Vec::new() }
    }

    /// Adds a program to run after those added before.
    #[must_use]
    pub(crate) fn with_program(mut self, program: Made) -> Self {
        self.programs.push(program);
        self
    }

    /// Boots, runs the programs, powers off; every event goes to `observe`.
    ///
    /// Leaves `console.log`, `events.jsonl` and `command` in `logs`. An error
    /// means that the machine could not be started; that something failed in it
    /// is told by its events.
    pub(crate) fn run(
        &self,
        kernel: &Image,
        init: &Path,
        logs: &Path,
        mut observe: impl FnMut(&Event),
    ) -> Result<()> {
        let arch = self.requirements.arch;
        apt::need(match arch {
            Arch::X86_64 => &["qemu-system-x86", "binutils", "busybox-static", "kmod"][..],
            Arch::Arm64 => &["qemu-system-arm", "binutils-aarch64-linux-gnu", "kmod"],
        })?;
        fs::create_dir_all(logs)?;
        let scratch = tempfile::tempdir()?;
        let archive = scratch.path().join("initramfs.cpio");
        self.root(kernel, init)?.write(&archive)?;
        let socket = scratch.path().join("events");
        let listener = UnixListener::bind(&socket)?;

        let monitor = scratch.path().join("monitor");
        let mut slot = (self.requirements.hotplug_mib > 0).then(|| {
            let node = self.requirements.nodes_mib.len();
            Slot::new(&monitor, node, self.requirements.hotplug_mib)
        });
        let mut qemu = self.qemu(kernel, &archive, &socket);
        if let Some(disk) = self.requirements.disk {
            Disk::plug(&disk.image()?, &mut qemu);
        }
        if slot.is_some() {
            qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())]);
        }
        fs::write(logs.join("command"), command::shown(&qemu) + "\n")?;
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(logs.join("qemu.log"))?)
            .spawn()
            .with_context(|| format!("cannot start `{}`", command::shown(&qemu)))?;
        let console = child.stdout.take().context("QEMU has no stdout")?;
        let (sender, events) = mpsc::channel();
        let to = sender.clone();
        thread::spawn(move || each_line(console, &to, |line| Event::Console { line }));
        thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                each_line(stream, &sender, |line| {
                    serde_json::from_str(&line).unwrap_or_else(|error| Event::Failed {
                        reason: format!("event channel: `{line}`: {error}"),
                    })
                });
            }
        });
        let mut record = Record::create(logs)?;
        let limit: u64 = self.programs.iter().map(|made| made.program.timeout_s + 30).sum();
        let deadline = Instant::now() + BOOT_TIMEOUT + Duration::from_secs(limit);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = match events.recv_timeout(left.min(Duration::from_millis(200))) {
                Ok(event) => event,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let waited = "the machine did not power off in time and was killed";
                    let event = Event::Failed { reason: waited.to_owned() };
                    record.write(&event)?;
                    observe(&event);
                    break;
                }
                // A QEMU that never opened the socket leaves its thread waiting.
                Err(RecvTimeoutError::Timeout) if has_ended(&mut child) => break,
                Err(RecvTimeoutError::Timeout) => continue,
            };
            record.write(&event)?;
            observe(&event);
            if let (Some(slot), Event::Output { line, .. }) = (&mut slot, &event)
                && let Err(error) = slot.apply(line)
            {
                let event = Event::Failed { reason: format!("{error:#}") };
                record.write(&event)?;
                observe(&event);
            }
        }
        // It may have ended by itself: then there is nothing to kill.
        let _ = child.kill();
        child.wait()?;
        Ok(())
    }

    /// Packs the init, the plan, the programs and the modules.
    fn root(&self, kernel: &Image, init: &Path) -> Result<Initramfs> {
        let mut root = Initramfs::new(self.requirements.arch);
        root.add_program(Path::new("/init"), init)?;
        root.add_program(Path::new("/bin/busybox"), &busybox(self.requirements.arch)?)?;
        for applet in ["sh", "cat", "ls", "sleep", "true", "echo", "grep", "kill", "id", "mount"] {
            root.add_link(&Path::new("/bin").join(applet), "busybox");
        }
        root.add_data(
            Path::new("/etc/passwd"),
            b"root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n".to_vec(),
        );
        // Those that every Debian has, by which tests name groups.
        let groups = "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\nnogroup:x:65534:\n";
        root.add_data(Path::new("/etc/group"), groups.into());

        let mut plan = Plan { settings: self.requirements.settings(), ..Plan::default() };
        for entry in &self.requirements.modules {
            let (name, parameters) = entry.split_once(' ').unwrap_or((entry, ""));
            let all = add_modules(&mut root, kernel, name)?;
            for (left, path) in (0..all.len()).rev().zip(all) {
                if plan.modules.iter().any(|module| module.path == path) {
                    continue;
                }
                // What it depends on comes before it, and has none.
                let parameters = if left == 0 { parameters } else { "" };
                plan.modules.push(Module { path, parameters: parameters.to_owned() });
            }
        }
        for made in &self.programs {
            plan.programs.push(made.program.clone());
            for (at, host) in &made.programs {
                root.add_program(at, host)?;
            }
            for (at, host) in &made.files {
                root.add_file(at, host)?;
            }
        }
        root.add_data(Path::new(PLAN), serde_json::to_vec_pretty(&plan)?);
        Ok(root)
    }

    fn qemu(&self, kernel: &Image, archive: &Path, socket: &Path) -> Command {
        let needs = &self.requirements;
        let (program, machine, cpu) = match needs.arch {
            // Little memory below 4 GiB, so that most of it is one aligned piece above.
            Arch::X86_64 => ("qemu-system-x86_64", "q35,max-ram-below-4g=512M", "max"),
            // Pointer authentication by QEMU's own algorithm: the real one takes half of the time.
            Arch::Arm64 => ("qemu-system-aarch64", "virt,gic-version=3", "max,pauth-impdef=on"),
        };
        let mut cpu = cpu.to_owned();
        for feature in &needs.cpu_without {
            cpu += &format!(",-{feature}");
        }
        let mut qemu = Command::new(program);
        qemu.args(["-nodefaults", "-no-reboot", "-display", "none"])
            .args(["-machine", machine])
            .args(needs.accelerator())
            .args(["-cpu", &cpu, "-m", &needs.memory_argument()]);
        // A socket per node: CPUs that share a cache must not span nodes.
        let nodes = u32::try_from(needs.nodes_mib.len()).unwrap_or(1);
        let cores = needs.cpus.div_ceil(nodes);
        qemu.args(["-smp", &format!("{},sockets={nodes},cores={cores},threads=1", cores * nodes)]);
        for (node, memory) in (0_u32..).zip(&needs.nodes_mib) {
            let backend = format!("memory-backend-ram,id=m{node},size={memory}M");
            let mut place = format!("node,nodeid={node},memdev=m{node}");
            place += &format!(",cpus={}-{}", node * cores, (node + 1) * cores - 1);
            qemu.args(["-object", &backend, "-numa", &place]);
        }
        if needs.hotplug_mib > 0 {
            qemu.args(["-numa", &format!("node,nodeid={nodes}")]);
        }
        qemu.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
            .args(["-chardev", &format!("socket,id=events,path={}", socket.display())]);
        match needs.arch {
            Arch::X86_64 => qemu.args(["-serial", "chardev:events"]),
            // The board has one port of its own.
            Arch::Arm64 => qemu.args(["-device", "pci-serial,chardev=events"]),
        };
        qemu.arg("-kernel")
            .arg(&kernel.kernel)
            .arg("-initrd")
            .arg(archive)
            .args(["-append", &needs.command_line()]);
        qemu
    }
}

/// A static busybox: the host's own, or that of Debian for another architecture.
fn busybox(arch: Arch) -> Result<PathBuf> {
    if arch == Arch::default() {
        return Ok(PathBuf::from("/bin/busybox"));
    }
    let dir = cache::shared("busybox")?.join(arch.name());
    if !dir.join("bin/busybox").exists() {
        let staging = tempfile::tempdir_in(cache::shared("busybox")?)?;
        let suite = apt::Suite::from_system(arch.name())?;
        suite.update()?;
        let deb = suite.download("busybox-static", staging.path())?;
        let mut unpack = command::new(staging.path(), "dpkg-deb", ["-x"]);
        command::run(unpack.arg(&deb).arg("root"))?;
        fs::rename(staging.path().join("root"), &dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
    }
    Ok(dir.join("bin/busybox"))
}

/// Adds a module and what it depends on to `/modules`; returns their paths in the order of loading.
fn add_modules(root: &mut Initramfs, kernel: &Image, name: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for module in kernel.module(name)? {
        let file = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = format!("/modules/{}", file.trim_end_matches(".xz"));
        let mut unpack = command::new(Path::new("/"), "xz", ["-dcf"]);
        let output = command::output(unpack.arg(&module))?;
        root.add_data(Path::new(&at), output.stdout);
        all.push(at);
    }
    Ok(all)
}

fn has_ended(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(Some(_)))
}

/// Sends every line until the stream or the receiver ends.
fn each_line(stream: impl Read, to: &Sender<Event>, event: impl Fn(String) -> Event) {
    let mut stream = BufReader::new(stream);
    let mut bytes = Vec::new();
    while stream.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if to.send(event(line)).is_err() {
            return;
        }
        bytes.clear();
    }
}

/// The logs that are kept.
struct Record {
    console: File,
    events: File,
}

impl Record {
    fn create(logs: &Path) -> Result<Self> {
        Ok(Self {
            console: File::create(logs.join("console.log"))?,
            events: File::create(logs.join("events.jsonl"))?,
        })
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        if let Event::Console { line } = event {
            writeln!(self.console, "{line}")?;
        } else {
            writeln!(self.events, "{}", serde_json::to_string(event)?)?;
        }
        Ok(())
    }
}
