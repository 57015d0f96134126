// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The unbacked part of a `whole` loan, filled before its borrower gets the file.
//!
//! The borrower of a whole loan may be unable to allocate pages: Kubernetes gives containers a
//! hugetlb limit of 0. So the kernel zeroes the missing pages here, in the daemon's context, on a
//! thread of its own: 0.1 s a GiB, bounded by `agent.fill_max`. It ends within a page when the
//! process ends, or when its [token](CancellationToken) is cancelled: the agent hung up, or the
//! name was returned.

use std::io;
use std::ops::ControlFlow::{Break, Continue};

use linux::{BlockFile, numa};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use units::{Domain, Pages};

/// A file with an unbacked part.
#[derive(Debug)]
pub(crate) struct Unbacked {
    pub(crate) file: BlockFile,
    pub(crate) domain: Domain,
    /// The file's length.
    pub(crate) pages: Pages,
    /// Cancels the fill.
    pub(crate) stop: CancellationToken,
}

impl Unbacked {
    /// Allocates the missing pages on their node. The receiver gets the result after the file is
    /// closed. A cancelled fill does not report its progress.
    pub(crate) fn fill(self) -> io::Result<oneshot::Receiver<linux::Result<()>>> {
        let (notify, reported) = oneshot::channel();
        std::thread::Builder::new().name("filling".to_owned()).spawn(move || {
            let filled = numa::bind_thread_to(self.domain.node).and_then(|()| {
                let size = self.domain.page_size;
                let all = 0..self.pages.bytes(size).0;
                let mut each = |_| if self.stop.is_cancelled() { Break(()) } else { Continue(()) };
                self.file.allocate_pages(all, size, &mut each).map(drop)
            });
            drop(self.file);
            // The receiver is gone when the daemon ends.
            drop(notify.send(filled));
        })?;
        Ok(reported)
    }
}
