// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's kernel source: installed by name, unpacked once per version.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{apt, cache, command, say};

/// The Debian package that the series is written against.
pub(crate) const PACKAGE: &str = "linux-source-6.12";

/// What a kernel build needs from Debian besides the source.
const TOOLS: [&str; 10] =
    ["bc", "bison", "flex", "gcc", "git", "libelf-dev", "libssl-dev", "lz4", "make", "xz-utils"];

/// An unpacked, unchanged source tree. Nobody writes below `dir`.
#[derive(Debug)]
pub(crate) struct Source {
    /// Debian's version, for example `6.12.117-1~deb12u1`.
    pub(crate) version: String,
    pub(crate) dir: PathBuf,
}

impl Source {
    /// Installs the package and the tools if they are missing, and unpacks.
    pub(crate) fn get() -> Result<Self> {
        apt::need(&[PACKAGE])?;
        apt::need(&TOOLS)?;
        let version = apt::installed(PACKAGE)?
            .with_context(|| format!("{PACKAGE} is not installed after installing it"))?;
        let all = cache::shared("kernel/source")?;
        let dir = all.join(&version);
        if dir.join("Makefile").exists() {
            return Ok(Self { version, dir });
        }
        say::step(format_args!("unpacking {PACKAGE} {version}"));
        // Unpack beside it and rename: an interrupted unpacking leaves no tree.
        let staging = tempfile::tempdir_in(&all)?;
        let tarball = format!("/usr/src/{PACKAGE}.tar.xz");
        command::run(&mut command::new(staging.path(), "tar", ["xJf", &tarball]))?;
        let unpacked = staging.path().join(PACKAGE);
        if !unpacked.join("Makefile").exists() {
            bail!("{tarball} holds no {PACKAGE}/Makefile");
        }
        match fs::rename(&unpacked, &dir) {
            // Somebody else was faster: their tree is the same.
            Err(_) if dir.join("Makefile").exists() => {}
            renamed => renamed.with_context(|| format!("cannot create {}", dir.display()))?,
        }
        Ok(Self { version, dir })
    }
}
