// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the programs that VMs run: compiles C, asks cargo, finds the rest.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::{
    machine::Made,
    table::{Origin, Program},
};
use crate::{
    apt, cache, command,
    kernel::{self, Arch, Linux, Overlay},
    package, say,
};

/// Where programs are made, and the init.
#[derive(Debug)]
pub(crate) struct Builder {
    bin: PathBuf,
    cargo: BTreeMap<(Arch, String), Vec<Executable>>,
}

/// A program that cargo built.
#[derive(Clone, Debug)]
struct Executable {
    name: String,
    path: PathBuf,
    /// Where its package lies: tests run there.
    dir: PathBuf,
    is_test: bool,
}

/// Where the series has its selftests, in the kernel's tree.
const SELFTESTS: &str = "tools/testing/selftests/mm";

/// Where the guest has dynamic C programs; tests find them by a variable (`tests/src/c.rs`).
const DYNAMIC: &str = "/programs";

/// How a C program is linked: statically, since the guest has no libraries of its own, or
/// dynamically, as a program must be that a library is loaded before.
#[derive(Clone, Copy, Debug)]
enum Link {
    /// For x86-64 or i386.
    Static {
        bits: u32,
    },
    Dynamic,
    /// Statically, to another C library.
    Musl,
    /// To none, for a machine without a kernel, as QEMU loads it.
    Connected,
}

impl Builder {
    pub(crate) fn open() -> Result<Self> {
        Arch::X86_64.need_compiler()?;
        Ok(Self { bin: cache::target("vm/bin")?, cargo: BTreeMap::new() })
    }

    /// Builds the guest's PID 1, statically linked.
    pub(crate) fn init(&self, arch: Arch) -> Result<PathBuf> {
        let dir = cache::target("vm/cargo")?;
        let mut build = command::new(&cache::repo(), "cargo", ["build", "--quiet"]);
        build.args(["--package", "vm-guest", "--bin", "vm-init"]);
        command::run(for_guest(&mut build, arch)?)?;
        Ok(dir.join(arch.rust()).join("debug/vm-init"))
    }

    /// Makes what a line of the table names: one program, or several for the
    /// tests of a package.
    pub(crate) fn make(
        &mut self,
        program: &Program,
        linux: Linux,
        arch: Arch,
    ) -> Result<Vec<Made>> {
        let one = |name: &str, at: String, host: PathBuf| -> Vec<Made> {
            let mut argv = vec![at.clone()];
            argv.extend(program.args.iter().cloned());
            vec![made(program, name, argv, BTreeMap::from([(PathBuf::from(at), host)]))]
        };
        // What goes with a program is built as it is.
        let bits = if matches!(program.origin, Origin::C32(_)) { 32 } else { 64 };
        let mut all = match &program.origin {
            Origin::C(name) | Origin::C32(name) => {
                let host = self.compile(linux, arch, name, Link::Static { bits })?;
                // Both may be in one machine.
                let name = if bits == 32 { format!("{name}-32") } else { name.clone() };
                one(&with_args(&name, program), format!("/bin/{name}"), host)
            }
            Origin::Selftest(name) => {
                if arch != Arch::default() {
                    bail!("selftest:{name}: the kernel's own selftests are built for this host");
                }
                let host = kernel::selftest(linux, name)?;
                one(&with_args(name, program), format!("/selftests/{name}"), host)
            }
            Origin::Kunit(suite) => {
                let results = format!("/sys/kernel/debug/kunit/{suite}/results");
                let argv = vec!["/bin/cat".to_owned(), results];
                vec![made(program, &format!("kunit {suite}"), argv, BTreeMap::new())]
            }
            Origin::Shell(line) => {
                let argv = ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
                let mut binaries = BTreeMap::new();
                for package in &program.binaries {
                    for executable in self.cargo(arch, package)?.iter().filter(|one| !one.is_test) {
                        let at = Path::new("/bin").join(&executable.name);
                        binaries.insert(at, executable.path.clone());
                    }
                }
                vec![made(program, line, argv, binaries)]
            }
            Origin::Host(path) => {
                let host = fs::canonicalize(path).with_context(|| format!("no program {path}"))?;
                one(path, host.to_string_lossy().into_owned(), host)
            }
            Origin::CargoTests(package) => self.tests_of(arch, package, program)?,
        };
        let Some(first) = all.first_mut() else { return Ok(all) };
        for other in &program.with {
            let (at, host) = match other.split_once(':') {
                None => (other.clone(), self.compile(linux, arch, other, Link::Static { bits })?),
                Some(("musl", name)) => {
                    (format!("{name}-musl"), self.compile(linux, arch, name, Link::Musl)?)
                }
                Some(("guest", name)) => {
                    (name.to_owned(), self.compile(linux, arch, name, Link::Connected)?)
                }
                Some(("go", name)) => (format!("{name}-go"), self.compile_go(name)?),
                Some(_) => bail!("`{other}` is neither NAME nor musl:, guest: or go:NAME"),
            };
            first.programs.insert(Path::new("/bin").join(at), host);
        }
        for other in &program.dynamic {
            let host = self.compile(linux, arch, other, Link::Dynamic)?;
            first.programs.insert(Path::new(DYNAMIC).join(other), host);
            first.program.env.insert("PREZERO_TEST_PROGRAMS".to_owned(), DYNAMIC.to_owned());
        }
        Ok(all)
    }

    /// A program from one C file.
    fn compile(&self, linux: Linux, arch: Arch, name: &str, link: Link) -> Result<PathBuf> {
        arch.need_compiler()?;
        let repo = cache::repo();
        let source = find_c(linux, name)?;
        let mut program = self.bin.join(format!("{name}-{linux}-{arch}"));
        let gcc = match link {
            Link::Musl => {
                apt::need(&["musl-tools"])?;
                "musl-gcc".to_owned()
            }
            _ => format!("{}gcc", arch.prefix()),
        };
        let mut gcc = command::new(&repo, &gcc, ["-std=gnu11", "-O2", "-g", "-pthread"]);
        match link {
            Link::Musl => {
                program.as_mut_os_string().push("-musl");
                gcc.arg("-static");
            }
            Link::Connected => {
                gcc.args(["-m32", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie"]);
                gcc.arg("-Wl,-Ttext=0x100000,--build-id=none");
            }
            Link::Static { bits: 32 } => {
                apt::need(&["gcc-multilib"])?;
                program.as_mut_os_string().push("-32");
                gcc.args(["-static", "-m32", "-D_FILE_OFFSET_BITS=64"]);
            }
            Link::Static { .. } => {
                gcc.arg("-static");
            }
            Link::Dynamic => program.as_mut_os_string().push("-dynamic"),
        }
        gcc.args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I"])
            .arg(repo.join("kernel/uapi"))
            .arg("-I")
            // "../kselftest.h" of the kernel's own tree
            .arg(kernel::source_dir(linux)?.join(SELFTESTS))
            .arg(&source)
            .arg("-o")
            .arg(&program);
        command::run(&mut gcc)?;
        Ok(program)
    }

    /// A program from one file of Go, which needs no library.
    fn compile_go(&self, name: &str) -> Result<PathBuf> {
        let program = self.bin.join(format!("{name}-go"));
        let mut go = command::new(&cache::repo(), "go", ["build", "-trimpath", "-o"]);
        go.arg(&program).arg(format!("tests/vm/programs/{name}.go")).env("CGO_ENABLED", "0");
        command::run(&mut go)
            .context("cannot build with Go 1.26; see https://go.dev/doc/install")?;
        Ok(program)
    }

    /// The test programs of `PACKAGE` or `PACKAGE/TARGET`, each beside the
    /// binaries that it starts.
    fn tests_of(&mut self, arch: Arch, what: &str, program: &Program) -> Result<Vec<Made>> {
        let (package, target) = match what.split_once('/') {
            Some((package, target)) => (package, Some(target)),
            None => (what, None),
        };
        // Tests find binaries at the path where cargo built them.
        let mut binaries = BTreeMap::new();
        for other in program.binaries.iter().map(String::as_str).chain([package]) {
            for executable in self.cargo(arch, other)?.iter().filter(|one| !one.is_test) {
                binaries.insert(executable.path.clone(), executable.path.clone());
            }
        }
        let mut all = Vec::new();
        for test in self.cargo(arch, package)?.iter().filter(|one| one.is_test) {
            if target.is_some_and(|target| target != test.name) {
                continue;
            }
            let mut argv = vec![test.path.to_string_lossy().into_owned()];
            argv.extend(program.args.iter().cloned());
            let mut programs = binaries.clone();
            programs.insert(test.path.clone(), test.path.clone());
            let mut made = made(program, &format!("{package}/{}", test.name), argv, programs);
            made.program.dir = test.dir.to_string_lossy().into_owned();
            all.push(made);
        }
        if all.is_empty() {
            bail!("cargo builds no tests for {what}");
        }
        Ok(all)
    }

    /// What cargo builds of a package, built once.
    fn cargo(&mut self, arch: Arch, package: &str) -> Result<&[Executable]> {
        let key = (arch, package.to_owned());
        if !self.cargo.contains_key(&key) {
            say::step(format_args!("building {package} and its tests for {arch}"));
            self.cargo.insert(key.clone(), cargo_build(arch, package)?);
        }
        Ok(&self.cargo[&key])
    }
}

fn made(
    program: &Program,
    name: &str,
    argv: Vec<String>,
    programs: BTreeMap<PathBuf, PathBuf>,
) -> Made {
    let files = program.files.iter().map(|path| {
        let path = cache::repo().join(path);
        (path.clone(), path)
    });
    // Files are named from where they lie.
    let dir = if program.files.is_empty() { PathBuf::from("/tmp") } else { cache::repo() };
    Made {
        program: vm_guest::Program {
            name: name.to_owned(),
            argv,
            env: program.env.clone(),
            dir: dir.to_string_lossy().into_owned(),
            timeout_s: program.timeout_s,
        },
        programs,
        files: files.collect(),
        matrix: program.matrix.clone(),
    }
}

fn with_args(name: &str, program: &Program) -> String {
    std::iter::once(name)
        .chain(program.args.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ")
}

/// `NAME.c` among the series' selftests or in `tests/c`.
fn find_c(linux: Linux, name: &str) -> Result<PathBuf> {
    let selftest = format!("{SELFTESTS}/{name}.c");
    if let Some(path) = Overlay::new(linux).find(&selftest) {
        return Ok(path);
    }
    let path = cache::repo().join("tests/c").join(format!("{name}.c"));
    if !path.exists() {
        bail!("no {name}.c in tests/c, and no {selftest} in the series for {linux}");
    }
    Ok(path)
}

/// The part of cargo's messages that names executables.
#[derive(Debug, Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Makes cargo build for a guest that has no libraries of its own.
fn for_guest(build: &mut Command, arch: Arch) -> Result<&mut Command> {
    arch.target(build)?;
    build.arg("--target-dir").arg(cache::target("vm/cargo")?);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    package::link_libraries(build, arch)?;
    Ok(build)
}

fn cargo_build(arch: Arch, package: &str) -> Result<Vec<Executable>> {
    let mut executables = Vec::new();
    // `test --no-run` names a package's binaries only if a test needs them.
    for verb in [&["build"][..], &["test", "--no-run"]] {
        let mut build = command::new(&cache::repo(), "cargo", verb);
        build.args(["--quiet", "--package", package]);
        // This host's programs take their libraries along.
        if arch != Arch::default() {
            for_guest(&mut build, arch)?;
        }
        let messages = command::stdout(build.arg("--message-format=json-render-diagnostics"))?;
        for line in messages.lines() {
            let artifact: Artifact = serde_json::from_str(line).context("message of cargo")?;
            // A library to load is made as a program is: stripped, and with what it needs itself.
            let library = || {
                let is_library = |path: &&PathBuf| path.extension().is_some_and(|e| e == "so");
                artifact.filenames.iter().find(is_library).cloned()
            };
            let path = artifact.executable.clone().or_else(library);
            let (Some(path), Some(manifest), Some(target), Some(profile)) =
                (path, artifact.manifest_path, artifact.target, artifact.profile)
            else {
                continue;
            };
            // Procedural macros are libraries that only the compiler loads.
            if !manifest.starts_with(cache::repo()) {
                continue;
            }
            let dir = manifest.parent().unwrap_or(Path::new("/")).to_path_buf();
            executables.push(Executable { name: target.name, path, dir, is_test: profile.test });
        }
    }
    Ok(executables)
}
