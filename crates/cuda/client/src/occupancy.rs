//! How many blocks of a kernel run at once on a multiprocessor.
//!
//! The rules are those of NVIDIA's occupancy calculator for compute capability 7.0 and later: threads, block slots,
//! registers and shared memory each allow some number of blocks, and the least of them is the answer. The file
//! `h200.csv` beside this one holds what driver 580 answers on an H200; the tests compare with it.

use crate::limits::{DeviceLimits, KernelLimits, WARP_GROUP};
use cuda_abi::{CuResult, CudaError};

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`, the only flag there is.
const DISABLE_CACHING_OVERRIDE: u32 = 1;

/// cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: blocks of `threads` threads that reside together.
///
/// Without flags it is cuOccupancyMaxActiveBlocksPerMultiprocessor. A block that does not fit gives 0, no error. The
/// kernel's launch bounds do not count, as they do not on the real driver.
pub fn max_active_blocks(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    threads: i32,
    dynamic_shared: u64,
    flags: u32,
) -> CuResult<i32> {
    check_flags(flags)?;
    let threads = positive(threads)?;
    Ok(blocks_per_multiprocessor(device, kernel, threads, dynamic_shared) as i32)
}

/// cuOccupancyMaxPotentialBlockSizeWithFlags: the least grid that fills the device, and the block size that fills it
/// best. `dynamic_shared` says how much shared memory a block of that many threads wants; `limit` 0 is none.
pub fn max_potential_block_size(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    mut dynamic_shared: impl FnMut(i32) -> u64,
    limit: i32,
    flags: u32,
) -> CuResult<(i32, i32)> {
    check_flags(flags)?;
    let limit = u32::try_from(limit).map_err(|_| CudaError::INVALID_VALUE)?;
    let largest = device.block_threads.min(kernel.block_threads);
    let limit = if limit == 0 { largest } else { limit.min(largest) };

    let (mut best_threads, mut best) = (0, (0, 0));
    let mut warps = limit.div_ceil(device.warp_threads);
    // From the largest down: of equals, the largest block wins.
    while warps > 0 && best_threads < device.multiprocessor_threads {
        let threads = (warps * device.warp_threads).min(limit);
        let blocks = blocks_per_multiprocessor(device, kernel, threads, dynamic_shared(threads as i32));
        if blocks * threads > best_threads {
            best_threads = blocks * threads;
            best = ((blocks * device.multiprocessors) as i32, threads as i32);
        }
        warps -= 1;
    }
    Ok(best)
}

/// cuOccupancyAvailableDynamicSMemPerBlock: dynamic shared memory that leaves room for `blocks` blocks.
///
/// As driver 580 counts, which ignores what the system reserves of each block's shared memory.
pub fn available_dynamic_shared(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    blocks: i32,
    threads: i32,
) -> CuResult<u64> {
    let blocks = positive(blocks)?;
    let threads = positive(threads)?;
    if threads > device.block_threads || blocks > blocks_but_for_shared(device, kernel, threads) {
        return Err(CudaError::INVALID_VALUE);
    }
    let unit = shared_unit(device);
    let share = (device.multiprocessor_shared / blocks / unit * unit).min(device.block_shared_optin);
    let dynamic = share.checked_sub(kernel.static_shared).ok_or(CudaError::INVALID_VALUE)?;
    Ok(dynamic.min(kernel.dynamic_shared_max).into())
}

/// cuOccupancyMaxPotentialClusterSize: the largest cluster of such blocks; 0 if not even one block fits.
pub fn max_potential_cluster_size(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    threads: u32,
    dynamic_shared: u64,
) -> CuResult<i32> {
    if !device.clusters {
        return Err(CudaError::NOT_SUPPORTED);
    }
    let fits = blocks_per_multiprocessor(device, kernel, threads, dynamic_shared) != 0;
    Ok(if fits { kernel.cluster_blocks_max() as i32 } else { 0 })
}

/// cuOccupancyMaxActiveClusters: clusters of `cluster_blocks` blocks that reside together.
///
/// A cluster stays within one group of multiprocessors, and how many of each group work differs from one GPU to the
/// next of the same model; no attribute tells. We count full groups and one rest, which is exact for clusters of one
/// and two and at most what the device really has for larger ones.
pub fn max_active_clusters(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    threads: u32,
    dynamic_shared: u64,
    cluster_blocks: u32,
) -> CuResult<i32> {
    /// Multiprocessors of a group on Hopper.
    const GROUP: u32 = 18;
    if !device.clusters {
        return Err(CudaError::NOT_SUPPORTED);
    }
    if cluster_blocks == 0 || cluster_blocks > kernel.cluster_blocks_max() {
        return Err(CudaError::INVALID_CLUSTER_SIZE);
    }
    let blocks = blocks_per_multiprocessor(device, kernel, threads, dynamic_shared);
    let (groups, rest) = (device.multiprocessors / GROUP, device.multiprocessors % GROUP);
    Ok((blocks * (groups * (GROUP / cluster_blocks) + rest / cluster_blocks)) as i32)
}

/// Blocks of `threads` threads that reside together on a multiprocessor; 0 if none fits.
pub fn blocks_per_multiprocessor(
    device: &DeviceLimits,
    kernel: &KernelLimits,
    threads: u32,
    dynamic_shared: u64,
) -> u32 {
    if dynamic_shared > kernel.dynamic_shared_max.into() {
        return 0;
    }
    let unit = u64::from(shared_unit(device));
    let wanted = u64::from(kernel.static_shared) + dynamic_shared + u64::from(device.reserved_shared);
    let block_shared = wanted.next_multiple_of(unit);
    let by_shared = match block_shared {
        0 => u64::MAX,
        _ => shared_capacity(device, kernel, block_shared) / block_shared,
    };
    u64::from(blocks_but_for_shared(device, kernel, threads)).min(by_shared) as u32
}

/// The same without regard to shared memory.
fn blocks_but_for_shared(device: &DeviceLimits, kernel: &KernelLimits, threads: u32) -> u32 {
    if threads == 0 || threads > device.block_threads {
        return 0;
    }
    let warps = threads.div_ceil(device.warp_threads);
    let by_warps = device.multiprocessor_threads / device.warp_threads / warps;
    device.multiprocessor_blocks.min(by_warps).min(blocks_by_registers(device, kernel, warps))
}

fn blocks_by_registers(device: &DeviceLimits, kernel: &KernelLimits, warps: u32) -> u32 {
    let warp = kernel.warp_registers(device);
    if warp == 0 {
        return u32::MAX;
    }
    if u64::from(warp) * u64::from(warps.next_multiple_of(WARP_GROUP)) > device.block_registers.into() {
        return 0;
    }
    // Each of the four parts of a multiprocessor has its own registers, and a warp lives in one part.
    let part = device.multiprocessor_registers / WARP_GROUP;
    part / warp * WARP_GROUP / warps
}

/// Bytes of a multiprocessor's memory that become shared memory under the kernel's preference.
///
/// It is divided in a few fixed ways; the least one that honours the preference and holds a block is taken.
fn shared_capacity(device: &DeviceLimits, kernel: &KernelLimits, block_shared: u64) -> u64 {
    const KIB: u64 = 1024;
    const SIZES: [u64; 10] = [0, 8, 16, 32, 64, 100, 132, 164, 196, 228];
    let all = u64::from(device.multiprocessor_shared);
    let Ok(percent) = u64::try_from(kernel.carveout) else { return all };
    // Volta and Turing divide differently: 96 KiB and 64 KiB are their largest, Turing has 32 and 64 only.
    let least = if device.capability == (7, 5) { 32 * KIB } else { 0 };
    let wanted = (all * percent / 100).max(block_shared).max(least);
    SIZES.map(|size| size * KIB).into_iter().find(|&size| size >= wanted).unwrap_or(all).min(all)
}

/// Shared memory is given to blocks in units of this.
fn shared_unit(device: &DeviceLimits) -> u32 {
    if device.capability.0 >= 8 { 128 } else { 256 }
}

fn positive(value: i32) -> CuResult<u32> {
    u32::try_from(value).ok().filter(|&value| value != 0).ok_or(CudaError::INVALID_VALUE)
}

fn check_flags(flags: u32) -> CuResult<()> {
    if flags & !DISABLE_CACHING_OVERRIDE == 0 { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

#[cfg(test)]
mod tests;
