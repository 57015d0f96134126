// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernel`: the series, one for each Linux, from patch files to a
//! bootable image and back.
//!
//! `linux` names the kernels, `source` unpacks Debian's tarball, `series` reads the files under
//! `kernel/linux-NAME` and `overlay` the shared ones. `build` makes an image of both, `edit` turns
//! the series into a git tree to work in and takes the commits back. `export` writes the input of
//! `git am`, `check` asks checkpatch, sparse and the cross compilers.

mod arch;
mod bench;
mod build;
mod check;
mod deb;
mod edit;
mod export;
mod hot_path;
mod linux;
mod made;
mod overlay;
mod selftest;
mod series;
mod source;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use arch::Arch;
pub(crate) use build::{Flavour, image as build, key_of, make_module};
pub(crate) use linux::Linux;
pub(crate) use overlay::Overlay;
pub(crate) use selftest::build as selftest;

use crate::say;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Build an image from Debian's newest source, our series and a small config.
    Build(BuildArgs),
    /// Write the series as mails that `git am` takes.
    Export {
        /// Which kernel's.
        #[arg(long, value_name = "LINUX", default_value_t)]
        tree: Linux,
        /// Where the mails go; emptied first.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Build Debian packages of Debian's cloud kernel with the series.
    Deb(DebArgs),
    /// Ask checkpatch, sparse and the compilers of other architectures.
    Check {
        /// Which kernel's series; all of them if none is named.
        #[arg(long = "tree", value_name = "LINUX")]
        trees: Vec<Linux>,
        /// Only these: `apply`, `checkpatch`, or a target of the cross table.
        only: Vec<String>,
    },
    /// Measure how fast the kernel's own code clears and zeroes, and how long it holds
    /// `hugetlb_lock`, in programs of user space.
    Bench {
        /// Which kernel's.
        #[arg(long, value_name = "LINUX", default_value_t)]
        tree: Linux,
        /// MiB to clear, and how often.
        arguments: Vec<String>,
    },
    /// Make a git tree with one commit per patch, to work in.
    Tree {
        /// Which kernel's.
        #[arg(long, value_name = "LINUX", default_value_t)]
        tree: Linux,
        /// A directory that does not exist yet.
        dir: PathBuf,
    },
    /// Write the commits of a tree made by `tree` back into kernel/.
    Import {
        /// Which kernel's.
        #[arg(long, value_name = "LINUX", default_value_t)]
        tree: Linux,
        /// The tree.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Which kernel.
    #[arg(long, value_name = "LINUX", default_value_t)]
    tree: Linux,
    /// What for.
    #[arg(long, default_value_t)]
    arch: Arch,
    /// Which fragment of kernel/configs to add to `default`.
    #[arg(long, default_value = "default")]
    config: String,
    /// The same configuration without the series, to compare with.
    #[arg(long)]
    pristine: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DebArgs {
    /// Which kernel.
    #[arg(long, value_name = "LINUX", default_value_t)]
    tree: Linux,
    /// Only the modules of kernel/configs/deb.modules: enough for a virtual machine.
    #[arg(long)]
    reduced: bool,
    /// A configuration of kernel/configs instead of Debian's: the smallest package, for --test.
    #[arg(long, value_name = "NAME", conflicts_with = "reduced")]
    config: Option<String>,
    /// Where the packages go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Install the image on a Debian in a virtual machine, boot it, and look for the kernel
    /// provider there.
    #[arg(long)]
    test: bool,
}

pub(crate) fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Build(BuildArgs { tree, arch, config, pristine }) => {
            let image = build(&Flavour { linux: tree, arch, config, patched: !pristine })?;
            say::result(image.display());
        }
        Verb::Export { tree, out } => {
            let dir = match out {
                Some(dir) => dir,
                None => crate::cache::target("kernel")?.join(format!("series-{tree}")),
            };
            let mails = export::write(tree, &dir)?;
            say::result(format_args!("{mails} patches in {}", dir.display()));
        }
        Verb::Deb(DebArgs { tree, reduced, config, out, test }) => {
            let kind = match config {
                Some(config) => deb::Kind::Small(config),
                None if reduced => deb::Kind::Reduced,
                None => deb::Kind::Debian,
            };
            let out = match out {
                Some(out) => out,
                None => crate::cache::target("kernel")?.join(format!("deb-{tree}")),
            };
            let made = deb::build(tree, &kind, &out)?;
            for package in &made.all {
                say::result(package.display());
            }
            if test {
                return deb::test(&made.image);
            }
        }
        Verb::Bench { tree, arguments } => {
            let flavour = Flavour {
                linux: tree,
                arch: Arch::X86_64,
                config: "default".to_owned(),
                patched: true,
            };
            let counts = hot_path::count()?;
            for (series, counts) in [("without", counts.without), ("with", counts.with)] {
                let counts: Vec<String> =
                    counts.iter().map(|(state, number)| format!("{state} {number}")).collect();
                say::result(format_args!(
                    "instructions under hugetlb_lock {series} the series: {}",
                    counts.join(", ")
                ));
            }
            if !bench::run(&flavour, &arguments)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Check { trees, only } => return check::run(&trees, &only),
        Verb::Tree { tree, dir } => edit::make_tree(tree, &dir)?,
        Verb::Import { tree, dir } => edit::import(tree, &dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Debian's unchanged source tree.
pub(crate) fn source_dir(linux: Linux) -> Result<PathBuf> {
    Ok(source::Source::get(linux)?.dir)
}
