// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero.ko`, the module that teaches a stock kernel which of its huge pages are zero: whether
//! it is loaded, how, and which processes keep it loaded.
//!
//! Its device and files are those of the series, so all other code here serves both.
//! `docs/guides/kernel-module.md` is for operators.

use std::collections::BTreeMap;
use std::fs;

use crate::error::Result;
use crate::files;
use crate::roots::Roots;

/// The module's name, as `/sys/module` and `modprobe` have it.
pub const NAME: &str = "prezero";

/// The module as it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LoadedModule {
    /// Its version; absent for an unversioned build.
    pub version: Option<String>,
    /// Open descriptors of its device: while there is one the kernel refuses to unload it.
    pub references: u64,
    /// Its parameters by name, as the kernel prints them: `Y` and `N` for switches.
    pub parameters: BTreeMap<String, String>,
}

/// The module, if it is loaded.
///
/// # Errors
/// Unreadable files below `/sys/module/prezero`.
pub fn loaded(roots: &Roots) -> Result<Option<LoadedModule>> {
    let dir = roots.sys.join("module").join(NAME);
    // Before and after `live` it is being loaded or unloaded.
    let state = files::read_optional(&dir.join("initstate"))?;
    if state.as_deref().map(str::trim) != Some("live") {
        return Ok(None);
    }
    let version = files::read_optional(&dir.join("version"))?;
    let references = files::read_optional(&dir.join("refcnt"))?;
    let mut parameters = BTreeMap::new();
    let of_parameters = dir.join("parameters");
    if of_parameters.exists() {
        for name in files::names(&of_parameters)? {
            if let Some(value) = files::read_optional(&of_parameters.join(&name))? {
                parameters.insert(name, value.trim().to_owned());
            }
        }
    }
    Ok(Some(LoadedModule {
        version: version.map(|text| text.trim().to_owned()),
        references: references.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
        parameters,
    }))
}

/// The processes that have `/dev/hugepagectl` open, in order. Needs root's rights to see those of
/// other users; processes that end meanwhile are left out.
pub fn openers(roots: &Roots) -> Vec<u32> {
    let names = fs::read_dir(&roots.proc).into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let opens = |pid: &u32| {
        let links = fs::read_dir(roots.proc.join(pid.to_string()).join("fd"));
        links.into_iter().flatten().flatten().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.ends_with("dev/hugepagectl"))
        })
    };
    let mut found: Vec<_> = pids.filter(opens).collect();
    found.sort_unstable();
    found
}
