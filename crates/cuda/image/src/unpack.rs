//! Compressed entries, with a bound on what comes out.

use crate::{Compression, ImageError};
use std::io::Read;

/// The longest entry after unpacking. The largest known cubins have some hundred MiB.
pub const ENTRY_BYTES_MAX: u64 = 1 << 30;

/// LZ4 cannot make more than this from one byte: a length byte of 255 stands for 255 bytes.
const LZ4_RATIO_MAX: u64 = 255;

/// Unpacks `packed` to exactly `bytes` bytes.
pub(crate) fn unpack(packed: &[u8], compression: Compression, bytes: u64) -> Result<Vec<u8>, ImageError> {
    if bytes > ENTRY_BYTES_MAX {
        return Err(ImageError::TooLong { what: "unpacked entry", bytes, bound: ENTRY_BYTES_MAX });
    }
    let unpacked = match compression {
        Compression::None => packed.to_vec(),
        Compression::Lz4 => {
            // Claims that cannot come true are refused before memory is taken for them.
            if bytes > (packed.len() as u64 + 1).saturating_mul(LZ4_RATIO_MAX) {
                return Err(ImageError::Malformed { what: "LZ4 entry" });
            }
            lz4_flex::block::decompress(packed, bytes as usize).map_err(|error| failed(&error))?
        }
        Compression::Zstd => unpack_zstd(packed, bytes)?,
    };
    if unpacked.len() as u64 != bytes {
        return Err(ImageError::Malformed { what: "unpacked length of an entry" });
    }
    Ok(unpacked)
}

/// Zstandard has no useful bound on its ratio, so the output grows as it comes and stops one byte over the claim.
fn unpack_zstd(packed: &[u8], bytes: u64) -> Result<Vec<u8>, ImageError> {
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|error| failed(&error))?;
    let mut unpacked = Vec::new();
    decoder.take(bytes + 1).read_to_end(&mut unpacked).map_err(|error| failed(&error))?;
    Ok(unpacked)
}

fn failed(error: &dyn std::fmt::Display) -> ImageError {
    ImageError::Unpack { why: error.to_string() }
}
