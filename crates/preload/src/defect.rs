// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A panic, which would be a defect of the shim's: it is said on standard error without allocating,
//! and the program is aborted.
//!
//! The standard library's own hook allocates, which waits for ever where the allocator is what
//! panicked, with all signals blocked; and to go on with a half changed table would be worse than
//! to end.

use std::fmt::Write as _;
use std::panic::PanicHookInfo;

use crate::raw;

/// From now on panics end so.
pub(crate) fn install() {
    // A closure without captures is no allocation.
    std::panic::set_hook(Box::new(panicked));
}

/// What fits of a text.
struct Line([u8; 200], usize);

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.0[self.1..];
        let bytes = text.len().min(room.len());
        room[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
        self.1 += bytes;
        Ok(())
    }
}

fn panicked(info: &PanicHookInfo<'_>) {
    let mut line = Line([0; 200], 0);
    let at = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic");
    let _ = writeln!(line, "prezero: a defect of the shim at {}:{}: {text}", at.0, at.1);
    raw::write(libc::STDERR_FILENO, &line.0[..line.1]);
    std::process::abort()
}
