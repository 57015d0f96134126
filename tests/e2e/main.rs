// SPDX-License-Identifier: Apache-2.0 OR MIT
//! End to end: the real binary on real huge pages of this machine. One file per subject; new tests
//! belong into the file of their subject.
//!
//! Every test that takes pages holds the machine-wide lock of `testkit::hugepages`, and
//! fails if a page is missing from the kernel's pool at its end.

mod conformance;
mod crash;
mod crowds;
mod health;
mod inherited;
mod isolation;
mod keep;
mod laboratory;
mod library;
mod loans;
mod metrics;
mod mix;
mod named;
mod nodes;
mod operator;
mod pins;
mod plan;
mod policy;
mod policy_doc;
mod printed;
mod protocol;
mod resize;
mod rights;
mod service;
mod shim;
mod starting;
mod terminals;
mod top;
mod tree;
mod tree_context;
mod tree_poll;
mod zeroing;
