// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file, and its drop-ins: `prezero.toml.d/*.toml` beside `prezero.toml`, in the
//! order of their names.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use book::config::Config;

use crate::exit::Failure;

/// The text of all files as that of one.
///
/// # Errors
/// A file that cannot be read, or is at fault: the message begins with its name.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    let mut files = vec![file.to_owned()];
    let dir = drop_in_dir(file);
    files.extend(drop_ins(&dir).map_err(|error| in_file(&dir, &error))?);
    let text = |file: &PathBuf| fs::read_to_string(file).map_err(|error| in_file(file, &error));
    let texts = files.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Config::merge(&texts).map_err(|fault| in_file(&files[fault.file], &fault.why))
}

fn drop_in_dir(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".d");
    name.into()
}

/// The files of the directory, if there is one.
fn drop_ins(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        if path.extension().is_some_and(|ending| ending == "toml") && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn in_file(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise P392.
    #[test]
    fn drop_ins_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prezero.toml");
        fs::write(&file, "[workers]\nmax = 1\n").unwrap();
        let max = || Config::from_toml(&read(&file).unwrap()).unwrap().workers.max;
        assert_eq!(max(), 1, "without a directory");
        let drop_in = |name: &str, text: &str| {
            fs::create_dir_all(drop_in_dir(&file)).unwrap();
            fs::write(drop_in_dir(&file).join(name), text).unwrap();
        };
        drop_in("20-host.toml", "[workers]\nmax = 3\n");
        drop_in("10-site.toml", "[workers]\nmax = 2\n");
        drop_in("30.toml.bak", "x");
        drop_in(".40.toml", "x");
        assert_eq!(max(), 3);
        drop_in("15-wrong.toml", "\nquotta = 1\n");
        let says = read(&file).unwrap_err().to_string();
        let path = drop_in_dir(&file).join("15-wrong.toml");
        let expected = format!("{}: line 2: `quotta` is no key", path.display());
        assert!(says.starts_with(&expected), "{says}");
    }
}
