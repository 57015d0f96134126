// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The faces: what programs, scrapers and the kernel's FUSE say to the daemon, and nothing besides.

pub(crate) mod http;
pub(crate) mod tree;
pub(crate) mod varlink;
