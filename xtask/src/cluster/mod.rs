// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask cluster`: the driver under a real Kubernetes of one node.
//!
//! `programs` builds Kubernetes, containerd, etcd and helm from their modules. Then this process
//! makes namespaces (`inside`), in which `node` starts them with `config`, and `cases` has the
//! tests. The daemon is this checkout's, the driver runs in a pod from its own image, installed by
//! the chart. When the first process of the namespaces ends, for any reason, the kernel ends all
//! others and takes mounts and network away. Control groups and huge pages are put back here.

mod bed;
mod cases;
mod config;
mod guest;
mod inside;
mod kubectl;
mod node;
mod programs;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args as Arguments;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use testkit::hugepages::{MIB_2, reserve};

use self::programs::Programs;
use crate::{cache, command, image, say};

#[derive(Debug, Arguments)]
pub(crate) struct Args {
    /// Only tests with one of these in their names.
    #[arg(value_name = "NAME")]
    only: Vec<String>,
    /// Build what a cluster needs, and no more.
    #[arg(long)]
    build: bool,
    /// Another Kubernetes than 1.36, as 1.37.
    #[arg(long, value_name = "VERSION")]
    kube: Option<String>,
}

pub(crate) use inside::Args as InsideArgs;
pub(crate) use inside::run as run_inside;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        // Namespaces, mounts and huge pages.
        say::result("skipped the cluster: it needs root");
        say::result("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    }
    let programs = Programs::build(args.kube.as_deref())?;
    image::driver()?;
    image::of_go("./cluster/tenant", "tenant", config::TENANT, "tenant.tar")?;
    cases::build_e2e()?;
    guest::make()?;
    let daemon = ["build", "--package", "prezero-cli", "--bin", "prezero"];
    command::run(&mut command::new(&cache::repo(), "cargo", daemon))?;
    if args.build {
        say::result(programs.path());
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything is there to be cleaned up, so that no signal comes between.
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))?;
    }
    let Some(_pages) = reserve(MIB_2, config::PAGES + config::SECOND_PAGES) else {
        say::result("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    };
    let logs = cache::target("cluster/logs")?;
    fs::remove_dir_all(&logs)?;
    fs::create_dir_all(&logs)?;
    let groups = Groups::make()?;
    let status = contained(&logs, args, &is_over);
    groups.remove()?;
    say::result(format_args!("logs are in {}", logs.display()));
    Ok(if status? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests in namespaces of their own; whether all were good.
fn contained(logs: &Path, args: &Args, is_over: &AtomicBool) -> Result<bool> {
    // When this process ends, by SIGKILL too, unshare ends, which ends the first process in there,
    // upon which the kernel ends the rest.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--ipc"])
        .args(["--propagation", "private", "--mount-proc", "--fork", "--kill-child=KILL"])
        .arg(env::current_exe().context("where this program is")?)
        .args(["cluster-inside", "--logs"])
        .arg(logs)
        .args(args.kube.iter().flat_map(|kube| ["--kube", kube]))
        .args(&args.only);
    let mut child = command.spawn().context("cannot start setpriv; install util-linux")?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if is_over.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            say::step("ended by a signal");
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// A control group of ours in every hierarchy, below which the kubelet makes its own.
#[derive(Debug)]
struct Groups(Vec<PathBuf>);

impl Groups {
    fn make() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let point = |line: &str| {
            let mut words = line.split(' ');
            let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
            kind.starts_with("cgroup").then(|| Path::new(point).join(&config::CGROUP[1..]))
        };
        let groups = Self(mounts.lines().filter_map(point).collect());
        // Those of a run that was killed.
        groups.remove()?;
        for dir in &groups.0 {
            fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(groups)
    }

    /// Removes them all. A group is busy for a moment after its last process.
    fn remove(&self) -> Result<()> {
        let begun = Instant::now();
        for dir in &self.0 {
            while dir.exists() {
                match remove_groups(dir) {
                    Ok(()) => {}
                    Err(_) if begun.elapsed() < Duration::from_secs(20) => {
                        thread::sleep(Duration::from_millis(50));
                    }
                    Err(error) => {
                        return Err(error)
                            .with_context(|| format!("cannot remove {}", dir.display()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// A group's files go with it; only groups are removed, the deepest first.
fn remove_groups(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_groups(&entry.path())?;
        }
    }
    Ok(fs::remove_dir(dir)?)
}
