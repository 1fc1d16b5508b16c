//! Launches of kernels.

#![allow(unsafe_code)]

use crate::{
    sys::{Api, Function, LaunchAttribute, LaunchConfig, Stream},
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::EventId;
use std::ffi::c_void;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: u32 = 2;
/// Attributes whose value begins with an event.
const PROGRAMMATIC_EVENT: u32 = 7;
const LAUNCH_COMPLETION_EVENT: u32 = 12;
/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`
const PARAM_END: usize = 0;
const PARAM_POINTER: usize = 1;
const PARAM_SIZE: usize = 2;

/// A launch as the client describes it.
pub(crate) struct Launch<'a> {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameters: &'a [u8],
}

/// The attributes of a launch as the driver takes them.
pub(crate) fn attributes(
    tables: &Tables,
    given: &[cuda_wire::LaunchAttribute],
    cooperative: bool,
) -> CuResult<Vec<LaunchAttribute>> {
    let mut attributes = Vec::with_capacity(given.len() + usize::from(cooperative));
    for attribute in given {
        let mut value = attribute.value;
        if matches!(attribute.id, PROGRAMMATIC_EVENT | LAUNCH_COMPLETION_EVENT) {
            let name = u32::from_le_bytes(value[..4].try_into().map_err(|_| CudaError::INVALID_VALUE)?);
            let event = tables.event(EventId(name))?;
            event.forget_age();
            value[..8].copy_from_slice(&(event.raw().0 as u64).to_le_bytes());
        }
        attributes.push(LaunchAttribute { id: attribute.id, pad: [0; 4], value });
    }
    if cooperative && given.iter().all(|attribute| attribute.id != COOPERATIVE) {
        let mut value = [0; 64];
        value[0] = 1;
        attributes.push(LaunchAttribute { id: COOPERATIVE, pad: [0; 4], value });
    }
    Ok(attributes)
}

/// Calls `run` with the parameter block in the form that launches and kernel nodes take.
pub(crate) fn with_parameters<R>(parameters: &[u8], run: impl FnOnce(*mut *mut c_void) -> R) -> R {
    let mut bytes = parameters.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(PARAM_POINTER),
        parameters.as_ptr().cast_mut().cast(),
        std::ptr::without_provenance_mut(PARAM_SIZE),
        (&raw mut bytes).cast(),
        std::ptr::without_provenance_mut(PARAM_END),
    ];
    run(extra.as_mut_ptr())
}

/// Puts a launch into a stream.
pub(crate) fn launch(
    api: &Api,
    stream: Stream,
    launch: &Launch<'_>,
    attributes: &mut [LaunchAttribute],
) -> CuResult<()> {
    let config = LaunchConfig {
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        stream,
        attributes: attributes.as_mut_ptr(),
        attribute_count: attributes.len() as u32,
    };
    with_parameters(launch.parameters, |extra| {
        // SAFETY: everything pointed to lives until the call returns; the driver copies the parameters.
        unsafe { api.launch(&config, launch.function, std::ptr::null_mut(), extra) }
    })
}
