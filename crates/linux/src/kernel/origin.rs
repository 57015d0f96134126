// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which implementation of zeroed pages this kernel has: the module or the series.

use std::fmt;

use super::module::{self, LoadedModule};
use crate::cpu;
use crate::error::Result;
use crate::roots::Roots;

/// The two implementations of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// `prezero.ko`, of this version.
    Module(Option<String>),
    /// The series, built into the kernel.
    Series,
}

/// The same with the kernel that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which it is.
    pub implementation: Implementation,
    /// `uname -r`.
    pub release: String,
}

/// Reads which of the two it is, for a kernel with a device that answers: a stock kernel without
/// the module would be taken for one with the series.
///
/// # Errors
/// Unreadable files below `/sys/module/prezero`, or an unreadable release.
pub(super) fn read(roots: &Roots) -> Result<Origin> {
    let implementation = match module::loaded(roots)? {
        Some(LoadedModule { version, .. }) => Implementation::Module(version),
        None => Implementation::Series,
    };
    Ok(Origin { implementation, release: cpu::release(roots)? })
}

/// `module 0.1.0, Linux 6.12.117`: the release without what its distribution has added.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.implementation {
            Implementation::Module(Some(version)) => write!(f, "module {version}")?,
            Implementation::Module(None) => f.write_str("module")?,
            Implementation::Series => f.write_str("series")?,
        }
        let end = self.release.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let numbers = self.release[..end.unwrap_or(self.release.len())].trim_end_matches('.');
        write!(f, ", Linux {}", if numbers.is_empty() { &self.release } else { numbers })
    }
}
