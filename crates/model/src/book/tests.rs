// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the book.
//!
//! [`sequences`] drives it through arbitrary sequences of events in a simulated [`world`] of
//! clients, workers, crashes and a [`kernel`] that behaves as hugetlbfs does, and [`checks`] that
//! the invariants hold after each of them. The other files name single expectations, one each.

mod borrowing;
mod checks;
mod events;
mod kernel;
mod sequences;
mod world;
mod zeroing;
