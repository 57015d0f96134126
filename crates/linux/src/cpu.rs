// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a report must say about the machine it was made on.

use crate::cpuset::CpuSet;
use crate::error::{Error, Result};
use crate::files;
use crate::roots::Roots;

/// The machine in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuModel {
    /// `GenuineIntel`, `AuthenticAMD`; on Arm the implementer's number.
    pub vendor: String,
    /// The model's name; on Arm the part's number.
    pub model: String,
    /// The frequency governor of CPU 0; `None` in most virtual machines.
    pub governor: Option<String>,
    /// Whether the CPU says that it runs under a hypervisor (x86 only).
    pub is_virtual: bool,
    /// `uname -r`.
    pub kernel_release: String,
}

/// Whether the machine has all of `cpus`, and one of them at least is online.
///
/// # Errors
/// [`Error::Invalid`] naming them; those of reading where a machine says which CPUs it has.
pub fn check_online(roots: &Roots, cpus: &CpuSet) -> Result<()> {
    let file = roots.sys.join("devices/system/cpu/present");
    if let Some(text) = files::read_optional(&file)? {
        let present: CpuSet = files::parse(&file, "a list of CPUs", text.trim())?;
        if cpus.iter().any(|cpu| !present.iter().any(|known| known == cpu)) {
            return Err(Error::invalid("cpus", cpus, "has CPUs that this machine lacks"));
        }
    }
    let file = roots.sys.join("devices/system/cpu/online");
    let Some(text) = files::read_optional(&file)? else { return Ok(()) };
    let online: CpuSet = files::parse(&file, "a list of CPUs", text.trim())?;
    if cpus.intersection(&online).is_empty() {
        return Err(Error::invalid("cpus", cpus, "has no CPU that is online"));
    }
    Ok(())
}

/// The release of the kernel that runs, as `uname -r` prints it.
///
/// # Errors
/// Those of reading it.
pub fn release(roots: &Roots) -> Result<String> {
    Ok(files::read(&roots.proc.join("sys/kernel/osrelease"))?.trim().to_owned())
}

/// Reads `/proc/cpuinfo`, the governor and the kernel's release; absent fields are `unknown`.
pub fn describe(roots: &Roots) -> Result<CpuModel> {
    let text = files::read(&roots.proc.join("cpuinfo"))?;
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim_end() == name).then(|| value.trim().to_owned())
        })
    };
    let governor = roots.sys.join("devices/system/cpu/cpu0/cpufreq/scaling_governor");
    Ok(CpuModel {
        vendor: field("vendor_id")
            .or_else(|| field("CPU implementer").map(|id| format!("implementer {id}")))
            .unwrap_or_else(|| "unknown".into()),
        model: field("model name")
            .or_else(|| field("CPU part").map(|id| format!("part {id}")))
            .unwrap_or_else(|| "unknown".into()),
        governor: files::read_optional(&governor)?.map(|text| text.trim().to_owned()),
        is_virtual: field("flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        kernel_release: release(roots)?,
    })
}
