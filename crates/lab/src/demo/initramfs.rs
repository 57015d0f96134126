// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The root file system of a guest: a cpio archive.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use cli::exit::Failure;
use cpio::newc;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// Programs by their path in the guest.
#[derive(Debug, Default)]
pub(super) struct Initramfs(BTreeMap<PathBuf, Vec<u8>>);

impl Initramfs {
    /// With busybox and a first process, which busybox's shell runs.
    pub(super) fn new(busybox: Vec<u8>, init: &[u8]) -> Self {
        let files = [("/bin/busybox", busybox), ("/init", init.to_vec())];
        Self(files.map(|(at, content)| (PathBuf::from(at), content)).into())
    }

    pub(super) fn add(&mut self, at: impl Into<PathBuf>, content: Vec<u8>) {
        self.0.insert(at.into(), content);
    }

    /// A program of this machine and the libraries that its linker loads, where they lie here.
    pub(super) fn add_program(&mut self, program: &Path) -> Result<(), Failure> {
        let read = |path: &Path| {
            fs::read(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
        };
        self.add(program, read(program)?);
        for library in libraries(program)? {
            let content = read(&library)?;
            self.add(library, content);
        }
        Ok(())
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let mut directories: Vec<&Path> =
            self.0.keys().flat_map(|file| file.ancestors().skip(1)).collect();
        directories.extend([Path::new("/dev"), Path::new("/bin")]);
        directories.retain(|directory| directory.parent().is_some());
        // What is above comes first.
        directories.sort_unstable();
        directories.dedup();
        let mut archive = BufWriter::new(File::create(path)?);
        let name = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
        for directory in directories {
            archive = put(archive, newc::Builder::new(&name(directory)), DIRECTORY, &[])?;
        }
        // The kernel opens it for the first process before anything could make it.
        let console = newc::Builder::new("dev/console").rdev_major(5).rdev_minor(1);
        archive = put(archive, console, CONSOLE, &[])?;
        for (at, content) in &self.0 {
            archive = put(archive, newc::Builder::new(&name(at)), PROGRAM, content)?;
        }
        newc::trailer(archive)?.flush()?;
        Ok(())
    }
}

fn put<W: Write>(to: W, entry: newc::Builder, mode: u32, content: &[u8]) -> Result<W, Failure> {
    let bytes = u32::try_from(content.len()).map_err(Failure::failed)?;
    let mut entry = entry.mode(mode).nlink(1).write(to, bytes);
    entry.write_all(content)?;
    Ok(entry.finish()?)
}

/// What the dynamic linker loads for a program; nothing for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let ldd = Command::new("ldd").arg(program).output();
    let output = ldd.map_err(|error| Failure::failed(format!("ldd: {error}")))?;
    Ok(listed(&String::from_utf8_lossy(&output.stdout)))
}

/// The paths of `libc.so.6 => /lib/libc.so.6 (0x..)` and of `/lib64/ld-linux-x86-64.so.2 (0x..)`.
fn listed(ldd: &str) -> Vec<PathBuf> {
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(Into::into);
    ldd.lines().filter_map(path).collect()
}

/// A busybox that runs without libraries.
pub(super) fn static_busybox() -> Option<Vec<u8>> {
    ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"].into_iter().find_map(|path| {
        let mut bytes = Vec::new();
        File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
        (!asks_for_interpreter(&bytes)?).then_some(bytes)
    })
}

/// Whether a 64-bit ELF program names a dynamic linker; `None` if it is no such program.
fn asks_for_interpreter(program: &[u8]) -> Option<bool> {
    let header = FileHeader64::<Endianness>::parse(program).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, program).ok()?;
    Some(segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_program_has_an_interpreter_and_nonsense_is_refused() {
        let own = fs::read("/proc/self/exe").unwrap();
        let is_static = cfg!(target_feature = "crt-static");
        assert_eq!(asks_for_interpreter(&own), Some(!is_static));
        assert_eq!(asks_for_interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(asks_for_interpreter(&own[..40]), None);
    }

    #[test]
    fn libraries_are_the_paths_that_ldd_lists() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibm.so.6 => /lib/libm.so.6 (0x7e)\n\t/lib64/ld.so (0x7d)\n";
        assert_eq!(listed(text), ["/lib/libm.so.6", "/lib64/ld.so"].map(PathBuf::from));
        assert!(listed("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn archive_has_each_directory_before_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("archive");
        let mut archive = Initramfs::new(b"busybox".to_vec(), b"init");
        archive.add("/usr/lib/a.so", b"a".to_vec());
        archive.write(&path).unwrap();
        let mut names = Vec::new();
        let mut rest = fs::File::open(&path).unwrap();
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push(reader.entry().name().to_owned());
            rest = reader.finish().unwrap();
        }
        let files = ["bin/busybox", "init", "usr/lib/a.so"];
        let wanted = [&["bin", "dev", "usr", "usr/lib", "dev/console"][..], &files[..]].concat();
        assert_eq!(names, wanted);
    }
}
