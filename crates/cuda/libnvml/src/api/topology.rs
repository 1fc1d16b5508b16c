//! How devices lie to each other, as far as a program may build on it.
//!
//! Leased GPUs may be in different machines. The weakest answer is always true: they reach each other through the
//! system, and have neither a common bridge nor NVLink that the program could use.

use crate::{abi::NvmlError, border::Out, state::Device};

/// `NVML_TOPOLOGY_*`.
const LEVEL_INTERNAL: u32 = 0;
const LEVEL_SYSTEM: u32 = 50;
/// `NVML_P2P_STATUS_*`.
const P2P_OK: u32 = 0;
const P2P_NOT_SUPPORTED: u32 = 5;
/// `NVML_P2P_CAPS_INDEX_UNKNOWN` and what comes after it.
const P2P_INDEXES: u32 = 5;

exports! {
    fn [nvmlDeviceGetTopologyCommonAncestor](first: Device, second: Device, level: Out<u32>) {
        level.set(if first.index() == second.index() { LEVEL_INTERNAL } else { LEVEL_SYSTEM })
    }

    fn [nvmlDeviceGetP2PStatus](first: Device, second: Device, index: u32, status: Out<u32>) {
        if index >= P2P_INDEXES {
            return Err(NvmlError::InvalidArgument);
        }
        status.set(if first.index() == second.index() { P2P_OK } else { P2P_NOT_SUPPORTED })
    }

    fn [nvmlDeviceOnSameBoard](first: Device, second: Device, is_same: Out<i32>) {
        is_same.set(i32::from(first.index() == second.index()))
    }
}
