//! Launches of kernels.

#![allow(unsafe_code)]

use crate::names::Alike;
use crate::operation::{Operation, operate};
use crate::streams::{Flavour, Stream};
use trace_log::entry::Kind;

hooks! {
    cuLaunchKernel @ Legacy => launch(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, parameters: usize, extra: usize);
    cuLaunchKernel_ptsz @ PerThread => launch(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, parameters: usize, extra: usize);
    cuLaunchCooperativeKernel @ Legacy => cooperative(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, parameters: usize);
    cuLaunchCooperativeKernel_ptsz @ PerThread => cooperative(function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, parameters: usize);
    cuLaunchKernelEx @ Legacy => launch_ex(config: *const Config, function: usize, parameters: usize, extra: usize);
    cuLaunchKernelEx_ptsz @ PerThread => launch_ex(config: *const Config, function: usize, parameters: usize, extra: usize);
}

/// `CUlaunchConfig`, up to the stream.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
}

fn kernel(function: usize, grid: [u32; 3], block: [u32; 3], shared: u32) -> Operation {
    let alike = Alike::Kernel { function, grid, block, shared };
    Operation { kind: Kind::Launch, alike, flags: 0, count: 1, bytes: 0 }
}

fn launch(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    function: usize,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: usize,
    _parameters: usize,
    _extra: usize,
) -> u32 {
    operate(Stream::new(stream, flavour), || kernel(function, [gx, gy, gz], [bx, by, bz], shared), real)
}

fn cooperative(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    function: usize,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: usize,
    _parameters: usize,
) -> u32 {
    operate(Stream::new(stream, flavour), || kernel(function, [gx, gy, gz], [bx, by, bz], shared), real)
}

fn launch_ex(
    real: impl FnOnce() -> u32,
    flavour: Flavour,
    config: *const Config,
    function: usize,
    _parameters: usize,
    _extra: usize,
) -> u32 {
    if config.is_null() {
        return real();
    }
    // SAFETY: not null, so it is a launch configuration by the API's own demand.
    let Config { grid, block, shared, stream } = unsafe { *config };
    operate(Stream::new(stream, flavour), || kernel(function, grid, block, shared), real)
}
