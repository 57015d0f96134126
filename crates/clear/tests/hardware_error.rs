// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page with an uncorrectable memory error, as the kernel reports it. userfaultfd can poison an
//! address for one process (`UFFDIO_POISON`, Linux 6.6). It was made for the migration of virtual
//! machines with broken pages, and leaves the memory intact.
//!
//! # Safety
//!
//! The test owns its mapping and its userfaultfd. Faulting on purpose is the point.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#![expect(unsafe_code, reason = "ioctls of userfaultfd")]

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};

use prezero_clear::calibrate::Scratch;
use prezero_clear::{Cause, Chunk, Clearer, Method, Outcome, guard};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

const PAGE: usize = 4096;

/// `struct uffdio_api`, `struct uffdio_register`, `struct uffdio_poison`, each as its words.
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_POISON: u64 = 0xc020_aa08;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_POISON: u64 = 1 << 14;
const MODE_MISSING: u64 = 1;

/// `UFFD_USER_MODE_ONLY`: allowed to any user.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);

fn ioctl<const WORDS: usize>(
    fd: &OwnedFd,
    request: u64,
    mut words: [u64; WORDS],
) -> io::Result<()> {
    // SAFETY: the requests above read and write a struct of that size, and the memory they name is
    // the test's.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Poisons the page at `address`, which must not be present. The effect ends with the descriptor.
fn poison(address: u64) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor; faults of registered memory are handled by the kernel alone, with
    // its poison.
    let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | USER_MODE_ONLY) }?;
    ioctl(&fd, UFFDIO_API, [UFFD_API, UFFD_FEATURE_POISON, 0])?;
    ioctl(&fd, UFFDIO_REGISTER, [address, PAGE as u64, MODE_MISSING, 0])?;
    ioctl(&fd, UFFDIO_POISON, [address, PAGE as u64, 0, 0])?;
    Ok(fd)
}

#[test]
fn every_method_reports_a_hardware_error_as_the_kernel_names_it() {
    const POISONED_PAGE: usize = 700;
    guard::install().unwrap();
    // A kernel without CONFIG_MEMORY_FAILURE knows poison but not the signal's code for it:
    // BUS_ADRERR then.
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let cause =
        if meminfo.contains("HardwareCorrupted:") { Cause::Hardware } else { Cause::Unbacked };
    for method in Method::available().filter(|method| method.recovers()) {
        let mut scratch = Scratch::new(4 << 20).unwrap();
        let address = scratch.extent().as_ptr().addr() + POISONED_PAGE * PAGE;
        let _poison = match poison(address as u64) {
            Ok(fd) => fd,
            Err(error) => {
                eprintln!("skipped: no UFFDIO_POISON here (Linux 6.6 has it): {error}");
                return;
            }
        };
        let clearer = Clearer::new(method, Chunk::from_bytes(64 * PAGE).unwrap()).unwrap();
        let outcome = clearer.clear(scratch.extent(), |_| ControlFlow::Continue(()));
        let Outcome::Poisoned { fault, cleared_bytes, .. } = outcome else {
            panic!("{method}: {outcome:?}")
        };
        assert_eq!((fault.cause, fault.address / PAGE), (cause, address / PAGE), "{method}");
        assert_eq!(cleared_bytes, POISONED_PAGE / 64 * 64 * PAGE, "{method}");
    }
}
