//! Devices and contexts.

use crate::value::c_structs;

c_structs! {
    /// A device's identity.
    CUuuid {
        bytes: [u8; 16],
    }

    /// The properties cuDeviceGetProperties knows.
    CUdevprop {
        max_threads_per_block: i32,
        max_threads_dim: [i32; 3],
        max_grid_size: [i32; 3],
        shared_mem_per_block: i32,
        total_constant_memory: i32,
        simd_width: i32,
        mem_pitch: i32,
        regs_per_block: i32,
        clock_rate: i32,
        texture_align: i32,
    }

    /// A part of what a device has. Of the union only the numbers of multiprocessors are named here.
    CUdevResource {
        kind: u32,
        internal: [u32; 23],
        sm: [u32; 10],
        next: u64,
    }

    /// How many multiprocessors a context asks for.
    CUexecAffinityParam {
        kind: u32,
        /// The union's only member, the count of multiprocessors.
        sm_count: u32,
    }

    /// What cuCtxCreate_v4 takes.
    CUctxCreateParams {
        /// Address of an array of [`CUexecAffinityParam`].
        exec_affinity_params: u64,
        num_exec_affinity_params: i32,
        /// Address of the parameters of CUDA in graphics.
        cig_params: u64,
    }
}
