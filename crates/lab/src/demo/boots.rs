// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real kernel in the guest, to the first line of its userspace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::initramfs::{Initramfs, static_busybox};
use crate::rig::qemu::{Boot, Memory, Qemu};
use crate::rig::{Plan, Scene};
use cli::exit::Failure;
use cli::inherited::Inherited;
use cli::output;
use units::Bytes;

/// The line that ends the measurement; the guest's memory follows it.
const MARK: &str = "prezero-guest: MemTotal";
/// The guest's first process.
const INIT: &[u8] = b"#!/bin/busybox sh
/bin/busybox mkdir -p /proc
/bin/busybox mount -t proc proc /proc
echo \"prezero-guest: $(/bin/busybox head -n 1 /proc/meminfo)\"
exec /bin/busybox poweroff -f
";
/// A smaller guest cannot unpack its initramfs.
const MIN_GUEST: Bytes = Bytes(192 << 20);
/// A kernel under software emulation takes 5 to 20 s.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// One boot each: the kernel's own time, the same for all, is most of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Boots {
    pub(super) kernel: PathBuf,
    pub(super) plain_seconds: f64,
    pub(super) prealloc_seconds: f64,
    pub(super) lent_seconds: f64,
    /// What the lent guest says of its memory.
    pub(super) guest_says: String,
}

/// `None`, with a note, where there is nothing to boot.
pub(super) fn measure(
    plan: &Plan,
    scene: &mut Scene<'_>,
    qemu: &Qemu,
    kernel: Option<&Path>,
) -> Result<Option<Boots>, Failure> {
    if scene.bytes() < MIN_GUEST {
        let size = scene.bytes();
        output::note(&format!("no kernel is booted in {size}: it needs {MIN_GUEST} or more"));
        return Ok(None);
    }
    let kernel = match kernel {
        Some(path) => {
            File::open(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
            path.to_owned()
        }
        None => match newest_kernel(Path::new("/boot")) {
            Some(path) => path,
            None => {
                output::note(
                    "no kernel in /boot that can be read, so none is booted: apt-get install linux-image-cloud-amd64, or give --guest-kernel",
                );
                return Ok(None);
            }
        },
    };
    let Some(busybox) = static_busybox() else {
        output::note("no static busybox, so no kernel is booted: apt-get install busybox-static");
        return Ok(None);
    };
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    output::note(&format!("boots {name} in three such guests ({})", qemu.accel()));
    let initramfs = scene.run_dir().join("initramfs");
    Initramfs::new(busybox, INIT).write(&initramfs)?;
    let boot = Boot { kernel: &kernel, initramfs: &initramfs };
    let (plain_seconds, _) = once(plan, scene, qemu, Memory::Untouched, boot, Instant::now())?;
    let prealloc = Memory::Prealloc { page: scene.page(), threads: plan.threads };
    let (prealloc_seconds, _) = once(plan, scene, qemu, prealloc, boot, Instant::now())?;
    scene.fill(plan)?;
    let begin = Instant::now();
    let memory = Inherited::new(scene.lend(true)?)?;
    let path = memory.path();
    let (lent_seconds, says) = once(plan, scene, qemu, Memory::File(&path), boot, begin)?;
    drop(memory);
    scene.release(&plan.stop)?;
    fs::remove_file(&initramfs)?;
    let guest_says = says.trim_start_matches("prezero-guest: ").to_owned();
    Ok(Some(Boots { kernel, plain_seconds, prealloc_seconds, lent_seconds, guest_says }))
}

fn once(
    plan: &Plan,
    scene: &Scene<'_>,
    qemu: &Qemu,
    memory: Memory<'_>,
    boot: Boot<'_>,
    begin: Instant,
) -> Result<(f64, String), Failure> {
    let mut running = qemu.start(scene.bytes(), memory, Some(boot), &plan.stop)?;
    let Some(console) = running.console() else {
        return Err(Failure::failed("QEMU has no serial console"));
    };
    let line = wait_for_mark(console, plan)?;
    // QEMU is killed by `Drop`: the guest would only power itself off.
    Ok((begin.elapsed().as_secs_f64(), line))
}

/// The first line of the guest's userspace.
fn wait_for_mark(console: ChildStdout, plan: &Plan) -> Result<String, Failure> {
    let (lines, received) = mpsc::channel();
    // Ends with the pipe, that is with QEMU.
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
                return;
            }
        }
    });
    let begin = Instant::now();
    let mut last = String::new();
    loop {
        match received.recv_timeout(Duration::from_millis(100)) {
            Ok(line) if line.contains(MARK) => return Ok(line),
            Ok(line) => last = line,
            Err(RecvTimeoutError::Timeout) => {
                plan.go_on()?;
                if begin.elapsed() > BOOT_TIMEOUT {
                    let text = format!(
                        "no userspace after {BOOT_TIMEOUT:?}; the guest's last line is {last:?}"
                    );
                    return Err(Failure::failed(text));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                plan.go_on()?;
                return Err(Failure::failed(format!(
                    "the guest ended before its userspace; its last line is {last:?}"
                )));
            }
        }
    }
}

/// The newest `vmlinuz-*` that can be read, by version.
fn newest_kernel(dir: &Path) -> Option<PathBuf> {
    kernels(dir).into_iter().next().map(|name| dir.join(name))
}

/// The names of all that can be read, the newest first.
pub(super) fn kernels(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut kernels: Vec<_> = names.filter(|name| name.starts_with("vmlinuz-")).collect();
    kernels.sort_by_key(|name| std::cmp::Reverse(numbers(name)));
    kernels.retain(|name| File::open(dir.join(name)).is_ok());
    kernels
}

/// `6.1.0-28` as (6, 1, 0, 28), so that 6.12 is newer than 6.2.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_readable_kernel_is_taken_by_number_not_by_letter() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["vmlinuz-6.2.0-9", "vmlinuz-6.12.0-1", "vmlinuz-6.12.0-1.old", "config-7.0.0"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("not-a-kernel")).unwrap();
        let newest = newest_kernel(dir.path()).unwrap();
        assert!(newest.to_string_lossy().contains("vmlinuz-6.12.0-1"), "{newest:?}");
        assert_eq!(newest_kernel(&dir.path().join("absent")), None);
    }
}
