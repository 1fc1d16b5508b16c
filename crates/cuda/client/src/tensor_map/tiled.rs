//! cuTensorMapEncodeTiled: boxes of a tensor.

use super::{RANK_MAX, Refusal, Tensor, descriptor::Field, rule};
use cuda_abi::CUtensorMap;

/// Elements of a box along each dimension at most.
const BOX_MAX: u32 = 256;

/// How many dimensions the arrays of a call have.
pub fn tiled_rank(rank: u32) -> Result<usize, Refusal> {
    rule((1..=RANK_MAX as u32).contains(&rank), "a tensor has 1 to 5 dimensions")?;
    Ok(rank as usize)
}

/// The map by which boxes of so many elements along each dimension are copied.
pub fn tiled(tensor: &Tensor<'_>, tile: &[u32]) -> Result<CUtensorMap, Refusal> {
    tiled_rank(tensor.sizes.len() as u32)?;
    let (Some(row), true) = (tile.first(), tile.len() == tensor.sizes.len()) else {
        return Err(Refusal::Invalid("every dimension has a box"));
    };
    rule(tile.iter().all(|size| (1..=BOX_MAX).contains(size)), "a box is 1 to 256 elements wide")?;
    let spanned = tile.iter().map(|size| u64::from(*size)).product();
    let mut descriptor = tensor.descriptor(*row, spanned, copied(tile, tensor.element_strides))?;
    for (dimension, size) in tile.iter().enumerate() {
        descriptor.set(Field::tile(dimension), size - 1);
    }
    Ok(descriptor.finish())
}

/// The elements of a copy, as the driver counts them: whole element strides only, so none at all where a stride is wider
/// than the box. By CUDA's documentation the hardware also copies what a last, partial stride begins with; the field
/// has the driver's number all the same. A stride of 0 is refused elsewhere.
fn copied(tile: &[u32], steps: &[u32]) -> u64 {
    tile.iter().zip(steps).map(|(size, step)| u64::from(size / step.max(&1))).product()
}
