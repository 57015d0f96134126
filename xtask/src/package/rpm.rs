// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The RPM packages, by rpmbuild from dist/rpm/prezero.spec.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Tree, built::Built, dkms};
use crate::{apt, cache, command};

/// Packs them under that version into `to`; returns prezero's, the laboratory's and the module's.
pub(super) fn pack(built: &Built, tree: &Tree, version: &str, to: &Path) -> Result<[PathBuf; 3]> {
    apt::need(&["rpm"])?;
    fs::create_dir_all(to)?;
    // rpmbuild's own directories, and where its database would be: nothing of the host's.
    let scratch = tempfile::tempdir_in(to)?;
    let made = scratch.path().join("RPMS");
    let module = dkms::tree(tree, version)?;
    let mut make = command::new(&cache::repo(), "rpmbuild", ["-bb", "--quiet", "--nodeps"]);
    make.args(["--target", &format!("{}-linux", built.arch.rpm())]);
    let binaries = built.path("");
    for (name, value) in [
        ("_topdir", scratch.path().display().to_string()),
        ("_dbpath", scratch.path().join("db").display().to_string()),
        ("prezero_version", version.to_owned()),
        ("prezero_source", cache::repo().display().to_string()),
        ("prezero_binaries", binaries.display().to_string()),
        ("prezero_tree", tree.dir.display().to_string()),
        ("prezero_module", module.display().to_string()),
        ("prezero_libraries", tree.libraries(built.arch).display().to_string()),
        // Debian's rpm searches other directories for libraries than the package's distributions.
        ("_libdir", "/usr/lib64".to_owned()),
        ("_unitdir", "/usr/lib/systemd/system".to_owned()),
        ("_sysusersdir", "/usr/lib/sysusers.d".to_owned()),
        ("_tmpfilesdir", "/usr/lib/tmpfiles.d".to_owned()),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
    ] {
        make.args(["--define", &format!("{name} {value}")]);
    }
    make.arg("dist/rpm/prezero.spec").env("SOURCE_DATE_EPOCH", tree.time.to_string());
    command::run(&mut make)?;
    let take = |name: &str, arch: &str| {
        let file = format!("{name}-{version}-1.{arch}.rpm");
        fs::rename(made.join(arch).join(&file), to.join(&file))
            .with_context(|| format!("no {file}"))?;
        Ok::<_, anyhow::Error>(to.join(file))
    };
    let arch = built.arch.rpm();
    Ok([take("prezero", arch)?, take("prezero-lab", arch)?, take("prezero-dkms", "noarch")?])
}
