//! Programs of their own: one whose memory comes from pools, and one that reads the device's clock.

use crate::program::*;
use std::{ffi::c_void, fmt::Write, time::Duration};

/// Blocks that live at a time.
const LIVE: usize = 6;
/// Rounds between two places where everything but the first block is free.
const STEP: u64 = 8;
const ROUNDS: u64 = 64;

/// Blocks come and go in the order of two streams; every round reads one of them.
pub(crate) fn pools(device: &Device) -> String {
    let add = device.function(c"add");
    let streams = [stream(), stream()];
    let event = made(|event| cu!(cuEventCreate(event, 0)));
    // Each block is used in the stream that it was allocated in, until it changes hands through the event.
    let mut blocks: Vec<(u64, usize)> = Vec::new();
    let (mut saw, mut random) = (String::new(), 7_u64);
    for round in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let stream = streams[(random >> 40) as usize % 2];
        let bytes = (64 << 10) * (1 + (random >> 45) as usize % 6) + 4 * ((random >> 50) as usize % 900);
        let made = made(|address| cu!(cuMemAllocAsync(address, bytes, stream)));
        cu!(cuMemsetD32Async(made, round as u32, bytes / 4, stream));
        let other = if stream == streams[0] { streams[1] } else { streams[0] };
        cu!(cuEventRecord(event, other));
        cu!(cuStreamWaitEvent(stream, event, 0));
        if let Some((before, before_bytes)) = blocks.last() {
            let count = (bytes.min(*before_bytes) / 4) as u64;
            device.launch(add, count.div_ceil(64) as u32, 64, stream, &[*before, made, made, count]);
        }
        cu!(cuEventRecord(event, stream));
        cu!(cuStreamWaitEvent(other, event, 0));
        blocks.push((made, bytes));
        let is_end = round % STEP == STEP - 1;
        while blocks.len() > if is_end { 1 } else { LIVE } {
            let (block, _) = blocks.remove((random >> 33) as usize % (blocks.len() - 1));
            cu!(cuMemFreeAsync(block, other));
        }
        let (block, bytes) = blocks[(random >> 20) as usize % blocks.len()];
        cu!(cuStreamSynchronize(stream));
        let _ = writeln!(saw, "{round} {:x}", digest(&read(block, bytes)));
        std::thread::sleep(Duration::from_millis(3));
    }
    saw
}

/// A kernel that writes the time of the device.
const CLOCK: &std::ffi::CStr = c".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry now(.param .u64 out) {\n\
    .reg .b64 %rd<4>;\nld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u64 %rd3, %globaltimer;\n\
    st.global.u64 [%rd2], %rd3;\nret;\n}\n";

/// Reads the clock once and sees whether the device keeps that time. No run has a twin.
pub(crate) fn clock() -> String {
    let device =
        Device { module: made(|module| cu!(cuModuleLoadData(module, CLOCK.as_ptr().cast::<c_void>()))) };
    let (now, stream, time) = (device.function(c"now"), stream(), allocate(8));
    device.launch(now, 1, 1, stream, &[time]);
    cu!(cuStreamSynchronize(stream));
    let first = read(time, 8);
    // Long enough for a careful cut to be safe before the loss, which the test has after so many frames.
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(5));
        let _ = read(time, 8);
    }
    let same = if read(time, 8) == first { "the same" } else { "another" };
    format!("the device has {same} time\n")
}
