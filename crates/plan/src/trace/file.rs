// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace's file as text: compressed by gzip or not, whole or cut.

use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What a file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TraceText {
    pub(super) text: String,
    /// Whether the file ends early: in the middle of a line, or of what gzip wrote.
    pub(super) is_cut: bool,
}

/// Reads a file, plain or as gzip makes it: its first bytes say so.
pub(super) fn read(path: &Path) -> Result<TraceText, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    of_bytes(bytes)
}

fn of_bytes(bytes: Vec<u8>) -> Result<TraceText, String> {
    let (mut bytes, is_torn) = match bytes.starts_with(&GZIP_MAGIC) {
        true => unpacked(&bytes)?,
        false => (bytes, false),
    };
    if is_torn && let Err(error) = std::str::from_utf8(&bytes) {
        // The last character may be cut as well.
        bytes.truncate(error.valid_up_to());
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    let is_cut = is_torn || !text.ends_with('\n');
    Ok(TraceText { text, is_cut })
}

/// The contents, and whether their end is missing.
fn unpacked(bytes: &[u8]) -> Result<(Vec<u8>, bool), String> {
    let mut contents = Vec::new();
    match MultiGzDecoder::new(bytes).read_to_end(&mut contents) {
        Ok(_) => Ok((contents, false)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok((contents, true)),
        Err(error) => Err(format!("gzip: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;

    fn packed(text: &str) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn packed_file_is_read_as_its_text() {
        let text = "arrival,size,lifetime\n0,8G,1\n";
        let of = |bytes| of_bytes(bytes).unwrap();
        let whole = TraceText { text: text.to_owned(), is_cut: false };
        assert_eq!(of(text.into()), whole);
        assert_eq!(of(packed(text)), whole);
        assert_eq!(of([packed(&text[..22]), packed(&text[22..])].concat()), whole, "as cat does");
        assert_eq!(of(format!("\u{feff}{text}").into()), whole);
        assert!(of(text.trim_end().into()).is_cut);
    }

    #[test]
    fn packed_file_that_is_cut_has_what_came_before() {
        let lines: String = (0..5000).map(|at| format!("{at},{}G,1\n", at % 97 + 1)).collect();
        let mut bytes = packed(&lines);
        bytes.truncate(bytes.len() / 2);
        let TraceText { text, is_cut } = of_bytes(bytes).unwrap();
        assert!(is_cut && text.len() > 1000 && lines.starts_with(&text));
        let mut broken = packed(&lines);
        broken[20..60].fill(0xff);
        assert!(of_bytes(broken).unwrap_err().starts_with("gzip: "));
        assert_eq!(of_bytes(vec![0xff, 0]).unwrap_err(), "it is not text");
    }
}
