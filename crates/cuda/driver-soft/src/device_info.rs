//! What a soft device says of itself.
//!
//! The limits are those of a common data-centre GPU, so that programs choose the launch shapes they would choose there.
//! What dxpu does not serve is reported as unsupported, so that programs do not ask for it.

use crate::{config::SoftConfig, context::LIMITS, memory::GRANULE};
use cuda_wire::DeviceInfo;

/// Threads of a block.
pub(crate) const THREADS_PER_BLOCK_MAX: u32 = 1024;
/// Largest block in x, y and z.
pub(crate) const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Largest grid in x, y and z.
pub(crate) const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Shared memory of a block without asking for more.
pub(crate) const SHARED_DEFAULT: u32 = 48 << 10;
/// Shared memory of a block that asked for more.
pub(crate) const SHARED_OPT_IN: u32 = 227 << 10;
/// Shared memory of a multiprocessor.
pub(crate) const SHARED_PER_SM: u32 = 228 << 10;
/// Threads and blocks that a multiprocessor holds at once.
pub(crate) const THREADS_PER_SM: u32 = 2048;
pub(crate) const BLOCKS_PER_SM: u32 = 32;
const REGISTERS_PER_SM: i32 = 65536;
/// Least and greatest stream priority.
const PRIORITIES: (i32, i32) = (0, -5);

/// Multiprocessors: one for each host core, and at least a few, so that occupancy arithmetic meets familiar numbers.
pub(crate) fn multiprocessors() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    u32::try_from(cores).unwrap_or(u32::MAX).clamp(4, 256)
}

/// The description of device `ordinal`.
pub(crate) fn of(config: &SoftConfig, ordinal: u32) -> DeviceInfo {
    DeviceInfo {
        name: config.name.clone(),
        uuid: uuid(config, ordinal),
        memory_bytes: config.memory_bytes,
        attributes: attributes(config, ordinal),
        stream_priorities: PRIORITIES,
        granularity: (GRANULE, GRANULE),
        limits: LIMITS.to_vec(),
    }
}

impl SoftConfig {
    /// The UUID of a device: the same for the same name, identity and place, on every machine.
    pub fn uuid(&self, ordinal: u32) -> [u8; 16] {
        uuid(self, ordinal)
    }
}

fn uuid(config: &SoftConfig, ordinal: u32) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key("dxpu soft device uuid");
    hasher.update(config.name.as_bytes());
    hasher.update(&ordinal.to_le_bytes());
    // Behind the number, whose length is known: no name and identity read like another pair.
    hasher.update(config.identity.as_bytes());
    let mut uuid: [u8; 16] = hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes");
    // RFC 9562: version 8 (made by the maker's own rule), variant 10.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// `(CUdevice_attribute, value)` for every attribute of CUDA 13.0.
fn attributes(config: &SoftConfig, ordinal: u32) -> Vec<(u32, i32)> {
    let (major, minor) = config.compute_capability;
    let mut attributes = vec![
        (1, THREADS_PER_BLOCK_MAX as i32),
        (2, BLOCK_MAX[0] as i32),
        (3, BLOCK_MAX[1] as i32),
        (4, BLOCK_MAX[2] as i32),
        (5, GRID_MAX[0] as i32),
        (6, GRID_MAX[1] as i32),
        (7, GRID_MAX[2] as i32),
        (8, SHARED_DEFAULT as i32),
        (9, 64 << 10),  // constant memory
        (10, 32),       // warp
        (11, i32::MAX), // pitch
        (12, REGISTERS_PER_SM),
        (13, 1_000_000), // clock in kHz: %clock64 counts nanoseconds
        (14, 512),       // texture alignment
        (15, 1),         // copies overlap with kernels
        (16, multiprocessors() as i32),
        (17, 0), // no time limit for kernels
        (18, 0), // not integrated
        (19, 1), // launches may be given pinned memory
        (20, 0), // default compute mode
        (30, 512),
        (31, 1), // concurrent kernels
        (32, 0), // no ECC
        (33, ordinal as i32 + 1),
        (34, 0),
        (35, 0),
        (36, 1_000_000),
        (37, 64),
        (38, 4 << 20),
        (39, THREADS_PER_SM as i32),
        (40, 2), // copy engines
        (41, 1), // unified addressing
        (50, 0),
        (51, 32),
        (75, major as i32),
        (76, minor as i32),
        (78, 1), // stream priorities
        (79, 0),
        (80, 0),
        (81, SHARED_PER_SM as i32),
        (82, REGISTERS_PER_SM),
        (83, 0), // no managed memory
        (84, 0),
        (85, ordinal as i32), // every device is a board of its own
        (86, 0),
        (87, 2),
        (88, 0), // no access to pageable memory
        (89, 0),
        (90, 1), // compute preemption
        (91, 1), // by its address on the host
        (92, 1), // stream memory operations
        (93, 1), // on 64 bits
        (94, 1), // waits for NOR
        (95, 1), // cooperative launch
        (96, 0),
        (97, SHARED_OPT_IN as i32),
        (98, 0),
        (99, 1), // host memory can be registered
        (100, 0),
        (101, 0),
        (102, 1), // virtual memory management
        (103, 1), // with descriptors for other processes
        (104, 0),
        (105, 0),
        (106, BLOCKS_PER_SM as i32),
        (107, 0), // no compression
        (108, 0),
        (109, 0),
        (110, 0), // no GPUDirect RDMA with VMM
        (111, 1024),
        (112, 0), // sparse arrays
        (113, 0),
        (114, 0),
        (115, 1), // memory pools
        (116, 0), // no GPUDirect RDMA
        (117, 0),
        (118, 0),
        (119, 1), // descriptors of pools for other processes
        (120, 0), // no clusters
        (121, 0),
        (122, 1), // stream memory operations, second version
        (123, 1),
        (124, 0),
        (125, 1), // events of several processes
        (126, 0),
        (127, 0),
        (128, 0),
        (129, 0), // no tensor maps
        (130, 0),
        (131, -1),
        (132, 0), // no multicast
        (133, 0),
        (134, 0),
    ];
    attributes.extend(IMAGE_SIZES);
    attributes.extend((135..=147).map(|number| (number, 0)));
    attributes.sort_unstable();
    attributes
}

/// The largest textures and surfaces, as an H200 has them; memory bounds them here.
const IMAGE_SIZES: [(u32, i32); 41] = [
    (21, 131_072), // texture 1D
    (22, 131_072), // 2D
    (23, 65_536),
    (24, 16_384), // 3D
    (25, 16_384),
    (26, 16_384),
    (27, 32_768), // 2D layered
    (28, 32_768),
    (29, 2048),
    (42, 32_768), // 1D layered
    (43, 2048),
    (44, 1), // gather
    (45, 32_768),
    (46, 32_768),
    (47, 8192), // 3D, the other way
    (48, 8192),
    (49, 32_768),
    (52, 32_768), // cubemap
    (53, 32_768), // layered
    (54, 2046),
    (55, 32_768),  // surface 1D
    (56, 131_072), // 2D
    (57, 65_536),
    (58, 16_384), // 3D
    (59, 16_384),
    (60, 16_384),
    (61, 32_768), // 1D layered
    (62, 2048),
    (63, 32_768), // 2D layered
    (64, 32_768),
    (65, 2048),
    (66, 32_768), // cubemap
    (67, 32_768), // layered
    (68, 2046),
    (69, 268_435_456), // linear memory
    (70, 131_072),     // rows of memory
    (71, 65_000),
    (72, 2_097_120),
    (73, 32_768), // mipmapped 2D
    (74, 32_768),
    (77, 32_768), // mipmapped 1D
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_is_there_once() {
        let info = of(&SoftConfig::default(), 0);
        assert_eq!(
            info.attributes.iter().map(|row| row.0).collect::<Vec<_>>(),
            (1..=147).collect::<Vec<_>>()
        );
    }

    #[test]
    fn devices_differ_and_stay_the_same() {
        let config = SoftConfig { devices: 2, ..SoftConfig::default() };
        assert_eq!(of(&config, 0).uuid, of(&config, 0).uuid);
        assert_ne!(of(&config, 0).uuid, of(&config, 1).uuid);
        let bus = |ordinal| of(&config, ordinal).attributes.iter().find(|row| row.0 == 33).map(|row| row.1);
        assert_ne!(bus(0), bus(1));
    }
}
