// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about the address space: `/proc/self/maps` and `smaps`.

use crate::lent_ranges::Range;
use crate::raw::{self, Errno, Mapping};

/// The mappings in `start..end`, in order, cut to that.
///
/// # Errors
/// Where `/proc` cannot be read: then nothing is known.
pub(crate) fn mappings(start: usize, end: usize) -> raw::Result<Vec<Mapping>> {
    let fd = raw::open(c"/proc/self/maps")?;
    let mut found = Vec::new();
    let mut at = start;
    let done = loop {
        match raw::mapping_at(fd, at) {
            Err(Errno(libc::ENOENT)) => break Ok(()),
            // Before Linux 6.11.
            Err(Errno(libc::ENOTTY)) => {
                break read(fd).map(|text| {
                    let lines = text.split(|byte| *byte == b'\n').filter_map(parse);
                    found = lines.filter_map(|whole| cut(whole, start, end)).collect();
                });
            }
            Err(error) => break Err(error),
            Ok(whole) if whole.start >= end => break Ok(()),
            Ok(whole) => {
                at = whole.end;
                found.extend(cut(whole, start, end));
            }
        }
    };
    raw::close(fd);
    done.map(|()| found)
}

/// What a new mapping must be advised to be like another one; `None` if advice is too little.
pub(crate) fn advice(mapping: Mapping) -> Option<Vec<libc::c_int>> {
    let fd = raw::open(c"/proc/self/smaps").ok()?;
    let text = read(fd);
    raw::close(fd);
    let text = text.ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find(|line| {
        parse(line).is_some_and(|whole| whole.start <= mapping.start && mapping.end <= whole.end)
    })?;
    let flags = lines.find_map(|line| line.strip_prefix(b"VmFlags:"))?;
    let mut advice = Vec::new();
    for flag in flags.split(|byte| *byte == b' ').filter(|flag| !flag.is_empty()) {
        match flag {
            b"dc" => advice.push(libc::MADV_DONTFORK),
            b"dd" => advice.push(libc::MADV_DONTDUMP),
            // Rights, what every mapping of huge pages has, and what only reports changes.
            b"rd" | b"wr" | b"sh" | b"mr" | b"mw" | b"me" | b"ms" | b"de" | b"ht" | b"sd" => {}
            _ => return None,
        }
    }
    Some(advice)
}

/// A whole file.
fn read(fd: libc::c_int) -> raw::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        // The file's offsets are bytes of text: each read goes on behind the last line.
        match raw::pread(fd, &mut buffer, text.len() as u64)? {
            0 => return Ok(text),
            read => text.extend_from_slice(&buffer[..read]),
        }
    }
}

/// The part of a mapping that lies in a range.
pub(crate) fn cut(mapping: Mapping, start: usize, end: usize) -> Option<Mapping> {
    let whole = Range { start: mapping.start, end: mapping.end };
    let part = whole.cut(Range { start, end })?;
    let offset = mapping.offset + (part.start - mapping.start) as u64;
    Some(Mapping { start: part.start, end: part.end, offset, ..mapping })
}

/// `7f00-7f80 rw-p 00000000 00:01 123   name`. The name may be arbitrary bytes.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |byte| *byte == b' ').map(std::str::from_utf8);
    let mut next = || fields.next()?.ok();
    let (start, end) = next()?.split_once('-')?;
    let rights = next()?.as_bytes();
    let offset = u64::from_str_radix(next()?, 16).ok()?;
    let (major, minor) = next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let right = |at: usize, letter: u8, bit| if rights.get(at) == Some(&letter) { bit } else { 0 };
    Some(Mapping {
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
