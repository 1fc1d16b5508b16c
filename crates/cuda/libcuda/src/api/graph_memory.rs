//! Bodies: memory of graphs.

use crate::{
    border::*,
    state::{client, graphs},
};
use cuda_abi::*;

/// cuDeviceGraphMemTrim
pub(crate) fn trim(device: i32) -> CuResult<()> {
    let device = client()?.device(device)?.ordinal;
    graphs().memory.trim(device);
    Ok(())
}

/// cuDeviceGetGraphMemAttribute: all of them are 64-bit.
pub(crate) fn attribute(device: i32, attribute: u32, mut value: OutAny<'_>) -> CuResult<()> {
    let device = client()?.device(device)?.ordinal;
    value.set(graphs().memory.attribute(device, attribute)?);
    Ok(())
}

/// cuDeviceSetGraphMemAttribute
pub(crate) fn set_attribute(device: i32, attribute: u32, value: InAny<'_>) -> CuResult<()> {
    let device = client()?.device(device)?.ordinal;
    graphs().memory.set_attribute(device, attribute, value.get::<u64>())
}
