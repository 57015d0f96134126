// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What packages bring, built for an architecture: without symbols, and without a path of the
//! machine, so that the same commit gives the same bytes in every checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::sysroot;
use crate::{
    apt, cache, command,
    kernel::{Arch, Linux},
    vm::{self, Kernel},
};

/// A place of this machine, and its name in the packages.
#[derive(Clone, Debug)]
struct Place {
    here: PathBuf,
    shipped: &'static str,
}

/// All places with names that a compiler writes into its output.
fn places() -> Result<Vec<Place>> {
    let root = Path::new("/");
    let sysroot = command::stdout(&mut command::new(root, "rustc", ["--print", "sysroot"]))?;
    let mut all = vec![
        Place { here: cache::repo(), shipped: "/prezero" },
        Place { here: sysroot.trim().into(), shipped: "/rust" },
    ];
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let sources = cargo.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    // One directory a registry, named by a hash of its address.
    let mut registries = match fs::read_dir(&sources) {
        Ok(entries) => entries.map(|one| Ok(one?.path())).collect::<Result<Vec<_>>>()?,
        Err(_) => Vec::new(),
    };
    registries.sort();
    all.extend(registries.into_iter().map(|here| Place { here, shipped: "/registry" }));
    Ok(all)
}

/// Makes cargo build what a package brings for `arch`, beside the developers' own builds.
pub(crate) fn as_shipped(build: &mut Command, arch: Arch) -> Result<()> {
    let places = places()?;
    let map =
        |flag: &str, place: &Place| format!("{flag}={}={}", place.here.display(), place.shipped);
    let rust: Vec<_> = places.iter().map(|one| map("--remap-path-prefix", one)).collect();
    let mut c: Vec<_> = places.iter().map(|one| map("-ffile-prefix-map", one)).collect();
    let target = arch.rust().replace('-', "_");
    if arch != Arch::default() {
        sysroot::link(build, arch)?;
        let headers = sysroot::of(arch)?.join("usr/include");
        c.push(format!("-I{}", headers.display()));
        c.push(format!("-I{}", headers.join(arch.libraries()).display()));
    }
    arch.target(build)?;
    build
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
        .env(format!("CFLAGS_{target}"), c.join(" "))
        .args(["--config", "profile.release.debug=false"])
        .args(["--config", "profile.release.strip=\"symbols\""]);
    Ok(())
}

/// The programs and libraries of the packages.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) arch: Arch,
    dir: PathBuf,
}

impl Built {
    /// Builds all of them.
    pub(super) fn make(arch: Arch) -> Result<Self> {
        let mut make = command::new(&cache::repo(), "cargo", ["build", "--release"]);
        for package in ["prezero-cli", "prezero-lab", "prezero-preload"] {
            make.args(["--package", package]);
        }
        // Without the developers' parts of the benchmark.
        make.arg("--no-default-features");
        as_shipped(&mut make, arch)?;
        command::run(&mut make)?;
        Ok(Self { arch, dir: cache::target(arch.rust())?.join("release") })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A command that runs the program here, by emulation if it is another machine's.
    pub(super) fn command(&self, name: &str) -> Result<Command> {
        if self.arch == Arch::default() {
            return Ok(Command::new(self.path(name)));
        }
        apt::need(&["qemu-user-static"])?;
        let mut emulator = Command::new("qemu-aarch64-static");
        emulator.args(["-L", "/usr/aarch64-linux-gnu"]).arg(self.path(name));
        Ok(emulator)
    }
}

/// The kernel that a package is tried on.
pub(super) fn kernel() -> Result<PathBuf> {
    Ok(vm::image_of(&Kernel::Stock, Linux::default(), Arch::default())?.kernel)
}

/// Its release, by which Debian names it.
pub(super) fn release(kernel: &Path) -> Result<String> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let release = name.strip_prefix("vmlinuz-");
    release.map(str::to_owned).with_context(|| format!("{name} is not vmlinuz-RELEASE"))
}

/// Fails if a file names a place of this machine.
pub(super) fn names_no_build_path(file: &Path) -> Result<()> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    for place in places()? {
        names_not(&content, &place.here).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn names_not(content: &[u8], place: &Path) -> Result<()> {
    let name = place.as_os_str().as_encoded_bytes();
    match content.windows(name.len()).position(|window| window == name) {
        Some(at) => bail!("names {} of the machine that built it, at {at}", place.display()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P215 (years): What packages bring names no path of the machine that built it.
    #[test]
    fn shipped_files_name_no_path_of_the_build_machine() {
        assert!(names_not(b"\0/home/a/src/lib.rs\0", Path::new("/home/a")).is_err());
        assert!(names_not(b"\0/prezero/src/lib.rs\0", Path::new("/home/a")).is_ok());
        // Neither in Rust nor in C is a place left that is not told to the compiler.
        let mut build = Command::new("cargo");
        as_shipped(&mut build, Arch::default()).unwrap();
        let reported: Vec<_> = build
            .get_envs()
            .filter(|(key, _)| {
                let key = key.to_string_lossy();
                key == "CARGO_ENCODED_RUSTFLAGS" || key.starts_with("CFLAGS_")
            })
            .filter_map(|(_, value)| value?.to_str().map(str::to_owned))
            .collect();
        assert_eq!(reported.len(), 2);
        for place in places().unwrap() {
            let map = format!("={}={}", place.here.display(), place.shipped);
            assert!(
                reported.iter().all(|flags| flags.contains(&map)),
                "{map} is in not all of {reported:?}"
            );
        }
    }
}
