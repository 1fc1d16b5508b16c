//! Copies of pinned memory by a program over the real library and a real session of the software GPU, over every transport of
//! one machine. Through `shm:` the session maps the program's pages; what the program sees must not depend on that.

#![allow(unsafe_code)]

mod support;

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use driver_soft::SoftConfig;
use std::ffi::c_void;
use std::time::{Duration, Instant};
use support::Setting;

const DEVICE_BYTES: usize = 1 << 20;
const PINNED_BYTES: usize = 700 << 10;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> u32;
    fn cuCtxSetCurrent(context: u64) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: u32) -> u32;
    fn cuMemFreeHost(memory: *mut c_void) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> u32;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) -> u32;
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) -> u32;
    fn cuStreamCreate(stream: *mut u64, flags: u32) -> u32;
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) -> u32;
    fn cuEventCreate(event: *mut u64, flags: u32) -> u32;
    fn cuEventRecord(event: u64, stream: u64) -> u32;
}

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    support::serve_session(&SoftConfig { memory_bytes: 64 << 20, block_threads: 0, ..SoftConfig::default() });
}

/// Runs the program against a worker of its own and says what it printed.
fn run(scheme: &'static str, plan: &str, shared_host_bytes_max: u64) -> String {
    let mut setting = Setting { scheme, ..Setting::default() };
    setting.session.shared_host_bytes_max = shared_host_bytes_max;
    support::run(setting, plan, &[])
}

fn good(code: u32) {
    assert_eq!(code, 0);
}

/// A number from a seed.
fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

struct Pinned(*mut u8);

impl Pinned {
    fn new(bytes: usize) -> Self {
        let mut memory = std::ptr::null_mut();
        // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
        good(unsafe { cuMemHostAlloc(&mut memory, bytes, 0) });
        Self(memory.cast())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
        unsafe { std::slice::from_raw_parts_mut(self.0, PINNED_BYTES) }
    }
}

fn begin() -> (u64, [u64; 2], u64) {
    let (mut context, mut device, mut streams, mut event) = (0, 0, [0; 2], 0);
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    unsafe {
        good(cuInit(0));
        good(cuDevicePrimaryCtxRetain(&mut context, 0));
        good(cuCtxSetCurrent(context));
        good(cuMemAlloc_v2(&mut device, DEVICE_BYTES));
        good(cuMemsetD8Async(device, 0, DEVICE_BYTES, 0));
        good(cuCtxSynchronize());
        streams.iter_mut().for_each(|stream| good(cuStreamCreate(stream, 1)));
        good(cuEventCreate(&mut event, 2));
    }
    (device, streams, event)
}

/// Inodes of shared pages in a process's map.
fn shared_inodes(process: &str) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let ours = maps.lines().filter(|line| line.contains("memfd:dxpu-pinned"));
    ours.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

/// How many other processes map one of these.
fn mapped_elsewhere(inodes: &[String]) -> usize {
    let me = std::process::id().to_string();
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let others = processes.filter(|name| name.parse::<u32>().is_ok() && *name != me);
    others.filter(|name| shared_inodes(name).iter().any(|inode| inodes.contains(inode))).count()
}

fn synchronize() {
    // SAFETY: no pointers.
    good(unsafe { cuCtxSynchronize() });
}

/// Copies to the same bytes again and again, as of a loss in each step, of which the program looks at the last.
fn repeated_copies() {
    let (device, streams, _) = begin();
    let mut pinned = Pinned::new(PINNED_BYTES);
    for (round, (bytes, count)) in
        [(4, 40), (4, 3), (5000, 100), (70_000, 20), (PINNED_BYTES, 12)].into_iter().enumerate()
    {
        for step in 0..count {
            let value = (round * 100 + step) as u8;
            // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
            unsafe {
                good(cuMemsetD8Async(device, value, bytes, streams[0]));
                good(cuMemcpyDtoHAsync_v2(pinned.0.cast(), device, bytes, streams[0]));
            }
        }
        synchronize();
        let last = (round * 100 + count - 1) as u8;
        assert!(pinned.bytes()[..bytes].iter().all(|byte| *byte == last), "{count} copies of {bytes} bytes");
    }
}

/// Copies of random places and sizes both ways, ordered by events between two streams; a model does the same.
fn random_copies(seed: &mut u64) {
    let (device, streams, event) = begin();
    let mut pinned = [Pinned::new(PINNED_BYTES), Pinned::new(PINNED_BYTES)];
    let mut hosts = [vec![0u8; PINNED_BYTES], vec![0u8; PINNED_BYTES]];
    let mut model = vec![0u8; DEVICE_BYTES];
    println!("regions {}", shared_inodes("self").len());
    for round in 0..400 {
        let (which, stream) = (next(seed, 2), streams[next(seed, 2)]);
        let largest = [1000, 64 << 10, 300 << 10][next(seed, 3)];
        let bytes = 1 + next(seed, largest);
        let (at, place) = (next(seed, PINNED_BYTES - bytes), next(seed, DEVICE_BYTES - bytes));
        // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
        let (host, there) = (unsafe { pinned[which].0.add(at) }, device + place as u64);
        match next(seed, 9) {
            0..=3 => {
                // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
                good(unsafe { cuMemcpyHtoDAsync_v2(there, host.cast(), bytes, stream) });
                model[place..place + bytes].copy_from_slice(&hosts[which][at..at + bytes]);
            }
            4..=6 => {
                // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
                good(unsafe { cuMemcpyDtoHAsync_v2(host.cast(), there, bytes, stream) });
                hosts[which][at..at + bytes].copy_from_slice(&model[place..place + bytes]);
            }
            7 => {
                // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
                good(unsafe { cuMemsetD8Async(there, round as u8, bytes, stream) });
                model[place..place + bytes].fill(round as u8);
            }
            _ => {
                let news: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(7) ^ round as u8).collect();
                synchronous_copies(&mut pinned, &mut hosts, (which, at, there), &news, round);
                model[place..place + bytes].copy_from_slice(&news);
            }
        }
        // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
        unsafe {
            good(cuEventRecord(event, stream));
            streams.iter().for_each(|stream| good(cuStreamWaitEvent(*stream, event, 0)));
        }
    }
    synchronize();
    assert!(device_bytes(device) == model);
    for (pinned, host) in pinned.iter_mut().zip(&hosts) {
        assert!(pinned.bytes() == host.as_slice());
    }
}

/// Compares everything so far; then synchronous copies, and bytes of the program's own.
fn synchronous_copies(
    pinned: &mut [Pinned; 2],
    hosts: &mut [Vec<u8>; 2],
    (which, at, there): (usize, usize, u64),
    news: &[u8],
    round: usize,
) {
    let range = at..at + news.len();
    synchronize();
    for (pinned, host) in pinned.iter_mut().zip(hosts.iter()) {
        assert!(pinned.bytes() == host.as_slice(), "round {round}");
    }
    pinned[which].bytes()[range.clone()].copy_from_slice(news);
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    good(unsafe { cuMemcpyHtoD_v2(there, pinned[which].0.add(at).cast(), news.len()) });
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    good(unsafe { cuMemcpyDtoH_v2(pinned[1 - which].0.add(at).cast(), there, news.len()) });
    hosts.iter_mut().for_each(|host| host[range.clone()].copy_from_slice(news));
    assert!(pinned[1 - which].bytes()[range] == *news, "round {round}: a synchronous copy");
}

fn device_bytes(device: u64) -> Vec<u8> {
    let mut back = vec![1u8; DEVICE_BYTES];
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    good(unsafe { cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), device, DEVICE_BYTES) });
    back
}

/// Frees pinned memory while copies of it are under way; nothing is left on either side.
fn freed_in_flight() {
    let (device, streams, _) = begin();
    let mut inodes = Vec::new();
    for _ in 0..20 {
        let pinned = Pinned::new(PINNED_BYTES);
        inodes.extend(shared_inodes("self"));
        for stream in streams {
            // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
            good(unsafe { cuMemcpyHtoDAsync_v2(device, pinned.0.cast(), PINNED_BYTES, stream) });
            // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
            good(unsafe { cuMemcpyDtoHAsync_v2(pinned.0.cast(), device, PINNED_BYTES, stream) });
        }
        // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
        good(unsafe { cuMemFreeHost(pinned.0.cast()) });
    }
    println!("regions {}", inodes.len());
    assert_eq!(shared_inodes("self").len(), 0, "the program's mapping is still there");
    synchronize();
    let deadline = Instant::now() + Duration::from_secs(10);
    while mapped_elsewhere(&inodes) > 0 {
        assert!(Instant::now() < deadline, "the worker's mapping is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    let kept = Pinned::new(PINNED_BYTES);
    println!("elsewhere {}", mapped_elsewhere(&shared_inodes("self")));
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    assert_eq!(
        open.filter(|file| file.to_string_lossy().contains("dxpu-pinned")).count(),
        0,
        "a descriptor is open"
    );
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    good(unsafe { cuMemFreeHost(kept.0.cast()) });
}

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    match support::plan().as_str() {
        "freed" => freed_in_flight(),
        "repeated" => repeated_copies(),
        seed => random_copies(&mut seed.parse().unwrap()),
    }
}

const LARGE: u64 = 1 << 30;

#[test]
fn random_copies_are_those_of_a_model_whether_memory_is_shared_or_not() {
    for seed in [1, 22, 333] {
        assert!(run("shm", &seed.to_string(), LARGE).contains("regions 2"), "the memory is shared");
        assert!(run("unix", &seed.to_string(), LARGE).contains("regions 0"), "there is no way to share it");
    }
}

#[test]
fn the_last_of_many_copies_to_the_same_bytes_is_the_one_that_stays() {
    for scheme in ["tcp", "unix", "shm"] {
        run(scheme, "repeated", LARGE);
    }
}

#[test]
fn a_worker_shares_no_more_than_it_may_and_the_rest_takes_the_lanes() {
    let one = PINNED_BYTES as u64 + 4096;
    assert!(run("shm", "5", one).contains("regions 1"));
    assert!(run("shm", "5", 0).contains("regions 0"));
}

#[test]
fn memory_freed_in_flight_leaves_nothing_on_either_side() {
    let said = run("shm", "freed", LARGE);
    assert!(said.contains("regions 20") && said.contains("elsewhere 1"), "{said}");
    let said = run("unix", "freed", LARGE);
    assert!(said.contains("regions 0") && said.contains("elsewhere 0"), "{said}");
}
