// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero demo --in-vm`: prezero.ko under programs that know nothing of it, where the machine's
//! own kernel takes no modules.
//!
//! QEMU boots a distribution's kernel with the module that was compiled for it. `init` starts each
//! program twice: on pages that are dirty, and on pages that were zeroed before. The kernel reads
//! every zeroed page again before the program gets it (`verify=1`). What counts is the number of
//! pages that the kernel did not have to clear, and that the programs end alike. No time is taken:
//! an emulated machine has none to show.

mod report;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cli::exit::{Exit, Failure, Outcome};
use cli::output::{self, Form};
use worker::Stop;

use super::boots::kernels;
use super::initramfs::{Initramfs, static_busybox};
use crate::rig::child::{last_lines, watch};
use crate::rig::qemu::Qemu;
use report::{Found, Report};

/// The guest's first process.
const INIT: &[u8] = include_bytes!("init");
/// Its pages are 320 MiB of this, and the archive is in it twice while the kernel unpacks it.
const MEMORY_MIB: u64 = 768;
/// Under emulation it takes a minute where nothing else runs.
const GUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Where QEMU has its emulator as a module, which it loads by this path.
const EMULATORS: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so", "/usr/lib64/qemu/accel-tcg-x86_64.so"];
const NO_KERNEL: &str = "no kernel in /boot for which DKMS has built prezero.ko: install prezero-dkms, \
    a kernel and its headers, or give --guest-kernel and --guest-module (`make demo-in-vm` of a \
    checkout makes both)";

/// A kernel, and the module that was compiled for it.
#[derive(Debug, PartialEq, Eq)]
struct Kernel {
    image: PathBuf,
    module: PathBuf,
}

pub(super) fn run(
    kernel: Option<&Path>,
    module: Option<&Path>,
    accel: &str,
    form: Form,
) -> Outcome {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Failure::failed("--in-vm boots x86-64 machines, on x86-64"));
    }
    let stop = Stop::on_signals()?;
    let kernel = match (kernel, module) {
        (Some(image), Some(module)) => Kernel { image: image.into(), module: module.into() },
        (None, None) => installed(Path::new("/")).ok_or_else(|| Failure::failed(NO_KERNEL))?,
        _ => {
            return Err(Failure::usage(
                "--guest-kernel and --guest-module go together with --in-vm",
            ));
        }
    };
    let qemu = Qemu::find(accel).map_err(Failure::failed)?;
    let accel = qemu.accel();
    let busybox = static_busybox()
        .ok_or_else(|| Failure::failed("no static busybox: apt-get install busybox-static"))?;
    let mut root = Initramfs::new(busybox, INIT);
    root.add("/prezero.ko", unpacked(&kernel.module)?);
    add_programs(&mut root)?;
    let dir = tempfile::tempdir()?;
    let (archive, console) = (dir.path().join("initramfs"), dir.path().join("console"));
    root.write(&archive)?;

    output::note(&format!("boots {} with prezero.ko under QEMU ({accel})", kernel.image.display()));
    let mut machine = qemu.machine();
    let cpu = if accel == "kvm" { "host" } else { "max,-erms" };
    machine
        .args(["-cpu", cpu, "-smp", "2", "-m", &format!("{MEMORY_MIB}M"), "-no-reboot"])
        .args(["-append", "console=ttyS0 panic=-1 no_timer_check loglevel=4"])
        .args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio", "-kernel"])
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&archive);
    let said = watch(&mut machine, GUEST_TIMEOUT, &stop);
    let with_console = |why: &dyn Display| {
        let console = fs::read(&console).unwrap_or_default();
        let end = last_lines(&String::from_utf8_lossy(&console));
        Failure::failed(format!("{why}; the console ends with: {end}"))
    };
    let found = match said {
        Ok(said) => Found::read(&said.stdout).map_err(|why| with_console(&why))?,
        Err(failure) if failure.exit.is_stop() => return Err(failure),
        Err(failure) => return Err(with_console(&failure)),
    };
    let report = Report::new(found, qemu.version(), accel);
    form.print(&report)?;
    match report.fault() {
        None => Ok(Exit::Done),
        Some(fault) => Err(with_console(&fault)),
    }
}

/// The newest kernel with a module of DKMS.
fn installed(root: &Path) -> Option<Kernel> {
    let boot = root.join("boot");
    kernels(&boot).into_iter().find_map(|name| {
        let release = name.strip_prefix("vmlinuz-")?;
        let modules = root.join("lib/modules").join(release).join("updates/dkms");
        let names = ["prezero.ko", "prezero.ko.xz", "prezero.ko.zst", "prezero.ko.gz"];
        let module = names.map(|name| modules.join(name)).into_iter().find(|path| path.exists())?;
        Some(Kernel { image: boot.join(&name), module })
    })
}

/// The module as busybox can load it.
fn unpacked(module: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: &dyn Display| Failure::failed(format!("{}: {error}", module.display()));
    let tool = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(module).map_err(|error| failed(&error)),
    };
    let output = Command::new(tool).arg("-dc").arg(module).output();
    let output = output.map_err(|error| failed(&format!("{tool}: {error}")))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(output.stdout)
}

/// Those of this machine, besides busybox. Each lies where it lies here, since QEMU looks for its
/// modules from there, and `init` starts it by its name in `/bin`.
fn add_programs(root: &mut Initramfs) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (name, file) in [("perl", "perl"), ("qemu", "qemu-system-x86_64")] {
        let found = std::env::split_paths(&path).map(|dir| dir.join(file)).find(|at| at.exists());
        let Some(program) = found else {
            output::note(&format!("no {file}, so it is not started"));
            continue;
        };
        root.add_program(&program)?;
        let start = format!("#!/bin/busybox sh\nexec {} \"$@\"\n", program.display());
        root.add(format!("/bin/start-{name}"), start.into_bytes());
    }
    for emulator in EMULATORS.map(Path::new).into_iter().filter(|path| path.exists()) {
        root.add_program(emulator)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_kernel_with_a_module_is_booted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("boot")).unwrap();
        for release in ["6.1.0-9", "6.12.3", "6.12.117"] {
            fs::write(dir.path().join(format!("boot/vmlinuz-{release}")), "").unwrap();
            fs::create_dir_all(dir.path().join(format!("lib/modules/{release}/updates/dkms")))
                .unwrap();
        }
        assert_eq!(installed(dir.path()), None);
        let module = |release: &str| {
            dir.path().join(format!("lib/modules/{release}/updates/dkms/prezero.ko.xz"))
        };
        for release in ["6.1.0-9", "6.12.3"] {
            fs::write(module(release), "").unwrap();
        }
        let image = dir.path().join("boot/vmlinuz-6.12.3");
        assert_eq!(installed(dir.path()), Some(Kernel { image, module: module("6.12.3") }));
    }

    #[test]
    fn packed_module_is_unpacked_and_a_damaged_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("prezero.ko");
        fs::write(&plain, "module").unwrap();
        assert_eq!(unpacked(&plain).unwrap(), b"module");
        assert!(Command::new("gzip").arg("-k").arg(&plain).status().unwrap().success());
        let packed = dir.path().join("prezero.ko.gz");
        assert_eq!(unpacked(&packed).unwrap(), b"module");
        fs::write(&packed, "damaged").unwrap();
        let failure = unpacked(&packed).unwrap_err().to_string();
        assert!(failure.contains("prezero.ko.gz: "), "{failure}");
    }
}
