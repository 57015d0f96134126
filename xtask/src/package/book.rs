// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The book as packages install it: HTML that needs no network and no program but a browser.

use std::{fs, path::PathBuf};

use anyhow::Result;

use crate::{cache, command, say};

/// The version that tests/rules/book.rs builds the book with.
const MDBOOK: &str = "0.5.4";

/// Builds it and returns its directory.
pub(crate) fn build() -> Result<PathBuf> {
    let to = cache::target("package")?.join("html");
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let program = mdbook()?.display().to_string();
    let mut build = command::new(&cache::repo(), &program, ["build", "docs", "--dest-dir"]);
    command::stdout(build.arg(&to))?;
    // Sources that mdbook takes for pictures.
    fs::remove_file(to.join("book.toml"))?;
    fs::remove_dir_all(to.join("theme"))?;
    Ok(to)
}

/// `mdbook`, installed for this user's checkouts if it is missing.
fn mdbook() -> Result<PathBuf> {
    let tools = cache::shared("tools")?;
    let program = tools.join("bin/mdbook");
    let version = command::new(&tools, &program.display().to_string(), ["--version"]).output();
    let is_known = version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(MDBOOK));
    if !is_known {
        say::step(format_args!("installing mdbook {MDBOOK}"));
        let words = ["install", "mdbook", "--locked", "--no-default-features", "--version", MDBOOK];
        let mut install = command::new(&tools, "cargo", words);
        command::run(install.arg("--root").arg(&tools).env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(program)
}
