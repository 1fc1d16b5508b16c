//! Bodies: occupancy.

use crate::{api::function::with_sheet, api::launch::shape_of, border::*, state::current_context};
use cuda_abi::*;
use cuda_client::{
    limits::{DeviceLimits, KernelLimits},
    occupancy as rules,
};

/// The limits of the current device and of a kernel.
fn limits(function: FunctionHandle) -> CuResult<(DeviceLimits, KernelLimits)> {
    let device = current_context()?.device()?.limits;
    Ok((device, with_sheet(function.0, |sheet| Ok(sheet.limits()))?))
}

/// cuOccupancyMaxActiveBlocksPerMultiprocessor
pub(crate) fn max_active_blocks(
    num_blocks: Out<'_, i32>,
    function: FunctionHandle,
    block_size: i32,
    dynamic_smem_size: usize,
) -> CuResult<()> {
    max_active_blocks_with_flags(num_blocks, function, block_size, dynamic_smem_size, 0)
}

/// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
pub(crate) fn max_active_blocks_with_flags(
    mut num_blocks: Out<'_, i32>,
    function: FunctionHandle,
    block_size: i32,
    dynamic_smem_size: usize,
    flags: u32,
) -> CuResult<()> {
    let (device, kernel) = limits(function)?;
    num_blocks.set(rules::max_active_blocks(&device, &kernel, block_size, dynamic_smem_size as u64, flags)?);
    Ok(())
}

/// cuOccupancyMaxPotentialBlockSize
pub(crate) fn max_potential_block_size(
    min_grid_size: Out<'_, i32>,
    block_size: Out<'_, i32>,
    function: FunctionHandle,
    block_size_to_dynamic_smem_size: Option<BlockSizeToSharedMemory>,
    dynamic_smem_size: usize,
    block_size_limit: i32,
) -> CuResult<()> {
    max_potential_block_size_with_flags(
        min_grid_size,
        block_size,
        function,
        block_size_to_dynamic_smem_size,
        dynamic_smem_size,
        block_size_limit,
        0,
    )
}

/// cuOccupancyMaxPotentialBlockSizeWithFlags
pub(crate) fn max_potential_block_size_with_flags(
    mut min_grid_size: Out<'_, i32>,
    mut block_size: Out<'_, i32>,
    function: FunctionHandle,
    block_size_to_dynamic_smem_size: Option<BlockSizeToSharedMemory>,
    dynamic_smem_size: usize,
    block_size_limit: i32,
    flags: u32,
) -> CuResult<()> {
    let (device, kernel) = limits(function)?;
    let shared = |threads: i32| match block_size_to_dynamic_smem_size {
        Some(ask) => ask.call(threads) as u64,
        None => dynamic_smem_size as u64,
    };
    let (grid, block) = rules::max_potential_block_size(&device, &kernel, shared, block_size_limit, flags)?;
    min_grid_size.set(grid);
    block_size.set(block);
    Ok(())
}

/// cuOccupancyAvailableDynamicSMemPerBlock
pub(crate) fn available_dynamic_shared_memory(
    mut dynamic_smem_size: Out<'_, usize>,
    function: FunctionHandle,
    num_blocks: i32,
    block_size: i32,
) -> CuResult<()> {
    let (device, kernel) = limits(function)?;
    dynamic_smem_size
        .set(rules::available_dynamic_shared(&device, &kernel, num_blocks, block_size)? as usize);
    Ok(())
}

/// cuOccupancyMaxPotentialClusterSize
pub(crate) fn max_potential_cluster_size(
    mut cluster_size: Out<'_, i32>,
    function: FunctionHandle,
    config: &CUlaunchConfig,
) -> CuResult<()> {
    let (device, kernel) = limits(function)?;
    let (shape, _) = shape_of(config)?;
    let threads = shape.block.iter().product();
    let shared = shape.dynamic_shared.into();
    cluster_size.set(rules::max_potential_cluster_size(&device, &kernel, threads, shared)?);
    Ok(())
}

/// cuOccupancyMaxActiveClusters
pub(crate) fn max_active_clusters(
    mut num_clusters: Out<'_, i32>,
    function: FunctionHandle,
    config: &CUlaunchConfig,
) -> CuResult<()> {
    let (device, kernel) = limits(function)?;
    let (shape, _) = shape_of(config)?;
    let threads = shape.block.iter().product();
    let blocks = shape.cluster.unwrap_or([1; 3]).iter().product();
    let shared = shape.dynamic_shared.into();
    num_clusters.set(rules::max_active_clusters(&device, &kernel, threads, shared, blocks)?);
    Ok(())
}
