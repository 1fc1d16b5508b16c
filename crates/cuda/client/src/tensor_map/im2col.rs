//! cuTensorMapEncodeIm2col: the pixels that a convolution multiplies, as the columns of a matrix.
//!
//! Dimensions are channels, then W, H and D as far as there are, then the images of a batch. Of W, H and D a map holds
//! the box in which the filter's origin moves: its lower corner as an offset from the tensor's first pixel, its upper
//! corner as one from the last. The more dimensions, the fewer bits each offset has.
//!
//! cuTensorMapEncodeIm2colWide is not made here: its maps are for the copies of compute capability 10.0, and libcuda
//! asks the worker's driver for them. Driver 580 takes it on an H200 too and makes an ordinary map of it, as the samples show.

use super::{RANK_MAX, Refusal, Tensor, descriptor::Field, rule};
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

/// How many dimensions the arrays of a call have. The corners have two fewer.
pub fn im2col_rank(rank: u32) -> Result<usize, Refusal> {
    rule((3..=RANK_MAX as u32).contains(&rank), "a tensor of images has 3 to 5 dimensions")?;
    Ok(rank as usize)
}

impl Im2col<'_> {
    /// The map by which such columns are copied.
    pub fn encode(&self, tensor: &Tensor<'_>) -> Result<CUtensorMap, Refusal> {
        let rank = im2col_rank(tensor.sizes.len() as u32)?;
        let axes = rank - 2;
        let corners = [self.lower, self.upper];
        rule(corners.iter().all(|corner| corner.len() == axes), "W, H and D each have two corners")?;
        let range = Field::corner(0, 0, axes).signed_range();
        rule(
            corners.into_iter().flatten().all(|offset| range.contains(offset)),
            "a corner has no room in the map",
        )?;
        // The box begins `lower` after the first pixel and ends `upper` after the last one. The driver refuses 2^31 and
        // 2^32 pixels along an axis, and takes as many channels and images: it seems to keep the length of the box in a
        // signed number of 32 bits, where these are nothing or less. The longest axis it was seen to take has 2^20.
        let area_exists =
            self.lower.iter().zip(self.upper).zip(&tensor.sizes[1..]).all(|((lower, upper), size)| {
                let length = i128::from(*size) + i128::from(*upper) - i128::from(*lower);
                (1..=i128::from(i32::MAX)).contains(&length)
            });
        rule(area_exists, "the box of the corners is empty or too long")?;
        rule((1..=PIXELS_MAX).contains(&self.pixels), "a column has 1 to 1024 pixels")?;

        // Steps choose the pixels of a column, not how many it has, so they do not count.
        let elements = u64::from(self.channels) * u64::from(self.pixels);
        let mut descriptor = tensor.descriptor(self.channels, elements, elements)?;
        descriptor.set(Field::IS_IM2COL, 1);
        descriptor.set(Field::CHANNELS, self.channels - 1);
        for (corner, offsets) in corners.into_iter().enumerate() {
            for (axis, offset) in offsets.iter().enumerate() {
                descriptor.set_signed(Field::corner(corner, axis, axes), *offset);
            }
        }
        descriptor.set(Field::PIXELS, self.pixels - 1);
        Ok(descriptor.finish())
    }
}
