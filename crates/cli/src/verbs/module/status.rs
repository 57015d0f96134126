// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero module status`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use linux::kernel::{Device, Implementation, LoadedModule, Origin, module, offer};
use linux::{Result, Roots, cpu, hugetlb, numa};
use serde::Serialize;
use units::{Bytes, Counts, Domain};

use super::at_boot;
use crate::exit::{Exit, Outcome};
use crate::machine::ways;
use crate::output::table::{self, Align};
use crate::output::{Form, Record, count};

/// Show the module: version, parameters, and what it did for each node and page size
///
/// HITS are pages that were wanted zero and were, MISSES those that had to be cleared then, WAITS
/// those of the misses that were taken from a worker that was zeroing them; all since it was
/// loaded. Exit code 1 if it is not loaded, with the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero module status
  prezero module status --json | jq '.pools[] | {node, page_bytes, hits, misses}'")]
pub(super) struct Args {
    #[command(flatten)]
    form: Form,
}

pub(super) fn run(args: &Args) -> Outcome {
    let roots = Roots::default();
    let report = look(&roots)?;
    args.form.print(&report)?;
    Ok(if report.loaded { Exit::Done } else { Exit::Failed })
}

fn look(roots: &Roots) -> Result<ModuleReport> {
    let (kernel, at_boot) = (cpu::release(roots)?, at_boot(roots).exists());
    let Some(module) = module::loaded(roots)? else {
        let why = ways::find(roots, &offer::probe(roots)?)?.why_not();
        return Ok(ModuleReport { kernel, at_boot, because: Some(why), ..ModuleReport::default() });
    };
    let LoadedModule { version, references, parameters } = module;
    let pools = pools(roots)?;
    let open_descriptors = references;
    Ok(ModuleReport {
        loaded: true,
        kernel,
        version,
        at_boot,
        open_descriptors,
        parameters,
        pools,
        because: None,
    })
}

fn pools(roots: &Roots) -> Result<Vec<Pool>> {
    let device = Device::open(roots)?;
    let mut pools = Vec::new();
    for node in numa::nodes(roots)? {
        for page_size in hugetlb::page_sizes(roots)? {
            let counts = device.query(Domain { node, page_size })?;
            pools.push(Pool::new(node.0, page_size.bytes(), &counts));
        }
    }
    Ok(pools)
}

#[derive(Debug, Default, Serialize)]
struct ModuleReport {
    loaded: bool,
    /// `uname -r`.
    kernel: String,
    version: Option<String>,
    at_boot: bool,
    /// Of its device: while there is one it cannot be unloaded.
    open_descriptors: u64,
    /// As the kernel prints them.
    parameters: BTreeMap<String, String>,
    pools: Vec<Pool>,
    /// Why it is not loaded, and what to do.
    because: Option<String>,
}

/// One node and page size; counts are pages.
#[derive(Debug, Serialize)]
struct Pool {
    node: u32,
    page_bytes: u64,
    total: u64,
    free: u64,
    zeroed: u64,
    zeroable: u64,
    zeroing: u64,
    hits: u64,
    misses: u64,
    waits: u64,
}

impl Pool {
    fn new(node: u32, page_bytes: u64, counts: &Counts) -> Self {
        Self {
            node,
            page_bytes,
            total: counts.total.0,
            free: counts.free.0,
            zeroed: counts.ready.0,
            zeroable: counts.zeroable.0,
            zeroing: counts.zeroing.0,
            hits: counts.hits.0,
            misses: counts.misses.0,
            waits: counts.waits.0,
        }
    }

    fn row(&self) -> Vec<String> {
        let Self { node, page_bytes, total, free, zeroed, zeroable, zeroing, .. } = self;
        let Self { hits, misses, waits, .. } = self;
        let counts = [total, free, zeroed, zeroable, zeroing, hits, misses, waits];
        let mut row = vec![node.to_string(), Bytes(*page_bytes).to_string()];
        row.extend(counts.map(ToString::to_string));
        row
    }
}

impl Record for ModuleReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(why) = &self.because {
            return writeln!(out, "not loaded: {why}");
        }
        let implementation = Implementation::Module(self.version.clone());
        let origin = Origin { implementation, release: self.kernel.clone() };
        let boot = if self.at_boot { "loaded at boot" } else { "not loaded at boot" };
        let open = count(self.open_descriptors, "open descriptor");
        writeln!(out, "{origin}, {open}, {boot}")?;
        for (name, value) in &self.parameters {
            writeln!(out, "{name}: {}", value.escape_debug())?;
        }
        writeln!(out)?;
        let names = [
            "NODE", "PAGE", "TOTAL", "FREE", "ZEROED", "ZEROABLE", "ZEROING", "HITS", "MISSES",
            "WAITS",
        ];
        let columns = names.map(|name| (name, Align::Right));
        let rows: Vec<_> = self.pools.iter().map(Pool::row).collect();
        table::write(out, &columns, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text;
    use testkit::tree;
    use units::Pages;

    #[test]
    fn status_of_a_loaded_module_has_its_parameters_and_counters() {
        let counts = Counts {
            total: Pages(64),
            free: Pages(40),
            ready: Pages(30),
            zeroable: Pages(10),
            hits: Pages(342),
            misses: Pages(108),
            waits: Pages(1),
            ..Counts::default()
        };
        let report = ModuleReport {
            loaded: true,
            kernel: "6.12.117-amd64".into(),
            version: Some("0.1.0".into()),
            open_descriptors: 2,
            parameters: [("verify".to_owned(), "N".to_owned())].into(),
            pools: vec![Pool::new(0, 2 << 20, &counts)],
            ..ModuleReport::default()
        };
        assert_eq!(
            text(&report),
            "\
module 0.1.0, Linux 6.12.117, 2 open descriptors, not loaded at boot
verify: N

NODE  PAGE  TOTAL  FREE  ZEROED  ZEROABLE  ZEROING  HITS  MISSES  WAITS
   0    2M     64    40      30        10        0   342     108      1
"
        );
    }

    #[test]
    fn status_of_an_unloaded_module_names_missing_parts() {
        let tree = tree(&[
            ("proc/sys/kernel/osrelease", "6.12.117"),
            ("sys/devices/system/node/has_memory", "0\n"),
            ("usr/src/prezero-0.1.0/dkms.conf", ""),
        ]);
        let line = text(&look(&tree.roots()).unwrap());
        assert!(line.starts_with("not loaded: "), "{line}");
        assert!(line.contains("sudo apt install linux-headers-6.12.117"), "{line}");
    }
}
