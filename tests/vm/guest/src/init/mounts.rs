// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file systems of the guest, as a table.

use std::{fs, io};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
};

struct Mount {
    kind: &'static str,
    at: &'static str,
    options: &'static str,
    /// A kernel without it is no reason to stop.
    optional: bool,
}

const fn needed(kind: &'static str, at: &'static str, options: &'static str) -> Mount {
    Mount { kind, at, options, optional: false }
}

const fn wanted(kind: &'static str, at: &'static str, options: &'static str) -> Mount {
    Mount { kind, at, options, optional: true }
}

const MOUNTS: [Mount; 12] = [
    needed("devtmpfs", "/dev", "mode=0755"),
    needed("proc", "/proc", ""),
    needed("sysfs", "/sys", ""),
    needed("tmpfs", "/tmp", "mode=1777"),
    needed("tmpfs", "/run", "mode=0755"),
    needed("tmpfs", "/dev/shm", "mode=1777"),
    needed("devpts", "/dev/pts", "mode=0620,ptmxmode=0666"),
    needed("cgroup2", "/sys/fs/cgroup", ""),
    needed("hugetlbfs", "/dev/hugepages", ""),
    wanted("mqueue", "/dev/mqueue", ""),
    wanted("debugfs", "/sys/kernel/debug", ""),
    wanted("tracefs", "/sys/kernel/tracing", ""),
];

/// Mounts the table; the first failure of a needed one ends it.
pub(crate) fn mount_all() -> io::Result<()> {
    // An initramfs begins as a tmpfs with a root directory that every user can add names to.
    fs::set_permissions("/", std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for Mount { kind, at, options, optional } in MOUNTS {
        // sysfs and debugfs make their own mount points, and refuse others.
        let _ = fs::create_dir_all(at);
        let options = std::ffi::CString::new(options)?;
        match mount(kind, at, kind, MountFlags::empty(), options.as_c_str()) {
            Ok(()) => {}
            // An initramfs with a kernel that mounts devtmpfs by itself.
            Err(Errno::BUSY) => {}
            Err(_) if optional => {}
            Err(error) => {
                return Err(io::Error::other(format!("mount {kind} on {at}: {error}")));
            }
        }
    }
    Ok(())
}

/// Makes a cpuset that stays. With the first one the kernel rewrites a jump in its page allocator,
/// and with the last one back. Where a test's own was the first, QEMU 7.2 once ran a breakpoint of
/// that rewriting on its other CPU when it was over, and the kernel ended in `Oops: int3`.
pub(crate) fn keep_a_cpuset() {
    // A kernel without cpusets has nothing to rewrite.
    if fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset").is_ok() {
        let _ = fs::create_dir("/sys/fs/cgroup/cpuset-that-stays");
    }
}
