// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own pool as the provider: what it has ready, and a loan's pages out of it.

mod fill;

use std::sync::Arc;

use linux::Roots;
use linux::kernel::{Device, Implementation, Origin};
use units::{Counts, Domain};

pub(crate) use self::fill::Fill;
use crate::base::error::Result;

/// The kernel's pool of every node and page size.
#[derive(Debug, Clone)]
pub(crate) struct KernelPool {
    device: Arc<Device>,
    origin: Origin,
}

impl KernelPool {
    /// Opens the device, which `origin` implements and which stays so while it is open.
    pub(crate) fn open(roots: &Roots, origin: Origin) -> Result<Self> {
        Ok(Self { device: Arc::new(Device::open(roots)?), origin })
    }

    /// As a status says it.
    pub(crate) fn status(&self) -> wire::KernelStatus {
        let (kind, module_version) = match &self.origin.implementation {
            Implementation::Module(version) => (wire::KernelKind::Module, version.clone()),
            Implementation::Series => (wire::KernelKind::Series, None),
        };
        wire::KernelStatus { kind, module_version, release: self.origin.release.clone() }
    }

    /// What is ready and what could be, at one instant. One system call.
    pub(crate) fn counts(&self, domain: Domain) -> Result<Counts> {
        Ok(self.device.query(domain)?)
    }
}
