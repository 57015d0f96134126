// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says while something is done: the new records of `/dev/kmsg`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use linux::Roots;
use rustix::fs::OFlags;

/// More than the kernel puts into one record.
const MAX_RECORD_BYTES: usize = 8192;

/// The kernel's log from one moment on.
#[derive(Debug)]
pub(crate) struct KernelLog(File);

impl KernelLog {
    /// From now on. Needs `CAP_SYSLOG` where `kernel.dmesg_restrict` is set.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn from_now(roots: &Roots) -> io::Result<Self> {
        // With nothing new a read is to say so.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let path = roots.dev.join("kmsg");
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// The texts since then; each is read once.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = [0; MAX_RECORD_BYTES];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    // `priority,number,time,flags;text`; lines that begin with a blank are fields.
                    let of_line = |line: &str| Some(line.split_once(';')?.1.to_owned());
                    lines.extend(text.lines().filter(|l| !l.starts_with(' ')).filter_map(of_line));
                }
                // Records that were overwritten before they were read.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use testkit::tree;

    #[test]
    fn records_since_then_are_read_without_their_fields() {
        let tree = tree(&[("dev/kmsg", "6,1,100,-;before\n")]);
        let mut log = KernelLog::from_now(&tree.roots()).unwrap();
        assert_eq!(log.lines(), Vec::<String>::new());
        let mut end = OpenOptions::new().append(true).open(tree.roots().dev.join("kmsg")).unwrap();
        end.write_all(b"3,2,101,-;prezero: no; not here\n SUBSYSTEM=a;b\n6,3,102,-;other\n")
            .unwrap();
        assert_eq!(log.lines(), ["prezero: no; not here", "other"]);
    }
}
