//! Whether a launch fits the device and the kernel, and its parameters as one block of bytes.
//!
//! A launch is sent without waiting for an answer, so what the driver would refuse at once must be refused here, with
//! the same code. The codes are those of driver 580 on an H200. One refusal is not made here: a kernel compiled for
//! one exact block size (`.reqntid`) does not say so in its attributes, and launching it with another fails later.

use crate::{
    limits::{DeviceLimits, KernelLimits},
    occupancy,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::ParameterInfo;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub dynamic_shared: u32,
    /// Whether all blocks must run at once.
    pub cooperative: bool,
    /// Blocks of a cluster along x, y and z, if the launch says so.
    pub cluster: Option<[u32; 3]>,
}

/// Whether the driver would take a launch of this shape.
pub fn check(shape: &LaunchShape, device: &DeviceLimits, kernel: &KernelLimits) -> CuResult<()> {
    let fits =
        |size: [u32; 3], limit: [u32; 3]| (0..3).all(|axis| size[axis] != 0 && size[axis] <= limit[axis]);
    if !fits(shape.grid, device.grid_dimensions) || !fits(shape.block, device.block_dimensions) {
        return Err(CudaError::INVALID_VALUE);
    }
    let threads = volume(shape.block);
    if threads > device.block_threads.into() {
        return Err(CudaError::INVALID_VALUE);
    }
    if threads > kernel.register_threads.into() {
        return Err(CudaError::LAUNCH_OUT_OF_RESOURCES);
    }
    if threads > kernel.block_threads.into() || shape.dynamic_shared > kernel.dynamic_shared_max {
        return Err(CudaError::INVALID_VALUE);
    }
    if shape.cluster.is_some() || kernel.cluster_required || kernel.cluster != [0; 3] {
        check_cluster(shape, device, kernel)?;
    }
    if shape.cooperative {
        check_cooperative(shape, device, kernel)?;
    }
    Ok(())
}

fn check_cluster(shape: &LaunchShape, device: &DeviceLimits, kernel: &KernelLimits) -> CuResult<()> {
    // A kernel may fix a single axis; the others are then 1.
    let fixed = (kernel.cluster != [0; 3]).then(|| kernel.cluster.map(|blocks| blocks.max(1)));
    let cluster = match (shape.cluster, fixed) {
        (Some(asked), Some(fixed)) if asked != fixed => return Err(CudaError::INVALID_CLUSTER_SIZE),
        (Some(cluster), _) | (None, Some(cluster)) => cluster,
        (None, None) => return Err(CudaError::INVALID_CLUSTER_SIZE),
    };
    let whole = (0..3).all(|axis| cluster[axis] != 0 && shape.grid[axis].is_multiple_of(cluster[axis]));
    if !whole || volume(cluster) > kernel.cluster_blocks_max().into() {
        return Err(CudaError::INVALID_CLUSTER_SIZE);
    }
    if volume(cluster) > 1 && !device.clusters {
        return Err(CudaError::NOT_SUPPORTED);
    }
    Ok(())
}

fn check_cooperative(shape: &LaunchShape, device: &DeviceLimits, kernel: &KernelLimits) -> CuResult<()> {
    if !device.cooperative {
        return Err(CudaError::NOT_SUPPORTED);
    }
    let threads = volume(shape.block) as u32;
    let resident = occupancy::blocks_per_multiprocessor(device, kernel, threads, shape.dynamic_shared.into());
    if volume(shape.grid) > u128::from(resident) * u128::from(device.multiprocessors) {
        return Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

/// Three factors of 32 bits do not overflow 128.
fn volume(size: [u32; 3]) -> u128 {
    size.into_iter().map(u128::from).product()
}

/// How the parameters of a kernel lie in its parameter block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    parameters: Box<[ParameterInfo]>,
    bytes: usize,
}

/// Bytes of parameters that a kernel may have at most (since CUDA 12.1).
pub const PARAMETER_BYTES_MAX: usize = 32_764;

impl ParameterLayout {
    /// The layout that a module load reported; `INVALID_IMAGE` if no kernel can have it.
    pub fn new(parameters: &[ParameterInfo]) -> CuResult<Self> {
        let end = |parameter: &ParameterInfo| parameter.offset as usize + parameter.bytes as usize;
        let bytes = parameters.iter().map(end).max().unwrap_or(0);
        if bytes > PARAMETER_BYTES_MAX {
            return Err(CudaError::INVALID_IMAGE);
        }
        Ok(Self { parameters: parameters.into(), bytes })
    }

    /// The parameters in order.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.parameters
    }

    /// Bytes of the whole block.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Which of the two ways of giving parameters a launch uses.
    pub fn source(&self, pointers: bool, extra: Option<Extra>) -> CuResult<Source> {
        match (pointers, extra) {
            (true, Some(_)) => Err(CudaError::INVALID_VALUE),
            (false, Some(extra)) => Ok(Source::Buffer(extra)),
            _ if self.bytes == 0 => Ok(Source::Nothing),
            (true, None) => Ok(Source::Pointers),
            (false, None) => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Appends the block to `out`. `read` fills the slice with the bytes of the parameter with that index.
    #[inline]
    pub fn pack(&self, out: &mut Vec<u8>, mut read: impl FnMut(usize, &mut [u8])) {
        let start = out.len();
        out.resize(start + self.bytes, 0);
        let block = &mut out[start..];
        for (index, parameter) in self.parameters.iter().enumerate() {
            let from = parameter.offset as usize;
            read(index, &mut block[from..from + parameter.bytes as usize]);
        }
    }

    /// How many bytes of a launch's own buffer of `given` bytes are parameters; the rest of the block is zeros.
    pub fn buffer_bytes(&self, given: u64) -> CuResult<usize> {
        match usize::try_from(given) {
            Ok(0) if self.bytes != 0 => Err(CudaError::INVALID_VALUE),
            Ok(given) if given <= self.bytes => Ok(given),
            _ => Err(CudaError::LAUNCH_OUT_OF_RESOURCES),
        }
    }

    /// Appends the block to `out`, from a buffer of which [`Self::buffer_bytes`] many bytes are there.
    pub fn pack_buffer(&self, out: &mut Vec<u8>, bytes: usize, read: impl FnOnce(&mut [u8])) {
        let start = out.len();
        out.resize(start + self.bytes, 0);
        read(&mut out[start..][..bytes.min(self.bytes)]);
    }
}

/// Where a launch has its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel has none.
    Nothing,
    /// `kernelParams`: a pointer to each.
    Pointers,
    /// `extra`: one buffer with all.
    Buffer(Extra),
}

/// What the `extra` array of a launch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Where the buffer is.
    pub buffer: u64,
    /// Where the number of its bytes is.
    pub size_at: u64,
}

/// Pairs that an `extra` array has at most; a longer one has lost its end.
const EXTRA_PAIRS_MAX: usize = 16;

/// Reads an `extra` array: key, value, key, value … 0. `word` gives its n-th word.
pub fn parse_extra(mut word: impl FnMut(usize) -> u64) -> CuResult<Extra> {
    const END: u64 = 0;
    const BUFFER_POINTER: u64 = 1;
    const BUFFER_SIZE: u64 = 2;
    let (mut buffer, mut size_at) = (0, 0);
    for pair in 0..EXTRA_PAIRS_MAX {
        match word(2 * pair) {
            END if buffer != 0 && size_at != 0 => return Ok(Extra { buffer, size_at }),
            BUFFER_POINTER => buffer = word(2 * pair + 1),
            BUFFER_SIZE => size_at = word(2 * pair + 1),
            _ => break,
        }
    }
    Err(CudaError::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::h200;

    const PLAIN: &[(u32, i32)] = &[(0, 1024), (1, 0), (4, 4), (8, 49152)];

    fn shape(grid: [u32; 3], block: [u32; 3]) -> LaunchShape {
        LaunchShape { grid, block, dynamic_shared: 0, cooperative: false, cluster: None }
    }

    /// The code of a launch, 0 for success.
    fn code(attributes: &[(u32, i32)], shape: LaunchShape) -> u32 {
        let device = h200();
        cuda_abi::to_c(check(&shape, &device, &KernelLimits::new(attributes, &device)))
    }

    /// Each line as driver 580 answers it on an H200.
    #[test]
    fn sizes_are_refused_as_the_driver_refuses_them() {
        let plain = |grid, block| code(PLAIN, shape(grid, block));
        assert_eq!(plain([0, 1, 1], [1, 1, 1]), 1);
        assert_eq!(plain([1, 0, 1], [1, 1, 1]), 1);
        assert_eq!(plain([1, 1, 1], [0, 1, 1]), 1);
        assert_eq!(plain([1, 1, 1], [1024, 1, 1]), 0);
        assert_eq!(plain([1, 1, 1], [1025, 1, 1]), 1);
        assert_eq!(plain([1, 1, 1], [1024, 2, 1]), 1);
        assert_eq!(plain([1, 1, 1], [1, 1, 64]), 0);
        assert_eq!(plain([1, 1, 1], [1, 1, 65]), 1);
        assert_eq!(plain([1, 1, 1], [1, 1025, 1]), 1);
        assert_eq!(plain([1, 65535, 1], [1, 1, 1]), 0);
        assert_eq!(plain([1, 65536, 1], [1, 1, 1]), 1);
        assert_eq!(plain([1, 1, 65536], [1, 1, 1]), 1);
        assert_eq!(plain([0x8000_0000, 1, 1], [1, 1, 1]), 1);
        assert_eq!(plain([1, 1, 1], [u32::MAX, 2, 1]), 1);
    }

    /// Each line as driver 580 answers it on an H200.
    #[test]
    fn kernels_bound_their_blocks_and_shared_memory() {
        let bound = |threads| code(&[(0, 256), (4, 4), (8, 49152)], shape([2, 1, 1], [threads, 1, 1]));
        assert_eq!((bound(256), bound(257), bound(1024), bound(1025)), (0, 1, 1, 1));
        let hungry = |threads| code(&[(0, 256), (4, 254), (8, 49152)], shape([2, 1, 1], [threads, 1, 1]));
        assert_eq!((hungry(256), hungry(1024), hungry(2048)), (0, 701, 1));
        let shared = |attributes: &[_], dynamic_shared| {
            code(attributes, LaunchShape { dynamic_shared, ..shape([1, 1, 1], [32, 1, 1]) })
        };
        assert_eq!((shared(PLAIN, 49152), shared(PLAIN, 49153), shared(PLAIN, u32::MAX)), (0, 1, 1));
        let declared = [(0, 1024), (1, 32768), (4, 4), (8, 16384)];
        assert_eq!((shared(&declared, 16384), shared(&declared, 16385)), (0, 1));
        let lowered = [(0, 1024), (4, 4), (8, 100)];
        assert_eq!((shared(&lowered, 100), shared(&lowered, 101)), (0, 1));
    }

    #[test]
    fn clusters_are_whole_and_not_too_large() {
        let run = |attributes: &[_], grid, cluster| {
            code(attributes, LaunchShape { cluster, ..shape(grid, [128, 1, 1]) })
        };
        let fixed = [(0, 1024), (8, 49152), (10, 1), (11, 2), (12, 1), (13, 1)];
        assert_eq!(run(&fixed, [2, 1, 1], None), 0);
        assert_eq!(run(&fixed, [3, 1, 1], None), 912);
        assert_eq!(run(&fixed, [4, 1, 1], Some([4, 1, 1])), 912);
        let free = |cluster| run(PLAIN, [48, 4, 1], Some(cluster));
        assert_eq!((free([8, 1, 1]), free([4, 2, 1]), free([16, 1, 1]), free([0, 1, 1])), (0, 0, 912, 912));
        let wide = [(0, 1024), (8, 49152), (14, 1)];
        assert_eq!(run(&wide, [48, 4, 1], Some([16, 1, 1])), 0);
        assert_eq!(run(&wide, [34, 4, 1], Some([17, 1, 1])), 912);
    }

    #[test]
    fn a_cooperative_grid_must_fit_the_device_at_once() {
        let run =
            |blocks| code(PLAIN, LaunchShape { cooperative: true, ..shape([blocks, 1, 1], [1024, 1, 1]) });
        assert_eq!((run(264), run(265), run(0)), (0, 720, 1));
    }

    fn layout() -> ParameterLayout {
        ParameterLayout::new(&[ParameterInfo { offset: 0, bytes: 1 }, ParameterInfo { offset: 8, bytes: 4 }])
            .unwrap()
    }

    #[test]
    fn parameters_lie_at_their_offsets_with_zeros_between() {
        let mut out = vec![0xee];
        layout().pack(&mut out, |index, bytes| bytes.fill(index as u8 + 1));
        assert_eq!(out, [0xee, 1, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2]);
        let mut out = vec![];
        layout().pack_buffer(&mut out, 9, |bytes| bytes.fill(7));
        assert_eq!(out, [7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0]);
    }

    #[test]
    fn an_impossible_layout_is_refused() {
        let layout = |offset, bytes| ParameterLayout::new(&[ParameterInfo { offset, bytes }]);
        assert!(layout(32_760, 4).is_ok());
        assert_eq!(layout(32_760, 5), Err(CudaError::INVALID_IMAGE));
        assert_eq!(layout(u32::MAX, u32::MAX), Err(CudaError::INVALID_IMAGE));
    }

    /// Each line as driver 580 answers it.
    #[test]
    fn a_launch_gives_its_parameters_in_one_way() {
        let extra = Extra { buffer: 0x100, size_at: 0x200 };
        assert_eq!(layout().source(true, None), Ok(Source::Pointers));
        assert_eq!(layout().source(false, Some(extra)), Ok(Source::Buffer(extra)));
        assert_eq!(layout().source(false, None), Err(CudaError::INVALID_VALUE));
        assert_eq!(layout().source(true, Some(extra)), Err(CudaError::INVALID_VALUE));
        assert_eq!(layout().buffer_bytes(0), Err(CudaError::INVALID_VALUE));
        assert_eq!(layout().buffer_bytes(8), Ok(8));
        assert_eq!(layout().buffer_bytes(12), Ok(12));
        assert_eq!(layout().buffer_bytes(13), Err(CudaError::LAUNCH_OUT_OF_RESOURCES));
        assert_eq!(ParameterLayout::default().source(false, None), Ok(Source::Nothing));
    }

    /// Each line as driver 580 answers it.
    #[test]
    fn an_extra_array_names_buffer_and_size() {
        let parse = |words: &[u64]| parse_extra(|index| words[index]);
        let extra = Extra { buffer: 0x100, size_at: 0x200 };
        assert_eq!(parse(&[1, 0x100, 2, 0x200, 0]), Ok(extra));
        assert_eq!(parse(&[2, 0x200, 1, 0x100, 0]), Ok(extra));
        assert_eq!(parse(&[1, 0x100, 0]), Err(CudaError::INVALID_VALUE));
        assert_eq!(parse(&[2, 0x200, 0]), Err(CudaError::INVALID_VALUE));
        assert_eq!(parse(&[7, 0x200, 0]), Err(CudaError::INVALID_VALUE));
        assert_eq!(parse(&[0]), Err(CudaError::INVALID_VALUE));
        assert_eq!(parse_extra(|index| index as u64 % 2 + 1), Err(CudaError::INVALID_VALUE), "no end");
    }
}
