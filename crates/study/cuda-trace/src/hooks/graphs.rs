//! Graphs: capture, instantiation and launch.

#![allow(unsafe_code)]

use crate::graphs;
use crate::names::Alike;
use crate::operation::{Operation, operate};
use crate::state::{self, Inside};
use crate::streams::{self, Flavour, Stream};
use trace_log::entry::Kind;

hooks! {
    cuGraphLaunch @ Legacy => launch(exec: usize, stream: usize);
    cuGraphLaunch_ptsz @ PerThread => launch(exec: usize, stream: usize);
    cuGraphInstantiate @ Legacy => instantiate_5(exec: *mut usize, graph: usize, node: usize, log: usize, bytes: usize);
    cuGraphInstantiate_v2 @ Legacy => instantiate_5(exec: *mut usize, graph: usize, node: usize, log: usize, bytes: usize);
    cuGraphInstantiateWithFlags @ Legacy => instantiate_3(exec: *mut usize, graph: usize, flags: u64);
    cuGraphInstantiateWithParams @ Legacy => instantiate_3(exec: *mut usize, graph: usize, parameters: u64);
    cuGraphInstantiateWithParams_ptsz @ PerThread => instantiate_3(exec: *mut usize, graph: usize, parameters: u64);
    cuGraphExecDestroy @ Legacy => destroy(exec: usize);
    cuStreamBeginCapture @ Legacy => begin_capture_1(stream: usize);
    cuStreamBeginCapture_ptsz @ PerThread => begin_capture_1(stream: usize);
    cuStreamBeginCapture_v2 @ Legacy => begin_capture_2(stream: usize, mode: u32);
    cuStreamBeginCapture_v2_ptsz @ PerThread => begin_capture_2(stream: usize, mode: u32);
    cuStreamBeginCaptureToGraph @ Legacy => begin_capture_6(stream: usize, graph: usize, after: usize, data: usize, count: usize, mode: u32);
    cuStreamBeginCaptureToGraph_ptsz @ PerThread => begin_capture_6(stream: usize, graph: usize, after: usize, data: usize, count: usize, mode: u32);
    cuStreamEndCapture @ Legacy => end_capture(stream: usize, graph: usize);
    cuStreamEndCapture_ptsz @ PerThread => end_capture(stream: usize, graph: usize);
}

fn launch(real: impl FnOnce() -> u32, flavour: Flavour, exec: usize, stream: usize) -> u32 {
    let describe = || {
        let kernels = graphs::kernels(exec);
        let alike = Alike::Graph { exec, kernels };
        Operation { kind: Kind::Launch, alike, flags: 0, count: kernels, bytes: 0 }
    };
    operate(Stream::new(stream, flavour), describe, real)
}

fn instantiate(real: impl FnOnce() -> u32, exec: *mut usize, graph: usize) -> u32 {
    if state::mode().is_off() || state::is_inside() {
        return real();
    }
    let _inside = Inside::enter();
    let answer = real();
    if answer == 0 && !exec.is_null() {
        // SAFETY: the call succeeded, so the place holds a handle.
        graphs::instantiated(unsafe { *exec }, graph);
    }
    answer
}

fn instantiate_3(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    exec: *mut usize,
    graph: usize,
    _more: u64,
) -> u32 {
    instantiate(real, exec, graph)
}

fn instantiate_5(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    exec: *mut usize,
    graph: usize,
    _node: usize,
    _log: usize,
    _bytes: usize,
) -> u32 {
    instantiate(real, exec, graph)
}

fn destroy(real: impl FnOnce() -> u32, _flavour: Flavour, exec: usize) -> u32 {
    if !state::mode().is_off() {
        graphs::destroyed(exec);
    }
    real()
}

fn begin(real: impl FnOnce() -> u32) -> u32 {
    // Before it begins, so that no other thread touches what may not be touched from now on.
    streams::capture_begins();
    let answer = real();
    if answer != 0 {
        streams::capture_ended();
    }
    answer
}

fn begin_capture_1(real: impl FnOnce() -> u32, _flavour: Flavour, _stream: usize) -> u32 {
    begin(real)
}

fn begin_capture_2(real: impl FnOnce() -> u32, _flavour: Flavour, _stream: usize, _mode: u32) -> u32 {
    begin(real)
}

fn begin_capture_6(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    _stream: usize,
    _graph: usize,
    _after: usize,
    _data: usize,
    _count: usize,
    _mode: u32,
) -> u32 {
    begin(real)
}

fn end_capture(real: impl FnOnce() -> u32, _flavour: Flavour, _stream: usize, _graph: usize) -> u32 {
    let answer = real();
    // 0, or a capture that broke: over in both cases. A stream that was not captured stays uncounted.
    const NOT_CAPTURING: [u32; 3] = [1, 400, 401];
    if !NOT_CAPTURING.contains(&answer) {
        streams::capture_ended();
    }
    answer
}
