// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The architectures that kernels are booted for.

use std::{fmt, path::Path, process::Command};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::{apt, command};

/// What an image runs on.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arch {
    /// This host's.
    #[default]
    #[serde(rename = "x86_64")]
    #[value(name = "x86_64", alias = "amd64")]
    X86_64,
    /// Pages of 4 or 64 KiB, huge ones of many sizes.
    #[value(alias = "aarch64")]
    Arm64,
}

impl Arch {
    /// What kbuild calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "arm64",
        }
    }

    /// What the programs of the cross tools begin with; nothing for the host's own.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::X86_64 => "",
            Self::Arm64 => "aarch64-linux-gnu-",
        }
    }

    /// The bootable image below the build tree.
    pub(crate) fn image(self) -> &'static str {
        match self {
            Self::X86_64 => "arch/x86/boot/bzImage",
            Self::Arm64 => "arch/arm64/boot/Image",
        }
    }

    /// What rustc calls it.
    pub(crate) fn rust(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// What Debian calls it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// What rpm calls it.
    pub(crate) fn rpm(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Debian's directory of its libraries, below `/usr/lib`.
    pub(crate) fn libraries(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Makes cargo build for it by name, with what that needs.
    pub(crate) fn target(self, build: &mut Command) -> Result<()> {
        self.need_compiler()?;
        let target = self.rust();
        build.args(["--target", target]);
        if self == Self::default() {
            return Ok(());
        }
        let words = ["--print", "target-libdir", "--target", target];
        let libraries = command::stdout(&mut command::new(Path::new("/"), "rustc", words))?;
        if !Path::new(libraries.trim()).exists() {
            bail!("rustc has no library for {target}: `rustup target add {target}`");
        }
        let variable = target.to_uppercase().replace('-', "_");
        let linker = format!("{}gcc", self.prefix());
        build.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
        Ok(())
    }

    /// Makes sure that there is a C compiler for it.
    pub(crate) fn need_compiler(self) -> Result<()> {
        match self {
            Self::X86_64 => apt::need(&["gcc", "libc6-dev"]),
            Self::Arm64 => apt::need(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
