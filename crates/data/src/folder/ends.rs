//! Finds the end of an image in a file with further content, such as a photograph with an embedded video.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

/// Whether the JPEG or PNG image in the file `path` has an end marker. Reads the file up to this marker.
///
/// # Errors
///
/// Returns I/O errors.
pub(super) fn has_end(path: &Path) -> io::Result<bool> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let found = match file.fill_buf()?.starts_with(b"\x89PNG") {
        true => end_of_png(&mut file),
        false => end_of_jpeg(&mut file),
    };
    match found {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) => {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Reads the chunks of a PNG up to the last one (PNG specification, section 5.3).
fn end_of_png(file: &mut BufReader<File>) -> io::Result<()> {
    file.seek_relative(8)?;
    loop {
        let mut head = [0; 8];
        file.read_exact(&mut head)?;
        let [a, b, c, d, kind @ ..] = head;
        if kind == *b"IEND" {
            return Ok(());
        }
        // A checksum follows the content.
        file.seek_relative(i64::from(u32::from_be_bytes([a, b, c, d])) + 4)?;
    }
}

/// Reads the segments of a JPEG up to its end marker (ITU T.81, B.1.1). The end of a preview within a segment does not
/// count.
fn end_of_jpeg(file: &mut BufReader<File>) -> io::Result<()> {
    /// The marker at the start of each scan of the image.
    const SCAN: u8 = 0xda;
    const END: u8 = 0xd9;
    let mut in_scan = false;
    loop {
        match marker(file, in_scan)? {
            END => return Ok(()),
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => {}
            kind => {
                let mut length = [0; 2];
                file.read_exact(&mut length)?;
                let rest = u16::from_be_bytes(length).checked_sub(2);
                let rest = rest.ok_or(ErrorKind::InvalidData)?;
                file.seek_relative(rest.into())?;
                in_scan = kind == SCAN;
            }
        }
    }
}

/// Returns the next marker. Within a scan, pixels precede the marker.
fn marker(file: &mut BufReader<File>, in_scan: bool) -> io::Result<u8> {
    loop {
        let skipped = skip_until(file, 0xff)?;
        if skipped > 0 && !in_scan {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut kind = [0xff];
        while kind == [0xff] {
            file.read_exact(&mut kind)?;
        }
        match kind {
            [0 | 0xd0..=0xd7] if in_scan => {}
            [kind] => return Ok(kind),
        }
    }
}

/// Skips everything up to and including this byte. Returns the number of bytes before it.
fn skip_until(file: &mut BufReader<File>, byte: u8) -> io::Result<usize> {
    let mut skipped = 0;
    loop {
        let ahead = file.fill_buf()?;
        if ahead.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match ahead.iter().position(|found| *found == byte) {
            Some(at) => {
                file.consume(at + 1);
                return Ok(skipped + at);
            }
            None => {
                let all = ahead.len();
                file.consume(all);
                skipped += all;
            }
        }
    }
}
