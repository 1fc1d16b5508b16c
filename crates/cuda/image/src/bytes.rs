//! Little-endian fields at fixed places.

use crate::ImageError;

fn array<const N: usize>(bytes: &[u8], at: usize, what: &'static str) -> Result<[u8; N], ImageError> {
    let end = at.checked_add(N).ok_or(ImageError::Truncated { what })?;
    let field = bytes.get(at..end).ok_or(ImageError::Truncated { what })?;
    Ok(field.try_into().expect("the slice has N bytes"))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u16, ImageError> {
    Ok(u16::from_le_bytes(array(bytes, at, what)?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u32, ImageError> {
    Ok(u32::from_le_bytes(array(bytes, at, what)?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u64, ImageError> {
    Ok(u64::from_le_bytes(array(bytes, at, what)?))
}
