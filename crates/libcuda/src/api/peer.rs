//! Bodies: peer.

#![allow(unused_imports, unused_variables, clippy::too_many_arguments)]

use crate::{border::*, process};
use core::ffi::CStr;
use cuda_abi::*;

/// cuDeviceCanAccessPeer
pub(crate) fn can_access(can_access_peer: Out<'_, i32>, device: i32, peer_dev: i32) -> CuResult<()> {
    Err(process::pending("cuDeviceCanAccessPeer"))
}

/// cuDeviceGetP2PAttribute
pub(crate) fn p2p_attribute(
    value: Out<'_, i32>,
    attribute: u32,
    src_device: i32,
    dst_device: i32,
) -> CuResult<()> {
    Err(process::pending("cuDeviceGetP2PAttribute"))
}

/// cuDeviceGetP2PAtomicCapabilities
pub(crate) fn p2p_atomic_capabilities(
    capabilities: OutSlice<'_, u32>,
    operations: &[u32],
    count: u32,
    src_device: i32,
    dst_device: i32,
) -> CuResult<()> {
    Err(process::pending("cuDeviceGetP2PAtomicCapabilities"))
}

/// cuCtxEnablePeerAccess
pub(crate) fn enable_access(peer_context: ContextHandle, flags: u32) -> CuResult<()> {
    Err(process::pending("cuCtxEnablePeerAccess"))
}

/// cuCtxDisablePeerAccess
pub(crate) fn disable_access(peer_context: ContextHandle) -> CuResult<()> {
    Err(process::pending("cuCtxDisablePeerAccess"))
}
