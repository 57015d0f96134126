// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where ready pages come from, in the words of every line for people.

use linux::kernel::{Implementation, Origin};
use wire::{KernelKind, KernelStatus, Status};

/// `stock`, `plain` or `kernel (module 0.1.0, Linux 6.12.117)`.
pub(crate) fn describe(status: &Status) -> String {
    let Some(kernel) = &status.kernel else { return status.provider.to_string() };
    let KernelStatus { kind, module_version, release } = kernel.clone();
    let implementation = match kind {
        KernelKind::Module => Implementation::Module(module_version),
        KernelKind::Series => Implementation::Series,
    };
    format!("{} ({})", status.provider, Origin { implementation, release })
}
