//! What a device and a kernel allow, taken out of their attribute lists once.

use cuda_abi::{CuResult, CudaError};

/// Limits of a device that launches and occupancy depend on, by `CUdevice_attribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Threads of a block.
    pub block_threads: u32,
    /// Threads of a block along x, y and z.
    pub block_dimensions: [u32; 3],
    /// Blocks of a grid along x, y and z.
    pub grid_dimensions: [u32; 3],
    /// Threads of a warp.
    pub warp_threads: u32,
    /// Registers that a block may use.
    pub block_registers: u32,
    /// Shared memory of a block that needs no opting in.
    pub block_shared: u32,
    /// Shared memory of a block after opting in.
    pub block_shared_optin: u32,
    /// Shared memory that the system takes from every block.
    pub reserved_shared: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads that reside on a multiprocessor.
    pub multiprocessor_threads: u32,
    /// Blocks that reside on a multiprocessor.
    pub multiprocessor_blocks: u32,
    /// Registers of a multiprocessor.
    pub multiprocessor_registers: u32,
    /// Shared memory of a multiprocessor.
    pub multiprocessor_shared: u32,
    /// Compute capability, such as (9, 0).
    pub capability: (u32, u32),
    /// Whether cooperative launches are possible.
    pub cooperative: bool,
    /// Whether clusters are possible.
    pub clusters: bool,
}

impl DeviceLimits {
    /// Reads the limits out of `(CUdevice_attribute, value)` pairs. An attribute that is missing counts as 0.
    pub fn new(attributes: &[(u32, i32)]) -> Self {
        let of = |attribute| lookup(attributes, attribute).map_or(0, |value| value.max(0) as u32);
        Self {
            block_threads: of(1),
            block_dimensions: [of(2), of(3), of(4)],
            grid_dimensions: [of(5), of(6), of(7)],
            warp_threads: of(10).max(1),
            block_registers: of(12),
            block_shared: of(8),
            block_shared_optin: of(97).max(of(8)),
            reserved_shared: of(111),
            multiprocessors: of(16),
            multiprocessor_threads: of(39),
            multiprocessor_blocks: of(106),
            multiprocessor_registers: of(82),
            multiprocessor_shared: of(81),
            capability: (of(75), of(76)),
            cooperative: of(95) != 0,
            clusters: of(120) != 0,
        }
    }
}

/// What a kernel needs and allows, by `CUfunction_attribute`. Some of it the program may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// Threads of a block, by launch bounds or by registers.
    pub block_threads: u32,
    /// Threads of a block that the register file has room for, whatever the launch bounds say.
    pub register_threads: u32,
    /// Shared memory that it declares.
    pub static_shared: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory that a launch may add.
    pub dynamic_shared_max: u32,
    /// Preferred part of the multiprocessor's memory that is shared memory, in percent; -1 for no preference.
    pub carveout: i32,
    /// Whether it may be launched in clusters only.
    pub cluster_required: bool,
    /// The size of its clusters; zeros if a launch may choose.
    pub cluster: [u32; 3],
    /// Whether clusters larger than every device can run are allowed.
    pub nonportable_cluster: bool,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED_MAX: u32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
const CARVEOUT: u32 = 9;
/// `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET`.
const CLUSTER_REQUIRED: u32 = 10;
/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH`, then height and depth.
const CLUSTER_WIDTH: u32 = 11;
const CLUSTER_DEPTH: u32 = 13;
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
const NONPORTABLE_CLUSTER: u32 = 14;
/// `CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE`.
const CLUSTER_POLICY: u32 = 15;

impl KernelLimits {
    /// Reads the limits out of `(CUfunction_attribute, value)` pairs. What is missing is as the device allows.
    pub fn new(attributes: &[(u32, i32)], device: &DeviceLimits) -> Self {
        let of = |attribute| lookup(attributes, attribute).map(|value| value.max(0) as u32);
        let registers = of(4).unwrap_or(0);
        let static_shared = of(1).unwrap_or(0);
        let kernel = Self {
            block_threads: of(0).unwrap_or(device.block_threads),
            register_threads: 0,
            static_shared,
            registers,
            dynamic_shared_max: of(DYNAMIC_SHARED_MAX)
                .unwrap_or_else(|| device.block_shared.saturating_sub(static_shared)),
            carveout: lookup(attributes, CARVEOUT).unwrap_or(-1),
            cluster_required: of(CLUSTER_REQUIRED).is_some_and(|value| value != 0),
            cluster: [0, 1, 2].map(|axis| of(CLUSTER_WIDTH + axis).unwrap_or(0)),
            nonportable_cluster: of(NONPORTABLE_CLUSTER).is_some_and(|value| value != 0),
        };
        Self { register_threads: kernel.register_threads(device), ..kernel }
    }

    /// Registers that one warp takes.
    pub(crate) fn warp_registers(&self, device: &DeviceLimits) -> u32 {
        self.registers
            .saturating_mul(device.warp_threads)
            .checked_next_multiple_of(REGISTER_UNIT)
            .unwrap_or(u32::MAX)
    }

    /// The largest block whose registers fit.
    fn register_threads(&self, device: &DeviceLimits) -> u32 {
        let warp = self.warp_registers(device);
        if warp == 0 {
            return device.block_threads;
        }
        let warps = device.block_registers / warp / WARP_GROUP * WARP_GROUP;
        warps.saturating_mul(device.warp_threads).min(device.block_threads)
    }

    /// Sets an attribute, with the answers of driver 580: only some can be set, and only in bounds.
    pub fn set(&mut self, attribute: u32, value: i32, device: &DeviceLimits) -> CuResult<()> {
        let bounds = match attribute {
            DYNAMIC_SHARED_MAX => 0..=device.block_shared_optin.saturating_sub(self.static_shared) as i32,
            CARVEOUT => -1..=100,
            CLUSTER_WIDTH..=CLUSTER_DEPTH => 0..=i32::MAX,
            NONPORTABLE_CLUSTER => 0..=1,
            CLUSTER_POLICY => 0..=2,
            _ => return Err(CudaError::INVALID_VALUE),
        };
        if !bounds.contains(&value) {
            return Err(CudaError::INVALID_VALUE);
        }
        match attribute {
            DYNAMIC_SHARED_MAX => self.dynamic_shared_max = value as u32,
            CARVEOUT => self.carveout = value,
            CLUSTER_WIDTH..=CLUSTER_DEPTH => {
                self.cluster[(attribute - CLUSTER_WIDTH) as usize] = value as u32
            }
            NONPORTABLE_CLUSTER => self.nonportable_cluster = value != 0,
            // How clusters are spread over the device: the worker is told, nothing here depends on it.
            _ => {}
        }
        Ok(())
    }

    /// How many blocks a cluster has at most.
    pub fn cluster_blocks_max(&self) -> u32 {
        if self.nonportable_cluster { CLUSTER_BLOCKS_NONPORTABLE } else { CLUSTER_BLOCKS_PORTABLE }
    }
}

/// Blocks of a cluster that every device with clusters can run.
const CLUSTER_BLOCKS_PORTABLE: u32 = 8;
/// Blocks of a cluster that Hopper can run.
const CLUSTER_BLOCKS_NONPORTABLE: u32 = 16;

/// Registers are given to warps in units of this many.
const REGISTER_UNIT: u32 = 256;
/// Warps get their registers in groups of this many, one for each part of a multiprocessor.
pub(crate) const WARP_GROUP: u32 = 4;

fn lookup(attributes: &[(u32, i32)], wanted: u32) -> Option<i32> {
    attributes.iter().find(|(attribute, _)| *attribute == wanted).map(|(_, value)| *value)
}

/// What an H200 reports, for tests.
#[cfg(test)]
pub(crate) fn h200() -> DeviceLimits {
    DeviceLimits::new(&[
        (1, 1024),
        (2, 1024),
        (3, 1024),
        (4, 64),
        (5, 2147483647),
        (6, 65535),
        (7, 65535),
        (8, 49152),
        (10, 32),
        (12, 65536),
        (16, 132),
        (39, 2048),
        (75, 9),
        (76, 0),
        (81, 233472),
        (82, 65536),
        (95, 1),
        (97, 232448),
        (106, 32),
        (111, 1024),
        (120, 1),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line as driver 580 answers it on an H200.
    #[test]
    fn attributes_are_set_as_the_driver_sets_them() {
        let device = h200();
        let mut kernel = KernelLimits::new(&[(0, 1024), (1, 32768), (4, 4), (8, 16384)], &device);
        let mut refused = |attribute, value| kernel.set(attribute, value, &device).is_err();
        assert!(refused(8, -1) && !refused(8, 0) && !refused(8, 199_680) && refused(8, 199_681));
        assert!(refused(9, -2) && !refused(9, -1) && !refused(9, 100) && refused(9, 101));
        assert!(
            refused(0, 1)
                && refused(1, 1)
                && refused(4, 1)
                && refused(10, 1)
                && refused(16, 1)
                && refused(99, 1)
        );
        assert!(!refused(11, 1) && !refused(14, 1) && !refused(15, 1));
        assert_eq!((kernel.dynamic_shared_max, kernel.carveout, kernel.cluster[0]), (199_680, 100, 1));
    }

    /// Registers and MAX_THREADS_PER_BLOCK of kernels without launch bounds, as driver 580 reports them on an H200.
    #[test]
    fn registers_bound_the_block_as_the_driver_says() {
        for (registers, threads) in
            [(32, 1024), (56, 1024), (72, 896), (80, 768), (96, 640), (128, 512), (168, 384), (254, 256)]
        {
            let kernel = KernelLimits::new(&[(4, registers)], &h200());
            assert_eq!(kernel.register_threads, threads, "{registers} registers");
        }
    }
}
