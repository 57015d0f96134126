// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one node: what a machine has before a cluster is on it, and its programs, started and killed
//! by their process numbers.
//!
//! All of it is in namespaces of its own: `/run` and `/var/lib` are memory, the network has a
//! loopback and one address, and every started process ends with the first process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};

use super::{config, kubectl::wait_for, programs::Programs};
use crate::{cache, command};

/// Sysctls that the kubelet writes: it gets files instead, since they are the whole machine's.
const SYSCTLS: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Configuration and keys; gone with `/run`.
pub(super) const HERE: &str = "/run/cluster";

#[derive(Debug)]
pub(super) struct Node {
    pub(super) path: String,
    logs: PathBuf,
    services: BTreeMap<&'static str, Child>,
    /// Mounts of other programs on this machine, by number: a copy of each is here, and none can be
    /// reached below the mounts over it.
    others: BTreeSet<u64>,
}

impl Node {
    /// Makes the machine: mounts, network, configuration.
    pub(super) fn new(programs: &Programs, logs: PathBuf) -> Result<Self> {
        let others = mounts()?.into_iter().map(|(number, _)| number).collect();
        let node = Self { path: programs.path(), logs, services: BTreeMap::new(), others };
        for dir in ["/run", "/var/lib"] {
            shell(&format!("mount -t tmpfs -o mode=755 tmpfs {dir}"))?;
        }
        // Where the kubelet puts what pods say, and a person looks afterwards.
        shell(&format!("mount --bind {} /var/log", node.logs.display()))?;
        for dir in [HERE, "/run/cdi", "/var/lib/kubelet"] {
            fs::create_dir_all(dir)?;
        }
        for name in SYSCTLS.iter().map(Path::new) {
            let from = Path::new("/proc/sys").join(name);
            // Not every kernel has them all.
            let Ok(value) = fs::read(&from) else { continue };
            let copy = Path::new(HERE).join("sysctl").join(name);
            fs::create_dir_all(copy.parent().context("a sysctl has a directory")?)?;
            fs::write(&copy, value)?;
            shell(&format!("mount --bind {} {}", copy.display(), from.display()))?;
        }
        // Kernels without `dummy` have veth. The service's address is the API server's, so that
        // pods need no proxy to reach it.
        shell(&format!(
            "ip link set lo up && ip link add eth0 type veth peer name eth1 && ip link set eth1 up && \
             ip address add {}/24 dev eth0 && ip link set eth0 up && \
             ip route add default via {} && ip address add {}/32 dev lo",
            config::ADDRESS,
            config::ROUTER,
            config::SERVICE,
        ))?;
        config::write(Path::new(HERE))?;
        Ok(node)
    }

    /// A program of the cluster's, not started yet.
    pub(super) fn program(&self, program: &str, words: &[String]) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", &self.path).env_remove("NOTIFY_SOCKET").args(words);
        command
    }

    /// Starts a service, in a group of its own so that Ctrl-C is for the first process alone.
    pub(super) fn start(&mut self, name: &'static str, mut command: Command) -> Result<()> {
        let log = self.logs.join(format!("{name}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let line = command::shown(&command);
        let child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
        self.services.insert(name, child);
        Ok(())
    }

    /// SIGKILL to a service, and its end.
    pub(super) fn kill(&mut self, name: &str) -> Result<()> {
        let mut child = self.services.remove(name).with_context(|| format!("{name} is not up"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// An error if a service has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        for (name, child) in &mut self.services {
            if let Some(status) = child.try_wait()? {
                anyhow::bail!("{name} has ended with {status}; see {name}.log");
            }
        }
        Ok(())
    }

    /// What survives its node's loss of power: it is another machine's.
    pub(super) fn start_apiserver(&mut self, gates: &str) -> Result<()> {
        if !self.services.contains_key("etcd") {
            self.start("etcd", self.program("etcd", &config::etcd()))?;
        }
        self.start("apiserver", self.program("kube", &config::apiserver(gates)))
    }

    /// Programs that need an API server with its certificate.
    pub(super) fn start_controllers(&mut self, gates: &str) -> Result<()> {
        self.start("controllers", self.program("kube", &config::controllers(gates)))?;
        self.start("scheduler", self.program("kube", &config::scheduler(gates)))
    }

    pub(super) fn start_containerd(&mut self) -> Result<()> {
        let words = ["--config".to_owned(), format!("{HERE}/first/containerd.toml")];
        self.start("containerd", self.program("containerd", &words))?;
        wait_for("containerd answers", || {
            Ok(command::output(&mut self.program("ctr", &["version".to_owned()]))?
                .status
                .success()
                .then_some(()))
        })
    }

    pub(super) fn import(&self, image: &Path) -> Result<()> {
        let words = ["-n", "k8s.io", "images", "import"].map(str::to_owned);
        command::stdout(self.program("ctr", &words).arg(image)).map(drop)
    }

    pub(super) fn start_kubelet(&mut self) -> Result<()> {
        self.start("kubelet", self.program("kube", &config::kubelet()))
    }

    /// The daemon of this checkout.
    pub(super) fn start_daemon(&mut self) -> Result<()> {
        // As its unit has it made.
        fs::create_dir_all("/run/prezero")?;
        let mut daemon = Command::new(cache::target("debug")?.join("prezero"));
        daemon.args(["serve", "--config"]).arg(format!("{HERE}/prezero.toml"));
        self.start("prezero", daemon)
    }

    /// What a loss of power leaves of a node: its disks. The control plane is another machine.
    pub(super) fn lose_power(&mut self) -> Result<()> {
        for name in ["kubelet", "containerd", "prezero"] {
            self.kill(name)?;
        }
        // Containers, and what holds them.
        for (pid, name) in processes()? {
            if name == "containerd-shim" || name == "tenant" || name == "prezero-dra" {
                kill(pid)?;
            }
        }
        thread::sleep(Duration::from_millis(500));
        // The latest first.
        let ours = mounts()?.into_iter().rev().filter(|(number, _)| !self.others.contains(number));
        for (_, point) in ours {
            let is_ours = ["/run/", "/var/lib/"].iter().any(|dir| point.starts_with(dir));
            if is_ours && !point.starts_with(HERE) {
                shell(&format!("umount --lazy '{point}'"))?;
            }
        }
        for entry in fs::read_dir("/run")? {
            let path = entry?.path();
            if path != Path::new(HERE) && path.is_dir() {
                fs::remove_dir_all(&path)?;
            } else if !path.is_dir() {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// Mounts by number and place, in the order in which they were made.
fn mounts() -> Result<Vec<(u64, String)>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.parse().ok()?, words.nth(3)?.to_owned()))
    };
    Ok(mounts.lines().filter_map(mount).collect())
}

/// Processes of these namespaces: their numbers and what the kernel calls them.
pub(super) fn processes() -> Result<Vec<(u32, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(number) = number else { continue };
        // Gone meanwhile, or a zombie: neither is of interest.
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        all.push((number, name.trim().chars().take(15).collect()));
    }
    Ok(all)
}

/// SIGKILL to a process that is not our child.
pub(super) fn kill(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process number")?;
    match rustix::process::kill_process(pid, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn shell(line: &str) -> Result<()> {
    command::stdout(&mut command::new(Path::new("/"), "sh", ["-c", line])).map(drop)
}
