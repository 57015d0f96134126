// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file with reads of chosen duration: one file of a FUSE file system, read past the page cache,
//! so that the kernel holds the reader's pages until the answer is there.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linux::FuseMount;
use tempfile::TempDir;
use testkit::MOUNTS_PREFIX;

/// include/uapi/linux/fuse.h
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

const ENOSYS: i32 = 38;
const LENGTH: u64 = 1 << 20;

/// The file and its server. Dropped, both are gone, and readers get an error.
#[derive(Debug)]
pub(super) struct SlowFile {
    dir: TempDir,
    mount: FuseMount,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_read: AtomicBool,
    answers: AtomicBool,
    ends: AtomicBool,
}

impl SlowFile {
    /// Serves a file filled with `byte`.
    pub(super) fn serve(byte: u8) -> Self {
        let dir = tempfile::Builder::new().prefix(MOUNTS_PREFIX).tempdir().expect("a directory");
        let device = linux::fuse::open_device().expect("root, and a kernel with FUSE");
        let mount = linux::fuse::mount(dir.path(), &device, "slow").expect("root");
        let shared = Arc::<Shared>::default();
        let of_server = Arc::clone(&shared);
        let server = std::thread::spawn(move || answer_all(&device, &of_server, byte));
        Self { dir, mount, shared, server: Some(server) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// Waits until a process reads it.
    pub(super) fn wait_read(&self) {
        while !self.shared.is_read.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the reads end.
    pub(super) fn answer(&self) {
        self.shared.answers.store(true, Ordering::Release);
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(server) = self.server.take() {
            server.join().expect("it ends when it is told to");
        }
        self.mount.detach().expect("our own mount");
    }
}

fn answer_all(device: &OwnedFd, shared: &Shared, byte: u8) {
    let mut request = vec![0; 1 << 20];
    let mut waiting = Vec::new();
    while !shared.ends.load(Ordering::Acquire) {
        if shared.answers.load(Ordering::Acquire) {
            for (unique, length) in waiting.drain(..) {
                reply(device, unique, 0, &vec![byte; length]);
            }
        }
        let Ok(length @ 40..) = rustix::io::read(device, &mut request) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let number = |at: usize| {
            let bytes = request[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes)
        };
        let unique = u64::from_ne_bytes(request[8..16].try_into().expect("eight bytes"));
        let is_root = number(16) == 1;
        match number(4) {
            opcode::INIT => reply(device, unique, 0, &init()),
            opcode::LOOKUP => {
                let entry: Vec<u8> =
                    [2_u64, 0, 1, 1, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
                reply(device, unique, 0, &[entry, attributes(false)].concat());
            }
            opcode::GETATTR => {
                let valid: Vec<u8> = [1_u64, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
                reply(device, unique, 0, &[valid, attributes(is_root)].concat());
            }
            // The handle, and FOPEN_DIRECT_IO.
            opcode::OPEN => reply(device, unique, 0, &[[0; 8], 1_u64.to_ne_bytes()].concat()),
            opcode::READ => {
                // After the header: handle, offset, length.
                let wanted = number(40 + 16) as usize;
                waiting.push((unique, wanted));
                shared.is_read.store(true, Ordering::Release);
            }
            opcode::FLUSH | opcode::RELEASE => reply(device, unique, 0, &[]),
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => {}
            _ => reply(device, unique, -ENOSYS, &[]),
        }
        let _ = length;
    }
}

fn reply(device: &OwnedFd, unique: u64, error: i32, body: &[u8]) {
    let length = u32::try_from(16 + body.len()).expect("a short answer");
    let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
    // Who asked may be gone.
    let _ = rustix::io::write(device, &[&head, body].concat());
}

fn init() -> Vec<u8> {
    // Version 7.31, no read-ahead, no flags, no background requests; writes of 4 KiB.
    let mut out: Vec<u8> =
        [7_u32, 31, 0, 0, 0, 4096, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
    out.resize(64, 0);
    out
}

fn attributes(is_root: bool) -> Vec<u8> {
    let (inode, mode) = if is_root { (1, 0o040_755_u32) } else { (2, 0o100_644) };
    let numbers: [u64; 6] = [inode, LENGTH, LENGTH / 512, 0, 0, 0];
    let mut out: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // Three parts of a second, mode, links, user, group, device, block size, flags.
    let rest = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    out.extend(rest.iter().flat_map(|n| n.to_ne_bytes()));
    out
}
