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

use crate::{command, say};

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

/// Links it as it is shipped, for a package.
pub(crate) fn link(out: &Path) -> Result<()> {
    let (prefix, libdir) = ("/usr".into(), "lib/x86_64-linux-gnu".into());
    run(&Args { release: true, out: Some(out.to_owned()), prefix, libdir }).map(drop)
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    let out = args.out.clone().unwrap_or_else(|| root.join("target/capi"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let archive = archive(root, args.release)?;

    let script = out.join("versions.map");
    fs::write(&script, VERSIONS)?;
    let library = out.join(SONAME);
    let mut link = command::new(root, "cc", ["-shared", "-o"]);
    link.arg(&library)
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(format!("-Wl,-soname,{SONAME},-z,defs,-z,relro,-z,now,--gc-sections"))
        // The archive's functions are needed by nobody here.
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
    say::result(library.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the package as a static library and returns where it is.
fn archive(root: &Path, release: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |target| root.join(target));
    let mut build = Command::new(cargo);
    build
        .current_dir(root)
        .args(["rustc", "-q", "-p", "prezero", "--lib", "--features", "capi"])
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(&target);
    if release {
        build.arg("--release");
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
