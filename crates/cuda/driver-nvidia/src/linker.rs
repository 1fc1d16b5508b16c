//! The driver's linker.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    module::Options,
    sys::{Api, LinkState},
};
use cuda_abi::CuResult;
use cuda_wire::{Blob, JitOption, LinkInput, LinkOutput};
use std::ffi::CString;

/// `CU_JIT_INPUT_PTX`: text that must end with a zero.
const PTX: u32 = 1;

/// A link under way.
struct Linking<'a> {
    api: &'a Api,
    state: LinkState,
}

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        // SAFETY: only this object has the handle.
        let _ = unsafe { self.api.link_destroy(self.state) };
    }
}

/// Links images into one. A failure of the linker is an answer, with its log.
pub(crate) fn link(
    api: &Api,
    context: &LiveContext,
    inputs: &[LinkInput<'_>],
    options: &[JitOption],
) -> CuResult<LinkOutput> {
    context.enter()?;
    let mut options = Options::new(options);
    let linked = run(api, inputs, &mut options);
    let (cubin, status) = match linked {
        Ok(cubin) => (cubin, 0),
        Err(error) => (Vec::new(), error.code()),
    };
    Ok(LinkOutput {
        cubin: Blob(cubin),
        info_log: options.info_log(),
        error_log: options.error_log(),
        status,
    })
}

fn run(api: &Api, inputs: &[LinkInput<'_>], options: &mut Options) -> CuResult<Vec<u8>> {
    let (count, names, values) = options.parts();
    let mut state = LinkState::default();
    // SAFETY: the option arrays and their buffers live until the link is destroyed, at the end of this function.
    unsafe { api.link_create(count, names, values, &mut state)? };
    let linking = Linking { api, state };
    for input in inputs {
        let name = CString::new(input.name.replace('\0', "")).unwrap_or_default();
        let mut bytes = input.bytes.0.to_vec();
        if input.kind == PTX && bytes.last() != Some(&0) {
            bytes.push(0);
        }
        let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the bytes are valid for the call, which copies them.
        unsafe {
            let data = bytes.as_mut_ptr().cast();
            api.link_add(linking.state, input.kind, data, bytes.len(), name.as_ptr(), 0, none, nothing)?;
        }
    }
    let (mut cubin, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: both pointers are valid for the call.
    unsafe { api.link_complete(linking.state, &mut cubin, &mut bytes)? };
    // SAFETY: the driver's cubin has that many bytes and lives until the link is destroyed.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec())
}
