// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's kernel source: fetched by name, unpacked once per version.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};

use super::linux::Linux;
use crate::{apt, cache, command, say};

/// What a kernel build needs from Debian besides the source.
const TOOLS: [&str; 10] =
    ["bc", "bison", "flex", "gcc", "git", "libelf-dev", "libssl-dev", "lz4", "make", "xz-utils"];

/// An unpacked, unchanged source tree. `dir` is read only.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) linux: Linux,
    /// Debian's version, for example `6.12.117-1~deb12u1`.
    pub(crate) version: String,
    pub(crate) dir: PathBuf,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.linux.package(), self.version)
    }
}

impl Source {
    /// The source that is there; fetched if there is none, with the tools that are missing.
    pub(crate) fn get(linux: Linux) -> Result<Self> {
        apt::need(&TOOLS)?;
        match linux.suite() {
            None => Self::installed(linux),
            Some(suite) => Self::from_suite(linux, suite),
        }
    }

    /// Fetches Debian's newest, when we may; else names the missing package.
    pub(crate) fn refresh(linux: Linux) -> Result<()> {
        let package = linux.package();
        if let Some(suite) = linux.suite() {
            let suite = apt::Suite::open(suite)?;
            suite.update()?;
            let newest = suite.newest(package)?;
            return Self::fetch(linux, &suite, newest).map(|_| ());
        }
        if !rustix::process::geteuid().is_root() {
            say::step(format_args!("not root: taking the installed {package}, not the newest"));
            return Ok(());
        }
        command::stdout(&mut command::new(Path::new("/"), "apt-get", ["-q", "update"]))?;
        let mut install = command::new(Path::new("/"), "apt-get", ["-q", "-y", "install", package]);
        command::stdout(install.env("DEBIAN_FRONTEND", "noninteractive"))?;
        Ok(())
    }

    /// The package as the system has it, which is installed if it is missing.
    fn installed(linux: Linux) -> Result<Self> {
        let package = linux.package();
        apt::need(&[package])?;
        let version = apt::installed(package)?
            .with_context(|| format!("{package} is not installed after installing it"))?;
        let tarball = PathBuf::from(format!("/usr/src/{package}.tar.xz"));
        Self::unpacked(linux, version, |_| Ok(tarball))
    }

    /// The version that was fetched last, or the newest.
    fn from_suite(linux: Linux, suite: &str) -> Result<Self> {
        if let Ok(version) = fs::read_to_string(current(linux)?) {
            let dir = cache::shared("kernel/source")?.join(&version);
            if dir.join("Makefile").exists() {
                return Ok(Self { linux, version, dir });
            }
        }
        let suite = apt::Suite::open(suite)?;
        suite.update()?;
        let newest = suite.newest(linux.package())?;
        Self::fetch(linux, &suite, newest)
    }

    fn fetch(linux: Linux, suite: &apt::Suite, version: String) -> Result<Self> {
        let package = linux.package();
        let source = Self::unpacked(linux, version, |dir| {
            let deb = suite.download(package, dir)?;
            // The package itself is not installed: its tarball is all that we want of it.
            let mut unpack = command::new(dir, "dpkg-deb", ["-x"]);
            command::run(unpack.arg(&deb).arg(dir.join("deb")).stdout(Stdio::null()))?;
            Ok(dir.join("deb/usr/src").join(format!("{package}.tar.xz")))
        })?;
        fs::write(current(linux)?, &source.version)?;
        Ok(source)
    }

    /// The tree of this version; `tarball` is asked, with a directory for what it makes, if it was
    /// never unpacked.
    fn unpacked(
        linux: Linux,
        version: String,
        tarball: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<Self> {
        let all = cache::shared("kernel/source")?;
        let dir = all.join(&version);
        if dir.join("Makefile").exists() {
            return Ok(Self { linux, version, dir });
        }
        // Unpack beside it and rename: an interrupted unpacking leaves no tree.
        let staging = tempfile::tempdir_in(&all)?;
        let tarball = tarball(staging.path())?;
        let package = linux.package();
        say::step(format_args!("unpacking {package} {version}"));
        command::run(command::new(staging.path(), "tar", ["xJf"]).arg(&tarball))?;
        let unpacked = staging.path().join(package);
        if !unpacked.join("Makefile").exists() {
            bail!("{} holds no {package}/Makefile", tarball.display());
        }
        match fs::rename(&unpacked, &dir) {
            // Another process was faster: its tree is the same.
            Err(_) if dir.join("Makefile").exists() => {}
            renamed => renamed.with_context(|| format!("cannot create {}", dir.display()))?,
        }
        Ok(Self { linux, version, dir })
    }
}

/// The file that names the version fetched last.
fn current(linux: Linux) -> Result<PathBuf> {
    Ok(cache::shared("kernel")?.join(linux.package()))
}
