// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page at rest looks like on this kernel.

#![expect(unsafe_code, reason = "maps a page of its own and passes it to vmsplice")]
//! # Safety
//!
//! One byte of a mapping that is made and unmapped here goes to one system call, which reads it.

use std::os::fd::{BorrowedFd, OwnedFd};

use linux::{Mapping, PageBytes};
use rustix::pipe::{IoSliceRaw, SpliceFlags};

use crate::probe::{Error, PinProbe, Result, Unavailable};

/// The references of a page that nobody holds, as they were measured on this kernel.
///
/// Only [`PinProbe::measure`] makes one, and only after it has seen a pin come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    page: PageBytes,
    references: i32,
}

impl Idle {
    /// The page size it was measured for.
    pub fn page(self) -> PageBytes {
        self.page
    }

    /// The number of references.
    pub fn references(self) -> i32 {
        self.references
    }
}

impl PinProbe {
    /// Measures what `file`'s pages look like at rest, and that a pin is seen: pins the first page
    /// itself by `vmsplice`, and lets it go.
    ///
    /// `file` is a hugetlbfs file of the caller's own of `pages` pages with memory, that nobody
    /// else ever had. Its content stays. Blocks for some 10 us.
    ///
    /// # Errors
    /// [`Unavailable`] if any page's count differs from the others, or the pin is not seen as one
    /// reference more on the first page and on no other, or does not go.
    pub fn measure(
        &self,
        file: BorrowedFd<'_>,
        page: PageBytes,
        pages: u32,
    ) -> std::result::Result<Idle, Unavailable> {
        let failed = |error: Error| Unavailable(error.to_string());
        let rest = self.references(file, pages, page, 0).map_err(failed)?;
        if rest.pages != pages || rest.lowest != rest.highest || rest.lowest <= 0 {
            return Err(Unavailable(format!("pages at rest have no known count: {rest:?}")));
        }
        let idle = Idle { page, references: rest.lowest };
        {
            let _pin = Pin::of(file, page).map_err(failed)?;
            let pinned = self.look(file, pages, idle).map_err(failed)?;
            if (pinned.held, pinned.first_held) != (1, 0) || pinned.highest <= idle.references {
                return Err(Unavailable(format!("a pin of the first page shows as {pinned:?}")));
            }
        }
        let after = self.look(file, pages, idle).map_err(failed)?;
        if after.held != 0 {
            return Err(Unavailable(format!("a pin that is gone still shows: {after:?}")));
        }
        Ok(idle)
    }
}

/// A page in a pipe, while it lives.
struct Pin {
    _pipe: (OwnedFd, OwnedFd),
}

impl Pin {
    /// Pins the first page of `file`; nothing maps it afterwards.
    fn of(file: BorrowedFd<'_>, page: PageBytes) -> Result<Self> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |errno| Error::Call { call, errno }
        };
        let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(failed("pipe2(O_CLOEXEC)"))?;
        let mapping = Mapping::map(file, page.bytes(), page)?;
        // SAFETY: one byte of a readable mapping that lives until the call has returned. Nobody
        // writes to it meanwhile: `file` is the caller's own.
        let byte = unsafe { std::slice::from_raw_parts(mapping.as_ptr().cast::<u8>(), 1) };
        // SAFETY: without SPLICE_F_GIFT the page stays the file's; the pipe holds a reference.
        let given = unsafe {
            rustix::pipe::vmsplice(&pipe.1, &[IoSliceRaw::from_slice(byte)], SpliceFlags::empty())
        };
        given.map_err(failed("vmsplice"))?;
        Ok(Self { _pipe: pipe })
    }
}
