// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looking at the daemon's counts, and waiting for them to change.
#![expect(unsafe_code, reason = "pointers of a C program: the contract is the parent module's")]

use std::ffi::{c_char, c_int};
use std::time::Duration;

use units::{Node, PageSize, Pages};
use wire::Level;

use super::{CallFailure, give, handle, prezero, run, text};
use crate::DEFAULT_SOCKET;
use crate::connection::{Client, StatusWatch};

/// The counts of one NUMA node and page size, in pages.
#[allow(non_camel_case_types, reason = "the header's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct prezero_level {
    /// The size of its pages in bytes.
    pub page_bytes: u64,
    /// Known to be zero.
    pub ready_pages: u64,
    /// Free, and possibly dirty.
    pub zeroable_pages: u64,
    /// Being cleared.
    pub zeroing_pages: u64,
    /// In clients' hands.
    pub lent_pages: u64,
    /// The node.
    pub node: u32,
}

impl From<&Level> for prezero_level {
    fn from(level: &Level) -> Self {
        Self {
            page_bytes: level.page_size.bytes(),
            ready_pages: level.ready_pages.0,
            zeroable_pages: level.zeroable_pages.0,
            zeroing_pages: level.zeroing_pages.0,
            lent_pages: level.lent_pages.0,
            node: level.node.0,
        }
    }
}

/// A watch. To be used by one thread at a time.
#[allow(non_camel_case_types, reason = "the header's name")]
#[derive(Debug)]
pub struct prezero_watch {
    watch: StatusWatch,
}

/// Fills in as many levels as there is room for, and says how many there are.
///
/// # Safety
/// `levels` is valid for writing `room` levels, or null if that is 0; `count` for writing a size.
unsafe fn fill(
    all: &[prezero_level],
    levels: *mut prezero_level,
    room: usize,
    count: *mut usize,
) -> Result<(), CallFailure> {
    if levels.is_null() && room > 0 {
        return Err(CallFailure::invalid("the place for a result is null"));
    }
    for (index, level) in all.iter().take(room).enumerate() {
        // SAFETY: within the room that the caller has.
        unsafe { levels.wrapping_add(index).write(*level) };
    }
    // SAFETY: the caller's contract.
    unsafe { give(count, all.len()) }
}

/// The counts of every node and page size, pools of one shape added up. `count` gets how many there
/// are; the first `room` of them are written to `levels`.
///
/// # Safety
/// `connection` is a connection; `levels` is valid for writing `room` levels, `count` for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_status(
    connection: *mut prezero,
    levels: *mut prezero_level,
    room: usize,
    count: *mut usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let connection = unsafe { handle(connection) }?;
        let status = connection.client.status()?;
        let all: Vec<_> = status.levels.iter().map(prezero_level::from).collect();
        // SAFETY: the caller's contract.
        unsafe { fill(&all, levels, room, count) }
    })
}

/// Watches levels: a report whenever a node's ready pages fall below `below`, one at once if they
/// are; with `below` 0 one now and one whenever a count changes. Reports come at most each
/// `interval_ms`, and the last state is never lost.
///
/// `socket` as in prezero_connect(); `node` may be PREZERO_ANY_NODE and `page_bytes` 0.
///
/// # Safety
/// `socket` is null or a text; `out` is valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_watch_open(
    socket: *const c_char,
    node: i32,
    page_bytes: u64,
    below: u64,
    interval_ms: u32,
    out: *mut *mut prezero_watch,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let path = unsafe { text(socket) }?.unwrap_or(DEFAULT_SOCKET);
        let page_size = match page_bytes {
            0 => None,
            bytes => Some(
                PageSize::new(bytes)
                    .ok_or_else(|| CallFailure::invalid("page_bytes is no page size"))?,
            ),
        };
        if out.is_null() {
            return Err(CallFailure::invalid("the place for a result is null"));
        }
        let watch = Client::connect(path)?.watch(
            u32::try_from(node).ok().map(Node),
            page_size,
            (below > 0).then_some(Pages(below)),
            Duration::from_millis(interval_ms.into()),
        )?;
        // SAFETY: the caller's contract.
        unsafe { give(out, Box::into_raw(Box::new(prezero_watch { watch }))) }
    })
}

/// Waits for the next report, for ever if need be: `count` gets how many levels it has; the first
/// `room` of them are written to `levels`. -ECONNRESET when the daemon is gone.
///
/// # Safety
/// `watch` is a watch; `levels` is valid for writing `room` levels, `count` for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_watch_next(
    watch: *mut prezero_watch,
    levels: *mut prezero_level,
    room: usize,
    count: *mut usize,
) -> c_int {
    run(|| {
        // SAFETY: the caller's contract.
        let watch = unsafe { handle(watch) }?;
        let report = watch.watch.next().ok_or_else(|| CallFailure {
            errno: rustix::io::Errno::CONNRESET,
            text: "the daemon is gone: connect again".to_owned(),
        })?;
        let all: Vec<_> = report?.levels.iter().map(prezero_level::from).collect();
        // SAFETY: the caller's contract.
        unsafe { fill(&all, levels, room, count) }
    })
}

/// Ends a watch. Null is allowed.
///
/// # Safety
/// `watch` is null or a watch, which is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prezero_watch_close(watch: *mut prezero_watch) {
    if watch.is_null() {
        return;
    }
    run(|| {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's contract.
        drop(unsafe { Box::from_raw(watch) });
        Ok(())
    });
}
