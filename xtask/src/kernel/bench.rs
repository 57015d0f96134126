// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast the kernel's own code clears, without booting it.
//!
//! The object comes from a kernel build and is linked into a program as it is: kernel code
//! addresses the lowest or highest 2 GiB, where a program that is not position independent lies.
//! Its internal symbols are made visible, and the call that alternatives replace at boot goes to
//! the program.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use super::{
    build::{Flavour, tree},
    linux,
};
use crate::{apt, cache, command, say};

/// What the program looks at.
const VISIBLE: [&str; 3] =
    ["clear_streaming_methods", "clear_streaming_chosen", "clear_streaming_turn"];

/// Builds the program and runs it.
pub(crate) fn run(flavour: &Flavour, arguments: &[String]) -> Result<bool> {
    apt::need(&["binutils", "gcc"])?;
    let program = build(flavour)?;
    Ok(Command::new(program).args(arguments).status()?.success())
}

fn build(flavour: &Flavour) -> Result<PathBuf> {
    let tree = tree(flavour)?;
    let dir = cache::target("kernel")?.join("bench");
    std::fs::create_dir_all(&dir)?;
    say::step(format_args!("compiling arch/x86/lib of {flavour}"));
    let object = "arch/x86/lib/clear_streaming.o";
    tree.make(&[object])?;
    let mut copy = command::new(&tree.dir, "objcopy", [] as [&str; 0]);
    for symbol in VISIBLE {
        copy.arg(format!("--globalize-symbol={symbol}"));
    }
    let linked = dir.join("clear_streaming.o");
    command::run(copy.arg(object).arg(&linked))?;
    let program = dir.join("clear_streaming");
    let mut link = command::new(&dir, "gcc", ["-O2", "-Wall", "-no-pie", "-static", "-o"]);
    link.arg(&program).arg(linux::home().join("bench/clear_streaming.c")).arg(&linked);
    // Each tree has its own name for what alternatives replace.
    for call in ["clear_pages_orig", "__clear_pages_unrolled"] {
        link.arg(format!("-Wl,--defsym={call}=bench_clear_pages"));
    }
    // The kernel's object says nothing about its stack, and needs none that runs.
    command::run(link.args(["-z", "noexecstack"]))?;
    Ok(program)
}
