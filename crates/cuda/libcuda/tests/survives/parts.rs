//! Programs of their own: one whose memory comes from pools, one with managed memory, and one that reads the device's clock.

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

/// Words of managed memory: several blocks of what moves at once.
const WORDS: usize = 70_000;

fn managed_words(words: usize) -> &'static mut [u32] {
    let address = made(|address| cu!(cuMemAllocManaged(address, words * 4, 1)));
    // SAFETY: the library gave so many bytes, which are this program's until it frees them.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u32, words) }
}

extern "C" fn count_up(data: *mut c_void) {
    // SAFETY: a word of managed memory that nothing else uses meanwhile.
    unsafe { *data.cast::<u32>() += 1000 };
}

/// A variable declared `__managed__`, and a kernel that adds 7 to it.
const VARIABLE: &std::ffi::CStr = c".version 8.0\n.target sm_80\n.address_size 64\n\
    .visible .global .attribute(.managed) .align 4 .u32 total = 5;\n.visible .entry more() {\n.reg .b32 %r<2>;\n\
    ld.global.u32 %r1, [total];\nadd.u32 %r1, %r1, 7;\nst.global.u32 [total], %r1;\nret;\n}\n";

fn managed_variable() -> (Device, &'static mut u32) {
    let module = made(|module| cu!(cuModuleLoadData(module, VARIABLE.as_ptr().cast::<c_void>())));
    let address: u64 = made(|address| cu!(cuModuleGetGlobal_v2(address, &mut 0, module, c"total".as_ptr())));
    // SAFETY: the variable has four bytes, and its module is not unloaded.
    (Device { module }, unsafe { &mut *(address as *mut u32) })
}

/// The host fills, kernels add, a host function changes a word, the host reads some or all; memory comes and goes.
pub(crate) fn managed(device: &Device) -> String {
    let add = device.function(c"add");
    let streams = [0, stream()];
    let (a, b) = (managed_words(WORDS), managed_words(WORDS));
    let (device_of_total, total) = managed_variable();
    let more = device_of_total.function(c"more");
    let at = |memory: &[u32]| memory.as_ptr() as u64;
    let mut saw = String::new();
    for round in 0..24_u32 {
        let stream = streams[round as usize % 2];
        let passing = managed_words(3000 + round as usize);
        passing.fill(round);
        let first = (round as usize * 9973) % (WORDS - 20_000);
        a[first..first + 20_000].iter_mut().for_each(|word| *word = word.wrapping_add(round));
        let blocks = (WORDS as u32).div_ceil(64);
        device.launch(add, blocks, 64, stream, &[at(a), at(b), at(b), WORDS as u64]);
        device.launch(add, 40, 64, stream, &[at(passing), at(b), at(passing), 2500]);
        cu!(cuLaunchHostFunc(stream, count_up, b.as_mut_ptr().cast()));
        device.launch(add, 40, 64, stream, &[at(a), at(b), at(b), 2500]);
        device_of_total.launch(more, 1, 1, stream, &[]);
        cu!(cuStreamSynchronize(stream));
        *total += round;
        let bytes =
            |memory: &[u32]| digest(&memory.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        let _ = writeln!(saw, "{round} {} {total} {:x}", b[0], bytes(passing));
        if round % 3 == 0 {
            let _ = writeln!(saw, "{round} all {:x} {:x}", bytes(a), bytes(b));
        }
        cu!(cuMemFree_v2(at(passing)));
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = writeln!(saw, "read {:x}", digest(&read(at(b), WORDS * 4)));
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
