// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A node with memory that comes and goes while the machine runs.
//!
//! A program in the guest asks for it by a line of its output: [`ADD`] puts a module of memory into
//! the slot of the node that has none at boot, [`REMOVE`] asks the guest to give the last one back.
//! The request goes to QEMU's monitor.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// What a program prints to have memory plugged in.
const ADD: &str = "HOST-ADD";
/// What it prints to have it taken away.
const REMOVE: &str = "HOST-REMOVE";

/// QEMU's side of the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    monitor: PathBuf,
    node: usize,
    mib: u64,
    added: u32,
}

impl Slot {
    /// A slot of `mib` on `node`; QEMU listens at `monitor`.
    pub(crate) fn new(monitor: &Path, node: usize, mib: u64) -> Self {
        Self { monitor: monitor.to_owned(), node, mib, added: 0 }
    }

    /// Does what the line asks for, if it asks for anything.
    pub(crate) fn apply(&mut self, line: &str) -> Result<()> {
        match line.trim() {
            ADD => {
                self.added += 1;
                let number = self.added;
                let memory = json!({
                    "qom-type": "memory-backend-ram",
                    "id": format!("hot{number}"),
                    "size": self.mib << 20,
                });
                let module = json!({
                    "driver": "pc-dimm",
                    "id": format!("dimm{number}"),
                    "memdev": format!("hot{number}"),
                    "node": self.node,
                });
                self.notify(&[("object-add", memory), ("device_add", module)])
            }
            REMOVE => {
                let module = json!({ "id": format!("dimm{}", self.added) });
                self.notify(&[("device_del", module)])
            }
            _ => Ok(()),
        }
    }

    fn notify(&self, commands: &[(&str, Value)]) -> Result<()> {
        let stream = UnixStream::connect(&self.monitor)
            .with_context(|| format!("QEMU's monitor {}", self.monitor.display()))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut stream = stream;
        // It greets first.
        lines.next().context("QEMU's monitor is silent")??;
        let hello = ("qmp_capabilities", json!({}));
        for (name, arguments) in std::iter::once(&hello).chain(commands) {
            writeln!(stream, "{}", json!({ "execute": name, "arguments": arguments }))?;
            loop {
                let line = lines.next().context("QEMU's monitor has ended")??;
                let answer: Value = serde_json::from_str(&line)?;
                if let Some(error) = answer.get("error") {
                    bail!("QEMU refuses {name}: {error}");
                }
                // Events come in between.
                if answer.get("return").is_some() {
                    break;
                }
            }
        }
        Ok(())
    }
}
