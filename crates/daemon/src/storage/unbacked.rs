// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hole of a loan that is to be whole, filled before anybody gets the file.
//!
//! Whoever maps such a loan may not allocate a page: Kubernetes gives containers a hugetlb limit of
//! 0. So the kernel zeroes what is missing here, in the daemon's context, on a thread of its own:
//! 0.1 s a GiB, bounded by `agent.fill_max`. The end of the process ends it within a page, and so
//! does its [token](CancellationToken), when the agent hangs up or the name is returned.

use std::io;
use std::ops::ControlFlow::{Break, Continue};

use linux::{BlockFile, numa};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use units::{Domain, Pages};

/// A file with a hole.
#[derive(Debug)]
pub(crate) struct Hole {
    pub(crate) file: BlockFile,
    pub(crate) domain: Domain,
    /// The file's length.
    pub(crate) pages: Pages,
    /// Ends it before that.
    pub(crate) stop: CancellationToken,
}

impl Hole {
    /// Allocates what is missing, on its node. What comes of it is told, with the file closed; a
    /// cancelled one does not say how far it came.
    pub(crate) fn fill(self) -> io::Result<oneshot::Receiver<linux::Result<()>>> {
        let (tell, told) = oneshot::channel();
        std::thread::Builder::new().name("filling".to_owned()).spawn(move || {
            let filled = numa::bind_thread_to(self.domain.node).and_then(|()| {
                let size = self.domain.page_size;
                let all = 0..self.pages.bytes(size).0;
                let mut each = |_| if self.stop.is_cancelled() { Break(()) } else { Continue(()) };
                self.file.allocate_pages(all, size, &mut each).map(drop)
            });
            drop(self.file);
            // Nobody hears it when the daemon ends.
            drop(tell.send(filled));
        })?;
        Ok(told)
    }
}
