// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several verbs ask for: which daemon, and which pages.

use std::path::PathBuf;

use clap::Args;
use client::{Client, DEFAULT_SOCKET};
use units::{Node, PageSize};

use crate::exit::Failure;

/// Which daemon.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = "PREZERO_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
}

impl Daemon {
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }
}

/// Which pages.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Which {
    /// Only pages of this NUMA node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Only pages of this size, as in 2M or 1G
    #[arg(long, value_name = "SIZE")]
    pub(crate) page_size: Option<PageSize>,
}

impl Which {
    /// Pages of that node and size.
    #[must_use]
    pub fn of(node: Node, page_size: PageSize) -> Self {
        Self { node: Some(node.0), page_size: Some(page_size) }
    }

    pub(crate) fn node(&self) -> Option<Node> {
        self.node.map(Node)
    }

    /// Whether a pool of that node and page size is meant.
    pub(crate) fn fits(&self, node: u32, page_bytes: u64) -> bool {
        self.node.is_none_or(|wanted| wanted == node)
            && self.page_size.is_none_or(|wanted| wanted.bytes() == page_bytes)
    }
}
