// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every reader on a literal tree: what the kernel prints, what old and odd kernels print, and what
//! no kernel prints.

mod cgroup;
mod cpu;
mod cpuset;
mod error;
mod hugepagectl;
mod hugetlb;
mod kernel;
mod meminfo;
mod module;
mod mount;
mod numa;
mod peer;
mod psi;
