//! Bodies: the profiler's switch. Without a profiler attached, CUDA's own driver does nothing here either.

use cuda_abi::CuResult;

/// cuProfilerStart
pub(crate) fn start() -> CuResult<()> {
    crate::state::with_current(|context| context.check())
}

/// cuProfilerStop
pub(crate) fn stop() -> CuResult<()> {
    crate::state::with_current(|context| context.check())
}
