// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class `Loan`: lent memory as Python and its libraries take it, by the buffer protocol and by
//! DLPack.
//!
//! # Safety
//!
//! Both hand out the address of a mapping. The receiver also has a share of the [`LentMemory`] (a
//! tensor) or is counted by it (a view, which keeps the loan's object alive besides).
//! [`LentMemory::into_unique`] gives it to be unmapped only without such receivers. Programs own
//! their writes there: no reference into the memory is ever made here.
#![expect(unsafe_code, reason = "Python's buffers are raw pointers")]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use client::{Bytes, MappedLoan, PageSize};
use dlpack_rs::pyo3_glue::IntoDLPack as _;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::memory::{LentMemory, Tensor};

/// DLPack's number of memory that a CPU reads.
const ON_CPU: (i32, i32) = (1, 0);

/// Set in a versioned tensor that was copied on request: never here.
const NO_FLAGS: u64 = 0;

/// Borrowed memory: a writable buffer of bytes, mapped shared at one address.
#[derive(Debug)]
#[pyclass(frozen, module = "prezero")]
pub(crate) struct Loan {
    memory: Mutex<Option<Arc<LentMemory>>>,
    bytes: Bytes,
    ready: Bytes,
    page: PageSize,
    is_kept: bool,
    number: u64,
}

impl Loan {
    pub(crate) fn new(mapping: MappedLoan) -> Self {
        let lent = mapping.loan();
        Self {
            bytes: lent.bytes(),
            ready: lent.ready_bytes(),
            page: lent.page_size(),
            is_kept: lent.is_kept(),
            number: lent.id().0,
            memory: Mutex::new(Some(LentMemory::new(mapping))),
        }
    }

    /// Its memory, unless it was given back.
    pub(crate) fn memory(&self) -> PyResult<Arc<LentMemory>> {
        self.slot().clone().ok_or_else(|| PyValueError::new_err("the loan is closed"))
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<LentMemory>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Loan {
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes.0
    }

    #[getter]
    fn ready_bytes(&self) -> u64 {
        self.ready.0
    }

    #[getter]
    fn page_size(&self) -> u64 {
        self.page.bytes()
    }

    #[getter]
    fn kept(&self) -> bool {
        self.is_kept
    }

    #[getter]
    fn id(&self) -> u64 {
        self.number
    }

    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.memory()?.address().addr())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.slot().is_none()
    }

    /// Gives it back, unless a view of it lives.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(memory) = self.slot().take() else { return Ok(()) };
        match memory.into_unique() {
            // To unmap many small pages takes a while, in which other threads may run.
            Ok(memory) => py.detach(|| drop(memory)),
            Err(memory) => {
                *self.slot() = Some(memory);
                let why = "a view of the loan lives: delete what was made of it first";
                return Err(PyBufferError::new_err(why));
            }
        }
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.memory()?.len())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.close(py) {
            // Its traceback may hold the view. The loan ends with the last of both, and the error
            // is not to be hidden by another.
            Err(_) if !error.is_none() => Ok(()),
            done => done,
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<prezero.Loan {} of {}, {} ready{state}>", self.number, self.bytes, self.ready)
    }

    /// # Safety
    /// `view` is a buffer to be filled, as Python's interpreter passes it.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get().memory()?;
        let len = isize::try_from(memory.len())
            .map_err(|_| PyOverflowError::new_err("longer than a buffer can be"))?;
        // SAFETY: `view` is the caller's; the address is of `len` writable bytes, which stay mapped
        // while `slf` counts this view. The buffer gets a reference of `slf`.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.address(), len, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        memory.count_view();
        Ok(())
    }

    /// # Safety
    /// `_view` was filled by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        if let Ok(memory) = self.memory() {
            memory.uncount_view();
        }
    }

    /// The memory as a tensor of bytes, without a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() || dl_device.is_some_and(|device| device != ON_CPU) {
            return Err(PyBufferError::new_err(
                "lent memory is the CPU's: no stream, device (1, 0)",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("lent memory is not copied: ask without copy=True"));
        }
        let tensor = Tensor(self.memory()?);
        match max_version {
            Some((1.., _)) => tensor.into_capsule_versioned(py, NO_FLAGS),
            _ => tensor.into_capsule(py),
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        ON_CPU
    }
}
