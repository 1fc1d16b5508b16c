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
    let (Some((row, others)), true) = (tile.split_first(), tile.len() == tensor.sizes.len()) else {
        return Err(Refusal::Invalid("every dimension has a box"));
    };
    rule(tile.iter().all(|size| (1..=BOX_MAX).contains(size)), "a box is 1 to 256 elements wide")?;
    // Interleaved rows are cut into slices, and CUDA asks nothing of their length.
    if tensor.interleave == 0 {
        rule(
            (row * tensor.element_bytes()?).is_multiple_of(16),
            "a row of the box is a multiple of 16 bytes",
        )?;
    }

    let rows = others.iter().map(|size| u64::from(*size)).product();
    let mut descriptor = tensor.descriptor(*row, rows)?;
    for (dimension, size) in tile.iter().enumerate() {
        descriptor.set(Field::tile(dimension), size - 1);
    }
    Ok(descriptor.finish())
}
