// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own pool as the provider: what it has ready, and a loan's pages out of it.

mod fill;

use std::sync::Arc;

use linux::Roots;
use linux::kernel::Device;
use units::{Counts, Domain};

pub(crate) use self::fill::Fill;
use crate::error::Result;

/// The kernel's pool of every node and page size.
#[derive(Debug, Clone)]
pub(crate) struct KernelPool {
    device: Arc<Device>,
}

impl KernelPool {
    pub(crate) fn open(roots: &Roots) -> Result<Self> {
        Ok(Self { device: Arc::new(Device::open(roots)?) })
    }

    /// What is ready and what could be, at one instant. One system call.
    pub(crate) fn counts(&self, domain: Domain) -> Result<Counts> {
        Ok(self.device.query(domain)?)
    }
}
