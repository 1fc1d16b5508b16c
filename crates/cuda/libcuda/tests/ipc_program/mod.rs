//! The programs of the tests of sharing between processes: each plan has a first process, which runs the other one.

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use cuda_abi::{
    CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemPoolProps,
    CUmemPoolPtrExportData,
};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Handle = u64;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuDevicePrimaryCtxReset_v2(device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32) -> u32;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, pointer: u64) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemFree_v2(address: u64) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) -> u32;
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) -> u32;
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> u32;
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
    fn cuEventCreate(event: *mut Handle, flags: u32) -> u32;
    fn cuEventRecord(event: Handle, stream: Handle) -> u32;
    fn cuEventQuery(event: Handle) -> u32;
    fn cuEventSynchronize(event: Handle) -> u32;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> u32;
    fn cuEventDestroy_v2(event: Handle) -> u32;
    fn cuGraphCreate(graph: *mut Handle, flags: u32) -> u32;
    fn cuGraphAddEventRecordNode(
        node: *mut Handle,
        graph: Handle,
        after: *const Handle,
        count: usize,
        event: Handle,
    ) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: u64) -> u32;
    fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: CUipcMemHandle, flags: u32) -> u32;
    fn cuIpcCloseMemHandle(address: u64) -> u32;
    fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: Handle) -> u32;
    fn cuIpcOpenEventHandle(event: *mut Handle, handle: CUipcEventHandle) -> u32;
    fn cuMemCreate(memory: *mut Handle, bytes: usize, given: *const CUmemAllocationProp, flags: u64) -> u32;
    fn cuMemRelease(memory: Handle) -> u32;
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, align: usize, at: u64, flags: u64) -> u32;
    fn cuMemMap(address: u64, bytes: usize, offset: usize, memory: Handle, flags: u64) -> u32;
    fn cuMemSetAccess(address: u64, bytes: usize, access: *const CUmemAccessDesc, count: usize) -> u32;
    fn cuMemExportToShareableHandle(out: *mut c_void, memory: Handle, kind: u32, flags: u64) -> u32;
    fn cuMemImportFromShareableHandle(memory: *mut Handle, from: *mut c_void, kind: u32) -> u32;
    fn cuMemGetAllocationPropertiesFromHandle(given: *mut CUmemAllocationProp, memory: Handle) -> u32;
    fn cuMemPoolCreate(pool: *mut Handle, given: *const CUmemPoolProps) -> u32;
    fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: i32) -> u32;
    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: Handle, stream: Handle) -> u32;
    fn cuMemFreeAsync(address: u64, stream: Handle) -> u32;
    fn cuMemPoolExportToShareableHandle(out: *mut c_void, pool: Handle, kind: u32, flags: u64) -> u32;
    fn cuMemPoolImportFromShareableHandle(pool: *mut Handle, from: *mut c_void, kind: u32, flags: u64)
    -> u32;
    fn cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, address: u64) -> u32;
    fn cuMemPoolImportPointer(address: *mut u64, pool: Handle, data: *const CUmemPoolPtrExportData) -> u32;
}

const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
const UNKNOWN: u32 = 999;
const INVALID_CONTEXT: u32 = 201;
const NOT_READY: u32 = 600;
const FILE: u32 = 1;
const FABRIC: u32 = 8;
const LARGE: usize = 5 << 20;
const STEP: usize = 2 << 20;

#[track_caller]
fn good(code: u32) {
    assert_eq!(code, 0);
}

/// What a call gives through its first argument.
#[track_caller]
fn made<T: Default>(make: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    good(make(&mut value));
    value
}

fn begin() {
    // SAFETY: as in every call below, pointers are null or good for the call.
    unsafe {
        good(cuInit(0));
        let context = made(|context| cuDevicePrimaryCtxRetain(context, 0));
        good(cuCtxSetCurrent(context));
    }
}

fn allocate(bytes: usize) -> u64 {
    // SAFETY: as above.
    made(|address| unsafe { cuMemAlloc_v2(address, bytes) })
}

#[track_caller]
fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as above.
    good(unsafe { cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) });
}

#[track_caller]
fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    // SAFETY: as above.
    good(unsafe { cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), address, bytes) });
    data
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3) as u8 ^ seed).collect()
}

/// The way between the two processes.
struct Line(UnixStream);

impl Line {
    /// Says something, with a descriptor.
    fn pass(&self, fd: impl AsFd, words: &[u8]) {
        transport::fd::send_fd(self.0.as_fd(), fd.as_fd(), words).unwrap();
    }

    fn say(&self, words: &[u8]) {
        self.pass(std::fs::File::open("/dev/null").unwrap(), words);
    }

    fn hear(&self) -> (OwnedFd, Vec<u8>) {
        transport::fd::recv_fd(self.0.as_fd()).unwrap()
    }

    fn hear_64(&self) -> [u8; 64] {
        self.hear().1.try_into().unwrap()
    }
}

/// Starts the other process of a plan.
fn start(plan: &str) -> (Child, Line) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored", "--nocapture"]);
    command.env(crate::support::PLAN, format!("{plan}-other")).stdin(Stdio::from(OwnedFd::from(theirs)));
    if let Ok(worker) = std::env::var("IPC_OTHER_WORKER") {
        command.env("DXPU_WORKER", worker);
    }
    (command.spawn().unwrap(), Line(ours))
}

fn finish(mut other: Child) {
    assert!(other.wait().unwrap().success());
}

/// The other end, in the other process.
fn line() -> Line {
    Line(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
}

fn memory_handle(address: u64) -> CUipcMemHandle {
    // SAFETY: as above.
    made(|handle| unsafe { cuIpcGetMemHandle(handle, address) })
}

fn open(reserved: [u8; 64]) -> u64 {
    // SAFETY: as above.
    made(|address| unsafe { cuIpcOpenMemHandle_v2(address, CUipcMemHandle { reserved }, 1) })
}

fn memory() {
    let (other, line) = start("memory");
    begin();
    let (first, small, large) = (allocate(700), allocate(1000), allocate(LARGE));
    write(first, &[3; 700]);
    write(small, &pattern(1000, 1));
    write(large, &pattern(LARGE, 2));
    let handle = memory_handle(large);
    assert_eq!(handle, memory_handle(large + 4096), "any address in it names it");
    let mut again = 0;
    // SAFETY: as above.
    unsafe {
        assert_eq!(cuIpcOpenMemHandle_v2(&mut again, handle, 1), INVALID_CONTEXT, "not in its own process");
        let mut flag = 0u8;
        good(cuPointerGetAttribute((&raw mut flag).cast(), 10, large));
        assert_eq!(flag, 1);
        for (attribute, expected) in [(103, 1), (119, 1), (125, 1), (128, 0)] {
            assert_eq!(made(|value| cuDeviceGetAttribute(value, attribute, 0)), expected, "{attribute}");
        }
    }
    line.say(&handle.reserved);
    line.say(&memory_handle(small).reserved);
    assert_eq!(line.hear().1, b"written");
    assert_eq!(read(large + 77, 5), [9; 5]);
    assert_eq!(read(small, 1000), pattern(1000, 1));
    assert_eq!(read(first, 700), [3; 700], "what lies beside it is as it was");
    write(large, &[8; 100]);
    // SAFETY: as above.
    unsafe { good(cuMemFree_v2(large)) };
    line.say(b"freed");
    assert_eq!(line.hear().1, b"read");
    // The address may be used again, and the other process does not see it.
    let next = allocate(LARGE);
    write(next, &pattern(LARGE, 7));
    line.say(b"used again");
    finish(other);
}

fn memory_other() {
    let line = line();
    begin();
    let (large, small) = (line.hear_64(), line.hear_64());
    let address = open(large);
    assert_eq!(open(large), address, "an open handle is the same address");
    let there = open(small);
    assert_ne!(there, address);
    assert_eq!(read(address, LARGE), pattern(LARGE, 2));
    assert_eq!(read(there, 1000), pattern(1000, 1));
    // SAFETY: as above.
    unsafe {
        let (mut base, mut bytes) = (0, 0);
        good(cuMemGetAddressRange_v2(&mut base, &mut bytes, address + 5));
        assert_eq!((base, bytes), (address, LARGE));
        good(cuMemsetD8_v2(address + 77, 9, 5));
        good(cuCtxSynchronize());
        good(cuIpcCloseMemHandle(there));
        assert_eq!(cuIpcCloseMemHandle(there), INVALID_VALUE);
        assert_eq!(cuMemFree_v2(address), INVALID_VALUE, "it is closed, not freed");
        let mut handle = CUipcMemHandle::default();
        assert_eq!(cuIpcGetMemHandle(&mut handle, address), INVALID_VALUE, "it is another process's");
        good(cuIpcCloseMemHandle(address));
    }
    line.say(b"written");
    assert_eq!(line.hear().1, b"freed");
    assert_eq!(read(address, 100), [8; 100], "one reference is left");
    line.say(b"read");
    assert_eq!(line.hear().1, b"used again");
    assert_eq!(read(address, 100), [8; 100]);
    // SAFETY: as above.
    unsafe {
        good(cuIpcCloseMemHandle(address));
        let mut again = 0;
        let handle = CUipcMemHandle { reserved: large };
        assert_eq!(cuIpcOpenMemHandle_v2(&mut again, handle, 1), INVALID_VALUE, "its owner has freed it");
        good(cuDevicePrimaryCtxReset_v2(0));
    }
}

static GO: AtomicBool = AtomicBool::new(false);

extern "C" fn hold(_: *mut c_void) {
    while !GO.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn events() {
    let (other, line) = start("events");
    begin();
    let data = allocate(LARGE);
    // SAFETY: as above.
    unsafe {
        let mut event = 0;
        assert_eq!(cuEventCreate(&mut event, 4), INVALID_VALUE, "an event for others has no times");
        let plain = made(|event| cuEventCreate(event, 2));
        let mut handle = CUipcEventHandle::default();
        assert_eq!(cuIpcGetEventHandle(&mut handle, plain), INVALID_HANDLE);
        let event = made(|event| cuEventCreate(event, 2 | 4));
        handle = made(|handle| cuIpcGetEventHandle(handle, event));
        let stream = made(|stream| cuStreamCreate(stream, 1));
        good(cuMemsetD8_v2(data, 1, LARGE));
        good(cuCtxSynchronize());
        line.say(&memory_handle(data).reserved);
        line.say(&handle.reserved);
        assert_eq!(line.hear().1, b"never recorded is done");
        good(cuLaunchHostFunc(stream, hold, std::ptr::null_mut()));
        good(cuMemsetD8Async(data, 2, LARGE, stream));
        good(cuEventRecord(event, stream));
        line.say(b"recorded");
        assert_eq!(line.hear().1, b"waiting");
        GO.store(true, Ordering::SeqCst);
        assert_eq!(line.hear().1, b"recorded, too");
        // The other process's record counts here.
        good(cuStreamWaitEvent(stream, event, 0));
        good(cuEventSynchronize(event));
        good(cuEventQuery(event));
        assert_eq!(read(data, 3), [3; 3]);
        let mut milliseconds = 0.0;
        assert_eq!(cuEventElapsedTime(&mut milliseconds, event, event), 400);
        // A record in a graph is one of the launch.
        let graph = made(|graph| cuGraphCreate(graph, 0));
        let _: Handle = made(|node| cuGraphAddEventRecordNode(node, graph, std::ptr::null(), 0, event));
        let exec = made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0));
        GO.store(false, Ordering::SeqCst);
        good(cuLaunchHostFunc(stream, hold, std::ptr::null_mut()));
        good(cuGraphLaunch(exec, stream));
        line.say(b"launched");
        assert_eq!(line.hear().1, b"pending");
        GO.store(true, Ordering::SeqCst);
        assert_eq!(line.hear().1, b"seen");
        good(cuEventDestroy_v2(event));
        line.say(b"done");
    }
    finish(other);
}

fn events_other() {
    let line = line();
    begin();
    let data = open(line.hear_64());
    let reserved = line.hear_64();
    // SAFETY: as above.
    unsafe {
        let event = made(|event| cuIpcOpenEventHandle(event, CUipcEventHandle { reserved }));
        good(cuEventQuery(event));
        line.say(b"never recorded is done");
        assert_eq!(line.hear().1, b"recorded");
        assert_eq!(cuEventQuery(event), NOT_READY);
        let stream = made(|stream| cuStreamCreate(stream, 1));
        good(cuStreamWaitEvent(stream, event, 0));
        line.say(b"waiting");
        good(cuStreamSynchronize(stream));
        assert_eq!(read(data, LARGE), vec![2; LARGE]);
        good(cuMemsetD8Async(data, 3, 10, stream));
        good(cuEventRecord(event, stream));
        line.say(b"recorded, too");
        assert_eq!(line.hear().1, b"launched");
        assert_eq!(cuEventQuery(event), NOT_READY);
        line.say(b"pending");
        good(cuEventSynchronize(event));
        line.say(b"seen");
        assert_eq!(line.hear().1, b"done");
        good(cuEventDestroy_v2(event));
    }
}

/// Synchronous copies of one process are there when the other one hears of them.
fn order() {
    let (other, line) = start("order");
    begin();
    let data = allocate(4096);
    write(data, &[1; 4096]);
    line.say(&memory_handle(data).reserved);
    for round in 0..200u8 {
        write(data, &[round; 4096]);
        line.say(&[round]);
        assert_eq!(line.hear().1, [round]);
        assert_eq!(read(data, 2048), [!round; 2048]);
    }
    finish(other);
}

fn order_other() {
    let line = line();
    begin();
    let data = open(line.hear_64());
    for round in 0..200u8 {
        assert_eq!(line.hear().1, [round]);
        assert_eq!(read(data, 4096), [round; 4096]);
        write(data, &[!round; 4096]);
        line.say(&[round]);
    }
}

fn device() -> CUmemLocation {
    CUmemLocation { kind: 1, id: 0 }
}

fn mapped(memory: Handle) -> u64 {
    // SAFETY: as above.
    unsafe {
        let address = made(|address| cuMemAddressReserve(address, STEP, 0, 0, 0));
        good(cuMemMap(address, STEP, 0, memory, 0));
        good(cuMemSetAccess(address, STEP, &CUmemAccessDesc { location: device(), flags: 3 }, 1));
        address
    }
}

fn physical() {
    let (other, line) = start("physical");
    begin();
    let given = |requested_handle_types| CUmemAllocationProp {
        kind: 1,
        requested_handle_types,
        location: device(),
        ..Default::default()
    };
    // SAFETY: as above.
    unsafe {
        let private = made(|memory| cuMemCreate(memory, STEP, &given(0), 0));
        let mut fd = 0i32;
        let out = (&raw mut fd).cast();
        assert_eq!(cuMemExportToShareableHandle(out, private, FILE, 0), INVALID_VALUE, "not made for it");
        let memory = made(|memory| cuMemCreate(memory, STEP, &given(FILE), 0));
        assert_eq!(cuMemExportToShareableHandle(out, memory, FABRIC, 0), INVALID_VALUE);
        assert_eq!(cuMemExportToShareableHandle(out, memory, FILE, 1), INVALID_VALUE);
        good(cuMemExportToShareableHandle(out, memory, FILE, 0));
        let fd = OwnedFd::from_raw_fd(fd);
        // In its own process it is the same memory, too.
        let same: Handle = made(|same| cuMemImportFromShareableHandle(same, number(&fd), FILE));
        let (here, twice) = (mapped(memory), mapped(same));
        good(cuMemRelease(same));
        write(here, &pattern(1000, 4));
        assert_eq!(read(twice, 1000), pattern(1000, 4));
        let mut types = 0u32;
        good(cuPointerGetAttribute((&raw mut types).cast(), 14, here));
        assert_eq!(types, FILE);
        line.pass(&fd, b"memory");
        assert_eq!(line.hear().1, b"written");
        assert_eq!(read(here + 512, 4), [6; 4]);
        good(cuMemRelease(memory));
    }
    finish(other);
}

fn number(fd: &OwnedFd) -> *mut c_void {
    fd.as_raw_fd() as usize as *mut c_void
}

fn physical_other() {
    let line = line();
    begin();
    let (fd, _) = line.hear();
    let nothing = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    // SAFETY: as above.
    unsafe {
        let mut memory = 0;
        assert_eq!(cuMemImportFromShareableHandle(&mut memory, number(&nothing), FILE), UNKNOWN);
        assert_eq!(cuMemImportFromShareableHandle(&mut memory, number(&fd), FABRIC), INVALID_VALUE);
        let closed = 1_000_000usize as *mut c_void;
        assert_eq!(cuMemImportFromShareableHandle(&mut memory, closed, FILE), INVALID_VALUE);
        let memory: Handle = made(|memory| cuMemImportFromShareableHandle(memory, number(&fd), FILE));
        let given: CUmemAllocationProp = made(|given| cuMemGetAllocationPropertiesFromHandle(given, memory));
        assert_eq!((given.requested_handle_types, given.location), (FILE, device()));
        let address = mapped(memory);
        assert_eq!(read(address, 1000), pattern(1000, 4));
        good(cuMemsetD8_v2(address + 512, 6, 4));
        good(cuCtxSynchronize());
        good(cuMemRelease(memory));
    }
    line.say(b"written");
}

fn pools() {
    let (other, line) = start("pools");
    begin();
    let given = |handle_types| CUmemPoolProps {
        alloc_type: 1,
        handle_types,
        location: device(),
        ..Default::default()
    };
    // SAFETY: as above.
    unsafe {
        let mut fd = 0i32;
        let out = (&raw mut fd).cast();
        let default = made(|pool| cuDeviceGetDefaultMemPool(pool, 0));
        assert_eq!(cuMemPoolExportToShareableHandle(out, default, FILE, 0), INVALID_VALUE);
        let private = made(|address| cuMemAllocFromPoolAsync(address, 100, default, 0));
        let mut data = CUmemPoolPtrExportData::default();
        assert_eq!(cuMemPoolExportPointer(&mut data, private), INVALID_VALUE);
        let pool = made(|pool| cuMemPoolCreate(pool, &given(FILE)));
        good(cuMemPoolExportToShareableHandle(out, pool, FILE, 0));
        line.pass(OwnedFd::from_raw_fd(fd), b"pool");
        let first = made(|address| cuMemAllocFromPoolAsync(address, 3000, pool, 0));
        let second = made(|address| cuMemAllocFromPoolAsync(address, 3 * STEP, pool, 0));
        write(first, &pattern(3000, 1));
        write(second, &pattern(3 * STEP, 2));
        for address in [first, second] {
            line.say(&made(|data| cuMemPoolExportPointer(data, address)).reserved);
        }
        assert_eq!(line.hear().1, b"written");
        assert_eq!(read(second + 5, 2), [77; 2]);
        let mut handle = CUipcMemHandle::default();
        assert_eq!(
            cuIpcGetMemHandle(&mut handle, first),
            INVALID_VALUE,
            "memory of pools goes with its pool"
        );
        good(cuMemFreeAsync(first, 0));
        good(cuMemFree_v2(second));
    }
    finish(other);
}

fn pools_other() {
    let line = line();
    begin();
    let (fd, _) = line.hear();
    // SAFETY: as above.
    unsafe {
        let pool: Handle = made(|pool| cuMemPoolImportFromShareableHandle(pool, number(&fd), FILE, 0));
        let mut address = 0;
        assert_eq!(cuMemAllocFromPoolAsync(&mut address, 100, pool, 0), INVALID_VALUE);
        let import = |data: [u8; 64]| {
            let data = CUmemPoolPtrExportData { reserved: data };
            made(|address| cuMemPoolImportPointer(address, pool, &data))
        };
        let (first, second): (u64, u64) = (import(line.hear_64()), import(line.hear_64()));
        assert_eq!(read(first, 3000), pattern(3000, 1));
        assert_eq!(read(second, 3 * STEP), pattern(3 * STEP, 2));
        good(cuMemsetD8_v2(second + 5, 77, 2));
        good(cuMemFreeAsync(first, 0));
        good(cuMemFree_v2(second));
        assert_eq!(cuMemFree_v2(second), INVALID_VALUE);
        good(cuCtxSynchronize());
    }
    line.say(b"written");
}

/// The other process has another worker, or the bytes are not what was given.
fn strangers() {
    let (other, line) = start("strangers");
    begin();
    let data = allocate(1000);
    line.say(&memory_handle(data).reserved);
    // SAFETY: as above.
    unsafe {
        let event = made(|event| cuEventCreate(event, 2 | 4));
        line.say(&made(|handle| cuIpcGetEventHandle(handle, event)).reserved);
    }
    finish(other);
}

fn strangers_other() {
    let line = line();
    begin();
    let (memory, event) = (line.hear_64(), line.hear_64());
    let is_same_worker = std::env::var_os("IPC_OTHER_WORKER").is_none();
    let refused = |reserved: [u8; 64]| {
        let mut address = 0;
        // SAFETY: as above.
        let code = unsafe { cuIpcOpenMemHandle_v2(&mut address, CUipcMemHandle { reserved }, 1) };
        assert_eq!((code, address), (INVALID_VALUE, 0));
    };
    refused([0; 64]);
    refused([0xa5; 64]);
    refused(event);
    for place in [0, 5, 8, 20, 40] {
        let mut changed = memory;
        changed[place] ^= 1;
        refused(changed);
    }
    let mut longer = memory;
    longer[54] = 1;
    refused(longer);
    if is_same_worker {
        assert_eq!(read(open(memory), 1000).len(), 1000);
        return;
    }
    refused(memory);
    let mut opened = 0;
    // SAFETY: as above.
    let code = unsafe { cuIpcOpenEventHandle(&mut opened, CUipcEventHandle { reserved: event }) };
    assert_eq!(code, INVALID_VALUE);
}

/// Runs a plan.
pub(crate) fn run(plan: &str) {
    match plan {
        "memory" => memory(),
        "memory-other" => memory_other(),
        "events" => events(),
        "events-other" => events_other(),
        "order" => order(),
        "order-other" => order_other(),
        "physical" => physical(),
        "physical-other" => physical_other(),
        "pools" => pools(),
        "pools-other" => pools_other(),
        "strangers" => strangers(),
        "strangers-other" => strangers_other(),
        plan => panic!("there is no plan {plan}"),
    }
}
