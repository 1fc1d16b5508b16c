//! A small program: copies of all kinds, kernels, host functions, text, events, queries, a graph, and a second thread.

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use std::{
    ffi::{CStr, c_void},
    fmt::Write,
    ptr,
    sync::Mutex,
    time::Duration,
};

pub(crate) type Handle = u64;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuCtxSynchronize() -> u32;
    pub(crate) fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    fn cuModuleUnload(module: Handle) -> u32;
    pub(crate) fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const i8) -> u32;
    pub(crate) fn cuModuleGetGlobal_v2(
        address: *mut u64,
        bytes: *mut usize,
        module: Handle,
        name: *const i8,
    ) -> u32;
    pub(crate) fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle) -> u32;
    pub(crate) fn cuMemFreeAsync(address: u64, stream: Handle) -> u32;
    pub(crate) fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32) -> u32;
    pub(crate) fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    pub(crate) fn cuMemFree_v2(address: u64) -> u32;
    fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: u32) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    pub(crate) fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> u32;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> u32;
    pub(crate) fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> u32;
    pub(crate) fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    pub(crate) fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamQuery(stream: Handle) -> u32;
    pub(crate) fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> u32;
    pub(crate) fn cuEventCreate(event: *mut Handle, flags: u32) -> u32;
    pub(crate) fn cuEventRecord(event: Handle, stream: Handle) -> u32;
    fn cuEventSynchronize(event: Handle) -> u32;
    pub(crate) fn cuLaunchHostFunc(
        stream: Handle,
        function: extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> u32;
    pub(crate) fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32;
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
}

const NOT_READY: u32 = 600;
/// Unless the test says otherwise.
const ROUNDS: u32 = 6;
const INTS: usize = 1024;
/// Beyond what travels in a command, and below the push window.
const PUSHED_BYTES: usize = 100 << 10;
/// Beyond the push window: the worker pulls it.
const PULLED_BYTES: usize = 300 << 10;

const KERNELS: &CStr = match CStr::from_bytes_with_nul(
    concat!(include_str!("../../../driver-soft/tests/samples/kernels.ptx"), "\0").as_bytes(),
) {
    Ok(text) => text,
    Err(_) => panic!("the kernels have a zero in them"),
};

static HOST_CALLS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

extern "C" fn host_call(data: *mut c_void) {
    HOST_CALLS.lock().unwrap().push(data as u64);
}

/// Calls that must succeed.
pub(crate) fn must(what: &str, status: u32) {
    assert_eq!(status, 0, "{what}");
}

macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the arguments are handles of this library and memory of this program that outlives the call.
        must(stringify!($name), unsafe { $name($($argument),*) })
    };
}

pub(crate) use cu;

pub(crate) fn made<T: Default>(make: impl FnOnce(&mut T)) -> T {
    let mut value = T::default();
    make(&mut value);
    value
}

pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    (0..bytes as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 11) as u8)
        .collect()
}

pub(crate) struct Device {
    pub(crate) module: Handle,
}

impl Device {
    pub(crate) fn function(&self, name: &CStr) -> Handle {
        made(|function| cu!(cuModuleGetFunction(function, self.module, name.as_ptr())))
    }

    pub(crate) fn launch(
        &self,
        function: Handle,
        blocks: u32,
        threads: u32,
        stream: Handle,
        arguments: &[u64],
    ) {
        let mut arguments = arguments.to_vec();
        let mut places: Vec<*mut c_void> =
            arguments.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let none = ptr::null_mut();
        cu!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, places.as_mut_ptr(), none));
    }
}

pub(crate) fn allocate(bytes: usize) -> u64 {
    made(|address| cu!(cuMemAlloc_v2(address, bytes)))
}

pub(crate) fn stream() -> Handle {
    made(|stream| cu!(cuStreamCreate(stream, 1)))
}

/// Pinned memory that stays to the end of the program.
fn pinned(bytes: usize) -> &'static mut [u8] {
    let mut memory = ptr::null_mut();
    cu!(cuMemHostAlloc(&mut memory, bytes, 0));
    // SAFETY: the memory was just given to us, is never freed, and has this many bytes.
    unsafe { std::slice::from_raw_parts_mut(memory.cast(), bytes) }
}

pub(crate) fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    cu!(cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), address, bytes));
    out
}

pub(crate) fn main() {
    let path = std::env::var("SURVIVES_TRACE").expect("the test says where the trace goes");
    cu!(cuInit(0));
    let context = made(|context| cu!(cuDevicePrimaryCtxRetain(context, 0)));
    cu!(cuCtxSetCurrent(context));
    let module = made(|module| cu!(cuModuleLoadData(module, KERNELS.as_ptr().cast())));
    let device = Device { module };
    if std::env::var_os("SURVIVES_WAIT").is_some() {
        return wait_for_the_end(&path);
    }
    match std::env::var("SURVIVES_PART").as_deref() {
        Ok("pools") => return std::fs::write(path, crate::parts::pools(&device)).unwrap(),
        Ok("managed") => return std::fs::write(path, crate::parts::managed(&device)).unwrap(),
        Ok("conditional") => return std::fs::write(path, crate::conditional::program(context)).unwrap(),
        Ok("clock") => return std::fs::write(path, crate::parts::clock()).unwrap(),
        Ok(part) => panic!("there is no part {part}"),
        Err(_) => {}
    }
    let other = std::thread::spawn(move || other_thread(context, module));
    let mut saw = main_thread(&device, &path);
    saw += &other.join().unwrap();
    let _ = writeln!(saw, "host functions {:?}", HOST_CALLS.lock().unwrap());
    cu!(cuModuleUnload(module));
    cu!(cuCtxSynchronize());
    std::fs::write(path, saw).unwrap();
}

/// Calls until a call fails, which ends the program.
fn wait_for_the_end(path: &str) {
    let memory = allocate(4096);
    cu!(cuMemcpyHtoD_v2(memory, [7_u8; 64].as_ptr().cast(), 64));
    read(memory, 64);
    std::fs::write(path, "begun\n").unwrap();
    loop {
        read(memory, 64);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `path`: where the trace will be, and until then what the program has reached.
fn main_thread(device: &Device, path: &str) -> String {
    let (add, count, say) = (device.function(c"add"), device.function(c"count"), device.function(c"say"));
    let mut saw = String::new();
    let bytes = INTS * 4;
    let [a, b, out] = [(); 3].map(|()| allocate(bytes));
    let (large, spare) = (allocate(PULLED_BYTES), allocate(PULLED_BYTES));
    let (first, second) = (stream(), stream());
    let event = made(|event| cu!(cuEventCreate(event, 0)));
    let (source, target) = (pinned(bytes), pinned(bytes));
    let (graph_source, graph_target) = (pinned(bytes), pinned(bytes));
    cu!(cuMemcpyHtoD_v2(b, pattern(1, bytes).as_ptr().cast(), bytes));
    let counter = made(|address| {
        cu!(cuModuleGetGlobal_v2(address, ptr::null_mut(), device.module, c"counter".as_ptr()))
    });

    // A graph with a copy in, a kernel and a copy out.
    cu!(cuStreamBeginCapture_v2(first, 2));
    cu!(cuMemcpyHtoDAsync_v2(a, graph_source.as_ptr().cast(), bytes, first));
    device.launch(add, INTS as u32 / 64, 64, first, &[a, b, out, INTS as u64]);
    cu!(cuMemcpyDtoHAsync_v2(graph_target.as_mut_ptr().cast(), out, bytes, first));
    let graph = made(|graph| cu!(cuStreamEndCapture(first, graph)));
    let exec = made(|exec| cu!(cuGraphInstantiateWithFlags(exec, graph, 0)));

    let rounds = std::env::var("SURVIVES_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        std::fs::write(path, format!("in round {round} of {rounds}")).unwrap();
        // Pageable: in the command, pushed, and pulled.
        cu!(cuMemcpyHtoD_v2(a, pattern(round, bytes).as_ptr().cast(), bytes));
        cu!(cuMemcpyHtoD_v2(large, pattern(round + 10, PUSHED_BYTES).as_ptr().cast(), PUSHED_BYTES));
        if round % 2 == 1 {
            cu!(cuMemcpyHtoD_v2(spare, pattern(round + 20, PULLED_BYTES).as_ptr().cast(), PULLED_BYTES));
        }
        device.launch(add, INTS as u32 / 64, 64, first, &[a, b, out, INTS as u64]);
        device.launch(count, 1, 1, first, &[]);
        device.launch(say, 1, 1, first, &[u64::from(round)]);
        cu!(cuLaunchHostFunc(first, host_call, u64::from(round) as *mut c_void));
        cu!(cuEventRecord(event, first));

        // Pinned, on a second stream that waits for the first.
        source.copy_from_slice(&pattern(round + 30, bytes));
        cu!(cuStreamWaitEvent(second, event, 0));
        cu!(cuMemcpyDtoDAsync_v2(large + 4096, out, bytes, second));
        cu!(cuMemcpyHtoDAsync_v2(a, source.as_ptr().cast(), bytes, second));
        cu!(cuMemsetD32Async(large, round, 16, second));
        cu!(cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), a, bytes, second));
        loop {
            // SAFETY: a handle of this library.
            match unsafe { cuStreamQuery(second) } {
                NOT_READY => std::thread::sleep(Duration::from_millis(1)),
                status => break must("cuStreamQuery", status),
            }
        }
        let _ = writeln!(saw, "{round} pinned {:x}", digest(target));
        cu!(cuEventSynchronize(event));
        let _ = writeln!(saw, "{round} sum {:x}", digest(&read(out, bytes)));
        let _ = writeln!(saw, "{round} large {:x}", digest(&read(large, PUSHED_BYTES)));

        graph_source.copy_from_slice(&pattern(round + 40, bytes));
        cu!(cuGraphLaunch(exec, first));
        cu!(cuStreamSynchronize(first));
        let _ = writeln!(saw, "{round} graph {:x}", digest(graph_target));
        let calls = HOST_CALLS.lock().unwrap().len();
        let _ = writeln!(saw, "{round} {calls} host functions");
        // Memory that comes and goes between cuts.
        let passing = allocate(8192);
        cu!(cuMemsetD32Async(passing, round, 2048, first));
        cu!(cuStreamSynchronize(first));
        let _ = writeln!(saw, "{round} passing {:x}", digest(&read(passing, 8192)));
        cu!(cuMemFree_v2(passing));
        std::thread::sleep(Duration::from_millis(6));
    }
    cu!(cuCtxSynchronize());
    let _ = writeln!(saw, "counter {:?}", read(counter, 4));
    let _ = writeln!(saw, "spare {:x}", digest(&read(spare, PULLED_BYTES)));
    saw
}

/// Writes and reads words on a stream of its own.
fn other_thread(context: Handle, module: Handle) -> String {
    cu!(cuCtxSetCurrent(context));
    let device = Device { module };
    let (poke, peek) = (device.function(c"poke"), device.function(c"peek"));
    let (words, stream) = (allocate(4096), stream());
    let mut saw = String::new();
    for turn in 0..8_u64 {
        device.launch(poke, 1, 1, stream, &[words, turn * 3 + 1]);
        device.launch(peek, 1, 1, stream, &[words, words + 4 + 4 * turn]);
        cu!(cuStreamSynchronize(stream));
        let _ = writeln!(saw, "other {turn} {:x}", digest(&read(words, 64)));
        std::thread::sleep(Duration::from_millis(3));
    }
    saw
}
