// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero-dkms`: the sources of kernel/module as DKMS takes them, for Debian by dpkg-deb and for
//! rpm by dist/rpm/prezero.spec. No crate stands behind it, so that cargo-deb has nothing to pack.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Tree, deb};
use crate::{cache, command};

const NAME: &str = "prezero-dkms";

/// Writes what the package installs below `target/package/dkms-VERSION` and returns that.
pub(super) fn tree(tree: &Tree, version: &str) -> Result<PathBuf> {
    let root = tree.dir.join(format!("dkms-{version}"));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    write(&root, version)?;
    Ok(root)
}

fn write(root: &Path, version: &str) -> Result<()> {
    let (repo, dist) = (cache::repo(), dist());
    let sources = root.join(format!("usr/src/prezero-{version}"));
    // The committed files: a build leaves its objects beside the sources.
    let listed = ["ls-files", "kernel/module"];
    let listed = command::stdout(&mut command::new(&repo, "git", listed))?;
    let of_repository = ["/.gitignore", "/DESIGN.md", "/COSTS.md"];
    let is_source = |file: &&str| !of_repository.iter().any(|name| file.ends_with(name));
    for file in listed.lines().filter(is_source) {
        let below = Path::new(file).strip_prefix("kernel/module")?;
        // Links lead to what the module shares with the series: a copy has to stand alone.
        let content = fs::read(repo.join(file)).with_context(|| format!("cannot read {file}"))?;
        let executable = fs::metadata(repo.join(file))?.permissions().mode() & 0o111 != 0;
        put(&sources.join(below), &content, if executable { 0o755 } else { 0o644 })?;
    }
    put(&sources.join("COPYING"), &fs::read(repo.join("kernel/COPYING"))?, 0o644)?;
    let conf = filled(&dist.join("dkms.conf"), version, 0)?;
    put(&sources.join("dkms.conf"), conf.as_bytes(), 0o644)?;
    put(&root.join("usr/lib/prezero-dkms/unload"), &fs::read(dist.join("unload"))?, 0o755)?;
    let documents = root.join("usr/share/doc").join(NAME);
    let page = fs::read(repo.join("docs/guides/kernel-module.md"))?;
    put(&documents.join("kernel-module.md"), &page, 0o644)?;
    // Directories are as the umask has made them.
    command::run(&mut command::new(root, "chmod", ["-R", "go+rX", "."]))
}

/// Packs it for Debian into `to`.
pub(super) fn deb(tree: &Tree, version: &str, to: &Path) -> Result<PathBuf> {
    let root = self::tree(tree, version)?;
    let dist = dist();
    let documents = root.join("usr/share/doc").join(NAME);
    put(&documents.join("copyright"), &fs::read(dist.join("copyright"))?, 0o644)?;
    deb::changelog(NAME, version, tree.time, &documents.join("changelog"))?;
    let size = command::stdout(&mut command::new(&root, "du", ["-sk", "--apparent-size", "usr"]))?;
    let size = size.split_whitespace().next().and_then(|size| size.parse().ok());
    let control = root.join("DEBIAN");
    let filled = |name: &str| filled(&dist.join(name), version, size.unwrap_or(0));
    put(&control.join("control"), filled("control")?.as_bytes(), 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&control.join(script), filled(script)?.as_bytes(), 0o755)?;
    }
    let sums = "find usr -type f | LC_ALL=C sort | xargs md5sum";
    let sums = command::stdout(&mut command::new(&root, "sh", ["-c", sums]))?;
    put(&control.join("md5sums"), sums.as_bytes(), 0o644)?;
    let package = to.join(format!("{NAME}_{version}_all.deb"));
    let words = ["--root-owner-group", "-Zxz", "--build"];
    let mut pack = command::new(&root, "dpkg-deb", words);
    // Files are of the commit's time at the latest.
    pack.arg(&root).arg(&package).env("SOURCE_DATE_EPOCH", tree.time.to_string());
    command::run(pack.stdout(std::process::Stdio::null()))?;
    Ok(package)
}

fn dist() -> PathBuf {
    cache::repo().join("dist/dkms")
}

/// A file of dist/dkms with its placeholders filled in.
fn filled(file: &Path, version: &str, size: u64) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("no {}", file.display()))?;
    Ok(text.replace("@VERSION@", version).replace("@SIZE@", &size.to_string()))
}

/// A file of that mode under any umask.
fn put(at: &Path, content: &[u8], mode: u32) -> Result<()> {
    let dir = at.parent().context("a file has a directory")?;
    fs::create_dir_all(dir)?;
    fs::write(at, content).with_context(|| format!("cannot write {}", at.display()))?;
    fs::set_permissions(at, fs::Permissions::from_mode(mode))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files below a directory, links excluded.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            assert!(!kind.is_symlink(), "{} is a link", entry.path().display());
            if kind.is_dir() {
                found.extend(files(&entry.path()));
            } else {
                found.push(entry.path());
            }
        }
        found
    }

    // Promise P293 (years): What prezero-dkms installs builds without the repository, and the
    // module and the package have one version.
    #[test]
    fn sources_for_dkms_stand_alone() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "1.2.3").unwrap();
        let sources = dir.path().join("usr/src/prezero-1.2.3");
        let all = files(&sources);
        assert!(all.iter().any(|file| file.ends_with("Makefile")));
        for file in &all {
            let text = fs::read_to_string(file).unwrap();
            for word in ["@VERSION@", "../"] {
                assert!(!text.contains(word), "{} has {word}", file.display());
            }
        }
        let conf = fs::read_to_string(sources.join("dkms.conf")).unwrap();
        assert!(conf.contains("PACKAGE_VERSION=\"1.2.3\"") && conf.contains("/prezero/1.2.3/"));
    }

    // Promise P293.
    #[test]
    fn module_has_the_version_of_the_packages() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "0").unwrap();
        let version = format!("MODULE_VERSION(\"{}\");", env!("CARGO_PKG_VERSION"));
        let has = |file: &PathBuf| fs::read_to_string(file).unwrap().contains(&version);
        assert!(files(&dir.path().join("usr/src")).iter().any(has), "no {version}");
    }
}
