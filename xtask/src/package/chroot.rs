// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test that runs in a root of its own on this machine and not in an emulated one: compilers take
//! fifteen times as long there. What it leaves in the root is what the virtual machine boots.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{boot::Tally, root};
use crate::{cache, command, say, vm::Count};

/// Unpacks the Debian of `archive`, runs `script` of tests/package there with the packages, by
/// their names, beside it, and packs what came of it into `to`.
pub(super) fn test(
    archive: &Path,
    script: &str,
    debs: &[(String, PathBuf)],
    to: &Path,
) -> Result<Count> {
    let scratch = tempfile::tempdir_in(cache::shared("package")?)?;
    let dir = scratch.path().join("root");
    root::unpack(archive, &dir)?;
    let beside = dir.join("test");
    fs::create_dir_all(&beside)?;
    let ours = cache::repo().join("tests/package");
    fs::copy(ours.join(script), beside.join("run"))?;
    fs::copy(ours.join("lib"), beside.join("lib"))?;
    for (name, deb) in debs {
        fs::copy(deb, beside.join(name)).with_context(|| format!("no {}", deb.display()))?;
    }
    let log = cache::target("package-dkms/logs")?.join("build.log");
    // The mounts go with the namespace.
    let enter = r#"mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" /test/run"#;
    let mut run = Command::new("unshare");
    run.args(["--mount", "--propagation", "private", "sh", "-c", enter]).arg(&dir);
    let mut child = run
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()
        .with_context(|| format!("cannot start `{}`", command::shown(&run)))?;
    let report = child.stdout.take().context("it has no stdout")?;
    let mut tally = Tally::default();
    for line in BufReader::new(report).lines() {
        tally.see(line?.trim_end());
    }
    if !child.wait()?.success() {
        bail!("tests/package/{script} did not run: see {}", log.display());
    }
    let count = tally.count();
    say::result(format_args!("its log is {}", log.display()));
    say::result(count);
    fs::remove_dir_all(&beside)?;
    root::pack(&dir, to)?;
    Ok(count)
}
