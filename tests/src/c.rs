// SPDX-License-Identifier: Apache-2.0 OR MIT
//! C programs of `tests/c`, compiled for a test, or compiled beforehand where there is no compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// With this variable set to a directory, programs that are there are not compiled: for virtual
/// machines.
pub const PROGRAMS: &str = "PREZERO_TEST_PROGRAMS";

/// Compiles `tests/c/NAME.c` into `dir` and returns the program's path.
///
/// # Panics
/// If it does not compile without a warning.
#[must_use]
pub fn compile(name: &str, dir: &Path, arguments: &[&str]) -> PathBuf {
    let compiled = std::env::var_os(PROGRAMS).map(|dir| Path::new(&dir).join(name));
    if let Some(program) = compiled.filter(|program| program.exists()) {
        return program;
    }
    compile_with(name, dir, &[&["-pthread"], arguments].concat())
}

/// For programs that run without an operating system, under QEMU's multiboot.
pub const GUEST: &[&str] = &[
    "-m32",
    "-ffreestanding",
    "-nostdlib",
    "-static",
    "-fno-pic",
    "-no-pie",
    "-Wl,-Ttext=0x100000,--build-id=none",
];

/// The same with these arguments alone.
///
/// # Panics
/// If it does not compile without a warning.
#[must_use]
pub fn compile_with(name: &str, dir: &Path, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let program = dir.join(name);
    let output = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-o"])
        .arg(&program)
        .arg(source)
        .args(arguments)
        .output()
        .expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
