// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent memory, mapped.
//!
//! # Safety
//!
//! Slices are made of a range that the value maps, readable and writable, until it is dropped.
//! [`Loan::map`](crate::Loan::map) takes the loan, so that a loan is mapped once in safe code, and
//! `&mut self` lends the bytes to one user at a time. The daemon gives a block to one borrower and
//! writes to it only after the proof that its borrower is gone. Another process can write to the
//! memory only if this one hands it a descriptor, or forks, which both are the program's doing. A
//! loan that root revokes raises SIGBUS, as a mapped file does that another process truncates.
#![expect(unsafe_code, reason = "makes slices of mapped memory")]

use std::ops::{Deref, DerefMut, Range};

use crate::error::Result;
use crate::loan::Loan;

/// Borrowed memory as bytes: `&[u8]` and `&mut [u8]` by dereference, mapped shared.
///
/// It holds its loan. Dropping it unmaps the memory and returns the loan.
#[derive(Debug)]
pub struct MappedLoan {
    // In this order: unmapped, and only then returned.
    memory: linux::Mapping,
    loan: Loan,
}

impl MappedLoan {
    pub(crate) fn new(loan: Loan) -> Result<Self> {
        Ok(Self { memory: loan.map_parts()?, loan })
    }

    /// The loan: its number, its size, what was ready.
    #[must_use]
    pub fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Where it starts, a multiple of the page size. The pointer is good until the value is
    /// dropped. For memory that others write to meanwhile, such as devices: no reference is made.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Puts the pages of `range` (offsets, half-open) into the page tables, and has the kernel
    /// allocate and zero those that were not ready. Several threads may each do a part.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel): the pool has too few pages for an unbacked part, or
    /// a page is broken.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn populate(&self, range: Range<usize>) -> Result<()> {
        Ok(self.memory.populate_range(range)?)
    }

    /// Unmaps the memory and keeps the loan.
    #[must_use]
    pub fn unmap(self) -> Loan {
        let Self { memory, loan } = self;
        drop(memory);
        loan
    }
}

impl Deref for MappedLoan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable, and mapped as long as `self`; `&mut self` alone gives writable slices.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.memory.len()) }
    }
}

impl DerefMut for MappedLoan {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: writable, and mapped as long as `self`, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.memory.len()) }
    }
}

impl AsRef<[u8]> for MappedLoan {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for MappedLoan {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
