// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the harness outside and the init inside a test VM say to each other.
//!
//! The harness puts a [`Plan`] into the initramfs as `/plan.json`; the init
//! carries it out and writes one [`Event`] per line, as JSON, to the second
//! serial port. The first serial port is the kernel's console.

mod event;
mod plan;

pub use event::{Event, Node, Outcome, Pool};
pub use plan::{Module, Plan, Program, Setting};

/// Where the plan lies in the initramfs.
pub const PLAN: &str = "/plan.json";

/// The second serial port: events leave here. QEMU's board for arm64 has one port, which is no
/// `ttyS`, and the second is a PCI card.
pub const EVENTS: &str = if cfg!(target_arch = "aarch64") { "/dev/ttyS0" } else { "/dev/ttyS1" };

/// Lines of this prefix in the kernel log say which program runs:
/// `prezero-vm: begin NAME` and `prezero-vm: end NAME`.
pub const MARK: &str = "prezero-vm:";
