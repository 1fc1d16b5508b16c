//! Launch configurations and their attributes.

use crate::value::{CValue, c_structs};

c_structs! {
    /// One of the launches of cuLaunchCooperativeKernelMultiDevice.
    CUDA_LAUNCH_PARAMS {
        function: u64,
        grid_dim: [u32; 3],
        block_dim: [u32; 3],
        shared_mem_bytes: u32,
        stream: u64,
        kernel_params: u64,
    }

    /// A tensor map. C aligns it to 128 bytes, but CUDA promises to take one that lies on 64.
    CUtensorMap {
        opaque: [u64; 16],
    }

    /// What cuLaunchKernelEx takes besides the function.
    CUlaunchConfig {
        grid_dim_x: u32,
        grid_dim_y: u32,
        grid_dim_z: u32,
        block_dim_x: u32,
        block_dim_y: u32,
        block_dim_z: u32,
        shared_mem_bytes: u32,
        stream: u64,
        /// Address of an array of [`CUlaunchAttribute`].
        attrs: u64,
        num_attrs: u32,
    }

    /// The value of an attribute: a union of 64 bytes.
    CUlaunchAttributeValue {
        words: [u64; 8],
    }

    /// An attribute of a launch, a stream or a kernel node.
    CUlaunchAttribute {
        id: u32,
        pad: [u8; 4],
        value: CUlaunchAttributeValue,
    }

    /// Which part of memory should stay in the L2 cache.
    CUaccessPolicyWindow {
        base_ptr: u64,
        num_bytes: usize,
        hit_ratio: f32,
        hit_prop: u32,
        miss_prop: u32,
    }
}

impl CUlaunchAttributeValue {
    /// The union's bytes.
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        self.words.write(&mut bytes);
        bytes
    }

    /// The member that starts at the union's first byte, read as `T`.
    pub fn get<T: CValue>(&self) -> T {
        T::read(&self.bytes())
    }

    /// A union with this member, the other bytes zero.
    pub fn of<T: CValue>(member: T) -> Self {
        let mut bytes = [0; 64];
        member.write(&mut bytes);
        Self { words: CValue::read(&bytes) }
    }

    /// The three numbers of a cluster's extent.
    pub fn dimensions(&self) -> [u32; 3] {
        self.get()
    }

    /// The event of a programmatic or completion event: the first word.
    pub fn event(&self) -> u64 {
        self.words[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_share_the_first_bytes() {
        let value = CUlaunchAttributeValue::of([2u32, 3, 4]);
        assert_eq!(value.dimensions(), [2, 3, 4]);
        assert_eq!(value.get::<u32>(), 2);
        assert_eq!(value.event(), 0x3_0000_0002);
    }
}
