// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The headers of Debian 12's own kernel, to be installed in a machine that runs another one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{apt, cache};

/// What depends on the newest.
const NEWEST: &str = "linux-headers-cloud-amd64";

/// The package of the headers and all that it needs but a compiler, each with its name in the
/// machine.
pub(super) fn of_another_kernel() -> Result<Vec<(String, PathBuf)>> {
    let headers = apt::dependency(NEWEST, "linux-headers-")?;
    let needs = ["linux-headers-", "linux-kbuild-", "linux-compiler-"];
    let mut packages =
        needs.iter().map(|prefix| apt::dependency(&headers, prefix)).collect::<Result<Vec<_>>>()?;
    packages.push(headers);
    packages.iter().map(|name| Ok((format!("headers-{name}.deb"), cached(name)?))).collect()
}

/// The package's file, downloaded once.
fn cached(package: &str) -> Result<PathBuf> {
    let dir = cache::shared("package/headers")?.join(package);
    if let Some(deb) = only_file(&dir)? {
        return Ok(deb);
    }
    let scratch = tempfile::tempdir_in(cache::shared("package/headers")?)?;
    apt::download(package, &scratch.path().join("deb"))?;
    fs::rename(scratch.path().join("deb"), &dir)
        .with_context(|| format!("cannot create {}", dir.display()))?;
    only_file(&dir)?.with_context(|| format!("{} is empty", dir.display()))
}

fn only_file(dir: &Path) -> Result<Option<PathBuf>> {
    if !dir.exists() {
        return Ok(None);
    }
    Ok(fs::read_dir(dir)?.next().transpose()?.map(|entry| entry.path()))
}
