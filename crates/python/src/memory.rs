// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent memory, and its users in this program: the loan, its views, its tensors.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::MappedLoan;
use dlpack_rs::pyo3_glue::IntoDLPack;
use dlpack_rs::safe::{TensorInfo, cpu_device, dtype_u8};

/// Mapped memory that lives as long as the loan and every tensor of it.
#[derive(Debug)]
pub(crate) struct LentMemory {
    mapping: MappedLoan,
    views: AtomicUsize,
}

impl LentMemory {
    pub(crate) fn new(mapping: MappedLoan) -> Arc<Self> {
        Arc::new(Self { mapping, views: AtomicUsize::new(0) })
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.mapping.as_ptr().cast()
    }

    pub(crate) fn count_view(&self) {
        self.views.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn uncount_view(&self) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The memory alone, to be dropped, or this again where a view or a tensor of it lives.
    pub(crate) fn into_unique(self: Arc<Self>) -> Result<Self, Arc<Self>> {
        if self.views.load(Ordering::Acquire) > 0 {
            return Err(self);
        }
        Arc::try_unwrap(self)
    }
}

/// A tensor of bytes that shares the memory.
#[derive(Debug)]
pub(crate) struct Tensor(pub(crate) Arc<LentMemory>);

impl IntoDLPack for Tensor {
    fn tensor_info(&self) -> TensorInfo {
        // A mapping is at most half of the address space long.
        let len = i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        TensorInfo::contiguous(self.0.address(), cpu_device(), dtype_u8(), vec![len])
    }
}
