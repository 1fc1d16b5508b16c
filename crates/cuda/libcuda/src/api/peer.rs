//! Bodies: devices that reach each other's memory.
//!
//! Devices of one worker do, if the worker says so by unified addressing of its range; devices of different workers
//! do not, and copies between them pass through this process.

use crate::{
    border::*,
    state::{Context, Device, client, current_context, lock},
};
use cuda_abi::*;
use cuda_wire::Command;
use std::sync::Arc;

fn reach(device: &Device, peer: &Device) -> bool {
    device.ordinal != peer.ordinal && Arc::ptr_eq(&device.link, &peer.link)
}

/// cuDeviceCanAccessPeer
pub(crate) fn can_access(mut can_access_peer: Out<'_, i32>, device: i32, peer_dev: i32) -> CuResult<()> {
    let client = client()?;
    can_access_peer.set(reach(client.device(device)?, client.device(peer_dev)?).into());
    Ok(())
}

/// cuDeviceGetP2PAttribute
pub(crate) fn p2p_attribute(
    mut value: Out<'_, i32>,
    attribute: u32,
    src_device: i32,
    dst_device: i32,
) -> CuResult<()> {
    let client = client()?;
    let (source, target) = (client.device(src_device)?, client.device(dst_device)?);
    if source.ordinal == target.ordinal {
        return Err(CudaError::INVALID_DEVICE);
    }
    value.set(match attribute {
        CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
        CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => reach(source, target).into(),
        CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => 0,
        CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
        CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
        _ => return Err(CudaError::INVALID_VALUE),
    });
    Ok(())
}

/// cuDeviceGetP2PAtomicCapabilities
pub(crate) fn p2p_atomic_capabilities(
    mut capabilities: OutSlice<'_, u32>,
    operations: &[u32],
    _count: u32,
    src_device: i32,
    dst_device: i32,
) -> CuResult<()> {
    let client = client()?;
    client.device(src_device)?;
    client.device(dst_device)?;
    capabilities.fill(operations.iter().map(|_| 0));
    Ok(())
}

/// cuCtxEnablePeerAccess
pub(crate) fn enable_access(peer_context: ContextHandle, flags: u32) -> CuResult<()> {
    let context = current_context()?;
    let peer = Context::find_alive(peer_context.0)?;
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    if !reach(context.device()?, peer.device()?) {
        return Err(CudaError::PEER_ACCESS_UNSUPPORTED);
    }
    let mut peers = lock(&context.peers);
    if peers.contains(&peer.device) {
        return Err(CudaError::PEER_ACCESS_ALREADY_ENABLED);
    }
    peers.push(peer.device);
    drop(peers);
    context.post(&Command::ContextEnablePeer { context: context.id, peer: peer.id, enable: true })
}

/// cuCtxDisablePeerAccess
pub(crate) fn disable_access(peer_context: ContextHandle) -> CuResult<()> {
    let context = current_context()?;
    let peer = Context::find_alive(peer_context.0)?;
    let mut peers = lock(&context.peers);
    let place = peers.iter().position(|device| *device == peer.device);
    peers.swap_remove(place.ok_or(CudaError::PEER_ACCESS_NOT_ENABLED)?);
    drop(peers);
    context.post(&Command::ContextEnablePeer { context: context.id, peer: peer.id, enable: false })
}
