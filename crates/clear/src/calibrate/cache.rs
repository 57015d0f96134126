// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measurements on disk: one line per CPU.
//!
//! ```text
//! AuthenticAMD-25-17-1-0x1000065 method=avx512-nt chunk=64KiB basis=measured ...
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Choice, Cpu};

const HEADER: &str = "# Measured by prezero, one line per CPU. A line removed is measured again.\n";

/// The measurements known, and the file they come from.
#[derive(Clone, Debug)]
pub struct Cache {
    path: PathBuf,
    known: BTreeMap<String, Choice>,
}

/// The cache cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// A malformed line. Nothing is guessed from the others.
    #[error("{path}:{line}: not a calibration line: correct it, remove it, or remove the file", path = .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The file cannot be read or written.
    #[error("cannot use the calibration file {}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Cache {
    /// Reads the file; a missing one is empty.
    ///
    /// # Errors
    ///
    /// [`CacheError`], naming the line where there is one.
    pub fn load(path: &Path) -> Result<Self, CacheError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(CacheError::Io { path: path.to_owned(), source }),
        };
        let mut known = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = parse(line)
                .ok_or_else(|| CacheError::Line { path: path.to_owned(), line: index + 1 })?;
            known.insert(entry.0, entry.1);
        }
        Ok(Self { path: path.to_owned(), known })
    }

    /// The measured choice, if this CPU can still execute it.
    #[must_use]
    pub fn get(&self, cpu: &Cpu) -> Option<Choice> {
        self.known.get(&cpu.to_string()).copied().filter(|choice| choice.setting.clearer().is_ok())
    }

    /// Remembers a measurement, until [`Cache::save`] in memory only.
    pub fn set(&mut self, cpu: &Cpu, choice: Choice) {
        self.known.insert(cpu.to_string(), choice);
    }

    /// Replaces the file by a new one, at once or not at all; makes its directory. Of two processes
    /// that save at the same time one loses its lines, and measures again.
    ///
    /// # Errors
    ///
    /// [`CacheError::Io`]; the old file then stands.
    pub fn save(&self) -> Result<(), CacheError> {
        self.write().map_err(|source| CacheError::Io { path: self.path.clone(), source })
    }

    fn write(&self) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(name);
        let written = std::fs::File::create(&new).and_then(|mut file| {
            file.write_all(HEADER.as_bytes())?;
            self.known.iter().try_for_each(|(cpu, choice)| writeln!(file, "{cpu} {choice}"))?;
            std::fs::rename(&new, &self.path)
        });
        if written.is_err() {
            // The error that matters is the one above.
            let _ = std::fs::remove_file(&new);
        }
        written
    }
}

fn parse(line: &str) -> Option<(String, Choice)> {
    let (cpu, choice) = line.split_once(' ').filter(|(_, rest)| rest.starts_with("method="))?;
    Some((cpu.to_owned(), choice.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{Basis, Setting};
    use crate::{Chunk, Method};

    fn choice(method: Method) -> Choice {
        let setting = Setting { method, chunk: Chunk::DEFAULT };
        Choice { setting, basis: Basis::Measured { mb_per_s: 1, uncertainty_permille: 2 } }
    }

    #[test]
    fn saved_choice_is_found_again_for_its_cpu_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/on/demand");
        let here = Cpu::from_cpuinfo("vendor_id: GenuineIntel\nmodel: 1\nmicrocode: 0x1");
        let newer = Cpu { microcode: 2, ..here.clone() };
        let mut cache = Cache::load(&path).unwrap();
        cache.set(&here, choice(Method::Portable));
        cache.save().unwrap();
        let other = choice(Method::Portable).overridden(None, Some(Chunk::WHOLE));
        cache.set(&newer, other);
        cache.save().unwrap();

        let cache = Cache::load(&path).unwrap();
        assert_eq!(cache.get(&here), Some(choice(Method::Portable)));
        assert_eq!(cache.get(&newer), Some(other));
        assert_eq!(cache.get(&Cpu { microcode: 3, ..newer }), None);
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_method_that_this_cpu_lacks_is_not_believed() {
        let foreign = Method::ALL.into_iter().find(|method| !method.is_available()).unwrap();
        let cpu = Cpu::from_cpuinfo("");
        let mut cache = Cache { path: PathBuf::new(), known: BTreeMap::new() };
        cache.set(&cpu, choice(foreign));
        assert_eq!(cache.get(&cpu), None);
    }

    #[test]
    fn a_bad_line_is_refused_by_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("calibration");
        for bad in ["x", "x method=portable", "x for method=portable chunk=4KiB basis=forced"] {
            std::fs::write(&path, format!("# comment\n\n{bad}\n")).unwrap();
            let error = Cache::load(&path).unwrap_err().to_string();
            assert!(error.contains("calibration:3:"), "{error}");
        }
    }
}
