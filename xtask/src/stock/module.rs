// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero.ko`, compiled for one kernel and kept in the cache by its sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{Stock, packages::Packages};
use crate::{
    cache, command,
    kernel::{self, Flavour},
    say,
};

/// What the module is compiled from; it includes files of its neighbours.
const SOURCES: [&str; 3] = ["kernel/module", "kernel/uapi", "kernel/overlay"];

/// The kernel that it is for.
#[derive(Clone, Debug)]
pub(crate) enum Module {
    Stock(Stock),
    /// One of our own builds.
    Built(Flavour),
}

impl Module {
    /// The module's path, compiled unless the cache has it.
    pub(crate) fn build(&self) -> Result<PathBuf> {
        let sources = sources()?;
        let mut key = cache::Key::default();
        for (path, content) in &sources {
            key.add(&path.display().to_string(), content);
        }
        let release = match self {
            Self::Stock(stock) => Packages::find(*stock)?.release,
            Self::Built(flavour) => kernel::key_of(flavour)?,
        };
        let done = cache::shared("kernel/modules")?.join(format!("{release}-{}", key.name()));
        let module = done.join("prezero.ko");
        if module.exists() {
            return Ok(module);
        }
        say::step(format_args!("compiling prezero.ko for {release}"));
        match self {
            Self::Stock(stock) => {
                let headers = stock.headers()?;
                let scratch = headers.scratch()?;
                let dir = write(&sources, scratch.path())?;
                command::run(&mut headers.make(&dir)?)?;
                keep(&dir, &done)?;
            }
            Self::Built(flavour) => {
                let scratch = tempfile::tempdir_in(cache::target("module")?)?;
                let dir = write(&sources, scratch.path())?;
                kernel::make_module(flavour, &dir)?;
                keep(&dir, &done)?;
            }
        }
        Ok(module)
    }
}

/// The module's sources by their paths in the checkout; what git ignores is left by a build there.
fn sources() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut list = command::new(
        &cache::repo(),
        "git",
        ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"],
    );
    let names = command::stdout(list.args(SOURCES))?;
    let mut sources = BTreeMap::new();
    for name in names.split('\0').filter(|name| is_source(name)) {
        // A file that was deleted since the last commit is still listed.
        if let Ok(content) = fs::read(cache::repo().join(name)) {
            sources.insert(PathBuf::from(name), content);
        }
    }
    Ok(sources)
}

/// Documents and selftests lie beside the sources; the compiler reads neither.
fn is_source(name: &str) -> bool {
    let besides = ["kernel/overlay/tools/", "kernel/overlay/Documentation/"];
    !name.is_empty()
        && Path::new(name).extension().is_none_or(|extension| extension != "md")
        && !besides.iter().any(|dir| name.starts_with(dir))
}

/// Writes the sources below `to`; returns the module's directory.
fn write(sources: &BTreeMap<PathBuf, Vec<u8>>, to: &Path) -> Result<PathBuf> {
    for (path, content) in sources {
        let path = to.join(path);
        fs::create_dir_all(path.parent().unwrap_or(to))?;
        fs::write(path, content)?;
    }
    Ok(to.join(SOURCES[0]))
}

fn keep(dir: &Path, done: &Path) -> Result<()> {
    let made = dir.join("prezero.ko");
    if !made.exists() {
        bail!("make has built no {}", made.display());
    }
    fs::create_dir_all(done)?;
    // Renamed within the directory: another run may look for it.
    let staging = tempfile::NamedTempFile::new_in(done)?;
    fs::copy(&made, staging.path())?;
    staging
        .persist(done.join("prezero.ko"))
        .with_context(|| format!("cannot write to {}", done.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_source;

    #[test]
    fn documents_and_selftests_are_no_sources() {
        assert!(is_source("kernel/module/hooks.c"));
        assert!(is_source("kernel/overlay/mm/hugepagectl.c"));
        assert!(!is_source("kernel/module/DESIGN.md"));
        assert!(!is_source("kernel/overlay/tools/testing/selftests/mm/hugetlb_zero.c"));
        assert!(!is_source(""));
    }
}
