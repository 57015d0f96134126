// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian packages by name: the installed ones, the newest ones, and fetching.

mod suite;

pub(crate) use suite::Suite;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};

use crate::{command, say};

/// Seconds to wait for another apt, as unattended upgrades are.
const LOCK_TIMEOUT: &str = "-oDPkg::Lock::Timeout=600";

/// The installed version of `package`, or `None`.
pub(crate) fn installed(package: &str) -> Result<Option<String>> {
    let format = "${db:Status-Status} ${Version}";
    let output = command::output(&mut command::new(
        Path::new("/"),
        "dpkg-query",
        ["-W", "-f", format, package],
    ))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.strip_prefix("installed ").map(str::to_owned))
}

/// Makes sure that every package is installed: installs missing ones as root, else fails with the
/// command that does.
pub(crate) fn need(packages: &[&str]) -> Result<()> {
    let mut missing = Vec::new();
    for &package in packages {
        if installed(package)?.is_none() {
            missing.push(package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("missing packages: run `sudo apt-get install --no-install-recommends {list}`");
    }
    say::step(format_args!("installing {list}"));
    let mut update = command::new(Path::new("/"), "apt-get", ["-q", LOCK_TIMEOUT, "update"]);
    command::run(update.stdout(Stdio::null()))?;
    let words = ["-q", "-y", LOCK_TIMEOUT, "install", "--no-install-recommends"];
    let mut install = command::new(Path::new("/"), "apt-get", words);
    install.args(&missing).env("DEBIAN_FRONTEND", "noninteractive");
    command::run(install.stdout(Stdio::null()))
}

/// Downloads the newest `package` into `dir` without installing it.
///
/// Returns the path of the `.deb`.
pub(crate) fn download(package: &str, dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let mut fetch = command::new(dir, "apt-get", ["-q", "download", package]);
    command::run(fetch.stdout(Stdio::null()).stderr(Stdio::null())).with_context(|| {
        format!("cannot download {package}; does `apt-get update` reach a Debian mirror?")
    })?;
    find_deb(package, dir)
}

/// The `.deb` of `package` that was downloaded into `dir`.
fn find_deb(package: &str, dir: &Path) -> Result<PathBuf> {
    let wanted = format!("{package}_");
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&wanted) && name.ends_with(".deb") {
            return Ok(path);
        }
    }
    bail!("apt-get downloaded {package}, but there is no {wanted}*.deb in {}", dir.display())
}

/// The first dependency of `package` with a name that starts with `prefix`.
pub(crate) fn dependency(package: &str, prefix: &str) -> Result<String> {
    let text = command::stdout(&mut command::new(
        Path::new("/"),
        "apt-cache",
        ["depends", "--important", package],
    ))?;
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .with_context(|| format!("package {package} depends on no {prefix}*: run `apt-get update`"))
}
