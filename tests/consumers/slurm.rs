// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slurm: huge pages that are counted by a generic resource and lent to a job.

use std::fs;
use std::path::Path;
use std::process::Command;
use units::Pages;

use nix::sys::signal::Signal;
use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use testkit::hugepages;

use super::{Program, assert_returned, free_port, is_wanted, succeeded, until};

const PAGE: Page = Page::Mib2;
/// 64 MiB: a job has a quarter of it.
const PAGES: u64 = 32;

/// Slurm of one node, on ports and in directories of its own. Dropped, its daemons are killed; the
/// steps of a job end with theirs.
struct Slurm {
    conf: String,
    _daemons: [Program; 3],
}

impl Slurm {
    /// `scripts` are further lines of slurm.conf.
    fn start(dir: &Path, scripts: &str) -> Self {
        let at = |name: &str| dir.join(name).display().to_string();
        for name in ["state", "spool"] {
            fs::create_dir(dir.join(name)).expect("a directory");
        }
        let key = Command::new("mungekey").args(["--create", "--keyfile"]).arg(at("key")).output();
        succeeded(&key.expect("mungekey runs"));
        let node = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let node = node.trim().split('.').next().expect("a first part").to_owned();
        let [control, work] = [free_port(), free_port()];
        let conf = format!(
            "ClusterName=prezero\nSlurmctldHost={node}(127.0.0.1)\nSlurmUser=root\n\
             SlurmctldPort={control}\nSlurmdPort={work}\n\
             AuthType=auth/munge\nAuthInfo=socket={munge}\nCredType=cred/munge\n\
             StateSaveLocation={state}\nSlurmdSpoolDir={spool}\n\
             SlurmctldPidFile={ctld_pid}\nSlurmdPidFile={slurmd_pid}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
             JobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nReturnToService=2\n\
             {scripts}\
             GresTypes=prezero\nNodeName={node} NodeAddr=127.0.0.1 CPUs=2 Gres=prezero:64M\n\
             PartitionName=all Nodes=ALL Default=YES State=UP\n",
            munge = at("munge"),
            state = at("state"),
            spool = at("spool"),
            ctld_pid = at("slurmctld.pid"),
            slurmd_pid = at("slurmd.pid"),
        );
        fs::write(dir.join("slurm.conf"), conf).expect("a file");
        let gres = format!("NodeName={node} Name=prezero Count=64M\n");
        fs::write(dir.join("gres.conf"), gres).expect("a file");
        let mut munged = Command::new("munged");
        // --force: the parent of a temporary directory is writable by all.
        munged.args(["--foreground", "--force", "--num-threads=2"]);
        for (flag, name) in [("socket", "munge"), ("key-file", "key"), ("pid-file", "munge.pid")] {
            munged.arg(format!("--{flag}={}", at(name)));
        }
        munged.arg(format!("--seed-file={}", at("seed"))).arg("--log-file=/dev/stderr");
        let munged = Program::start(&mut munged, &dir.join("munged.log"));
        until("munge's socket", || dir.join("munge").exists().then_some(()));
        let conf = at("slurm.conf");
        let start = |program: &str, words: &[&str]| {
            let log = dir.join(format!("{program}.log"));
            Program::start(Command::new(program).args(["-D", "-f", &conf]).args(words), &log)
        };
        let daemons = [start("slurmctld", &[]), start("slurmd", &["-N", &node]), munged];
        let slurm = Self { conf: conf.clone(), _daemons: daemons };
        until("the node is idle", || {
            let said = slurm.ask("sinfo", &["--noheader", "--format=%t"]).output().ok()?;
            (String::from_utf8_lossy(&said.stdout).trim() == "idle").then_some(())
        });
        slurm
    }

    fn ask(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", &self.conf).args(words);
        command
    }
}

fn script(path: &Path, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own");
    path.display().to_string()
}

/// A daemon with everything ready, where there is a Slurm to use it.
fn lender() -> Option<Daemon> {
    is_wanted("slurmctld", "slurm-wlm")?;
    let reserved = hugepages::reserve(PAGE.size(), PAGES)?;
    let config = format!("lend_group = \"nogroup\"\n{}", PAGE.pool("pages_per_block = 8"));
    let daemon = Daemon::start_with(Some(reserved), &config, &[]);
    daemon.zero("max");
    Some(daemon)
}

/// A directory that users of jobs can enter.
fn directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    dir
}

/// A job is an ordinary user's, like most.
const AS_USER: [&str; 3] = ["--uid=nobody", "--gid=nogroup", "--chdir=/"];

#[test]
fn slurm_counts_what_jobs_borrow_and_a_job_reads_zeros() {
    let Some(daemon) = lender() else { return };
    let dir = directory();
    let slurm = Slurm::start(dir.path(), "");
    let prezero = binary().display().to_string();
    let socket = daemon.socket().display().to_string();
    let job = |gres: &str, program: &str| {
        let words = [gres, &prezero, "lend", "16M", "--socket", &socket, "--"];
        let mut command = slurm.ask("srun", &[&["--immediate=30"], &AS_USER[..], &words].concat());
        command.args(["sh", "-c", program, "sh", "{path}"]).output().expect("srun runs")
    };
    let zero = "cmp -n 16777216 \"$1\" /dev/zero && echo all zero";
    let said = succeeded(&job("--gres=prezero:16M", zero));
    assert_eq!(said.trim(), "all zero");
    assert_returned(&daemon);
    // More than the node has is refused by Slurm, before anything is asked of the daemon.
    let refused = job("--gres=prezero:128M", "echo ran");
    assert!(!refused.status.success(), "{refused:?}");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("not available") || why.contains("Invalid generic resource"), "{why}");
    assert_returned(&daemon);
}

#[test]
fn prolog_lends_to_a_job_and_epilog_returns_it_after_a_kill() {
    let Some(daemon) = lender() else { return };
    let dir = directory();
    let (prezero, socket) = (binary().display().to_string(), daemon.socket().display().to_string());
    let name = "slurm/$SLURM_JOB_ID";
    let to = dir.path().join("jobs");
    fs::create_dir(&to).expect("a directory");
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o1777)).expect("our own");
    let to = format!("{}/$SLURM_JOB_ID", to.display());
    let prolog = format!(
        "{prezero} lend 16M --socket {socket} --name {name} --whole --uid $SLURM_JOB_UID --bind {to}"
    );
    let epilog = format!("{prezero} return --socket {socket} {name}");
    let prolog = script(&dir.path().join("prolog"), &prolog);
    let epilog = script(&dir.path().join("epilog"), &epilog);
    let scripts = format!("PrologFlags=Alloc\nProlog={prolog}\nEpilog={epilog}\n");
    let slurm = Slurm::start(dir.path(), &scripts);
    let words = [&AS_USER[..], &["--gres=prezero:16M", "sh", "-c"]].concat();
    let mut job = slurm.ask("srun", &words);
    let id = "test $(id -u) = 65534";
    job.arg(format!("{id} && cmp -n 16777216 {to} /dev/zero && echo all zero && sleep 600"));
    let log = dir.path().join("job.log");
    let mut job = Program::start(&mut job, &log);
    until("the job has read zeros", || {
        fs::read_to_string(&log).is_ok_and(|said| said.contains("all zero")).then_some(())
    });
    assert_eq!(daemon.pool().lent_pages, Pages(8));
    let cancel = slurm.ask("scancel", &["--user=nobody", "--signal=KILL"]).output();
    succeeded(&cancel.expect("scancel runs"));
    assert_returned(&daemon);
    let left = || fs::read_dir(dir.path().join("jobs")).expect("a directory").count();
    until("the path is gone", || (left() == 0).then_some(()));
    if job.is_running() {
        job.end(Signal::SIGKILL);
    }
}

/// A user that may not be root, as jobs are of.
const USER: u32 = 1000;

// Promise P395 (programs): A Slurm job of an ordinary user gets as much zeroed memory as it asked
// by an option of srun, Slurm counts it, and it returns with the job.
#[test]
fn job_of_a_user_gets_what_it_asked_by_an_option() {
    use std::os::unix::process::CommandExt as _;
    let Some(daemon) = lender() else { return };
    if !Path::new("/usr/include/slurm/spank.h").exists() {
        testkit::skip("no Slurm headers: apt-get install libslurm-dev");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).display().to_string();
    // Users read the configuration.
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/slurm");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o", &at("prezero.so")]).arg(examples.join("prezero.c"));
    succeeded(&gcc.output().expect("gcc runs"));
    fs::copy(examples.join("job_submit.lua"), at("job_submit.lua")).expect("an example");
    fs::write(at("plugstack.conf"), format!("required {}\n", at("prezero.so"))).expect("a file");
    let program = binary().parent().expect("a directory").display().to_string();
    let environment = format!(
        "export PATH={program}:$PATH PREZERO_JOBS={} PREZERO_SOCKET={} \
         PREZERO_AGENT_SOCKET={}.agent",
        at("jobs"),
        daemon.socket().display(),
        daemon.socket().display(),
    );
    let scripts = ["prolog", "epilog"].map(|name| {
        let text = format!("{environment}\nexec {}", examples.join(name).display());
        script(&dir.path().join(name), &text)
    });
    let [prolog, epilog] = scripts;
    let scripts = format!(
        "PrologFlags=Alloc\nProlog={prolog}\nEpilog={epilog}\nJobSubmitPlugins=lua\n\
         PlugStackConfig={}\n",
        at("plugstack.conf")
    );
    let slurm = Slurm::start(dir.path(), &scripts);
    let job = |size: &str, program: &str| {
        let words =
            ["--immediate=30", "--chdir=/", &format!("--prezero={size}"), "sh", "-c", program];
        let mut command = slurm.ask("srun", &words);
        command.uid(USER).gid(USER).output().expect("srun runs")
    };
    let reads = format!(
        "path={}/$SLURM_JOB_ID && id -u && stat -c '%u %s' $path && \
         cmp -n 33554432 $path /dev/zero && echo all zero && \
         scontrol show job $SLURM_JOB_ID | grep -o 'gres.*prezero.*'",
        at("jobs")
    );
    let said = succeeded(&job("32M", &reads));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..3], ["1000", "1000 33554432", "all zero"], "{said}");
    assert!(said.contains("prezero") && said.contains("32M"), "{said}");
    assert_returned(&daemon);
    for (size, says) in [("128M", ""), ("much", "write a whole number")] {
        let refused = job(size, "echo ran");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && why.contains(says), "{size}: {why}");
    }
    assert_returned(&daemon);
}
