// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast the kernel's own code clears and zeroes, and how long it holds `hugetlb_lock`, without
//! booting it.
//!
//! The object comes from a kernel build and is linked into a program as it is: kernel code
//! addresses the lowest or highest 2 GiB, where a program that is not position independent lies.
//! Its internal symbols are made visible, and the call that alternatives replace at boot goes to
//! the program.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    build::{Flavour, tree},
    hot_path::Twin,
    linux,
};
use crate::{apt, cache, command, say};

/// What the program looks at.
const VISIBLE: [&str; 3] =
    ["clear_streaming_methods", "clear_streaming_chosen", "clear_streaming_turn"];

/// Builds the programs and runs them.
pub(crate) fn run(flavour: &Flavour, arguments: &[String]) -> Result<bool> {
    apt::need(&["binutils", "gcc"])?;
    let object = object(flavour)?;
    let clearing = object.with_file_name("clear_streaming");
    let mut link = command::new(&cache::target("kernel")?, "gcc", ["-O2", "-Wall", "-static"]);
    link.arg("-o").arg(&clearing).arg(linux::home().join("bench/clear_streaming.c"));
    command::run(link.args(with_object(&object)))?;
    let mut fine = Command::new(clearing).args(arguments).status()?.success();

    let twin = Twin::new()?;
    let mut threads = vec![OsString::from("-DBENCH_THREADS"), "-pthread".into()];
    threads.extend(with_object(&object));
    let threads: Vec<&OsStr> = threads.iter().map(AsRef::as_ref).collect();
    for with in [false, true] {
        say::result("");
        let program = twin.compile("lock_hold", with, &threads)?;
        fine &= Command::new(program).status()?.success();
    }
    Ok(fine)
}

/// The arguments of gcc that link the kernel's object.
fn with_object(object: &Path) -> Vec<OsString> {
    let mut arguments = vec![object.into(), "-no-pie".into()];
    // Each tree has its own name for what alternatives replace.
    for call in ["clear_pages_orig", "__clear_pages_unrolled"] {
        arguments.push(format!("-Wl,--defsym={call}=bench_clear_pages").into());
    }
    // The kernel's object says nothing about its stack, and needs none that runs.
    arguments.extend(["-z".into(), "noexecstack".into()]);
    arguments
}

/// The kernel's object, with what the program looks at made visible.
fn object(flavour: &Flavour) -> Result<PathBuf> {
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
    Ok(linked)
}
