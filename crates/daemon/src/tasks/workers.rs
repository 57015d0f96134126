// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's own workers: processes like any user's, started when thresholds ask for them.

mod pressure;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use book::config;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};
use units::{Bytes, Node};
use worker::{Invocation, Which};

use crate::ops::Shared;
use pressure::PressureMeter;

/// The first pause after a worker that achieved nothing; doubles up to [`MAX_RETRY_PERIOD`].
const MIN_RETRY_PERIOD: Duration = Duration::from_millis(200);
/// The longest pause.
const MAX_RETRY_PERIOD: Duration = Duration::from_secs(10);

/// The workers that run, and whether each was asked to stop.
pub(crate) type Pids = Rc<RefCell<BTreeMap<u32, bool>>>;

/// How long a worker waits for more pages to zero before it ends: a start costs 3 ms of CPU time,
/// as much as to zero 200 MB.
const IDLE_SECONDS: u32 = 5;

/// Keeps as many workers running as the book wants.
#[derive(Debug)]
pub(crate) struct Workers {
    shell: Shared,
    command: Vec<OsString>,
    settings: config::WorkersConfig,
    pids: Pids,
    /// Work finished when the last worker was started, to tell whether it achieved anything.
    zeroed_before: Bytes,
    pause: Duration,
    not_before: Instant,
    next_node: usize,
    pressure: PressureMeter,
}

impl Workers {
    pub(crate) fn new(command: Vec<OsString>, shell: &Shared) -> Self {
        Self {
            shell: Rc::clone(shell),
            command,
            settings: config::WorkersConfig::default(),
            pids: Rc::default(),
            zeroed_before: Bytes(0),
            pause: MIN_RETRY_PERIOD,
            not_before: Instant::now(),
            next_node: 0,
            pressure: PressureMeter::new(),
        }
    }

    /// The workers that run.
    pub(crate) fn pids(&self) -> Pids {
        Rc::clone(&self.pids)
    }

    fn running(&self) -> u32 {
        u32::try_from(self.pids.borrow().len()).unwrap_or(u32::MAX)
    }

    /// How many of them zero, or may be given pages of these nodes.
    fn running_for(&self, nodes: &[Node]) -> u32 {
        let states = &self.shell.borrow().workers;
        let elsewhere = |pid: &&u32| states.is_idle_elsewhere(**pid, nodes);
        let elsewhere = self.pids.borrow().keys().filter(elsewhere).count();
        self.running().saturating_sub(u32::try_from(elsewhere).unwrap_or(u32::MAX))
    }

    /// Starts missing ones; stops all while CPU pressure is above its limit.
    pub(crate) fn tend(&mut self) {
        let shell = &Rc::clone(&self.shell);
        if self.settings != shell.borrow().config().workers {
            // Those that wait have the settings of their start.
            self.stop_idle(|_| true);
            self.settings.clone_from(&shell.borrow().config().workers);
        }
        shell.borrow_mut().workers.running = self.running();
        if self.command.is_empty() || self.settings.max == 0 {
            self.stop();
            return;
        }
        let limit = self.settings.pause_above_pressure.map(f64::from);
        let percent = match limit {
            Some(_) => self.pressure.percent(shell.borrow().roots()),
            None => Some(0.0),
        };
        // Before it is known whether they may, none is started.
        let Some(percent) = percent else { return };
        let paused = limit.is_some_and(|limit| percent > limit);
        if paused != shell.borrow().workers.paused {
            if paused {
                tracing::info!(percent, "background zeroing waits for CPU pressure to fall");
            } else {
                tracing::info!(percent, "background zeroing goes on: CPU pressure has fallen");
            }
            shell.borrow_mut().workers.paused = paused;
        }
        if paused {
            self.stop();
            return;
        }
        let (wanted, nodes) = shell.borrow_mut().wanted_workers();
        let here = self.running_for(&nodes);
        if wanted <= here || nodes.is_empty() || Instant::now() < self.not_before {
            return;
        }
        self.stop_idle(|pid| shell.borrow().workers.is_idle_elsewhere(pid, &nodes));
        let zeroed = shell.borrow().book().counters().zeroed_bytes;
        // Workers that end without having zeroed anything, as when the kernel has no page left,
        // must not be started in a circle.
        self.pause = if zeroed > self.zeroed_before || self.zeroed_before == Bytes(0) {
            MIN_RETRY_PERIOD
        } else {
            (self.pause * 2).min(MAX_RETRY_PERIOD)
        };
        self.zeroed_before = zeroed.max(Bytes(1));
        for _ in here..wanted {
            let node = nodes[self.next_node % nodes.len()];
            self.next_node = self.next_node.wrapping_add(1);
            let cpus =
                self.settings.cpus.clone().or_else(|| shell.borrow_mut().observed.cpus_of(node));
            match self.start(node, cpus) {
                Ok(child) => self.look_after(child, shell),
                Err(error) => {
                    tracing::error!(%error, command = ?self.command, "cannot start a worker");
                    self.not_before = Instant::now() + MAX_RETRY_PERIOD;
                    break;
                }
            }
        }
        self.not_before = self.not_before.max(Instant::now() + self.pause);
        shell.borrow_mut().workers.running = self.running();
    }

    fn start(&self, node: Node, cpus: Option<String>) -> std::io::Result<Child> {
        let invocation = Invocation {
            which: Which::new(Some(node), None),
            background: true,
            idle_timeout: Some(IDLE_SECONDS),
            nice: Some(self.settings.nice),
            cpus,
            sched_idle: self.settings.sched_idle,
            cgroup: self.settings.cgroup.clone(),
            ..Invocation::default()
        };
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args(invocation.arguments());
        for variable in crate::base::manager::OWN_VARIABLES {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()
    }

    fn look_after(&self, mut child: Child, shell: &Shared) {
        let Some(pid) = child.id() else { return };
        tracing::debug!(pid, "started a worker");
        self.pids.borrow_mut().insert(pid, false);
        let (pids, shell) = (Rc::clone(&self.pids), Rc::clone(shell));
        tokio::task::spawn_local(async move {
            match child.wait().await {
                Ok(status) if status.success() => tracing::debug!(pid, "a worker is done"),
                Ok(status) => tracing::warn!(pid, %status, "a worker failed"),
                Err(error) => tracing::warn!(pid, %error, "a worker is out of sight"),
            }
            pids.borrow_mut().remove(&pid);
            shell.borrow_mut().workers.forget(pid);
            shell.borrow().changes.wake();
        });
    }

    /// Asks every worker to stop: each reports what it has and ends within one page or chunk.
    ///
    /// Once: a second signal would end it on the spot, with nothing reported.
    pub(crate) fn stop(&self) {
        self.stop_those(|_| true);
    }

    /// The same of those that wait for pages.
    fn stop_idle(&self, which: impl Fn(u32) -> bool) {
        let is_idle = |pid| self.shell.borrow().workers.is_idle(pid);
        self.stop_those(|pid| is_idle(pid) && which(pid));
    }

    fn stop_those(&self, which: impl Fn(u32) -> bool) {
        let mut any = false;
        let mut pids = self.pids.borrow_mut();
        for (pid, asked) in pids.iter_mut().filter(|(pid, asked)| !**asked && which(**pid)) {
            (*asked, any) = (true, true);
            self.shell.borrow_mut().workers.abandon(*pid);
            let Ok(pid) = i32::try_from(*pid) else { continue };
            // Gone already is as good.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if any {
            // One that waits gets its answer now.
            self.shell.borrow().changes.wake();
        }
    }

    /// Waits until all have ended, at most `timeout`.
    pub(crate) async fn drain(&self, timeout: Duration) {
        self.stop();
        let end = Instant::now() + timeout;
        while !self.pids.borrow().is_empty() && Instant::now() < end {
            sleep_until(end.min(Instant::now() + Duration::from_millis(5))).await;
        }
    }
}
