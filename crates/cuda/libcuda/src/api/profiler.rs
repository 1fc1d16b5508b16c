//! Bodies: the profiler's switch. Without a profiler attached, CUDA's own driver does nothing here either.

use cuda_abi::{CuResult, CudaError};
use std::ffi::CStr;

/// cuProfilerStart
pub(crate) fn start() -> CuResult<()> {
    crate::state::with_current(|context| context.check())
}

/// cuProfilerStop
pub(crate) fn stop() -> CuResult<()> {
    crate::state::with_current(|context| context.check())
}

/// cuProfilerInitialize: no driver since CUDA 12 reads such files.
pub(crate) fn initialize(
    _config_file: Option<&CStr>,
    _output_file: Option<&CStr>,
    _output_mode: u32,
) -> CuResult<()> {
    Err(CudaError::NOT_SUPPORTED)
}

/// cuFlushGPUDirectRDMAWrites
pub(crate) fn flush_writes(target: u32, scope: u32) -> CuResult<()> {
    /// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and scopes to the owner and to all devices.
    const CURRENT_CONTEXT: u32 = 0;
    const SCOPES: [u32; 2] = [100, 200];
    crate::state::with_current(|context| context.check())?;
    if target == CURRENT_CONTEXT && SCOPES.contains(&scope) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}
