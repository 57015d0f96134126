// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the preload shim can serve a program, judged by its file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, ElfFile, ProgramHeader};
use object::{Endianness, Object, ReadCache, ReadRef};
use rustix::fs::{Access, AtFlags};

use crate::exit::{Exit, Failure};

/// The kernel follows this many interpreters of interpreters.
const MAX_SCRIPTS: usize = 5;

/// Why the shim serves nothing to a program.
pub(crate) struct Obstacle {
    /// The program's path and the reason.
    pub(crate) why: String,
    /// Whether the program would refuse to start with the shim preloaded.
    pub(crate) is_fatal: bool,
}

/// The obstacle of the program that a command names; `None` also where the file does not tell.
pub(crate) fn unserved_reason(command: &OsStr) -> Option<Obstacle> {
    let mut path = find(command)?;
    for _ in 0..MAX_SCRIPTS {
        match interpreter(&path) {
            Some(next) => path = next,
            None => break,
        }
    }
    let (why, is_fatal) = obstacle(&path)?;
    Some(Obstacle { why: format!("{} {why}", path.display()), is_fatal })
}

/// Fails as `execvp` of that command would, before anything is done for it.
pub(crate) fn check_runnable(command: &OsStr) -> Result<(), Failure> {
    let failure = |exit, why: &str| Failure::new(exit, format!("{}: {why}", command.display()));
    let missing = || failure(Exit::NoCommand, "no such command");
    let path = find(command).ok_or_else(missing)?;
    let meta = std::fs::metadata(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(),
        _ => failure(Exit::CannotRun, &error.to_string()),
    })?;
    if !meta.is_file() {
        return Err(failure(Exit::CannotRun, "is not a program"));
    }
    // With the rights that count for execve(2).
    rustix::fs::accessat(rustix::fs::CWD, &path, Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|_| failure(Exit::CannotRun, "may not be run by this user"))
}

/// As `execvp` finds it.
fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(command)).find(|path| path.is_file())
}

/// Of a script, what runs it.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    // What `env` runs is looked for as it does.
    match (first.file_name()?.as_bytes(), words.next()) {
        (b"env", Some(name)) if !name.starts_with(b"-") => find(OsStr::from_bytes(name)),
        _ => Some(first),
    }
}

fn obstacle(path: &Path) -> Option<(&'static str, bool)> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    let cache = ReadCache::new(file);
    let elf = match ElfFile::<FileHeader64<Endianness>, _>::parse(&cache) {
        Ok(elf) => elf,
        Err(_) => {
            let mut head = [0; 5];
            File::open(path).ok()?.read_exact(&mut head).ok()?;
            return (head == *b"\x7fELF\x01")
                .then_some(("is a program of 32 bits, and the shim has 64", false));
        }
    };
    let (endian, user) = (elf.endian(), rustix::process::geteuid().as_raw());
    let headers = elf.elf_program_headers();
    let linker = headers.iter().find_map(|h| h.interpreter(endian, elf.data()).ok().flatten());
    // The dynamic linker has no interpreter either, and is named when it is run by itself.
    let is_linker = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld"));
    match () {
        () if linker.is_none() && !is_linker => {
            Some(("is static, so that nothing is preloaded into it", false))
        }
        () if linker.is_some_and(|path| has(path, b"/ld-musl-")) => {
            Some(("is linked with musl, and the shim needs glibc", true))
        }
        () if needs(&elf, b"libasan.so") => {
            Some(("has GCC's AddressSanitizer, which must be the first library", true))
        }
        () if elf.section_by_name_bytes(b".note.go.buildid").is_some() => {
            Some(("is a Go program, which makes its calls past the C library", false))
        }
        () if meta.mode() & 0o4000 != 0 && meta.uid() != user => {
            Some(("runs as another user, so that nothing is preloaded into it", false))
        }
        () => None,
    }
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Whether a program names a library of that prefix.
fn needs<'a, R: ReadRef<'a>>(
    elf: &ElfFile<'a, FileHeader64<Endianness>, R>,
    prefix: &[u8],
) -> bool {
    let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
    let Ok(Some((entries, link))) = sections.dynamic(endian, data) else { return false };
    let Ok(strings) = sections.strings(endian, data, link) else { return false };
    let needed = entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED);
    let mut names =
        needed.filter_map(|entry| strings.get(u32::try_from(entry.d_val(endian)).ok()?).ok());
    names.any(|name| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_what_runs_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = |name: &str, line: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, line).expect("written");
            interpreter(&path)
        };
        assert_eq!(script("a", "#!/bin/sh -e\nexit"), Some("/bin/sh".into()));
        assert_eq!(script("b", "#! /bin/sh"), Some("/bin/sh".into()));
        assert_eq!(script("c", "#!/usr/bin/env sh\n"), find(OsStr::new("sh")));
        assert_eq!(script("d", "#!\n"), None);
        assert_eq!(script("e", "exit 0\n"), None);
    }

    #[test]
    fn commands_that_cannot_run_are_known_before_they_run() {
        let code = |command: &str| check_runnable(OsStr::new(command)).map_err(|error| error.exit);
        for command in ["sh", "/bin/sh"] {
            assert!(code(command).is_ok(), "{command}");
        }
        for (command, exit) in [
            ("no-such-program", Exit::NoCommand),
            ("/no/such", Exit::NoCommand),
            ("/etc/passwd/x", Exit::NoCommand),
            ("/etc/passwd", Exit::CannotRun),
            ("/", Exit::CannotRun),
        ] {
            assert_eq!(code(command), Err(exit), "{command}");
        }
    }

    #[test]
    fn dynamic_programs_and_non_programs_get_no_warning() {
        for name in
            ["sh", "/bin/sh", "/dev/null", "/", "/etc/passwd", "/no/such", "no-such-program"]
        {
            assert!(unserved_reason(OsStr::new(name)).is_none(), "{name}");
        }
    }
}
