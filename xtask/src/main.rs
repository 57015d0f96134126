// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Repository automation: `cargo xtask kernel ...` builds, exports and checks the kernel series;
//! `cargo xtask vm ...` runs tests under QEMU; `cargo xtask package ...` builds and tests the
//! Debian packages; `cargo xtask cluster` runs the driver for Kubernetes under a real one; `cargo
//! xtask perf` compares a benchmark's report with its goals; `cargo xtask soak` stresses a daemon
//! for hours.
//!
//! Everything here drives other programs (apt, git, make, QEMU) as processes. Missing programs are
//! installed by name as root; otherwise the one command that installs them is printed.

mod apt;
mod cache;
mod capi;
mod cluster;
mod command;
mod image;
mod kernel;
mod package;
mod perf;
mod release;
mod say;
mod soak;
mod stock;
mod tap;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about, version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build, export, check and edit the kernel series.
    #[command(subcommand)]
    Kernel(kernel::Verb),
    /// Run the driver for Kubernetes under a real one, in namespaces of this machine.
    Cluster(cluster::Args),
    #[command(hide = true)]
    ClusterInside(cluster::InsideArgs),
    /// Compile prezero.ko for one of Debian's own kernels and print its path.
    Module(stock::ModuleArgs),
    /// Write the image of the driver for Kubernetes, an archive, and print its path.
    Image(image::Args),
    /// Link libprezero.so, the C library.
    Capi(capi::Args),
    /// Build the Debian package, and test it on a machine of its own.
    #[command(subcommand)]
    Package(package::Verb),
    /// Write the manual pages and completions that packages install.
    Man,
    /// Hold a report of `prezero bench --json` against tests/perf.toml.
    Perf(perf::Args),
    /// Build everything that a release publishes, twice, compare both, and tag the commit.
    Release(release::Args),
    /// Build what a release publishes, once, in this checkout.
    Artifacts(release::ArtifactsArgs),
    /// Let everything happen to a daemon for hours, and see that nothing is lost and nothing grows.
    Soak(soak::Args),
    /// Run tests in virtual machines.
    #[command(subcommand)]
    Vm(vm::Verb),
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Kernel(verb) => kernel::run(verb),
        Verb::Cluster(args) => cluster::run(&args),
        Verb::ClusterInside(args) => cluster::run_inside(&args),
        Verb::Module(args) => stock::run(&args),
        Verb::Image(args) => image::run(&args),
        Verb::Capi(args) => capi::run(&args),
        Verb::Package(verb) => package::run(&verb),
        Verb::Man => package::documents().map(|to| {
            say::result(to.display());
            ExitCode::SUCCESS
        }),
        Verb::Perf(args) => perf::run(&args),
        Verb::Release(args) => release::run(&args),
        Verb::Artifacts(args) => release::build(&args),
        Verb::Soak(args) => soak::run(&args),
        Verb::Vm(verb) => vm::run(verb),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            say::error(&error);
            ExitCode::FAILURE
        }
    }
}
