// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own selftests for mm, built from the unchanged source.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, bail};

use super::{build::Tree, linux::Linux, source::Source};
use crate::command;

/// Builds `tools/testing/selftests/mm/NAME`; returns the program.
pub(crate) fn build(linux: Linux, name: &str) -> Result<PathBuf> {
    let source = Source::get(linux)?;
    let tree = Tree::prepare(&source, "selftests", &BTreeMap::new())?;
    if !tree.dir.join("usr/include/linux/mman.h").exists() {
        tree.make(&["headers"])?;
    }
    let dir = tree.dir.join("tools/testing/selftests/mm");
    let program = dir.join(name);
    let mut make = command::new(&dir, "make", ["-s"]);
    let output = command::output(make.arg(&program))?;
    if !program.exists() {
        bail!("cannot build {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}
