//! What tiles and im2col have in common: the tensor in memory and how its elements travel.

use super::{
    RANK_MAX, Refusal,
    choice::{Element, Interleave, Swizzle, fills_with_nan, promotion},
    descriptor::{Descriptor, Field},
    observed, rule,
};
use cuda_abi::CUtensorMap;

/// The arguments that all ways to make a tensor map share, as the program gave them. Numbers are enums of C.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// `CUtensorMapDataType`.
    pub element: u32,
    /// Where it begins.
    pub address: u64,
    /// Elements along each dimension, the densest first. Their count is the rank.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next, along each dimension but the first.
    pub strides: &'a [u64],
    /// Of every how many elements one is copied, along each dimension.
    pub element_strides: &'a [u32],
    /// `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

/// Addresses are less: a Hopper GPU has virtual addresses of 57 bits.
const ADDRESS_END: u64 = 1 << 57;
/// Elements of a dimension at most.
const SIZE_MAX: u64 = 1 << 32;
/// Strides are less.
const STRIDE_END: u64 = 1 << 40;
/// Element strides at most.
const ELEMENT_STRIDE_MAX: u32 = 8;
/// Elements of a row of the box at most: of dimension 0, or channels.
const ROW_MAX: u32 = 256;
/// What the rows of a box are made of: the least that the hardware moves into shared memory.
const ROW_UNIT: u32 = 16;
/// All shared memory of a multiprocessor of compute capability 9.0. No kernel has room for a larger copy, though none
/// has room for this one either: a kilobyte of it is not for programs.
const SHARED_BYTES: u64 = 228 << 10;

/// What the driver asks of every address of a tensor.
fn check_address(address: u64, interleave: Interleave) -> Result<(), Refusal> {
    rule(address.is_multiple_of(interleave.alignment()), "the address is not aligned")?;
    rule(address < ADDRESS_END, "an address is less than 2^57")
}

impl Tensor<'_> {
    /// Checks what is common and fills it in. A box spans `spanned` elements in rows of `row`; a copy brings `copied` of
    /// them.
    ///
    /// Every broken rule comes before anything unknown, so that a wrong call fails as it does on the real driver.
    pub(super) fn descriptor(&self, row: u32, spanned: u64, copied: u64) -> Result<Descriptor, Refusal> {
        let rank = self.sizes.len();
        let element = Element::new(self.element)?;
        let interleave = Interleave::new(self.interleave)?;
        let swizzle = Swizzle::new(self.swizzle)?;
        let promotion = promotion(self.promotion)?;
        let fills_with_nan = fills_with_nan(self.fill, element)?;
        rule((1..=RANK_MAX).contains(&rank), "a tensor has 1 to 5 dimensions")?;
        rule(interleave == Interleave::None || rank >= 3, "an interleaved tensor has at least 3 dimensions")?;
        rule(self.strides.len() == rank - 1, "every dimension but the first has a stride")?;
        rule(self.element_strides.len() == rank, "every dimension has an element stride")?;

        let unit = interleave.alignment();
        check_address(self.address, interleave)?;
        rule(self.sizes.iter().all(|size| (1..=SIZE_MAX).contains(size)), "a size is 1 to 2^32")?;
        rule(self.strides.iter().all(|stride| stride.is_multiple_of(unit)), "a stride is not aligned")?;
        rule(self.strides.iter().all(|stride| *stride < STRIDE_END), "a stride is less than 2^40")?;
        let steps = self.element_strides;
        rule(
            steps.iter().all(|step| (1..=ELEMENT_STRIDE_MAX).contains(step)),
            "an element stride is 1 to 8",
        )?;

        rule((1..=ROW_MAX).contains(&row), "a row of the box has 1 to 256 elements")?;
        let row_bytes = row * element.bytes;
        rule(row_bytes.is_multiple_of(ROW_UNIT), "a row of the box is a multiple of 16 bytes")?;
        // The documentation has slices of 32 bytes swizzled within 32, but the driver lets every swizzle of slices pass.
        if interleave == Interleave::None
            && let Some(span) = swizzle.span()
        {
            rule(row_bytes <= span, "a row of the box does not fit the swizzle")?;
        }
        let element_bytes = u64::from(element.bytes);
        let bytes = copied * element_bytes;
        rule(bytes <= SHARED_BYTES, "no shared memory can hold a box")?;
        // Which of the two the driver holds against shared memory shows only where they lie on either side of it.
        observed(
            spanned * element_bytes <= SHARED_BYTES,
            "a box that only its element strides make fit into shared memory was not observed",
        )?;

        let mut descriptor = Descriptor::default();
        descriptor.set_address(self.address);
        descriptor.set(Field::RANK, rank as u32 - 1);
        descriptor.set(Field::ELEMENT, element.code);
        descriptor.set(Field::INTERLEAVE, interleave as u32);
        descriptor.set(Field::SWIZZLE, swizzle as u32);
        descriptor.set(Field::FILLS_WITH_NAN, u32::from(fills_with_nan));
        descriptor.set(Field::TF32, u32::from(element.tf32));
        descriptor.set(Field::PROMOTION, promotion);
        for (dimension, size) in self.sizes.iter().enumerate() {
            descriptor.set(Field::size(dimension), (size - 1) as u32);
        }
        for (index, stride) in self.strides.iter().enumerate() {
            descriptor.set_stride(index + 1, *stride);
        }
        for (dimension, step) in steps.iter().enumerate() {
            descriptor.set(Field::step(dimension), step - 1);
        }
        descriptor.set(Field::COPY_BYTES, bytes as u32);
        descriptor.set(Field::ALIGNMENT, swizzle.alignment());
        Ok(descriptor)
    }
}

/// cuTensorMapReplaceAddress: the same tensor somewhere else.
///
/// Null is an address that a new map may have and an old one may not be given: here the driver takes it for a missing
/// argument.
pub fn replace_address(map: &CUtensorMap, address: u64) -> Result<CUtensorMap, Refusal> {
    let mut descriptor = Descriptor::of(map);
    let interleave = Interleave::new(descriptor.get(Field::INTERLEAVE))?;
    rule(address != 0, "a map is not moved to null")?;
    check_address(address, interleave)?;
    descriptor.set_address(address);
    Ok(descriptor.finish())
}
