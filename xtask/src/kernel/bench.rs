// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast the kernel's own code clears, without booting it.
//!
//! The objects come from a kernel build and are linked into a program as they
//! are: kernel code addresses the lowest or highest 2 GiB, where a program
//! that is not position independent lies. Their internal symbols are made
//! visible, and the call that alternatives patch at boot goes to the program.

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
    // One job: asked for two objects, kbuild enters the directory twice at once.
    tree.make(&["-j1", "arch/x86/lib/clear_streaming.o", "arch/x86/lib/clear_page_64.o"])?;
    let mut objects = Vec::new();
    for name in ["clear_streaming.o", "clear_page_64.o"] {
        let mut copy = command::new(&tree.dir, "objcopy", [] as [&str; 0]);
        for symbol in VISIBLE {
            copy.arg(format!("--globalize-symbol={symbol}"));
        }
        if name == "clear_streaming.o" {
            copy.arg("--redefine-sym=clear_pages_orig=bench_clear_pages");
        }
        copy.arg(format!("arch/x86/lib/{name}")).arg(dir.join(name));
        command::run(&mut copy)?;
        objects.push(dir.join(name));
    }
    let program = dir.join("clear_streaming");
    let mut link = command::new(&dir, "gcc", ["-O2", "-Wall", "-no-pie", "-static", "-o"]);
    link.arg(&program).arg(linux::home().join("bench/clear_streaming.c")).args(&objects);
    // The kernel's objects say nothing about their stack, and need none that runs.
    command::run(link.args(["-z", "noexecstack"]))?;
    Ok(program)
}
