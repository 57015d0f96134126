// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One boot of that Debian under QEMU: the console goes into a file, the test's report comes out of
//! the second serial port, in the form of TAP.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result};

use crate::{apt, cache, command, say, tap, vm::Initramfs};

/// Emulation is slow; what hangs is ended by the machine itself after 20 minutes.
const LIMIT: &str = "1200";
/// Besides the root file system, which is in memory twice while the kernel unpacks it.
const MEMORY_MIB: u64 = 1536;

/// Runs `script` of tests/package with the packages, by their names, beside it.
pub(super) fn test(
    name: &str,
    kernel: &Path,
    root: &Path,
    script: &str,
    debs: &[(&str, &Path)],
) -> Result<ExitCode> {
    apt::need(&["qemu-system-x86", "binutils"])?;
    let logs = cache::target(&format!("{name}/logs"))?;
    let scratch = tempfile::tempdir()?;
    let archive = scratch.path().join("initramfs.cpio");
    let overlay = scratch.path().join("overlay.cpio");

    let mut files = Initramfs::default();
    let ours = cache::repo().join("tests/package");
    files.add_file(Path::new("/test/run"), &ours.join(script))?;
    files.add_file(Path::new("/test/lib"), &ours.join("lib"))?;
    let unit = Path::new("/etc/systemd/system/package-test.service");
    files.add_file(unit, &ours.join("package-test.service"))?;
    let wanted = "/etc/systemd/system/multi-user.target.wants/package-test.service";
    files.add_link(Path::new(wanted), "../package-test.service");
    for (name, deb) in debs {
        files.add_file(&Path::new("/test").join(name), deb)?;
    }
    files.add_data(Path::new("/etc/fstab"), Vec::new());
    files.write(&overlay)?;
    // The kernel unpacks archives that follow each other.
    let mut whole = fs::read(root).context("the Debian is gone from the cache")?;
    whole.resize(whole.len().next_multiple_of(512), 0);
    whole.extend(fs::read(&overlay)?);
    let memory = MEMORY_MIB + 2 * (whole.len() as u64 >> 20);
    fs::write(&archive, whole)?;

    let console = logs.join("console.log");
    let mut qemu = Command::new("timeout");
    qemu.args([LIMIT, "qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", &format!("{memory}M"), "-serial"])
        .arg(format!("file:{}", console.display()))
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(&archive)
        .args([
            "-append",
            "console=ttyS0 panic=-1 rdinit=/lib/systemd/systemd systemd.journald.forward_to_console=1 systemd.show_status=0 loglevel=4 audit=0",
        ]);
    fs::write(logs.join("command"), command::shown(&qemu) + "\n")?;
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start QEMU")?;
    let report = child.stdout.take().context("QEMU has no stdout")?;
    let mut tally = Tally::default();
    for line in BufReader::new(report).lines() {
        tally.see(line?.trim_end());
    }
    child.wait()?;
    let count = tally.count();
    say::result(format_args!("logs are in {}", logs.display()));
    say::result(count);
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads TAP.
#[derive(Debug, Default)]
pub(super) struct Tally {
    planned: Option<u64>,
    count: crate::vm::Count,
}

impl Tally {
    pub(super) fn see(&mut self, line: &str) {
        match line.into() {
            tap::Line::Plan { results, .. } => {
                self.planned = results;
                return;
            }
            tap::Line::Result { ending, .. } => self.count.add(ending),
            tap::Line::Other if !line.starts_with('#') => return,
            tap::Line::Other => {}
        }
        say::result(line);
    }

    /// A machine that ended before its test was through has failed once more.
    pub(super) fn count(&self) -> crate::vm::Count {
        let crate::vm::Count { passed, failed, skipped } = self.count;
        let through = self.planned == Some(passed + failed + skipped);
        crate::vm::Count { failed: failed + u64::from(!through), ..self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(report: &str) -> (u64, u64, u64) {
        let mut tally = Tally::default();
        report.lines().for_each(|line| tally.see(line));
        let count = tally.count();
        (count.passed, count.failed, count.skipped)
    }

    #[test]
    fn results_are_counted_and_a_report_without_an_end_has_failed() {
        assert_eq!(count("ok 1 a\nnot ok 2 b\nok 3 c # SKIP no d\n1..3\n"), (1, 1, 1));
        assert_eq!(count("ok 1 a\n1..1\n"), (1, 0, 0));
        assert_eq!(count("ok 1 a\n"), (1, 1, 0));
        assert_eq!(count("ok 1 a\n1..2\n"), (1, 1, 0));
        assert_eq!(count(""), (0, 1, 0));
    }
}
