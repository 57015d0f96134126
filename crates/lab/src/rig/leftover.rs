// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an embedded daemon that was killed has left: its mounts, which still hold pages.

use std::path::Path;

use linux::{Error, Result, Roots, hugetlb, mount};

use crate::machine::call_failed;

/// Detaches every hugetlbfs below `dir` and removes `dir`: the pages of files that no process has
/// open or mapped are the kernel's again. Does nothing if there is no such directory.
///
/// Only for a directory of a daemon that is known to be dead, as [`super::reserve::Reservation`]
/// knows it.
///
/// # Errors
/// [`linux::Error`] naming the call.
pub(crate) fn remove(roots: &Roots, dir: &Path) -> Result<()> {
    for page in hugetlb::page_sizes(roots)? {
        for mounted in mount::find(roots, page)? {
            if mounted.dir.starts_with(dir) {
                mounted.detach()?;
            }
        }
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err::<(), Error>(call_failed(format!("rmdir({dir:?})"), &error, None))
        }
        _ => Ok(()),
    }
}
