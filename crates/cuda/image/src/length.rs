//! How long an image is that a program handed over by pointer.

use crate::{
    ImageError,
    bytes::{u16_at, u32_at, u64_at},
    elf,
};

/// First word of a fatbin header.
pub const FATBIN_MAGIC: u32 = 0xBA55_ED50;

/// First word of the structure around a fatbin that nvcc's host code registers: `{u32 magic, u32 version, pointer to
/// the fatbin header, pointer}`. Whoever may follow pointers follows it; this crate only sees what it points to.
pub const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;

/// The longest image that is taken. The largest known fatbins (collective and attention libraries) have some hundred
/// MiB; a longer length is a pointer to something else.
pub const IMAGE_BYTES_MAX: u64 = 4 << 30;

/// The longest PTX text that is taken, so that text without an end is not read for ever.
pub const PTX_BYTES_MAX: u64 = 256 << 20;

pub(crate) const FATBIN_HEADER_BYTES: usize = 16;

/// The length of the image whose bytes `read(offset, bytes)` shows.
///
/// `read` is only asked for what must be there if the image is what its first bytes claim: a text is read byte by byte
/// up to its NUL (which is counted). `None` means that there is nothing to read.
pub fn image_length<'a>(read: impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<u64, ImageError> {
    let bytes = match first_word(&read)? {
        Some(word) if word == FATBIN_MAGIC.to_le_bytes() => fatbin_length(&read)?,
        Some(elf::MAGIC) => elf::length(&read)?,
        _ => return text_length(&read),
    };
    if bytes > IMAGE_BYTES_MAX {
        return Err(ImageError::TooLong { what: "image", bytes, bound: IMAGE_BYTES_MAX });
    }
    Ok(bytes)
}

/// The first four bytes, or `None` for a text shorter than that.
fn first_word<'a>(read: &impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<Option<[u8; 4]>, ImageError> {
    let mut word = [0; 4];
    for (offset, byte) in word.iter_mut().enumerate() {
        *byte = byte_at(read, offset as u64)?;
        if *byte == 0 {
            return Ok(None);
        }
    }
    Ok(Some(word))
}

fn byte_at<'a>(read: &impl Fn(u64, usize) -> Option<&'a [u8]>, offset: u64) -> Result<u8, ImageError> {
    read(offset, 1).and_then(|bytes| bytes.first().copied()).ok_or(ImageError::Truncated { what: "image" })
}

fn fatbin_length<'a>(read: &impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<u64, ImageError> {
    const WHAT: &str = "fatbin header";
    let header = read(0, FATBIN_HEADER_BYTES).ok_or(ImageError::Truncated { what: WHAT })?;
    debug_assert_eq!(u32_at(header, 0, WHAT), Ok(FATBIN_MAGIC));
    let header_bytes = u64::from(u16_at(header, 6, WHAT)?);
    if header_bytes < FATBIN_HEADER_BYTES as u64 {
        return Err(ImageError::Malformed { what: WHAT });
    }
    u64_at(header, 8, WHAT)?.checked_add(header_bytes).ok_or(ImageError::Malformed { what: WHAT })
}

fn text_length<'a>(read: &impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<u64, ImageError> {
    for offset in 0..PTX_BYTES_MAX {
        match byte_at(read, offset)? {
            0 if offset == 0 => return Err(ImageError::UnknownKind),
            0 => return Ok(offset + 1),
            byte if is_text(byte) => {}
            _ => return Err(ImageError::UnknownKind),
        }
    }
    Err(ImageError::TooLong { what: "PTX", bytes: PTX_BYTES_MAX + 1, bound: PTX_BYTES_MAX })
}

/// Control characters other than white space never occur in text; bytes over 0x7f do, in comments and file names.
pub(crate) fn is_text(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7f || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measure(image: &[u8]) -> Result<u64, ImageError> {
        image_length(|offset, bytes| {
            let start = usize::try_from(offset).ok()?;
            image.get(start..start.checked_add(bytes)?)
        })
    }

    #[test]
    fn real_images_are_measured_exactly_even_when_other_bytes_follow() {
        for image in [
            &include_bytes!("../samples/many.fatbin")[..],
            include_bytes!("../samples/ptx-size.fatbin"),
            include_bytes!("../samples/sample.cubin"),
        ] {
            let mut followed = image.to_vec();
            followed.extend_from_slice(&[0xaa; 100]);
            assert_eq!(measure(&followed), Ok(image.len() as u64));
        }
    }

    #[test]
    fn a_text_ends_with_its_nul() {
        assert_eq!(measure(b".version 8.0\n\0 more"), Ok(14));
        assert_eq!(measure(b"//\0"), Ok(3));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        assert_eq!(measure(b"\0"), Err(ImageError::UnknownKind));
        assert_eq!(measure(b"\x01\x02\x03\x04"), Err(ImageError::UnknownKind));
        assert_eq!(measure(b".version"), Err(ImageError::Truncated { what: "image" }));
        assert!(measure(b"\x7fELF\x01\x01").is_err());
    }

    #[test]
    fn a_fatbin_longer_than_the_bound_is_refused() {
        let mut header = FATBIN_MAGIC.to_le_bytes().to_vec();
        header.extend_from_slice(&[1, 0, 16, 0]);
        header.extend_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(measure(&header), Err(ImageError::Malformed { what: "fatbin header" }));
        header[8..].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(matches!(measure(&header), Err(ImageError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(image in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..3usize) {
            let mut image = image;
            let magic: &[u8] = [&b"\x50\xed\x55\xba"[..], b"\x7fELF\x02\x01", b""][kind];
            image.splice(..magic.len().min(image.len()), magic.iter().copied());
            let _ = measure(&image);
        }
    }
}
