// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about the address space: `/proc/self/maps`.

use crate::raw::{self, Errno, File};

/// One mapping, cut to what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) prot: libc::c_int,
    /// Whether writes are the file's, or everybody's who shares it.
    pub(crate) shared: bool,
    /// Of the file that is mapped; 0 for memory that is no file's.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// What of the file lies at `start`.
    pub(crate) offset: u64,
}

impl Piece {
    pub(crate) fn is_of(&self, file: File) -> bool {
        (self.device, self.inode) == (file.device, file.inode)
    }
}

/// The mappings in `start..end`, in order, cut to that.
///
/// # Errors
/// Where `/proc` cannot be read: then nothing is known.
pub(crate) fn pieces(start: usize, end: usize) -> raw::Result<Vec<Piece>> {
    let text = read(c"/proc/self/maps")?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(parse).filter_map(|piece| cut(piece, start, end)).collect())
}

/// The mapping at an address or the next one, whole, of those that begin before `end`. Allocates
/// nothing and asks for no lock.
///
/// # Errors
/// Where `/proc` cannot be read: then nothing is known.
pub(crate) fn first(start: usize, end: usize) -> raw::Result<Option<Piece>> {
    let fd = raw::open(c"/proc/self/maps")?;
    let found = match raw::mapping_at(fd, start) {
        Err(Errno(libc::ENOENT)) => Ok(None),
        // Before Linux 6.11.
        Err(Errno(libc::ENOTTY)) => first_in_text(fd, start),
        Err(error) => Err(error),
        Ok(mapping) => Ok(Some(mapping)),
    };
    raw::close(fd);
    Ok(found?.filter(|piece| piece.start < end))
}

fn first_in_text(fd: libc::c_int, start: usize) -> raw::Result<Option<Piece>> {
    // What counts of a line is in its first 100 bytes; names may be longer than any buffer.
    let (mut line, mut length) = ([0_u8; 128], 0);
    let (mut buffer, mut offset) = ([0_u8; 4096], 0_u64);
    loop {
        let read = raw::pread(fd, &mut buffer, offset)?;
        if read == 0 {
            return Ok(None);
        }
        offset += read as u64;
        for byte in &buffer[..read] {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = *byte;
                    length += 1;
                }
                continue;
            }
            let found = parse(&line[..length]).filter(|piece| start < piece.end);
            if found.is_some() {
                return Ok(found);
            }
            length = 0;
        }
    }
}

/// What a new mapping must be advised to be as that of a piece is; `None` if advice is not enough.
pub(crate) fn advice(piece: Piece) -> Option<Vec<libc::c_int>> {
    let text = read(c"/proc/self/smaps").ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find(|line| {
        parse(line).is_some_and(|whole| whole.start <= piece.start && piece.end <= whole.end)
    })?;
    let flags = lines.find_map(|line| line.strip_prefix(b"VmFlags:"))?;
    let mut advice = Vec::new();
    for flag in flags.split(|byte| *byte == b' ').filter(|flag| !flag.is_empty()) {
        match flag {
            b"dc" => advice.push(libc::MADV_DONTFORK),
            b"dd" => advice.push(libc::MADV_DONTDUMP),
            // Rights, what every mapping of huge pages has, and what only tells of changes.
            b"rd" | b"wr" | b"sh" | b"mr" | b"mw" | b"me" | b"ms" | b"de" | b"ht" | b"sd" => {}
            _ => return None,
        }
    }
    Some(advice)
}

/// A whole file.
pub(crate) fn read(path: &std::ffi::CStr) -> raw::Result<Vec<u8>> {
    let fd = raw::open(path)?;
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    let done = loop {
        // The file's offsets are bytes of text: each read goes on behind the last line.
        match raw::pread(fd, &mut buffer, text.len() as u64) {
            Ok(0) => break Ok(()),
            Err(error) => break Err(error),
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    };
    raw::close(fd);
    done.map(|()| text)
}

/// A piece as far as it lies in a range.
pub(crate) fn cut(piece: Piece, start: usize, end: usize) -> Option<Piece> {
    let (start, end) = (piece.start.max(start), piece.end.min(end));
    let offset = piece.offset + (start.saturating_sub(piece.start)) as u64;
    (start < end).then_some(Piece { start, end, offset, ..piece })
}

/// `7f00-7f80 rw-p 00000000 00:01 123   name`, of which the name may be no text.
fn parse(line: &[u8]) -> Option<Piece> {
    let mut fields = line.splitn(6, |byte| *byte == b' ').map(std::str::from_utf8);
    let mut next = || fields.next()?.ok();
    let (start, end) = next()?.split_once('-')?;
    let rights = next()?.as_bytes();
    let offset = u64::from_str_radix(next()?, 16).ok()?;
    let (major, minor) = next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let right = |at: usize, letter: u8, bit| if rights.get(at) == Some(&letter) { bit } else { 0 };
    Some(Piece {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        prot: right(0, b'r', libc::PROT_READ)
            | right(1, b'w', libc::PROT_WRITE)
            | right(2, b'x', libc::PROT_EXEC),
        shared: rights.get(3) == Some(&b's'),
        device: libc::makedev(number(major)?, number(minor)?),
        inode: next()?.parse().ok()?,
        offset,
    })
}
