// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An initramfs, written on the fly: the `newc` format of the kernel's
//! `driver-api/early-userspace/buffer-format.rst`.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive that is being written.
#[derive(Debug)]
pub(super) struct Archive<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    pub(super) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    /// A file that can be run.
    pub(super) fn program(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM, (0, 0), content)
    }

    /// A character device by major and minor number.
    pub(super) fn device(&mut self, name: &str, device: (u32, u32)) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE, device, &[])
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.flush()
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        (major, minor): (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        self.inode += 1;
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        // inode, mode, uid, gid, links, mtime, size, device, device of the file, name's size, check
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08x}");
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + name.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    /// Header with name, and content, each end at a multiple of 4.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn entries_start_at_multiples_of_four_and_the_trailer_is_last() {
        for length in 0..8 {
            let mut bytes = Vec::new();
            let mut archive = Archive::new(&mut bytes);
            archive.directory("dev").unwrap();
            archive.program("init", &vec![b'x'; length]).unwrap();
            archive.finish().unwrap();
            let starts: Vec<_> =
                (0..bytes.len() - 6).filter(|&at| &bytes[at..at + 6] == b"070701").collect();
            assert_eq!(starts.len(), 3, "{length}");
            assert!(starts.iter().all(|at| at.is_multiple_of(4)), "{length}: {starts:?}");
            assert!(bytes[starts[2]..].windows(10).any(|name| name == b"TRAILER!!!"));
        }
    }

    #[test]
    fn the_system_s_cpio_reads_it_back_where_there_is_one() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.directory("dev").unwrap();
        archive.device("dev/console", (5, 1)).unwrap();
        archive.program("init", b"#!/bin/sh\n").unwrap();
        archive.finish().unwrap();
        let started = ["cpio", "busybox"].into_iter().find_map(|program| {
            let words: &[&str] =
                if program == "busybox" { &["cpio", "-t"] } else { &["--list", "--quiet"] };
            let command = Command::new(program)
                .args(words)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            command.ok()
        });
        let Some(mut child) = started else { return };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(listed.lines().collect::<Vec<_>>(), ["dev", "dev/console", "init"]);
    }
}
