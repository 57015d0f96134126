// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about the address space: `/proc/self/maps`.

use crate::raw;

/// One mapping, cut to what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) prot: libc::c_int,
}

/// The mappings in `start..end`, in order.
pub(crate) fn pieces(start: usize, end: usize) -> Vec<Piece> {
    let Ok(fd) = raw::open(c"/proc/self/maps") else { return Vec::new() };
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        // The file's offsets are bytes of text: each read goes on behind the last line.
        match raw::pread(fd, &mut buffer, text.len() as u64) {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
    raw::close(fd);
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(parse).filter_map(|piece| cut(piece, start, end)).collect()
}

fn cut(piece: Piece, start: usize, end: usize) -> Option<Piece> {
    let (start, end) = (piece.start.max(start), piece.end.min(end));
    (start < end).then_some(Piece { start, end, ..piece })
}

/// `7f00-7f80 rw-p 00000000 00:01 123   name`.
fn parse(line: &[u8]) -> Option<Piece> {
    let line = std::str::from_utf8(line.get(..line.len().min(64))?).ok()?;
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let right = |at: usize, letter: u8, bit| if rights.get(at) == Some(&letter) { bit } else { 0 };
    Some(Piece {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        prot: right(0, b'r', libc::PROT_READ)
            | right(1, b'w', libc::PROT_WRITE)
            | right(2, b'x', libc::PROT_EXEC),
    })
}
