//! Bodies: the log of errors. Every call that fails leaves a line in it, in the words of the driver's own log.

use crate::{border::*, error_log};
use cuda_abi::*;
use std::{ffi::CStr, os::unix::ffi::OsStrExt, path::Path};

/// cuLogsCurrent. The driver takes any flags.
pub(crate) fn current(mut iterator: Out<'_, u32>, _flags: u32) -> CuResult<()> {
    iterator.set(error_log::next());
    Ok(())
}

/// cuLogsDumpToFile
pub(crate) fn dump_to_file(iterator: Option<InOut<'_, u32>>, path: &CStr, flags: u32) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let from = iterator.as_ref().map(InOut::get);
    let dump = error_log::dump(from, usize::MAX).ok_or(CudaError::INVALID_VALUE)?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    std::fs::write(path, &dump.text).map_err(|_| CudaError::INVALID_VALUE)?;
    if let Some(mut iterator) = iterator {
        iterator.set(dump.next);
    }
    Ok(())
}

/// cuLogsDumpToMemory
pub(crate) fn dump_to_memory(
    iterator: Option<InOut<'_, u32>>,
    mut buffer: OutSlice<'_, u8>,
    mut size: InOut<'_, usize>,
    flags: u32,
) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let from = iterator.as_ref().map(InOut::get);
    let Some(dump) = error_log::dump(from, buffer.len().saturating_sub(1)) else {
        size.set(0);
        return Err(CudaError::INVALID_VALUE);
    };
    buffer.set_text(dump.text.as_bytes());
    size.set(dump.text.len());
    if let Some(mut iterator) = iterator {
        iterator.set(dump.next);
    }
    Ok(())
}

/// cuLogsRegisterCallback
pub(crate) fn register(function: LogsCallback, user_data: u64, handle: Option<Out<'_, u64>>) -> CuResult<()> {
    let made = error_log::listen(function, user_data);
    if let Some(mut handle) = handle {
        handle.set(made);
    }
    Ok(())
}

/// cuLogsUnregisterCallback
pub(crate) fn unregister(handle: u64) -> CuResult<()> {
    if error_log::stop_listening(handle) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}
