// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several verbs ask for: which daemon, and which pages.

use std::path::{Path, PathBuf};

use clap::Args;
use client::{Client, DEFAULT_SOCKET};

use units::{Node, PageSize};

use crate::exit::Failure;

/// WhichPages daemon.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = "PREZERO_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
}

/// WhichPages pages.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WhichPages {
    /// Only pages of this NUMA node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Only pages of this size, as in 2M or 1G
    #[arg(long, value_name = "SIZE")]
    page_size: Option<PageSize>,
}

impl WhichPages {
    pub(crate) fn get(&self) -> worker::Which {
        worker::Which::new(self.node.map(Node), self.page_size)
    }
}

/// Where agents are listened to, unless that is said.
pub(crate) fn agent_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(client::AGENT_SOCKET_ENDING);
    path.into()
}

/// WhichPages daemon, for what only agents may.
#[derive(Debug, Args)]
pub(crate) struct AgentDaemon {
    /// The daemon's socket for agents; default: its other socket's path with `.agent` behind it
    #[arg(long, value_name = "PATH", env = "PREZERO_AGENT_SOCKET")]
    agent_socket: Option<PathBuf>,
}

impl AgentDaemon {
    pub(crate) fn connect(&self, daemon: &Daemon) -> Result<Client, Failure> {
        let path = self.agent_socket.clone().unwrap_or_else(|| agent_socket(&daemon.socket));
        Ok(Client::connect(path)?)
    }
}

impl Daemon {
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }
}
