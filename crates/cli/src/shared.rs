// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several verbs ask for: which daemon. Which pages is [`worker::Which`].

use std::path::PathBuf;

use clap::Args;
use client::{Client, DEFAULT_SOCKET};

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
