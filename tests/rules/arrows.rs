// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which room may know which: the arrows of ARCHITECTURE.md.

use std::process::Command;

use serde_json::Value;

/// A room, and the rooms it may know.
const ARROWS: [(&str, &[&str]); 10] = [
    ("prezero-clear", &[]),
    ("prezero-linux", &[]),
    ("prezero-model", &[]),
    ("prezero", &["prezero-model", "prezero-linux"]),
    ("prezero-daemon", &["prezero-model", "prezero-linux", "prezero-clear"]),
    ("prezero-preload", &["prezero"]),
    ("prezero-cli", &["prezero-daemon", "prezero", "prezero-clear", "prezero-model"]),
    ("xtask", &["prezero-model", "vm-guest"]),
    // Runs as process 1 of a test's virtual machine; the event stream is between it and xtask.
    ("vm-guest", &[]),
    // The tests look into every room.
    (
        "prezero-tests",
        &["prezero", "prezero-clear", "prezero-daemon", "prezero-linux", "prezero-model"],
    ),
];

#[test]
fn every_dependency_between_rooms_is_an_arrow_of_the_design() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(super::root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let names: Vec<_> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    for package in packages {
        let room = package["name"].as_str().expect("a name");
        let (_, allowed) = ARROWS
            .iter()
            .find(|(name, _)| *name == room)
            .unwrap_or_else(|| panic!("{room} is a room that the design does not have"));
        for dependency in package["dependencies"].as_array().expect("a list") {
            let other = dependency["name"].as_str().expect("a name");
            // A room's tests may use its own features and the shared test support.
            let for_tests = dependency["kind"] == "dev" && other == "prezero-linux";
            if names.contains(&other) && other != room && !for_tests {
                assert!(allowed.contains(&other), "{room} must not know {other}");
            }
        }
    }
}
