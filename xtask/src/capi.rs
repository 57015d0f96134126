// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C library: `libprezero.so`, linked from the package `prezero`.
//!
//! rustc writes a version script of its own for every cdylib, and linkers take one anonymous script
//! or a named one, not both. So the library is linked here, from a static one, with the versions
//! that its programs shall see.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::{cache, command, kernel::Arch, package, say};

/// Raised when a program that was linked before would no longer work.
const SONAME: &str = "libprezero.so.0";

/// Every function of the header under one version; a function that comes later gets the next.
const VERSIONS: &str = "PREZERO_0 { global: prezero_*; local: *; };\n";

/// Links libprezero.so and puts it into a directory with its header and pkg-config file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Optimised, as it is shipped.
    #[arg(long)]
    release: bool,
    /// Where to; target/capi by default.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The prefix that the pkg-config file names.
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    prefix: PathBuf,
    /// The directory of the libraries, below the prefix, that the pkg-config file names.
    #[arg(long, value_name = "DIR", default_value = "lib/x86_64-linux-gnu")]
    libdir: PathBuf,
}

/// Links it as it is shipped for an architecture, as a package brings it, below `out`.
pub(crate) fn link(out: &Path, arch: Arch) -> Result<()> {
    let libdir = Path::new("lib").join(arch.libraries());
    let args = Args { release: true, out: Some(out.to_owned()), prefix: "/usr".into(), libdir };
    make(&args, Some(arch)).map(drop)
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    say::result(make(args, None)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the library's path. With an architecture it is built as all of a package is.
fn make(args: &Args, shipped: Option<Arch>) -> Result<PathBuf> {
    let root = &cache::repo();
    let out = args.out.clone().unwrap_or_else(|| root.join("target/capi"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let archive = archive(root, args.release, shipped)?;

    let script = out.join("versions.map");
    fs::write(&script, VERSIONS)?;
    let library = out.join(SONAME);
    let compiler = shipped.map_or("cc".to_owned(), |arch| format!("{}gcc", arch.prefix()));
    let mut link = command::new(root, &compiler, ["-shared", "-o"]);
    link.arg(&library)
        .args(shipped.map(|_| "-Wl,--strip-all"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(format!("-Wl,-soname,{SONAME},-z,defs,-z,relro,-z,now,--gc-sections"))
        // This program uses none of the archive's functions.
        .arg("-Wl,--whole-archive")
        .arg(&archive)
        .args(["-Wl,--no-whole-archive", "-lgcc_s", "-lm", "-lc"]);
    command::run(&mut link)?;
    let link_name = out.join("libprezero.so");
    if link_name.is_symlink() {
        fs::remove_file(&link_name)?;
    }
    std::os::unix::fs::symlink(SONAME, &link_name)?;
    fs::copy(root.join("crates/client/include/prezero.h"), out.join("prezero.h"))?;
    fs::write(out.join("prezero.pc"), pkg_config(args))?;
    fs::remove_file(&script)?;
    Ok(library)
}

/// Builds the package as a static library and returns where it is.
fn archive(root: &Path, release: bool, shipped: Option<Arch>) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut target = cache::target("")?;
    let mut build = Command::new(cargo);
    build
        .current_dir(root)
        .args(["rustc", "-q", "-p", "prezero", "--lib", "--features", "capi"])
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(&target);
    if release {
        build.arg("--release");
    }
    if let Some(arch) = shipped {
        package::as_shipped(&mut build, arch)?;
        target.push(arch.rust());
    }
    command::run(&mut build)?;
    Ok(target.join(if release { "release" } else { "debug" }).join("libprezero.a"))
}

fn pkg_config(args: &Args) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/{}\n\
         includedir=${{prefix}}/include\n\n\
         Name: prezero\n\
         Description: Huge pages that are zero before anyone asks\n\
         Version: {}\n\
         Libs: -L${{libdir}} -lprezero\n\
         Cflags: -I${{includedir}}\n",
        args.prefix.display(),
        args.libdir.display(),
        env!("CARGO_PKG_VERSION")
    )
}
