// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The repository's own rules, as tests.

mod arrows;
mod attacks;
mod blocking;
mod book;
mod ci;
mod daemon;
mod floors;
mod loans;
mod machines;
mod manual;
mod methods;
mod preload;
mod prose;
mod providers;
mod purpose;
mod sources;
mod specification;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it").to_owned()
}

/// Every file that git tracks below the repository's root, or that is new and not ignored.
fn files() -> Vec<PathBuf> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root()).output();
    let output = output.expect("git runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("plain names");
    text.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}
