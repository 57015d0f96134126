// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packages of one release of Debian's kernel: which is newest, and what each brings.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Stock, made_once};
use crate::{
    apt::{self, Suite},
    cache, command,
    kernel::Arch,
    say,
};

/// Debian 13 and its newer packages: no Debian 12 names them.
const NEWER: [&str; 2] = ["trixie-backports", "trixie"];

/// The packages of a release, and where they come from.
#[derive(Debug)]
pub(super) struct Packages {
    /// `6.12.117+deb12-cloud-amd64`
    pub(super) release: String,
    pub(super) arch: Arch,
    /// Where the system's own suites don't have it.
    pub(super) suite: Option<Suite>,
}

impl Packages {
    /// Those of the newest release, or of that which the cache has.
    pub(super) fn find(stock: Stock) -> Result<Self> {
        let arch = stock.arch();
        let version = stock.version().split('-').next().unwrap_or_default();
        let prefix = format!("linux-image-{version}.");
        if let Some(meta) = stock.meta_package() {
            let image = apt::dependency(meta, &prefix)?;
            let release = image.trim_start_matches("linux-image-").to_owned();
            if arch == Arch::default() {
                return Ok(Self { release, arch, suite: None });
            }
            let release = release.replace(Arch::default().debian(), arch.debian());
            let suite = Suite::of_the_systems_security(arch.debian())?;
            return Ok(Self { release, arch, suite: Some(suite) });
        }
        let suite = Suite::open_all(&NEWER)?;
        let known = cache::shared("kernel/stock")?.join(format!("newest-{}", stock.version()));
        let release = match fs::read_to_string(&known) {
            Ok(release) => release,
            Err(_) => {
                suite.update()?;
                let release = newest(&suite.names(&prefix)?)
                    .with_context(|| format!("no suite of {NEWER:?} has a package {prefix}*"))?;
                fs::write(&known, &release)?;
                release
            }
        };
        Ok(Self { release, arch, suite: Some(suite) })
    }

    /// The packages are of a newer Debian: its images come in parts, and its compiler is needed.
    pub(super) fn is_newer(&self) -> bool {
        self.suite.is_some() && self.arch == Arch::default()
    }

    /// The directory `kind/RELEASE` of the cache with what `fill` unpacks there.
    pub(super) fn unpacked(
        &self,
        kind: &str,
        fill: impl FnOnce(&Self, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        made_once(kind, &self.release, |root| fill(self, root))
    }

    /// Unpacks the image and its modules.
    pub(super) fn image(&self, root: &Path) -> Result<()> {
        let parts = if self.is_newer() { &["binary", "modules"][..] } else { &["image"] };
        self.read_list()?;
        for part in parts {
            self.unpack(&format!("linux-{part}-{}", self.release), root)?;
        }
        Ok(())
    }

    /// What there is of another architecture; for a newer Debian `of` has read it.
    pub(super) fn read_list(&self) -> Result<()> {
        match &self.suite {
            Some(suite) if !self.is_newer() => suite.update(),
            _ => Ok(()),
        }
    }

    /// Downloads a package and unpacks it into `root`.
    pub(super) fn unpack(&self, package: &str, root: &Path) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let deb = match &self.suite {
            Some(suite) => suite.download(package, scratch.path())?,
            None => {
                say::step(format_args!("downloading {package}"));
                apt::download(package, scratch.path())?
            }
        };
        unpack(&deb, root)
    }
}

/// Unpacks one `.deb`.
pub(super) fn unpack(deb: &Path, root: &Path) -> Result<()> {
    command::run(command::new(root, "dpkg-deb", ["-x"]).arg(deb).arg("."))
}

/// The release that is newest among packages of images for cloud machines.
fn newest(images: &[String]) -> Option<String> {
    let releases = images.iter().filter_map(|name| {
        let release = name.strip_prefix("linux-image-")?;
        release.ends_with("-cloud-amd64").then_some(release)
    });
    let numbers = |release: &&str| -> Vec<u64> {
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    releases.max_by_key(numbers).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::newest;

    #[test]
    fn the_newest_release_is_by_number_and_for_cloud_machines() {
        let names = [
            "linux-image-7.3.9+deb13-cloud-amd64",
            "linux-image-7.3.11+deb13-cloud-amd64",
            "linux-image-7.3.12+deb13-amd64",
            "linux-image-7.3.12+deb13-cloud-amd64-unsigned",
        ];
        let expected = Some("7.3.11+deb13-cloud-amd64".to_owned());
        assert_eq!(newest(&names.map(str::to_owned)), expected);
        assert_eq!(newest(&[]), None);
    }
}
