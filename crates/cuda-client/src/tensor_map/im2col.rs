//! cuTensorMapEncodeIm2col: the pixels that a convolution multiplies, as the columns of a matrix.
//!
//! Dimensions are channels, then W, H and D as far as there are, then the images of a batch. Of W, H and D a map holds
//! the box in which the filter's origin moves: its lower corner as an offset from the tensor's first pixel, its upper
//! corner as one from the last. The more dimensions, the fewer bits each offset has.

use super::{RANK_MAX, Refusal, Tensor, descriptor::Field, observed, rule};
use cuda_abi::CUtensorMap;

/// What the columns are made of.
#[derive(Clone, Copy, Debug)]
pub struct Im2col<'a> {
    /// Lower corner of the box along W, H and D.
    pub lower: &'a [i32],
    /// Upper corner.
    pub upper: &'a [i32],
    /// Elements along the channels.
    pub channels: u32,
    /// Pixels of a column.
    pub pixels: u32,
}

/// Pixels of a column at most.
const PIXELS_MAX: u32 = 1024;

/// The only rank whose corners were observed.
const RANK_OBSERVED: usize = 4;

/// How many dimensions the arrays of a call have. The corners have two fewer.
pub fn im2col_rank(rank: u32) -> Result<usize, Refusal> {
    rule((3..=RANK_MAX as u32).contains(&rank), "a tensor of images has 3 to 5 dimensions")?;
    Ok(rank as usize)
}

/// The offsets that a rank has bits for.
fn offsets(rank: usize) -> core::ops::RangeInclusive<i32> {
    match rank {
        3 => -32768..=32767,
        4 => -128..=127,
        _ => -16..=15,
    }
}

impl Im2col<'_> {
    /// The map by which such columns are copied.
    pub fn encode(&self, tensor: &Tensor<'_>) -> Result<CUtensorMap, Refusal> {
        let rank = im2col_rank(tensor.sizes.len() as u32)?;
        let spatial = rank - 2;
        rule(
            self.lower.len() == spatial && self.upper.len() == spatial,
            "W, H and D each have a lower and an upper corner",
        )?;
        let range = offsets(rank);
        let corners = || self.lower.iter().chain(self.upper);
        rule(corners().all(|offset| range.contains(offset)), "a corner has no room in the map")?;
        // The box begins `lower` after the first pixel and ends `upper` after the last one.
        let area_exists =
            self.lower.iter().zip(self.upper).zip(&tensor.sizes[1..]).all(|((lower, upper), size)| {
                i128::from(*size) + i128::from(*upper) - i128::from(*lower) > 0
            });
        rule(area_exists, "the box of the corners is empty")?;
        rule((1..=PIXELS_MAX).contains(&self.pixels), "a column has 1 to 1024 pixels")?;

        let mut descriptor = tensor.descriptor(self.channels, u64::from(self.pixels))?;
        observed(rank == RANK_OBSERVED, "corners of im2col were observed for rank 4 only")?;
        descriptor.set(Field::IS_IM2COL, 1);
        descriptor.set(Field::CHANNELS, self.channels - 1);
        for (index, offset) in corners().enumerate() {
            descriptor.set(Field::corner(index), u32::from(*offset as u8));
        }
        descriptor.set(Field::PIXELS, self.pixels - 1);
        Ok(descriptor.finish())
    }
}
