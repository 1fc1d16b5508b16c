//! Bodies: occupancy.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuOccupancyMaxActiveBlocksPerMultiprocessor
pub(crate) fn max_active_blocks(
    num_blocks: Out<'_, i32>,
    function: FunctionHandle,
    block_size: i32,
    dynamic_smem_size: usize,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyMaxActiveBlocksPerMultiprocessor"))
}

/// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
pub(crate) fn max_active_blocks_with_flags(
    num_blocks: Out<'_, i32>,
    function: FunctionHandle,
    block_size: i32,
    dynamic_smem_size: usize,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"))
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
    Err(process::pending("cuOccupancyMaxPotentialBlockSize"))
}

/// cuOccupancyMaxPotentialBlockSizeWithFlags
pub(crate) fn max_potential_block_size_with_flags(
    min_grid_size: Out<'_, i32>,
    block_size: Out<'_, i32>,
    function: FunctionHandle,
    block_size_to_dynamic_smem_size: Option<BlockSizeToSharedMemory>,
    dynamic_smem_size: usize,
    block_size_limit: i32,
    flags: u32,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyMaxPotentialBlockSizeWithFlags"))
}

/// cuOccupancyAvailableDynamicSMemPerBlock
pub(crate) fn available_dynamic_shared_memory(
    dynamic_smem_size: Out<'_, usize>,
    function: FunctionHandle,
    num_blocks: i32,
    block_size: i32,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyAvailableDynamicSMemPerBlock"))
}

/// cuOccupancyMaxPotentialClusterSize
pub(crate) fn max_potential_cluster_size(
    cluster_size: Out<'_, i32>,
    function: FunctionHandle,
    config: &CUlaunchConfig,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyMaxPotentialClusterSize"))
}

/// cuOccupancyMaxActiveClusters
pub(crate) fn max_active_clusters(
    num_clusters: Out<'_, i32>,
    function: FunctionHandle,
    config: &CUlaunchConfig,
) -> CuResult<()> {
    Err(process::pending("cuOccupancyMaxActiveClusters"))
}
