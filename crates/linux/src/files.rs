// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading and writing the kernel's small text files, with errors that name the file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, ErrorContext, Result};

/// The whole text of a virtual file.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).or_call(|| format!("read({path:?})"))
}

/// The whole text, or `None` if the kernel lacks the file.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A virtual file that stays open, and is read anew each time.
#[derive(Debug)]
pub(crate) struct KeptFile {
    pub(crate) path: PathBuf,
    file: File,
}

impl KeptFile {
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let file = File::open(&path).or_call(|| format!("open({path:?})"))?;
        Ok(Self { path, file })
    }

    /// What it says now: at most the [`MAX_TEXT_BYTES`] bytes that one read gives.
    pub(crate) fn read(&self) -> Result<String> {
        let mut text = [0; MAX_TEXT_BYTES];
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, &mut text, 0))
            .or_call(|| format!("pread64({:?})", self.path))?;
        Ok(String::from_utf8_lossy(&text[..read]).into_owned())
    }
}

/// `meminfo` has 1.5 KiB, on arm64 with four sizes of huge pages as well.
const MAX_TEXT_BYTES: usize = 8 << 10;

/// One number that is the whole file.
pub(crate) fn read_number(path: &Path) -> Result<u64> {
    parse(path, "a number", read(path)?.trim())
}

/// One value out of a file's text.
pub(crate) fn parse<T: FromStr>(path: &Path, expected: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::malformed(path, expected, text))
}

/// Writes `text` with one `write` call, since the kernel takes each call as a command of its own.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .or_call(|| format!("write({path:?}, {text:?})"))
}

/// The names in a directory, sorted.
pub(crate) fn names(path: &Path) -> Result<Vec<String>> {
    let mut names = fs::read_dir(path)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<std::io::Result<Vec<_>>>()
        })
        .or_call(|| format!("getdents({path:?})"))?;
    names.sort();
    Ok(names)
}
