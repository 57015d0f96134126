// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask kernel deb`: Debian's own cloud kernel with the series, as packages to install.
//!
//! The configuration is that of Debian's `linux-image-cloud-amd64`, from its package, and
//! `configs/deb.config` over it; the packages are made by the kernel's own `bindeb-pkg`. With
//! `--reduced` only the modules of `configs/deb.modules` are built: enough for a virtual machine,
//! in a fraction of the time.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use super::{
    arch::Arch,
    build::{Base, Flavour, Tree, fragments},
    linux::{self, Linux},
    series::Series,
    source::Source,
};
use crate::{apt, command, package, say};

/// What `bindeb-pkg` needs besides a kernel build.
const TOOLS: [&str; 6] = ["cpio", "debhelper", "dpkg-dev", "kmod", "python3", "rsync"];

/// What the release is called after the kernel's own.
const LOCALVERSION: &str = "-prezero";

/// Which kernel is packaged.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Debian's cloud kernel.
    Debian,
    /// The same with the modules of `configs/deb.modules`.
    Reduced,
    /// What virtual machines of `xtask vm` boot, by the name of its configuration: no modules.
    Small(String),
}

/// The packages that were made.
#[derive(Debug)]
pub(crate) struct Packages {
    pub(crate) image: PathBuf,
    /// With the image.
    pub(crate) all: Vec<PathBuf>,
}

/// Builds the packages into `out`.
pub(crate) fn build(linux: Linux, kind: &Kind, out: &Path) -> Result<Packages> {
    apt::need(&TOOLS)?;
    let began = Instant::now();
    let source = Source::get(linux)?;
    let tree = configured(&source, kind)?;
    say::step(format_args!("building packages of {source}; with every module that takes hours"));
    // Where kbuild leaves them: beside the tree.
    let beside = tree.dir.parent().context("a tree has a parent")?.to_path_buf();
    // Of a build that was interrupted: the same names would not look new.
    for old in debs(&beside)? {
        fs::remove_file(old)?;
    }
    let version = format!("{}+prezero1", source.version);
    let mut make = tree.make_command(&["bindeb-pkg"]);
    // The tools are there, and their versions are kbuild's to check, not dpkg's.
    make.arg(format!("KDEB_PKGVERSION={version}")).arg("DPKG_FLAGS=-d");
    make.arg(format!("LOCALVERSION={LOCALVERSION}"));
    command::run(quiet(&mut make))?;

    fs::create_dir_all(out)?;
    let mut all = Vec::new();
    for deb in debs(&beside)? {
        let to = out.join(deb.file_name().unwrap_or_default());
        fs::rename(&deb, &to)?;
        all.push(to);
    }
    let is_image = |deb: &&PathBuf| {
        let name = deb.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("linux-image-") && !name.contains("-dbg")
    };
    let image = all.iter().find(is_image).cloned().context("bindeb-pkg made no linux-image-*")?;
    say::step(format_args!("built in {} s", began.elapsed().as_secs()));
    Ok(Packages { image, all })
}

/// A build tree with the series and the configuration.
fn configured(source: &Source, kind: &Kind) -> Result<Tree> {
    let linux = source.linux;
    let files = Series::read(linux)?.result(source)?;
    if let Kind::Small(config) = kind {
        let (config, arch) = (config.clone(), Arch::default());
        let flavour = Flavour { linux, arch, config, patched: true };
        let tree = Tree::prepare(source, &flavour.to_string(), &files)?;
        tree.configure(Base::Target("tinyconfig"), &fragments(&flavour)?.concat())?;
        return Ok(tree);
    }
    let mut config = debian_config(linux)?;
    if matches!(kind, Kind::Reduced) {
        config = without_modules(&config, &kept_modules()?);
    }
    let name = if matches!(kind, Kind::Reduced) { "deb-reduced" } else { "deb" };
    let tree = Tree::prepare(source, name, &files)?;
    let fragment = fs::read_to_string(linux::home().join("configs/deb.config"))?;
    tree.configure(Base::Config(&config), &fragment)?;
    Ok(tree)
}

fn quiet(make: &mut Command) -> &mut Command {
    // The one who makes the packages, in their changelog.
    make.env("DEBFULLNAME", "prezero").env("DEBEMAIL", "prezero@localhost")
}

fn debs(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut debs = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            debs.insert(path);
        }
    }
    Ok(debs)
}

/// The configuration of Debian's own kernel for cloud machines.
fn debian_config(linux: Linux) -> Result<String> {
    let package = format!("linux-config-{linux}");
    let scratch = tempfile::tempdir()?;
    let deb = match linux.suite() {
        None => apt::download(&package, scratch.path())?,
        Some(suite) => {
            let suite = apt::Suite::open(suite)?;
            suite.update()?;
            suite.download(&package, scratch.path())?
        }
    };
    let mut unpack = command::new(scratch.path(), "dpkg-deb", ["-x"]);
    command::run(unpack.arg(&deb).arg(scratch.path().join("root")))?;
    let file = format!("root/usr/src/{package}/config.amd64_none_cloud-amd64.xz");
    command::stdout(command::new(scratch.path(), "xz", ["-dc"]).arg(scratch.path().join(file)))
}

/// The symbols of `configs/deb.modules`.
fn kept_modules() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(linux::home().join("configs/deb.modules"))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(str::split_whitespace).map(str::to_owned).collect())
}

/// The configuration without any module but those.
fn without_modules(config: &str, kept: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for line in config.lines() {
        let module = line.strip_suffix("=m").and_then(|line| line.strip_prefix("CONFIG_"));
        match module.filter(|name| !kept.contains(*name)) {
            Some(name) => text += &format!("# CONFIG_{name} is not set\n"),
            None => text += &format!("{line}\n"),
        }
    }
    text
}

/// Boots the image on a Debian with systemd, installs the package there, and asks the daemon which
/// provider it has found.
pub(crate) fn test(image: &Path) -> Result<ExitCode> {
    let scratch = tempfile::tempdir()?;
    let kernel = unpack(image, scratch.path())?;
    package::boot_kernel(&kernel, image)
}

/// The image in a package, unpacked below `dir`: the kernel, and the root of what belongs to it.
pub(crate) fn unpack(package: &Path, dir: &Path) -> Result<PathBuf> {
    command::run(command::new(dir, "dpkg-deb", ["-x"]).arg(package).arg(dir))?;
    for entry in fs::read_dir(dir.join("boot"))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")) {
            return Ok(path);
        }
    }
    bail!("{} holds no boot/vmlinuz-*", package.display())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{kept_modules, without_modules};

    #[test]
    fn reduced_configuration_keeps_built_in_options() {
        let kept = BTreeSet::from(["B".to_owned()]);
        let config = "CONFIG_A=m\nCONFIG_B=m\nCONFIG_C=y\n# CONFIG_D is not set\nCONFIG_E=\"m\"\n";
        let reduced = "# CONFIG_A is not set\nCONFIG_B=m\nCONFIG_C=y\n\
                       # CONFIG_D is not set\nCONFIG_E=\"m\"\n";
        assert_eq!(without_modules(config, &kept), reduced);
    }

    #[test]
    fn a_virtual_machine_finds_its_disk() {
        let kept = kept_modules().unwrap();
        for name in ["VIRTIO_BLK", "EXT4_FS", "FUSE_FS"] {
            assert!(kept.contains(name), "{name}");
        }
    }
}
