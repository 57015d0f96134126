// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The root file system of a guest: an uncompressed cpio archive in memory.
//!
//! Uncompressed, because the guest's CPU is emulated: copying 60 MiB is faster
//! there than decompressing 15.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Cursor, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use cpio::newc;

use crate::{command, kernel::Arch};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// Files by absolute path in the guest.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    entries: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    arch: Arch,
    /// Programs and libraries of the host that are already in.
    copied: BTreeSet<PathBuf>,
}

impl Initramfs {
    /// For programs of this architecture.
    pub(crate) fn new(arch: Arch) -> Self {
        Self { arch, ..Self::default() }
    }

    /// A file with this content.
    pub(crate) fn add_data(&mut self, at: &Path, content: Vec<u8>) {
        self.add(at, DATA, content);
    }

    /// A symbolic link.
    pub(crate) fn add_link(&mut self, at: &Path, to: &str) {
        self.add(at, LINK, to.as_bytes().to_vec());
    }

    /// A copy of a host's file, with its permissions.
    pub(crate) fn add_file(&mut self, at: &Path, host: &Path) -> Result<()> {
        let content = fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
        let executable = fs::metadata(host)?.permissions().mode() & 0o111 != 0;
        self.add(at, if executable { PROGRAM } else { DATA }, content);
        Ok(())
    }

    /// A program of the host without its debug information, and every shared
    /// library that it loads, at the paths where the program looks for them.
    pub(crate) fn add_program(&mut self, at: &Path, host: &Path) -> Result<()> {
        let stripped = tempfile::NamedTempFile::new()?;
        let strip = format!("{}strip", self.arch.prefix());
        let mut strip = command::new(Path::new("/"), &strip, ["--strip-debug", "-o"]);
        strip.arg(stripped.path()).arg(host);
        // A script is no ELF file: it goes in as it is.
        let from =
            if command::output(&mut strip)?.status.success() { stripped.path() } else { host };
        let content = fs::read(from).with_context(|| format!("cannot read {}", host.display()))?;
        self.add(at, PROGRAM, content);
        // Programs of another architecture are static.
        let mut libraries =
            if self.arch == Arch::default() { libraries(host)? } else { Vec::new() };
        if !libraries.is_empty() {
            // glibc loads it by name when a thread is cancelled or unwound.
            libraries.push(unwinder()?);
        }
        for library in libraries {
            if self.copied.insert(library.clone()) {
                self.add_file(&library, &library)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, at: &Path, mode: u32, content: Vec<u8>) {
        let mut dir = at.parent();
        while let Some(path) = dir.filter(|path| *path != Path::new("/")) {
            self.entries.entry(path.to_path_buf()).or_insert((DIRECTORY, Vec::new()));
            dir = path.parent();
        }
        self.entries.insert(at.to_path_buf(), (mode, content));
    }

    /// Writes the archive.
    pub(crate) fn write(&self, to: &Path) -> Result<()> {
        let mut archive = Cursor::new(Vec::new());
        // The console is needed before the init has mounted /dev.
        let console = newc::Builder::new("dev/console").mode(0o020_600).rdev_major(5).rdev_minor(1);
        let dev = newc::Builder::new("dev").mode(DIRECTORY);
        archive = dev.write(archive, 0).finish()?;
        archive = console.write(archive, 0).finish()?;
        for (number, (path, (mode, content))) in (1..).zip(&self.entries) {
            let name = path.to_string_lossy();
            let name = name.trim_start_matches('/');
            let Ok(length) = u32::try_from(content.len()) else {
                bail!("/{name} has {} bytes, more than a cpio archive can hold", content.len());
            };
            let mut entry =
                newc::Builder::new(name).ino(number).mode(*mode).nlink(1).write(archive, length);
            entry.write_all(content)?;
            archive = entry.finish()?;
        }
        archive = newc::trailer(archive)?;
        fs::write(to, archive.into_inner())
            .with_context(|| format!("cannot write {}", to.display()))
    }
}

/// `libgcc_s.so.1`, which no program names but glibc itself.
fn unwinder() -> Result<PathBuf> {
    let path = Path::new("/lib/x86_64-linux-gnu/libgcc_s.so.1");
    if !path.exists() {
        bail!("{} is absent: install libgcc-s1", path.display());
    }
    Ok(path.to_path_buf())
}

/// What the dynamic linker would load; nothing for a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = command::output(command::new(Path::new("/"), "ldd", [""; 0]).arg(program))?;
    if !output.status.success() {
        return Ok(Vec::new());
    }
    let mut libraries = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if line.contains("not found") {
            bail!("{}: {}", program.display(), line.trim());
        }
        // `libc.so.6 => /lib/.../libc.so.6 (0x..)` or `/lib64/ld-linux-x86-64.so.2 (0x..)`
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        libraries.extend(path.map(PathBuf::from));
    }
    Ok(libraries)
}
