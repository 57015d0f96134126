// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test needs of its machine.

use serde::Deserialize;

use super::disk::Disk;
use crate::kernel::{Arch, Linux};

/// Which kernel boots.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kernel {
    /// Debian's own 6.12 for cloud machines.
    Stock,
    /// Debian's own 6.12 with locks that sleep.
    StockRt,
    /// Debian 12's own 6.1 for cloud machines.
    #[serde(rename = "stock-6.1")]
    #[value(name = "stock-6.1")]
    Stock61,
    /// Debian 13's own of its backports, 7.3 for cloud machines.
    #[serde(rename = "stock-7.3")]
    #[value(name = "stock-7.3")]
    Stock73,
    /// Our series and our config.
    Patched,
    /// The same with KASAN, lockdep and the other checkers.
    PatchedDebug,
    /// The same with locks that sleep.
    PatchedRt,
    /// The same with the sanitizer of concurrent accesses.
    PatchedKcsan,
    /// Ours with base pages of 64 KiB, on arm64.
    #[serde(rename = "patched-64k")]
    #[value(name = "patched-64k")]
    Patched64k,
    /// Our config without the series: what a difference is measured against.
    Pristine,
    /// The same with KASAN, lockdep and the other checkers, and with what prezero.ko builds on.
    ModuleDebug,
}

impl Kernel {
    /// The version of one of Debian's own.
    pub(crate) fn of_debian(self) -> Option<&'static str> {
        match self {
            Self::Stock => Some("6.12"),
            Self::StockRt => Some("6.12-rt"),
            Self::Stock61 => Some("6.1"),
            Self::Stock73 => Some("7.3"),
            _ => None,
        }
    }
}

/// Preemption model, chosen on the command line of a dynamic kernel.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Preempt {
    None,
    Voluntary,
    Lazy,
    Full,
}

impl Preempt {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Lazy => "lazy",
            Self::Full => "full",
        }
    }
}

/// Huge pages that are in the pool before the first program runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pool {
    /// 2048 or 1048576 on x86-64. Pages of 32 MiB and more are asked for on the command line.
    pub(crate) page_kib: u64,
    /// How many on node 0, node 1, ...
    pub(crate) pages: Vec<u64>,
}

/// The machine. Everything has a default that suits most tests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Requirements {
    pub(crate) kernel: Kernel,
    /// The tree that the kernel is of. The table's `on` sets it.
    #[serde(skip)]
    pub(crate) linux: Linux,
    #[serde(default)]
    pub(crate) arch: Arch,
    /// Default: what the kernel was built with.
    #[serde(default)]
    pub(crate) preempt: Option<Preempt>,
    /// Spread evenly over the nodes. Default: 2.
    #[serde(default = "two_cpus")]
    pub(crate) cpus: u32,
    /// One nanosecond of the machine's time for each instruction, so that its time stamp counter
    /// counts them.
    #[serde(default)]
    pub(crate) icount: bool,
    /// One thread of QEMU for all CPUs. With a thread for each, QEMU 7.2 may execute instructions
    /// that another CPU has patched away meanwhile.
    #[serde(default)]
    pub(crate) one_thread: bool,
    /// Memory of each node. Default: two of 640 MiB. The first 512 MiB lie below 4 GiB, the rest
    /// above in one piece: node 0 needs 512, then 1024 for each 1 GiB page, then 128 for the
    /// kernel's own memory at a node's end.
    #[serde(default = "two_nodes")]
    pub(crate) nodes_mib: Vec<u64>,
    /// Memory that can be plugged into one more node, which has none at boot and
    /// no CPU. A program asks for it, see `hotplug.rs`.
    #[serde(default)]
    pub(crate) hotplug_mib: u64,
    #[serde(default)]
    pub(crate) pools: Vec<Pool>,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub(crate) params: Vec<String>,
    /// CPU features that the machine shall not have, as QEMU calls them.
    #[serde(default)]
    pub(crate) cpu_without: Vec<String>,
    /// Modules to load, each followed by its parameters: of the stock kernel, without their
    /// dependencies' names, or `prezero`, which is compiled for the kernel.
    #[serde(default)]
    pub(crate) modules: Vec<String>,
    /// A disk to read, as `/dev/vda`; its driver is a module.
    #[serde(default)]
    pub(crate) disk: Option<Disk>,
    /// Complaints of the kernel that contain one of these are no failure.
    #[serde(default)]
    pub(crate) expect_log: Vec<String>,
    /// Parts of names of functions: of the data races that KCSAN reports, those of others are no
    /// failure; all are where none is named.
    #[serde(default)]
    pub(crate) races_of: Vec<String>,
}

fn two_cpus() -> u32 {
    2
}

fn two_nodes() -> Vec<u64> {
    vec![640, 640]
}

/// 32 MiB in KiB: pools of this page size or larger are filled at boot.
const GIGANTIC_KIB: u64 = 32 << 10;

impl Requirements {
    /// The kernel's command line.
    pub(crate) fn command_line(&self) -> String {
        // panic=-1 with QEMU's -no-reboot ends the machine at once; without
        // address randomisation the gigabyte that a pool needs stays free.
        // Where this host is busy, the kernel's look at the emulated timer may
        // see no tick, and ends the boot.
        let mut line = match self.arch {
            Arch::X86_64 => "console=ttyS0 reboot=t no_timer_check",
            Arch::Arm64 => "console=ttyAMA0",
        }
        .to_owned();
        line += " panic=-1 oops=panic nokaslr rdinit=/init";
        if let Some(model) = self.preempt {
            line += &format!(" preempt={}", model.name());
        }
        for pool in self.pools.iter().filter(|pool| pool.page_kib >= GIGANTIC_KIB) {
            let per_node: Vec<String> = pool
                .pages
                .iter()
                .enumerate()
                .map(|(node, pages)| format!("{node}:{pages}"))
                .collect();
            line += &format!(" hugepagesz={}K hugepages={}", pool.page_kib, per_node.join(","));
        }
        for parameter in &self.params {
            line += " ";
            line += parameter;
        }
        line
    }

    /// The pools as files to write; for those filled at boot, to verify.
    pub(crate) fn settings(&self) -> Vec<vm_guest::Setting> {
        let mut settings = Vec::new();
        for pool in &self.pools {
            for (node, pages) in pool.pages.iter().enumerate() {
                settings.push(vm_guest::Setting {
                    path: format!(
                        "/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/nr_hugepages",
                        pool.page_kib
                    ),
                    value: pages.to_string(),
                    verify: true,
                });
            }
        }
        settings
    }

    /// QEMU's options for its emulator: a thread for each CPU, one for all, or one that counts
    /// instructions and does not wait while the machine is idle.
    pub(crate) fn accelerator(&self) -> &'static [&'static str] {
        if self.icount {
            &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]
        } else if self.one_thread {
            &["-accel", "tcg,thread=single"]
        } else {
            &["-accel", "tcg,thread=multi"]
        }
    }

    /// QEMU's `-m`: with a slot and addresses for the memory that comes later.
    pub(crate) fn memory_argument(&self) -> String {
        let now = self.memory_mib();
        match self.hotplug_mib {
            0 => format!("{now}M"),
            later => format!("{now}M,slots=8,maxmem={}M", now + 8 * later),
        }
    }

    /// All of the machine's memory.
    pub(crate) fn memory_mib(&self) -> u64 {
        self.nodes_mib.iter().sum()
    }
}
