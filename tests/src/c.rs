// SPDX-License-Identifier: Apache-2.0 OR MIT
//! C programs of `tests/c`, compiled for a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/c/NAME.c` into `dir` and returns the program's path.
///
/// # Panics
/// If it does not compile without a warning.
#[must_use]
pub fn compile(name: &str, dir: &Path, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let program = dir.join(name);
    let output = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .args(arguments)
        .output()
        .expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
