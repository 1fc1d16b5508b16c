//! Bodies: start, versions, errors, and how programs find the other functions.

use crate::{
    border::*,
    export_tables,
    generated::proc_address::{Lookup, find},
    process,
    state::client,
};
use core::ffi::CStr;
use cuda_abi::{CUuuid, CuResult, CudaError};
use std::sync::Once;

/// The version of the driver API this library has the functions of.
const CUDA_VERSION: i32 = 13000;
/// `CUdriverProcAddressQueryResult`.
const SYMBOL_FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;
const SYMBOL_VERSION_NOT_SUFFICIENT: u32 = 2;

/// cuInit
pub(crate) fn init(flags: u32) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    process::init()
}

/// What both sides can do: before cuInit only this side is known.
fn served_version() -> i32 {
    client().map_or(CUDA_VERSION, |client| client.cuda_version.min(CUDA_VERSION))
}

/// cuDriverGetVersion
pub(crate) fn driver_version(mut driver_version: Out<'_, i32>) -> CuResult<()> {
    driver_version.set(served_version());
    Ok(())
}

fn text_of(
    error: u32,
    success: &'static CStr,
    text: impl Fn(CudaError) -> Option<&'static CStr>,
) -> Option<u64> {
    let text = match CudaError::from_code(error) {
        None => Some(success),
        Some(error) => text(error),
    };
    text.map(|text| text.as_ptr() as u64)
}

/// cuGetErrorName
pub(crate) fn error_name(error: u32, mut text: Out<'_, u64>) -> CuResult<()> {
    let found = text_of(error, c"CUDA_SUCCESS", CudaError::name);
    text.set(found.unwrap_or(0));
    found.map(drop).ok_or(CudaError::INVALID_VALUE)
}

/// cuGetErrorString
pub(crate) fn error_string(error: u32, mut text: Out<'_, u64>) -> CuResult<()> {
    let found = text_of(error, c"no error", CudaError::text);
    text.set(found.unwrap_or(0));
    found.map(drop).ok_or(CudaError::INVALID_VALUE)
}

/// cuGetProcAddress: without a status the only way to say no is an error, and the pointer stays as it was.
pub(crate) fn proc_address(
    symbol: &CStr,
    mut function_pointer: Out<'_, u64>,
    cuda_version: i32,
    flags: u64,
) -> CuResult<()> {
    match look_up(symbol, cuda_version, flags)? {
        Lookup::Found(pointer) => {
            function_pointer.set(pointer);
            Ok(())
        }
        Lookup::NotFound | Lookup::VersionNotSufficient => Err(CudaError::NOT_FOUND),
    }
}

/// cuGetProcAddress_v2
pub(crate) fn proc_address_v2(
    symbol: &CStr,
    mut function_pointer: Out<'_, u64>,
    cuda_version: i32,
    flags: u64,
    symbol_status: Option<Out<'_, u32>>,
) -> CuResult<()> {
    let (pointer, status) = match look_up(symbol, cuda_version, flags)? {
        Lookup::Found(pointer) => (pointer, SYMBOL_FOUND),
        Lookup::NotFound => (0, SYMBOL_NOT_FOUND),
        Lookup::VersionNotSufficient => (0, SYMBOL_VERSION_NOT_SUFFICIENT),
    };
    function_pointer.set(pointer);
    match symbol_status {
        Some(mut place) => {
            place.set(status);
            Ok(())
        }
        None if status == SYMBOL_FOUND => Ok(()),
        None => Err(CudaError::NOT_FOUND),
    }
}

fn look_up(symbol: &CStr, cuda_version: i32, flags: u64) -> CuResult<Lookup> {
    if flags > 3 || cuda_version < 0 || cuda_version > served_version() {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(find(symbol.to_bytes(), cuda_version as u32, flags))
}

/// Told once: CUPTI asks again with each of its calls.
#[cold]
fn warn_of_profiler() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        crate::log::warn(
            "a profiler (CUPTI) asks for this machine's GPU driver. The GPU is on another machine, so the profiler sees no \
             kernels and no copies; see them with `dxpu run --timeline FILE -- PROGRAM`",
        );
    });
}

/// cuGetExportTable
pub(crate) fn export_table(mut table: Out<'_, u64>, id: &CUuuid) -> CuResult<()> {
    match export_tables::find(&id.bytes) {
        Some(address) => {
            table.set(address);
            Ok(())
        }
        None => {
            if export_tables::is_profilers(&id.bytes) {
                warn_of_profiler();
            }
            crate::log::debug(|| format!("no private table {:032x}", u128::from_be_bytes(id.bytes)));
            table.set(0);
            Err(CudaError::INVALID_VALUE)
        }
    }
}
