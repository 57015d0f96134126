// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask image`: the image of the driver for Kubernetes, as an archive.
//!
//! `go build` makes one static program, and `kubernetes/image`, a Go program over the library that
//! crane is made of, makes the image. Neither needs docker or a registry.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args as Arguments;

use crate::{cache, command, say};

/// The name that the chart asks for: a cluster without a registry finds it imported.
pub(crate) const DRIVER: &str = concat!("localhost/prezero-dra:", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Arguments)]
pub(crate) struct Args {
    /// Another architecture than this machine's, as Go calls it.
    #[arg(long, value_parser = ["amd64", "arm64"])]
    arch: Option<String>,
}

/// Builds the driver and prints the path of its image. Its bill of materials is beside it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Some(arch) = &args.arch else {
        say::result(driver()?.display());
        return Ok(ExitCode::SUCCESS);
    };
    let to = format!(concat!("prezero-dra_", env!("CARGO_PKG_VERSION"), "_{}.tar"), arch);
    let made = build(".", "prezero-dra", DRIVER, &to, Some(arch))?;
    say::result(made.display());
    Ok(ExitCode::SUCCESS)
}

/// The driver's image: `target/image/prezero-dra_VERSION.tar`.
pub(crate) fn driver() -> Result<PathBuf> {
    let to = concat!("prezero-dra_", env!("CARGO_PKG_VERSION"), ".tar");
    of_go(".", "prezero-dra", DRIVER, to)
}

/// The image `name` of a program of `kubernetes/`, written below `target/image`.
pub(crate) fn of_go(package: &str, program: &str, name: &str, to: &str) -> Result<PathBuf> {
    build(package, program, name, to, None)
}

/// The same for an architecture, each in a directory of its own.
fn build(
    package: &str,
    program: &str,
    name: &str,
    to: &str,
    arch: Option<&str>,
) -> Result<PathBuf> {
    let dir = cache::target("image")?;
    let of_arch = cache::target(&format!("image/{}", arch.unwrap_or_default()))?;
    let binary = of_arch.join(program);
    // Static, and without what differs between two machines' builds of it.
    let mut make = command::new(
        &cache::repo().join("kubernetes"),
        "go",
        ["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o"],
    );
    make.envs(arch.map(|arch| ("GOARCH", arch)));
    command::run(make.arg(&binary).arg(package).env("CGO_ENABLED", "0"))
        .context("cannot build with Go 1.26; see https://go.dev/doc/install")?;
    let to = dir.join(to);
    let mut image = command::new(&cache::repo().join("kubernetes/image"), "go", ["run", "."]);
    command::run(image.arg(&binary).arg(name).arg(&to))
        .context("cannot make the image: its modules come from the Go proxy the first time")?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_chart_asks_for_the_image_that_is_written() {
        let chart = cache::repo().join("kubernetes/chart");
        let read = |name: &str| fs::read_to_string(chart.join(name)).unwrap();
        let (name, version) = DRIVER.split_once(':').unwrap();
        assert!(read("values.yaml").contains(&format!("\n  name: {name}\n")));
        assert!(read("Chart.yaml").contains(&format!("\nappVersion: {version}\n")));
    }
}
