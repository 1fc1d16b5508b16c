//! Attributes of kernel nodes.

use super::graph_params::{CLUSTER_DIMENSION, check_kernel};
use crate::state::KernelNode;
use cuda_abi::*;
use cuda_wire::LaunchAttribute;

/// `CUlaunchAttributeID` of those that kernel nodes have, as the driver answers them.
const KNOWN: [u32; 9] = [1, COOPERATIVE, CLUSTER_DIMENSION, 5, 8, SYNC_DOMAIN_MAP, 10, DEVICE_UPDATABLE, 14];
const COOPERATIVE: u32 = 2;
const SYNC_DOMAIN_MAP: u32 = 9;
const DEVICE_UPDATABLE: u32 = 13;

/// What a node has where nothing was set: zeros, but for the map of memory domains, which leads 0 to 0 and 1 to 1.
fn unset(attribute: u32) -> CUlaunchAttributeValue {
    CUlaunchAttributeValue::of(if attribute == SYNC_DOMAIN_MAP { 0x100u32 } else { 0 })
}

/// cuGraphKernelNodeGetAttribute.
pub(crate) fn get(node: &KernelNode, attribute: u32) -> CuResult<CUlaunchAttributeValue> {
    if !KNOWN.contains(&attribute) {
        return Err(CudaError::INVALID_VALUE);
    }
    if attribute == COOPERATIVE {
        return Ok(CUlaunchAttributeValue::of(u32::from(node.cooperative)));
    }
    let set = node.attributes.iter().find(|set| set.id == attribute);
    Ok(set.map_or(unset(attribute), |set| CUlaunchAttributeValue { words: words(&set.value) }))
}

/// cuGraphKernelNodeSetAttribute.
pub(crate) fn set(node: &mut KernelNode, attribute: u32, value: &CUlaunchAttributeValue) -> CuResult<()> {
    if !KNOWN.contains(&attribute) {
        return Err(CudaError::INVALID_VALUE);
    }
    if attribute == COOPERATIVE {
        node.cooperative = value.get::<u32>() != 0;
        return Ok(());
    }
    if attribute == DEVICE_UPDATABLE && value.get::<u32>() != 0 {
        // The GPU would change the node, and the client's copy of the graph would not follow.
        return Err(CudaError::NOT_SUPPORTED);
    }
    let before = node.attributes.clone();
    node.attributes.retain(|set| set.id != attribute);
    if *value != unset(attribute) {
        node.attributes.push(LaunchAttribute { id: attribute, value: value.bytes() });
    }
    if attribute == CLUSTER_DIMENSION && check_kernel(node).is_err() {
        node.attributes = before;
        return Err(CudaError::INVALID_CLUSTER_SIZE);
    }
    Ok(())
}

fn words(bytes: &[u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}
