//! A variable of ours in every context, before anything else.
//!
//! The driver puts variables of modules into pieces of 2 MiB. It takes a piece where one is free, and streams, stacks and pinned
//! memory take from the same room. So where the first piece lies depends on what a program did before its first module. The session
//! that resumes the program loads modules first, and a program that outlives its session must find its variables where they were.
//! Our variable makes the driver take the first piece when the context is new, which is the same moment in every session. (Seen
//! on an H200 with driver 580: two streams, a kernel with a large stack or 64 MiB of pinned memory move the first piece; none of
//! them moves what comes into a piece that is already there.)

#![allow(unsafe_code)]

use crate::sys::{Api, Module};
use cuda_abi::{CuResult, CudaError};
use std::ptr;

const TEXT: &[u8] =
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 16 .b8 dxpu_first_variable[16];\n\0";

/// What a driver says that does not compile.
const NO_COMPILER: [CudaError; 3] = [
    CudaError::JIT_COMPILER_NOT_FOUND,
    CudaError::UNSUPPORTED_PTX_VERSION,
    CudaError::JIT_COMPILATION_DISABLED,
];

/// Loads it into the calling thread's context, which is new. `None`: the driver has no compiler. Such a session works, and a
/// program whose variables have moved is told at a loss.
pub(crate) fn load(api: &Api) -> CuResult<Option<Module>> {
    let mut module = Module::default();
    // SAFETY: `module` is valid for the call, the text ends with a zero, and there are no options.
    match unsafe { api.module_load(&mut module, TEXT.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut()) } {
        Ok(()) => Ok(Some(module)),
        Err(error) if NO_COMPILER.contains(&error) => {
            tracing::warn!(%error, "variables of modules may move when a program is resumed");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
