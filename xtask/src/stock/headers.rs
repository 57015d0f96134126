// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a module is compiled against: Debian's headers of the release, with a compiler that they
//! take.
//!
//! The system's own kernels are compiled with the system's compiler. A newer Debian's needs that
//! one's compiler and C library: they are unpacked with the headers into a root of their own, and
//! `make` runs there.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use super::packages::{Packages, unpack};
use crate::{apt, cache, command, kernel::Arch, say};

/// Headers, unpacked.
#[derive(Debug)]
pub(super) struct Headers {
    /// Of the kernel; where the packages of the tools are, too, it is a whole root.
    root: PathBuf,
    /// The build directory by its path in the root.
    build: PathBuf,
    /// `make` has to run inside the root.
    is_of_other_suite: bool,
    arch: Arch,
}

impl Headers {
    pub(super) fn find(packages: &Packages) -> Result<Self> {
        let name = format!("linux-headers-{}", packages.release);
        let build = Path::new("usr/src").join(&name);
        let is_of_other_suite = packages.is_newer();
        // This system's, of the same version: what is there for all, and the tools of this host.
        let here = name.replace(packages.arch.debian(), Arch::default().debian());
        if packages.arch != Arch::default() {
            apt::need(&["make"])?;
            packages.arch.need_compiler()?;
        } else if !is_of_other_suite {
            // Older ones name a package that depends on it.
            let compiler = apt::dependency(&name, "gcc-")
                .or_else(|_| apt::dependency(&name, "linux-compiler-gcc-"))?;
            apt::need(&["make", &compiler])?;
        }
        let root = packages.unpacked("headers", |packages, root| match &packages.suite {
            Some(suite) if is_of_other_suite => {
                // The links of /, a shell, and what kbuild calls.
                let with = [
                    "base-files",
                    "binutils",
                    "make",
                    "dash",
                    "coreutils",
                    "sed",
                    "grep",
                    "gawk",
                    "findutils",
                ];
                say::step(format_args!("downloading {name} and its compiler"));
                let debs = tempfile::tempdir()?;
                for deb in
                    suite.download_all(&[&[name.as_str()], &with[..]].concat(), debs.path())?
                {
                    unpack(&deb, root)?;
                }
                // Installing it would make this link.
                symlink("gawk", root.join("usr/bin/awk"))?;
                for at in ["dev", "proc"] {
                    fs::create_dir_all(root.join(at))?;
                }
                Ok(())
            }
            _ => {
                packages.read_list()?;
                packages.unpack(&name, root)?;
                for prefix in ["linux-headers-", "linux-kbuild-"] {
                    let deb = tempfile::tempdir()?;
                    let package = apt::dependency(&here, prefix)?;
                    say::step(format_args!("downloading {package}"));
                    unpack(&apt::download(&package, deb.path())?, root)?;
                }
                Ok(())
            }
        })?;
        if !is_of_other_suite {
            relocate(&root.join(&build).join("Makefile"), &root)?;
        }
        Ok(Self { root, build, is_of_other_suite, arch: packages.arch })
    }

    /// A directory that `make` can be told to build in.
    pub(super) fn scratch(&self) -> Result<tempfile::TempDir> {
        let dir =
            if self.is_of_other_suite { self.root.join("tmp") } else { cache::target("module")? };
        fs::create_dir_all(&dir)?;
        Ok(tempfile::tempdir_in(dir)?)
    }

    /// `make KDIR=...` in `dir`, which is below a [`scratch`](Self::scratch).
    pub(super) fn make(&self, dir: &Path) -> Result<Command> {
        if !self.is_of_other_suite {
            let kdir = format!("KDIR={}", self.root.join(&self.build).display());
            let mut make = command::new(dir, "make", ["-s", &kdir]);
            if self.arch != Arch::default() {
                let prefix = format!("CROSS_COMPILE={}", self.arch.prefix());
                make.args([format!("ARCH={}", self.arch.name()), prefix]);
            }
            return Ok(make);
        }
        let inside = dir.strip_prefix(&self.root).context("it is built outside of its root")?;
        // Devices and processes are the host's; the root has none.
        let script = "mount --rbind /dev dev && mount --rbind /proc proc && exec chroot . make -s -C \"$0\" \"KDIR=/$1\"";
        let mut make = command::new(&self.root, "unshare", ["--mount"]);
        if !rustix::process::geteuid().is_root() {
            make.arg("--map-root-user");
        }
        make.args(["sh", "-c", script]).arg(Path::new("/").join(inside)).arg(&self.build);
        make.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        Ok(make)
    }
}

/// Has the build directory's Makefile name the other packages where they were unpacked.
fn relocate(makefile: &Path, root: &Path) -> Result<()> {
    let text = fs::read_to_string(makefile)?;
    let moved = relocated(&text, root);
    if moved != text {
        fs::write(makefile, moved)?;
    }
    Ok(())
}

fn relocated(makefile: &str, root: &Path) -> String {
    makefile.replace("include /usr/src/", &format!("include {}/usr/src/", root.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::relocated;

    #[test]
    fn the_makefile_names_the_other_packages_where_they_are() {
        let root = Path::new("/c");
        let once = relocated("include /usr/src/linux-headers-6.1-common/Makefile\n", root);
        assert_eq!(once, "include /c/usr/src/linux-headers-6.1-common/Makefile\n");
        assert_eq!(relocated(&once, root), once);
    }
}
