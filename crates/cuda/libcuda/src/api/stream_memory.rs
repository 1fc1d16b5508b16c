//! Bodies: words in device memory that streams write and wait for.

use crate::{
    border::*,
    state::{NodeOp, Stream, memory_of, submit},
};
use cuda_abi::*;
use cuda_wire::MemoryOp;

/// Kinds of `CUstreamBatchMemOpType`.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH_REMOTE_WRITES: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;

/// The batch a program asked for, checked.
pub(crate) fn memory_ops(params: &[CUstreamBatchMemOpParams]) -> CuResult<Vec<MemoryOp>> {
    params
        .iter()
        .map(|param| match param.operation() {
            kind @ (WAIT_32 | WRITE_32 | WAIT_64 | WRITE_64) => {
                let value = param.value_params();
                let bytes = if kind == WAIT_32 || kind == WRITE_32 { 4 } else { 8 };
                check_word(value.address, bytes)?;
                Ok(MemoryOp { kind, flags: value.flags, address: value.address, value: value.value })
            }
            // Writes of other devices do not exist here, and operations are in order anyway.
            kind @ (FLUSH_REMOTE_WRITES | BARRIER) => Ok(MemoryOp { kind, flags: 0, address: 0, value: 0 }),
            _ => Err(CudaError::INVALID_VALUE),
        })
        .collect()
}

fn check_word(address: u64, bytes: u64) -> CuResult<()> {
    if !address.is_multiple_of(bytes) {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = memory_of(address).ok_or(CudaError::INVALID_VALUE)?;
    device.memory.check_range(address, bytes)
}

fn one(stream: StreamArg, kind: u32, address: u64, value: u64, flags: u32) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    let bytes = if kind == WAIT_32 || kind == WRITE_32 { 4 } else { 8 };
    check_word(address, bytes)?;
    let ops = vec![MemoryOp { kind, flags, address, value }];
    let context = std::sync::Arc::clone(&stream.context);
    submit(&stream, NodeOp::MemoryOps { ops, context })
}

/// cuStreamWaitValue32
pub(crate) fn wait_value_32(stream: StreamArg, addr: u64, value: u32, flags: u32) -> CuResult<()> {
    one(stream, WAIT_32, addr, value.into(), flags)
}

/// cuStreamWaitValue64
pub(crate) fn wait_value_64(stream: StreamArg, addr: u64, value: u64, flags: u32) -> CuResult<()> {
    one(stream, WAIT_64, addr, value, flags)
}

/// cuStreamWriteValue32
pub(crate) fn write_value_32(stream: StreamArg, addr: u64, value: u32, flags: u32) -> CuResult<()> {
    one(stream, WRITE_32, addr, value.into(), flags)
}

/// cuStreamWriteValue64
pub(crate) fn write_value_64(stream: StreamArg, addr: u64, value: u64, flags: u32) -> CuResult<()> {
    one(stream, WRITE_64, addr, value, flags)
}

/// cuStreamBatchMemOp
pub(crate) fn batch(
    stream: StreamArg,
    count: u32,
    param_array: &[CUstreamBatchMemOpParams],
    flags: u32,
) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if flags != 0 || count > 256 {
        return Err(CudaError::INVALID_VALUE);
    }
    let ops = memory_ops(param_array)?;
    let context = std::sync::Arc::clone(&stream.context);
    submit(&stream, NodeOp::MemoryOps { ops, context })
}
