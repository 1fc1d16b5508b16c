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

/// Elements of a dimension at most.
const SIZE_MAX: u64 = 1 << 32;
/// Strides are less.
const STRIDE_END: u64 = 1 << 40;
/// Element strides at most.
const ELEMENT_STRIDE_MAX: u32 = 8;
/// Elements of a row of the box at most: of dimension 0, or channels.
const ROW_MAX: u32 = 256;
/// All shared memory of a multiprocessor of compute capability 9.0. No kernel has room for a larger copy.
const SHARED_BYTES: u64 = 228 << 10;

impl Tensor<'_> {
    /// Checks what is common and fills it in. A copy takes `rows` rows of `row` elements.
    ///
    /// Every broken rule comes before anything unknown, so that a wrong call fails as it does on the real driver.
    pub(super) fn descriptor(&self, row: u32, rows: u64) -> Result<Descriptor, Refusal> {
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
        rule(self.address.is_multiple_of(unit), "the address is not aligned")?;
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
        if interleave == Interleave::None
            && let Some(span) = swizzle.span()
        {
            rule(row_bytes <= span, "a row of the box does not fit the swizzle")?;
        }
        rule(
            interleave != Interleave::Bytes32 || swizzle == Swizzle::Bytes32,
            "slices of 32 bytes are swizzled within 32 bytes",
        )?;

        let bytes = rows * u64::from(row_bytes);
        observed(steps.iter().all(|step| *step == 1), "an element stride other than 1 was not observed")?;
        observed(row_bytes.is_multiple_of(16), "a row of the box of odd length was not observed")?;
        observed(bytes <= SHARED_BYTES, "a box that no shared memory can hold was not observed")?;

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

    /// Bytes of an element, if there is such a type.
    pub(super) fn element_bytes(&self) -> Result<u32, Refusal> {
        Element::new(self.element).map(|element| element.bytes)
    }
}

/// cuTensorMapReplaceAddress: the same tensor somewhere else.
pub fn replace_address(map: &CUtensorMap, address: u64) -> Result<CUtensorMap, Refusal> {
    let mut descriptor = Descriptor::of(map);
    let interleave = Interleave::new(descriptor.get(Field::INTERLEAVE))?;
    rule(address.is_multiple_of(interleave.alignment()), "the address is not aligned")?;
    descriptor.set_address(address);
    Ok(descriptor.finish())
}
