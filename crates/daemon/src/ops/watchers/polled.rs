// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of the kernel that tokio polls.
//!
//! # Safety
//!
//! tokio wants to be promised that a descriptor stays what it is while it is registered. Here each
//! one is owned by the registered value itself, which neither closes nor exchanges it before it is
//! dropped, and `AsyncFd` ends the registration first.
#![expect(unsafe_code, reason = "registers a descriptor with tokio")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use linux::DaemonEnd;
use linux::kernel::Device;
use linux::kernel::files::CountFile;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::base::error::{Error, Result};

/// What tokio wants of something that it polls.
#[derive(Debug)]
pub(super) struct Polled<T>(pub(super) T);

impl<T: AsFd> AsRawFd for Polled<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Values that keep the descriptor they lend for as long as they live.
pub(super) trait KeepsFd: AsFd {}
impl KeepsFd for Device {}
impl KeepsFd for CountFile {}
impl KeepsFd for OwnedFd {}

impl KeepsFd for DaemonEnd {}

/// Has tokio poll it.
pub(super) fn register<T: KeepsFd>(file: T, interest: Interest) -> Result<AsyncFd<Polled<T>>> {
    let what = "cannot wait for the kernel's events";
    try_register(file, interest).map_err(|(_, source)| Error::Runtime { what, source })
}

/// The same; what cannot be polled comes back.
pub(super) fn try_register<T: KeepsFd>(
    file: T,
    interest: Interest,
) -> std::result::Result<AsyncFd<Polled<T>>, (T, io::Error)> {
    // SAFETY: `file` owns its descriptor, keeps it until it is dropped (`KeepsFd`), and moves into
    // the `AsyncFd`, which deregisters before it drops what it has.
    let registered = unsafe { AsyncFd::register_with_interest(Polled(file), interest) };
    registered.map_err(|error| {
        let (Polled(file), error) = error.into_parts();
        (file, error)
    })
}
