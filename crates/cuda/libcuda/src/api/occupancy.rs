//! Bodies: occupancy.

use crate::{
    api::{
        function::{find, with_sheet},
        launch::shape_of,
    },
    border::*,
    state::{KERNEL_ATTRIBUTES, current_context, lock},
};
use cuda_abi::*;
use cuda_client::{
    launch::LaunchShape,
    limits::{DeviceLimits, KernelLimits},
    occupancy as rules,
};
use cuda_wire::{Command, LaunchAttribute};
use std::{collections::BTreeMap, sync::Mutex};

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
    let (shape, attributes) = shape_of(config)?;
    if device.clusters {
        cluster_size.set(ask_clusters(function, &shape, attributes, true)?);
        return Ok(());
    }
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
    let (shape, attributes) = shape_of(config)?;
    if device.clusters {
        num_clusters.set(ask_clusters(function, &shape, attributes, false)?);
        return Ok(());
    }
    let threads = shape.block.iter().product();
    let blocks = shape.cluster.unwrap_or([1; 3]).iter().product();
    let shared = shape.dynamic_shared.into();
    num_clusters.set(rules::max_active_clusters(&device, &kernel, threads, shared, blocks)?);
    Ok(())
}

/// Answers about clusters, by question.
static CLUSTERS: Mutex<BTreeMap<Vec<u8>, CuResult<i32>>> = Mutex::new(BTreeMap::new());
/// Questions that are remembered; a program asks a few dozen.
const CLUSTERS_MAX: usize = 4096;

/// Asks the device, once for each question: which multiprocessors a GPU has working differs from one to the next of the
/// same model, and with it how many clusters fit. Libraries choose their algorithms by the answer.
fn ask_clusters(
    handle: FunctionHandle,
    shape: &LaunchShape,
    attributes: Vec<LaunchAttribute>,
    largest: bool,
) -> CuResult<i32> {
    let function = find(handle)?;
    let (kernel, grid, block, shared_bytes) =
        (function.kernel, shape.grid, shape.block, shape.dynamic_shared);
    let command = match largest {
        true => Command::LargestCluster { kernel, grid, block, shared_bytes, attributes },
        false => Command::ActiveClusters { kernel, grid, block, shared_bytes, attributes },
    };
    let mut question = vec![u8::from(largest)];
    command.put_body(&mut question);
    for number in 0..KERNEL_ATTRIBUTES as u32 {
        let value = function.sheet.attribute(number).unwrap_or(0);
        question.extend_from_slice(&value.to_le_bytes());
    }
    let known = lock(&CLUSTERS).get(&question).copied();
    if let Some(answer) = known {
        return answer;
    }
    let answer = function.context.settle(function.context.link.ask::<i32>(&command));
    let mut answers = lock(&CLUSTERS);
    if answers.len() < CLUSTERS_MAX {
        answers.insert(question, answer);
    }
    answer
}
