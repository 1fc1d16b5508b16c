//! Module images in the program's memory, which hands over a pointer and no length.

#![allow(unsafe_code)]

use crate::{
    api::device::attribute,
    host,
    state::{Device, Image},
};
use cuda_abi::{CuResult, CudaError};
use cuda_image::{
    Capability, FATBIN_WRAPPER_MAGIC, ImageError, ImageKind, Wants, image_length, kind_of, select_usable,
};

/// A directive that every PTX text has.
const PTX_SIGN: &[u8] = b".version";

/// The image at `address`, cut down to what `device` can use.
///
/// # Safety
///
/// `address` is that of a fatbin wrapper, a fatbin, a cubin or a text that ends in a zero, as CUDA's loaders demand.
pub(crate) unsafe fn read_image(address: u64, device: &Device) -> CuResult<Image> {
    // SAFETY: our caller's promise: at least the first word of an image is there.
    let address = unsafe { behind_wrapper(address) };
    let bytes = |offset: u64, count: usize| {
        // SAFETY: image_length asks only for bytes that an image of the kind it saw must have.
        Some(unsafe { host::bytes(address + offset, count) })
    };
    let length = image_length(bytes).map_err(code)?;
    // SAFETY: the image has as many bytes by its own account.
    let image = unsafe { host::bytes(address, length as usize) };
    usable(image, device)
}

/// An image in our own memory, cut down likewise.
pub(crate) fn usable(image: &[u8], device: &Device) -> CuResult<Image> {
    let of = |number| device.attribute(number).unwrap_or(0).max(0) as u32;
    let capability = Capability {
        major: of(attribute::COMPUTE_CAPABILITY_MAJOR),
        minor: of(attribute::COMPUTE_CAPABILITY_MINOR),
    };
    // Any text could be meant as PTX; CUDA takes only one that names its version for that.
    let is_text = kind_of(image) == Some(ImageKind::Ptx);
    if is_text && !image.windows(PTX_SIGN.len()).any(|window| window == PTX_SIGN) {
        return Err(CudaError::INVALID_IMAGE);
    }
    let wants = Wants { sass: true, ptx: true };
    Ok(Image::new(select_usable(image, capability, wants).map_err(code)?.into_owned()))
}

fn code(_: ImageError) -> CudaError {
    CudaError::INVALID_IMAGE
}

/// nvcc's host code registers fatbins by a small structure that points to them.
///
/// # Safety
///
/// As [`read_image`].
unsafe fn behind_wrapper(address: u64) -> u64 {
    // The shortest text has fewer than four bytes: look at one at a time.
    let magic = FATBIN_WRAPPER_MAGIC.to_le_bytes();
    for (offset, expected) in magic.iter().enumerate() {
        // SAFETY: every byte before this one matched the magic, which no text begins with (its first byte is 0xb1).
        if unsafe { host::bytes(address + offset as u64, 1) } != [*expected] {
            return address;
        }
    }
    // SAFETY: a wrapper has its fatbin's address at byte 8.
    unsafe { host::word(address + 8, 0) }
}
