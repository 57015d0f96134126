// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which boot of the machine this is.

use crate::error::Result;
use crate::files;
use crate::roots::Roots;

/// A unique name of this boot (the kernel's `admin-guide/sysctl/kernel.rst`).
pub fn id(roots: &Roots) -> Result<String> {
    let text = files::read(&roots.proc.join("sys/kernel/random/boot_id"))?;
    Ok(text.trim().to_owned())
}
