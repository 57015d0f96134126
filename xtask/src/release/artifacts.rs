// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each kind of file that a release publishes. The same commit gives the same bytes: every time in
//! a file is the commit's, and no path of the machine is left.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use crate::{cache, command, image, kernel::Arch, package, say};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The versions that the output was looked at with.
const MATURIN: &str = "1.9.6";
const CYCLONEDX: &str = "0.5.9";

/// A kind of file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Kind {
    /// The committed files.
    Source,
    /// The book, to be read in a browser.
    Book,
    /// The chart for Kubernetes.
    Chart,
    /// The image of the driver for Kubernetes.
    Image,
    /// What is linked into the programs: a bill of materials.
    Sbom,
    /// Debian's packages for x86-64, with the module's sources.
    Deb,
    /// The RPM packages for x86-64, with the module's sources.
    Rpm,
    /// Debian's packages for arm64.
    DebArm64,
    /// The RPM packages for arm64.
    RpmArm64,
    /// The Python module.
    Wheel,
    /// A program that needs no library, with its manual pages.
    Static,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().ok_or(fmt::Error)?;
        f.pad(value.get_name())
    }
}

impl Kind {
    /// All of them, the cheap ones first.
    pub(super) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    /// Builds it into `out`.
    pub(super) fn build(self, out: &Path) -> Result<()> {
        match self {
            Self::Source => source(out),
            Self::Book => pack(&package::book()?, &format!("prezero-{VERSION}-book"), out),
            Self::Chart => chart(out),
            Self::Image => copy(&image::driver()?, out),
            Self::Sbom => sbom(out),
            Self::Deb => copy_all(&package::debs(Arch::X86_64)?, out),
            Self::Rpm => copy_all(&package::rpms(Arch::X86_64)?, out),
            Self::DebArm64 => copy_all(&package::debs(Arch::Arm64)?, out),
            Self::RpmArm64 => copy_all(&package::rpms(Arch::Arm64)?, out),
            Self::Wheel => wheel(out),
            Self::Static => static_program(out),
        }
    }
}

fn copy(from: &Path, out: &Path) -> Result<()> {
    let name = from.file_name().context("a file has a name")?;
    fs::copy(from, out.join(name)).with_context(|| format!("no {}", from.display()))?;
    Ok(())
}

/// Copies files; packages for every architecture come with each of them, and are the same.
fn copy_all(files: &[PathBuf], out: &Path) -> Result<()> {
    files.iter().try_for_each(|file| copy(file, out))
}

/// Packs what is below `dir` as `NAME.tar.gz` with everything below NAME in it.
fn pack(dir: &Path, name: &str, out: &Path) -> Result<()> {
    pack_as(dir, name, &out.join(format!("{name}.tar.gz")))
}

fn pack_as(dir: &Path, top: &str, to: &Path) -> Result<()> {
    let line = "tar --sort=name --mtime=@\"$TIME\" --owner=0 --group=0 --numeric-owner \
                --mode=go=rX,u+rw,a-s --format=gnu --transform=\"s,^\\.,$TOP,\" -cf - . \
                | gzip -9n > \"$TO\"";
    let mut tar = command::new(dir, "bash", ["-o", "pipefail", "-c", line]);
    tar.env("TIME", package::time()?.to_string()).env("TOP", top).env("TO", to);
    command::run(&mut tar)
}

fn source(out: &Path) -> Result<()> {
    let name = format!("prezero-{VERSION}");
    let line = "git archive --format=tar --prefix=\"$TOP/\" HEAD | gzip -9n > \"$TO\"";
    let mut archive = command::new(&cache::repo(), "bash", ["-o", "pipefail", "-c", line]);
    archive.env("TOP", &name).env("TO", out.join(format!("{name}.tar.gz")));
    command::run(&mut archive)
}

/// A chart's package is an archive of its directory.
fn chart(out: &Path) -> Result<()> {
    let to = out.join(format!("prezero-{VERSION}.tgz"));
    pack_as(&cache::repo().join("kubernetes/chart"), "prezero", &to)
}

/// In `CycloneDX` form, of the programs and the libraries.
fn sbom(out: &Path) -> Result<()> {
    let tools = cache::shared("tools")?;
    let program = tools.join("bin/cargo-cyclonedx");
    if !program.exists() {
        say::step(format_args!("installing cargo-cyclonedx {CYCLONEDX}"));
        let words = ["install", "cargo-cyclonedx", "--locked", "--version", CYCLONEDX, "--root"];
        command::run(command::new(Path::new("/"), "cargo", words).arg(&tools))?;
    }
    let repo = cache::repo();
    let time = package::time()?.to_string();
    for (package, name) in
        [("cli", "prezero"), ("lab", "prezero-lab"), ("client", "libprezero"), ("python", "wheel")]
    {
        let file = format!("prezero-{VERSION}-{name}.cdx");
        let mut list = command::new(&repo, &program.display().to_string(), ["cyclonedx"]);
        list.args(["--format", "json", "--spec-version", "1.5"])
            .args(["--target", Arch::X86_64.rust(), "--override-filename", &file])
            .arg("--manifest-path")
            .arg(repo.join("crates").join(package).join("Cargo.toml"))
            .env("SOURCE_DATE_EPOCH", &time);
        command::run(&mut list)?;
        let made = repo.join("crates").join(package).join(format!("{file}.json"));
        let text = fs::read_to_string(&made).with_context(|| format!("no {}", made.display()))?;
        // It names the checkout.
        let text = text.replace(&repo.display().to_string(), "/prezero");
        fs::write(out.join(format!("{file}.json")), text)?;
    }
    // One more lies beside each other package of the workspace.
    let line = "find crates tests xtask -name '*.cdx.json' -delete";
    command::run(&mut command::new(&repo, "sh", ["-c", line]))
}

fn wheel(out: &Path) -> Result<()> {
    let repo = cache::repo();
    let tools = cache::target("release-tools")?.join(format!("maturin-{MATURIN}"));
    if !tools.join("bin/maturin").exists() {
        command::run(command::new(&repo, "python3", ["-m", "venv"]).arg(&tools))?;
        let pip = tools.join("bin/pip").display().to_string();
        let words = ["install", "--quiet", "--disable-pip-version-check"];
        command::run(command::new(&repo, &pip, words).arg(format!("maturin=={MATURIN}")))?;
    }
    let maturin = tools.join("bin/maturin").display().to_string();
    let words = ["build", "--release", "--manifest-path", "crates/python/Cargo.toml", "--out"];
    let mut build = command::new(&repo, &maturin, words);
    build.arg(out).env("SOURCE_DATE_EPOCH", package::time()?.to_string());
    package::as_shipped(&mut build, Arch::X86_64)?;
    command::run(&mut build)
}

/// Linked with the C library inside. The shim is a library by nature, and is left to the packages.
fn static_program(out: &Path) -> Result<()> {
    let mut make = command::new(&cache::repo(), "cargo", ["build", "--release"]);
    make.args(["--package", "prezero-cli", "--no-default-features"]);
    package::as_shipped(&mut make, Arch::X86_64)?;
    let flags = make
        .get_envs()
        .find(|(name, _)| *name == "CARGO_ENCODED_RUSTFLAGS")
        .and_then(|(_, flags)| Some(flags?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    let target = cache::target("static")?;
    make.env("CARGO_ENCODED_RUSTFLAGS", format!("{flags}\x1f-Ctarget-feature=+crt-static"))
        .env("CARGO_TARGET_DIR", &target);
    command::run(&mut make)?;
    let program = target.join(Arch::X86_64.rust()).join("release/prezero");
    let words = ["--program-headers", "--wide"];
    let headers = command::stdout(command::new(Path::new("/"), "readelf", words).arg(&program))?;
    ensure!(!headers.contains("INTERP"), "{} asks for a loader", program.display());
    let documents = cache::target("static-documents")?;
    package::write_documents(&documents, || Ok(Command::new(&program)))?;
    let name = format!("prezero-{VERSION}-x86_64-linux");
    let tree = cache::target("static-tree")?;
    fs::remove_dir_all(&tree)?;
    let repo = cache::repo();
    for (from, to) in [
        (program.clone(), "bin/prezero"),
        (documents.join("man"), "share/man/man1"),
        (documents.join("completions"), "share/completions"),
        (repo.join("dist/systemd"), "share/systemd"),
        (repo.join("dist/etc/prezero.toml"), "etc/prezero.toml"),
        (repo.join("dist/man/prezero.toml.5"), "share/man/man5/prezero.toml.5"),
        (repo.join("README.md"), "README.md"),
        (repo.join("LICENSE-APACHE"), "LICENSE-APACHE"),
        (repo.join("LICENSE-MIT"), "LICENSE-MIT"),
    ] {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("a directory")?)?;
        let copy = command::new(&repo, "cp", ["-R"]).arg(&from).arg(&to).status()?;
        ensure!(copy.success(), "cannot copy {}", from.display());
    }
    pack(&tree, &name, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_of_equal_trees_are_equal_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let made = |nth: &str, mode: &str| {
            let tree = dir.path().join(nth);
            fs::create_dir_all(tree.join("b")).unwrap();
            for name in ["z", "b/a"] {
                fs::write(tree.join(name), name).unwrap();
            }
            command::run(&mut command::new(&tree, "chmod", [mode, "z"])).unwrap();
            let to = dir.path().join(format!("{nth}.tar.gz"));
            pack_as(&tree, "top", &to).unwrap();
            (fs::read(&to).unwrap(), to)
        };
        let ((one, at), (other, _)) = (made("one", "600"), made("other", "644"));
        assert_eq!(one, other);
        let list = command::stdout(command::new(dir.path(), "tar", ["-tf"]).arg(&at)).unwrap();
        assert_eq!(list, "top/\ntop/b/\ntop/b/a\ntop/z\n");
    }
}
