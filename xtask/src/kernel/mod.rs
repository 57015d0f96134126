// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernel`: the series for Linux 6.12, from patch files to a
//! bootable image and back.
//!
//! `source` unpacks Debian's tarball, `series` reads what lies under
//! `kernel/linux-6.12`, `build` makes an image of both, `edit` turns the series
//! into a git tree to work in and takes the commits back, `export` writes what
//! `git am` reads, `check` asks checkpatch, sparse and the cross compilers.

mod build;
mod check;
mod edit;
mod export;
mod selftest;
mod series;
mod source;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use build::{Flavour, image as build};
pub(crate) use selftest::build as selftest;

use crate::say;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build an image from Debian's newest source, our series and a small config.
    Build(BuildArgs),
    /// Write the series as mails that `git am` takes.
    Export {
        /// Where the mails go; emptied first.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Ask checkpatch, sparse and the compilers of other architectures.
    Check {
        /// Only these: `apply`, `checkpatch`, or a target of the cross table.
        only: Vec<String>,
    },
    /// Make a git tree with one commit per patch, to work in.
    Tree {
        /// A directory that does not exist yet.
        dir: PathBuf,
    },
    /// Write the commits of a tree made by `tree` back into kernel/linux-6.12.
    Import {
        /// The tree.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Which fragment of kernel/linux-6.12/configs to add to `default`.
    #[arg(long, default_value = "default")]
    config: String,
    /// The same configuration without the series, to compare with.
    #[arg(long)]
    pristine: bool,
}

pub(crate) fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Build(BuildArgs { config, pristine }) => {
            let image = build(&Flavour { config, patched: !pristine })?;
            say::result(image.display());
        }
        Verb::Export { out } => {
            let dir = match out {
                Some(dir) => dir,
                None => crate::cache::target("kernel")?.join("series"),
            };
            let mails = export::write(&dir)?;
            say::result(format_args!("{mails} patches in {}", dir.display()));
        }
        Verb::Check { only } => return check::run(&only),
        Verb::Tree { dir } => edit::make_tree(&dir)?,
        Verb::Import { dir } => edit::import(&dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Debian's unchanged source tree.
pub(crate) fn source_dir() -> Result<PathBuf> {
    Ok(source::Source::get()?.dir)
}
