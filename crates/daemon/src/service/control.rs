// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts around the operations during the daemon's life: the configuration that can be read
//! again, the metrics, the service manager, and the log for the operator.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use book::config::{Config, MetricsConfig};
use linux::process;
use tokio::signal::unix::Signal;

use crate::api::http::{Endpoint, Source};
use crate::api::tree::Settings;
use crate::base::error::Result;
use crate::base::manager::Manager;
use crate::ops::Shared;
use crate::peers::metrics::OwnProcess;
use crate::peers::rights::{Groups, SharedGroups};
use crate::tasks::log::Log;
use crate::tasks::workers::Pids;

/// How the configuration is read again: by the code that knows its source. Its error is one line.
#[derive(Clone)]
pub struct ConfigSource(Arc<dyn Fn() -> std::result::Result<Config, String> + Send + Sync>);

impl ConfigSource {
    /// `read` reads and checks, and changes nothing. It may block for a read of a file.
    pub fn new(
        read: impl Fn() -> std::result::Result<Config, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfigSource")
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Control {
    shell: Shared,
    groups: SharedGroups,
    workers: Pids,
    source: Option<ConfigSource>,
    agent_socket: Option<PathBuf>,
    manager: RefCell<Option<Manager>>,
    endpoint: RefCell<Option<Endpoint>>,
    log: RefCell<Log>,
    /// In seconds since 1970.
    started: u64,
}

impl Control {
    pub(crate) fn new(
        shell: &Shared,
        groups: &SharedGroups,
        workers: Pids,
        (source, agent_socket): (Option<ConfigSource>, Option<PathBuf>),
        manager: Option<Manager>,
    ) -> Self {
        let (manager, endpoint) = (RefCell::new(manager), RefCell::default());
        let (shell, groups) = (Rc::clone(shell), Rc::clone(groups));
        let log = RefCell::default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started = now.map_or(0, |time| time.as_secs());
        Self { shell, groups, workers, source, agent_socket, manager, endpoint, log, started }
    }

    /// Begins to serve metrics where the configuration says so. Memory is lent without them, too: a
    /// taken address is a line of the log and of the service's health.
    pub(crate) fn serve_metrics(&self) {
        let metrics = self.shell.borrow().config().metrics.clone();
        let (endpoint, failed) = match self.endpoint_of(&metrics) {
            Ok(endpoint) => (endpoint, None),
            Err(error) => (None, Some(error.to_string())),
        };
        if let Some(error) = &failed {
            tracing::error!(%error, "metrics are not served; all else is");
        }
        self.endpoint.replace(endpoint);
        self.shell.borrow_mut().incidents.listens("metrics", failed);
    }

    fn endpoint_of(&self, metrics: &MetricsConfig) -> Result<Option<Endpoint>> {
        let roots = self.shell.borrow().roots().clone();
        let open = |at| Endpoint::open(at, metrics.hosts.clone(), roots, self.metrics());
        metrics.listen.as_ref().map(open).transpose()
    }

    fn metrics(&self) -> Source {
        let (shell, workers) = (Rc::clone(&self.shell), Rc::clone(&self.workers));
        let started = self.started;
        Box::new(move || {
            let status = shell.borrow_mut().status();
            let shell = shell.borrow();
            // Nothing is waited for between the two looks, so that no worker is counted twice.
            let used = |pid: &u32| process::cpu_time(shell.roots(), *pid);
            let running: Duration = workers.borrow().keys().filter_map(used).sum();
            let resident = process::resident(shell.roots()).unwrap_or_default();
            shell.metrics.text(&status, running, OwnProcess { started, resident })
        })
    }

    /// The daemon serves: the service manager keeps what the next daemon needs, and knows.
    pub(crate) fn ready(&self) {
        if let Some(manager) = self.manager.borrow().as_ref() {
            for (name, root) in self.shell.borrow().kept_descriptors() {
                manager.keep(&name, root);
            }
            manager.ready();
        }
        self.log.borrow_mut().begin(&self.shell);
    }

    /// The daemon ends.
    pub(crate) fn stopping(&self) {
        if let Some(manager) = self.manager.borrow().as_ref() {
            manager.stopping();
        }
    }

    /// Called whenever maintenance runs.
    pub(crate) fn tick(&self) {
        let mut log = self.log.borrow_mut();
        log.log_changes(&self.shell);
        if let Some(manager) = self.manager.borrow_mut().as_mut() {
            manager.tick(|| log.status(&self.shell));
        }
    }

    /// Reads the configuration again at every signal, for ever.
    pub(crate) async fn reload_at(&self, mut signal: Signal) {
        while signal.recv().await.is_some() {
            if let Some(manager) = self.manager.borrow().as_ref() {
                manager.reloading();
            }
            let result = self.reload();
            {
                let mut shell = self.shell.borrow_mut();
                shell.metrics.reloaded(result.is_ok());
                shell.incidents.reloaded(result.as_ref().err().cloned());
            }
            match result {
                Ok(()) => tracing::info!("the configuration was read again and holds now"),
                Err(error) => {
                    tracing::error!(%error, "the configuration was read again and refused: nothing has changed");
                }
            }
            self.ready();
        }
    }

    fn reload(&self) -> std::result::Result<(), String> {
        let source = self.source.as_ref().ok_or("it cannot be read again")?;
        let config = (source.0)()?;
        let reported = |error: crate::Error| error.to_string();
        let config = self.shell.borrow().on_this_machine(config).map_err(reported)?;
        let groups = Rc::new(Groups::from_config(&config).map_err(reported)?);
        Settings::check(&config).map_err(reported)?;
        let metrics = config.metrics.clone();
        let is_off = self.endpoint.borrow().is_none() && metrics.listen.is_some();
        let moved = is_off || self.shell.borrow().config().metrics.listen != metrics.listen;
        // What can fail comes first: an address that is taken refuses the whole configuration.
        let endpoint = if moved { self.endpoint_of(&metrics).map_err(reported)? } else { None };
        self.shell.borrow_mut().reload(config).map_err(reported)?;
        let agents = groups.agent();
        self.groups.replace(groups);
        if let Some(path) = &self.agent_socket
            && let Err(error) = crate::base::files::restrict(path, agents)
        {
            tracing::warn!(%error, "the agents' socket keeps its group; credentials decide all the same");
        }
        if moved {
            self.endpoint.replace(endpoint);
            self.shell.borrow_mut().incidents.listens("metrics", None);
        } else if let Some(endpoint) = self.endpoint.borrow().as_ref() {
            endpoint.answer_to(metrics.hosts);
        }
        Ok(())
    }
}
