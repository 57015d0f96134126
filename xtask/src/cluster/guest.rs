// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine in a pod: QEMU as Debian has it, with the guest's memory on the claim's file.
//!
//! The container is the tenant's image with the host's `/usr` in it, read-only: QEMU with all of
//! its libraries, and nothing copied that could differ from what people run. The guest is Debian's
//! 6.12 and a shell that says how much memory it has.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::bed::{self, MIB};
use crate::{
    apt, cache,
    kernel::{Arch, Linux},
    vm::{Initramfs, Kernel, image_of},
};

/// Where the container has kernel, initramfs and the guest's second port.
const HERE: &str = "/guest";

/// The first program in the guest. It says a word that it has made up, so that a test that finds
/// the word in the claim's file knows the guest, and powers off on request.
const INIT: &str = "#!/bin/busybox sh\n\
    /bin/busybox mount -t devtmpfs dev /dev\n\
    /bin/busybox mount -t proc proc /proc\n\
    read mark < /proc/sys/kernel/random/uuid\n\
    echo \"guest $(/bin/busybox dmesg | /bin/busybox grep -o 'Memory: .*')\"\n\
    echo \"guest mark $mark\"\n\
    read word < /dev/ttyS1\n\
    echo \"guest heard $word\"\n\
    /bin/busybox poweroff -f\n";

/// Its files, which [`make`] has made.
pub(super) fn dir() -> Result<PathBuf> {
    cache::target("image/guest")
}

/// Makes them, and fetches what they are made of, while there is a network.
pub(super) fn make() -> Result<()> {
    apt::need(&["qemu-system-x86", "busybox-static"])?;
    let dir = dir()?;
    let kernel = image_of(&Kernel::Stock, Linux::default(), Arch::default())?.kernel;
    fs::copy(&kernel, dir.join("kernel"))
        .with_context(|| format!("cannot copy {}", kernel.display()))?;
    let init = dir.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, Permissions::from_mode(0o755))?;
    let mut root = Initramfs::new(Arch::default());
    root.add_file(Path::new("/init"), &init)?;
    root.add_program(Path::new("/bin/busybox"), Path::new("/bin/busybox"))?;
    // A directory to mount it on.
    root.add_data(Path::new("/proc/.here"), Vec::new());
    root.write(&dir.join("initramfs"))?;
    for end in ["in", "out"] {
        let port = dir.join(format!("port.{end}"));
        // A killed run may have left an unread one.
        if port.exists() {
            fs::remove_file(&port)?;
        }
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &port, mode)?;
    }
    Ok(())
}

/// A pod that is a virtual machine of as much memory as its claim has, and ends with it.
pub(super) fn pod(dir: &Path, name: &str, mib: u64) -> Value {
    let mut pod = bed::pod("default", name, "use", Some(mib), &json!({}));
    pod["spec"]["restartPolicy"] = "Never".into();
    let size = mib * MIB;
    let backend =
        format!("memory-backend-file,id=ram,size={size},mem-path=/dev/prezero/mem,share=on");
    let main = &mut pod["spec"]["containers"][0];
    main["command"] = json!(["/usr/bin/qemu-system-x86_64"]);
    main["args"] = json!([
        "-accel",
        "tcg",
        "-machine",
        "q35,memory-backend=ram",
        "-m",
        format!("{mib}M"),
        "-object",
        backend,
        "-display",
        "none",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-serial",
        "stdio",
        "-chardev",
        format!("pipe,id=port,path={HERE}/port"),
        "-serial",
        "chardev:port",
        "-kernel",
        format!("{HERE}/kernel"),
        "-initrd",
        format!("{HERE}/initramfs"),
        "-append",
        "console=ttyS0 quiet panic=-1",
    ]);
    // On a merged /usr the others are links into it.
    let shared =
        [("usr", "/usr", "/usr"), ("lib", "/usr/lib", "/lib"), ("lib64", "/usr/lib64", "/lib64")];
    let here = dir.display().to_string();
    let all = shared.iter().copied().chain([("guest", here.as_str(), HERE)]);
    main["volumeMounts"] = all
        .clone()
        .map(|(name, _, at)| json!({"name": name, "mountPath": at, "readOnly": true}))
        .collect();
    pod["spec"]["volumes"] = all
        .map(|(name, from, _)| json!({"name": name, "hostPath": {"path": from, "type": "Directory"}}))
        .collect();
    pod
}

/// Tells the guest that it may end.
pub(super) fn notify(dir: &Path) -> Result<()> {
    // QEMU has it open both ways, so this returns at once.
    Ok(fs::write(dir.join("port.in"), "enough\n")?)
}
