// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The faces: the daemon's side of programs, scrapers and the kernel's FUSE.

pub(crate) mod http;
pub(crate) mod tree;
pub(crate) mod varlink;
