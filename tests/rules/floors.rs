// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How rooms call the kernel.

use std::process::Command;

use serde_json::Value;

use super::root;

// Promise P111 (programs): Nothing that the shim links calls the kernel through functions that it
// stands before.
/// The shim's own library defines `mmap`, `ftruncate`, `sendmsg` and others. Its dependencies call
/// the kernel by rustix, which makes system calls itself unless a crate asks for `use-libc`. Cargo
/// then builds it for all crates like this, and the client would call the shim from behind its
/// lock.
#[test]
fn kernel_is_not_called_through_interposed_functions() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features", "--locked", "--offline"])
        // What other systems need is not here.
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name_of = |id: &Value| {
        let packages = metadata["packages"].as_array().expect("a list");
        let package = packages.iter().find(|package| package["id"] == *id).expect("a package");
        package["name"].as_str().expect("a name").to_owned()
    };
    let mut seen = 0;
    for node in metadata["resolve"]["nodes"].as_array().expect("a list") {
        if name_of(&node["id"]) != "rustix" {
            continue;
        }
        seen += 1;
        let features = node["features"].as_array().expect("a list");
        assert!(!features.iter().any(|feature| feature == "use-libc"), "{}", node["id"]);
    }
    assert!(seen > 0, "the rooms below the shim use rustix no more: look at what they use");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    assert!(!flags.contains("rustix_use_libc"), "RUSTFLAGS={flags}");
}
