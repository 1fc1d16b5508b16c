//! The programs of the tests of smaller parts.

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use cuda_abi::{CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR_v1};
use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr::{from_mut, from_ref, null, null_mut},
    sync::{Condvar, Mutex},
};

mod conditional;
mod green;

type Handle = u64;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuMemGetInfo(free: *mut u32, total: *mut u32) -> u32;
    fn cuDeviceTotalMem(bytes: *mut u32, device: i32) -> u32;
    fn cuMemAllocHost(address: *mut u64, bytes: u32) -> u32;
    fn cuArrayCreate(array: *mut Handle, given: *const CUDA_ARRAY_DESCRIPTOR_v1) -> u32;
    fn cuArray3DCreate(array: *mut Handle, given: *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> u32;
    fn cuArrayGetDescriptor(given: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: Handle) -> u32;
    fn cuArray3DGetDescriptor(given: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: Handle) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyHtoA(array: Handle, offset: u32, from: *const c_void, bytes: u32) -> u32;
    fn cuMemcpyHtoAAsync(array: Handle, offset: u32, from: *const c_void, bytes: u32, stream: Handle) -> u32;
    fn cuMemcpyAtoH(to: *mut c_void, array: Handle, offset: u32, bytes: u32) -> u32;
    fn cuMemcpyAtoHAsync(to: *mut c_void, array: Handle, offset: u32, bytes: u32, stream: Handle) -> u32;
    fn cuMemcpyAtoA(to: Handle, to_offset: u32, from: Handle, offset: u32, bytes: u32) -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    fn cuStreamQuery(stream: Handle) -> u32;
    fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamDestroy_v2(stream: Handle) -> u32;
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32;
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
    fn cuEventCreate(event: *mut Handle, flags: u32) -> u32;
    fn cuEventRecord(event: Handle, stream: Handle) -> u32;
    fn cuEventQuery(event: Handle) -> u32;
    fn cuEventSynchronize(event: Handle) -> u32;
    fn cuCtxCreate_v2(context: *mut Handle, flags: u32, device: i32) -> u32;
    fn cuCtxRecordEvent(context: Handle, event: Handle) -> u32;
    fn cuCtxWaitEvent(context: Handle, event: Handle) -> u32;
    fn cuCoredumpGetAttribute(attribute: u32, value: *mut c_void, size: *mut usize) -> u32;
    fn cuCoredumpGetAttributeGlobal(attribute: u32, value: *mut c_void, size: *mut usize) -> u32;
    fn cuCoredumpSetAttribute(attribute: u32, value: *const c_void, size: *mut usize) -> u32;
    fn cuCoredumpSetAttributeGlobal(attribute: u32, value: *const c_void, size: *mut usize) -> u32;
    fn cuDeviceRegisterAsyncNotification(
        device: i32,
        function: extern "C" fn(*mut c_void, *mut c_void, Handle),
        data: *mut c_void,
        handle: *mut Handle,
    ) -> u32;
    fn cuDeviceUnregisterAsyncNotification(device: i32, handle: Handle) -> u32;
    fn cuLogsCurrent(iterator: *mut u32, flags: u32) -> u32;
    fn cuLogsDumpToFile(iterator: *mut u32, path: *const c_char, flags: u32) -> u32;
    fn cuLogsDumpToMemory(iterator: *mut u32, buffer: *mut c_char, size: *mut usize, flags: u32) -> u32;
    fn cuLogsRegisterCallback(
        function: extern "C" fn(*mut c_void, u32, *mut c_char, usize),
        data: *mut c_void,
        handle: *mut Handle,
    ) -> u32;
    fn cuLogsUnregisterCallback(handle: Handle) -> u32;
}

const FLOAT: u32 = 0x20;
const NON_BLOCKING: u32 = 1;
const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
const NOT_READY: u32 = 600;
const NOT_PERMITTED: u32 = 800;
const CAPTURE_UNSUPPORTED: u32 = 900;

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

pub(super) fn run(plan: &str) {
    // SAFETY: every call below gets what the C API asks for.
    unsafe {
        if plan == "coredump" {
            global_coredump();
        }
        good(cuInit(0));
        let context = made(|context| cuDevicePrimaryCtxRetain(context, 0));
        good(cuCtxSetCurrent(context));
        match plan {
            "narrow" => narrow(),
            "context-record" => context_record(context),
            "context-wait" => context_wait(context),
            "while" => conditional::repeated(context),
            "choices" => conditional::choices(context),
            "conditional-errors" => conditional::errors(context),
            "notifications" => notifications(),
            "green" => green::work(context),
            "green-split" => green::split(),
            "green-events" => green::events(context),
            "log" => log(),
            "coredump" => coredump(),
            other => panic!("no plan {other}"),
        }
    }
}

unsafe fn narrow() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let (mut free, mut total) = (0, 0);
        good(cuMemGetInfo(&mut free, &mut total));
        assert!(free > 0 && free <= total);
        assert_eq!(total, made(|bytes| cuDeviceTotalMem(bytes, 0)));
        let host: u64 = made(|address| cuMemAllocHost(address, 64));
        std::slice::from_raw_parts_mut(host as *mut u8, 64).fill(7);

        let given = CUDA_ARRAY_DESCRIPTOR_v1 { width: 16, height: 2, format: FLOAT, num_channels: 1 };
        let array: Handle = made(|array| cuArrayCreate(array, &given));
        assert_eq!(made(|given| cuArrayGetDescriptor(given, array)), given);
        let deep = CUDA_ARRAY3D_DESCRIPTOR_v1 {
            width: 16,
            height: 2,
            depth: 3,
            format: FLOAT,
            num_channels: 1,
            flags: 0,
        };
        let volume: Handle = made(|array| cuArray3DCreate(array, &deep));
        assert_eq!(made(|given| cuArray3DGetDescriptor(given, volume)), deep);
        let wrong = CUDA_ARRAY_DESCRIPTOR_v1 { width: 0, ..given };
        assert_eq!(cuArrayCreate(&mut 0, &wrong), INVALID_VALUE);

        let sent: Vec<u8> = (0..64).collect();
        let mut got = vec![0_u8; 64];
        good(cuMemcpyHtoA(array, 0, sent.as_ptr().cast(), 64));
        let other: Handle = made(|array| cuArrayCreate(array, &given));
        good(cuMemcpyAtoA(other, 0, array, 0, 64));
        good(cuMemcpyAtoH(got.as_mut_ptr().cast(), other, 0, 64));
        assert_eq!(got, sent);
        good(cuMemcpyHtoAAsync(array, 4, host as *const c_void, 8, 0));
        good(cuMemcpyAtoHAsync(got.as_mut_ptr().cast(), array, 0, 64, 0));
        good(cuStreamSynchronize(0));
        assert_eq!(got[..16], [0, 1, 2, 3, 7, 7, 7, 7, 7, 7, 7, 7, 12, 13, 14, 15]);
        assert_eq!(cuMemcpyHtoA(array, 120, sent.as_ptr().cast(), 64), INVALID_VALUE);
    }
}

extern "C" fn notified(_: *mut c_void, _: *mut c_void, _: Handle) {
    unreachable!("a lease's memory stays");
}

unsafe fn notifications() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let handle: Handle =
            made(|handle| cuDeviceRegisterAsyncNotification(0, notified, null_mut(), handle));
        assert_eq!(cuDeviceUnregisterAsyncNotification(1, handle), INVALID_VALUE, "another device's");
        good(cuDeviceUnregisterAsyncNotification(0, handle));
        assert_eq!(cuDeviceUnregisterAsyncNotification(0, handle), INVALID_VALUE);
    }
}

static OPEN: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Holds a stream until [`open`].
extern "C" fn hold(_: *mut c_void) {
    let guard = OPEN.0.lock().expect("no thread panics with it");
    drop(OPEN.1.wait_while(guard, |is_open| !*is_open));
}

fn open() {
    *OPEN.0.lock().expect("no thread panics with it") = true;
    OPEN.1.notify_all();
}

unsafe fn context_record(context: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let (held, free): (Handle, Handle) =
            (made(|stream| cuStreamCreate(stream, NON_BLOCKING)), made(|stream| cuStreamCreate(stream, 0)));
        let event: Handle = made(|event| cuEventCreate(event, 0));
        good(cuCtxRecordEvent(context, event));
        good(cuEventSynchronize(event));
        good(cuLaunchHostFunc(held, hold, null_mut()));
        good(cuCtxRecordEvent(0, event));
        good(cuStreamSynchronize(free));
        assert_eq!(cuEventQuery(event), NOT_READY, "one stream is held");
        open();
        good(cuEventSynchronize(event));
        good(cuStreamQuery(held));
        let other: Handle = made(|context| cuCtxCreate_v2(context, 0, 0));
        assert_eq!(cuCtxRecordEvent(other, event), INVALID_HANDLE, "the event is another context's");
        good(cuCtxSetCurrent(context));
        good(cuStreamBeginCapture_v2(free, 0));
        assert_eq!(cuCtxRecordEvent(context, event), CAPTURE_UNSUPPORTED);
    }
}

unsafe fn context_wait(context: Handle) {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let held: Handle = made(|stream| cuStreamCreate(stream, NON_BLOCKING));
        let before: Handle = made(|stream| cuStreamCreate(stream, NON_BLOCKING));
        let event: Handle = made(|event| cuEventCreate(event, 0));
        good(cuLaunchHostFunc(held, hold, null_mut()));
        good(cuEventRecord(event, held));
        good(cuCtxWaitEvent(context, event));
        let after: Handle = made(|stream| cuStreamCreate(stream, NON_BLOCKING));
        assert_eq!(cuStreamQuery(before), NOT_READY);
        assert_eq!(cuStreamQuery(after), NOT_READY, "a stream that was made later waits too");
        open();
        for stream in [before, after, 0] {
            good(cuStreamSynchronize(stream));
        }
        assert_eq!(cuCtxWaitEvent(context, 5), INVALID_HANDLE);
        let last: Handle = made(|stream| cuStreamCreate(stream, NON_BLOCKING));
        good(cuStreamSynchronize(last));
        good(cuStreamDestroy_v2(last));
    }
}

static HEARD: Mutex<Vec<(usize, u32, String)>> = Mutex::new(Vec::new());

extern "C" fn hear(data: *mut c_void, level: u32, message: *mut c_char, length: usize) {
    // SAFETY: the message ends with a zero and is there while the call lasts.
    let text = unsafe { CStr::from_ptr(message) }.to_str().expect("messages are text").to_owned();
    assert_eq!(text.len(), length);
    HEARD.lock().expect("no thread panics with it").push((data as usize, level, text));
}

unsafe fn log() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let mut from: u32 = made(|from| cuLogsCurrent(from, 0));
        let listener: Handle = made(|handle| cuLogsRegisterCallback(hear, 7 as *mut c_void, handle));
        assert_eq!(cuStreamSynchronize(99), INVALID_HANDLE);
        let heard = HEARD.lock().expect("no thread panics with it").clone();
        let message = "Returning 400 (CUDA_ERROR_INVALID_HANDLE) from cuStreamSynchronize";
        assert_eq!(heard, [(7, 0, message.to_owned())]);

        let mut buffer = [1_u8; 200];
        let mut size = buffer.len();
        good(cuLogsDumpToMemory(&mut from, buffer.as_mut_ptr().cast(), &mut size, 0));
        let text = CStr::from_bytes_until_nul(&buffer).expect("a zero").to_str().expect("text");
        assert_eq!(text.len(), size);
        assert!(text.ends_with(&format!("][CUDA][E] {message}\n")) && text.starts_with('['), "{text}");
        size = buffer.len();
        good(cuLogsDumpToMemory(&mut from, buffer.as_mut_ptr().cast(), &mut size, 0));
        assert_eq!((size, buffer[0]), (0, 0), "the iterator went on");
        size = 10;
        assert_eq!(cuLogsDumpToMemory(null_mut(), buffer.as_mut_ptr().cast(), &mut size, 0), INVALID_VALUE);
        assert_eq!(size, 0);
        assert_eq!(cuLogsDumpToMemory(null_mut(), null_mut(), &mut 10, 0), INVALID_VALUE);

        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("log");
        let name = CString::new(path.to_str().expect("text")).expect("no zero");
        good(cuLogsDumpToFile(null_mut(), name.as_ptr(), 0));
        assert!(std::fs::read_to_string(&path).expect("written").contains(message));
        good(cuLogsUnregisterCallback(listener));
        assert_eq!(cuLogsUnregisterCallback(listener), INVALID_VALUE);
        let heard = HEARD.lock().expect("no thread panics with it").len();
        assert_eq!(cuStreamSynchronize(99), INVALID_HANDLE);
        assert_eq!(HEARD.lock().expect("no thread panics with it").len(), heard);
    }
}

unsafe fn global_coredump() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let flags = 1_u32;
        good(cuCoredumpSetAttributeGlobal(7, from_ref(&flags).cast(), &mut 4));
    }
}

unsafe fn coredump() {
    // SAFETY: the functions get what the C API asks for.
    unsafe {
        let (mut flags, mut size) = (0_u32, 0);
        good(cuCoredumpGetAttribute(5, null_mut(), &mut size));
        assert_eq!(size, 1024);
        good(cuCoredumpGetAttribute(7, from_mut(&mut flags).cast(), &mut 4));
        assert_eq!(flags, 1, "what was set before cuInit");
        assert_eq!(cuCoredumpGetAttribute(7, from_mut(&mut flags).cast(), &mut 3), INVALID_VALUE);
        let on = true;
        assert_eq!(cuCoredumpSetAttribute(1, from_ref(&on).cast(), &mut 1), NOT_PERMITTED);
        let name = c"/tmp/name";
        good(cuCoredumpSetAttribute(5, name.as_ptr().cast(), &mut name.to_bytes_with_nul().len()));
        let mut read = [0_u8; 1024];
        good(cuCoredumpGetAttribute(5, read.as_mut_ptr().cast(), &mut read.len()));
        assert_eq!(CStr::from_bytes_until_nul(&read), Ok(name));
        good(cuCoredumpGetAttributeGlobal(5, read.as_mut_ptr().cast(), &mut read.len()));
        assert_eq!(read[0], 0, "only this context's name was set");
        assert_eq!(cuCoredumpSetAttribute(0, null(), &mut 1), INVALID_VALUE);
    }
}
