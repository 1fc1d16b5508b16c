//! Two programs of one tenant over the real library and real sessions of the software GPU: what the first has sent, the second
//! names. A relay between them counts what travels.
//!
//! ```text
//!   this test ── starts ──▶ program (this executable again: test `program`) ── libcuda ──▶ relay, which counts ──▶ worker
//! ```

#![allow(unsafe_code)]

mod support;

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use driver_soft::SoftConfig;
use std::ffi::c_void;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Setting, Worker};

const MIB: usize = 1 << 20;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> u32;
    fn cuCtxSetCurrent(context: u64) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: u32) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> u32;
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) -> u32;
    fn cuStreamCreate(stream: *mut u64, flags: u32) -> u32;
    fn cuStreamSynchronize(stream: u64) -> u32;
}

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    support::serve_session(&SoftConfig {
        memory_bytes: 256 << 20,
        block_threads: 0,
        ..SoftConfig::default()
    });
}

fn good(code: u32) {
    assert_eq!(code, 0);
}

/// Bytes that no two seeds and no two blocks have in common.
fn weights(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

fn back(device: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: the memory is `out`, with its length.
    good(unsafe { cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), device, bytes) });
    out
}

/// Not a test: what a program is. It copies in every way and checks what has come to the device.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    let seed: u64 = support::plan().parse().unwrap();
    let (mut context, mut device, mut stream, mut pinned) = (0, 0, 0, std::ptr::null_mut());
    let large = weights(seed, 20 * MIB + 4097);
    // SAFETY: the pointers are those of live variables or memory of the library, with the lengths that are given.
    unsafe {
        good(cuInit(0));
        good(cuDevicePrimaryCtxRetain(&mut context, 0));
        good(cuCtxSetCurrent(context));
        good(cuMemAlloc_v2(&mut device, 32 * MIB));
        good(cuStreamCreate(&mut stream, 1));
        good(cuMemHostAlloc(&mut pinned, 12 * MIB, 0));
        // Pageable and large, pageable and small, pageable behind a stream.
        good(cuMemcpyHtoD_v2(device, large.as_ptr().cast(), large.len()));
        assert!(back(device, large.len()) == large);
        good(cuMemcpyHtoD_v2(device, large[MIB..].as_ptr().cast(), 3 * MIB + 5));
        assert!(back(device, 3 * MIB + 5) == large[MIB..4 * MIB + 5]);
        good(cuMemsetD8Async(device, 1, 8 * MIB, stream));
        good(cuMemcpyHtoDAsync_v2(device + 4, large.as_ptr().cast(), 4 * MIB, stream));
        good(cuStreamSynchronize(stream));
        assert!(back(device + 4, 4 * MIB) == large[..4 * MIB]);
        assert!(back(device + 4 + 4 * MIB as u64, 100) == [1; 100]);
        // Pinned and asynchronous: the copies are in the order of their stream.
        let memory = std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 12 * MIB);
        memory.copy_from_slice(&large[4 * MIB..16 * MIB]);
        good(cuMemcpyHtoDAsync_v2(device, pinned, 12 * MIB, stream));
        good(cuMemsetD8Async(device + MIB as u64, 7, 10, stream));
        good(cuMemcpyHtoDAsync_v2(device + 2 * MIB as u64, pinned, 2 * MIB, stream));
        good(cuStreamSynchronize(stream));
        let mut expected = memory.to_vec();
        expected[MIB..MIB + 10].fill(7);
        expected[2 * MIB..4 * MIB].copy_from_slice(&memory[..2 * MIB]);
        assert!(back(device, 12 * MIB) == expected);
        // Memory that the program changes between two copies.
        let mut changing = large[..6 * MIB].to_vec();
        for round in 0..3 {
            changing[3 * MIB + round] ^= 0xff;
            good(cuMemcpyHtoD_v2(device, changing.as_ptr().cast(), changing.len()));
            assert!(back(device, changing.len()) == changing, "round {round}");
        }
    }
    println!("right");
}

struct Stage(Worker);

impl Stage {
    fn new(content_bytes_max: u64) -> Self {
        let mut setting = Setting { scheme: "tcp", ..Setting::default() };
        setting.session.content_bytes_max = content_bytes_max;
        Self(Worker::start(setting))
    }

    /// Runs the program. Says how many bytes it sent to the worker.
    fn run(&self, seed: u64, environment: &[(&str, &str)]) -> u64 {
        self.run_cut(seed, environment, u64::MAX)
    }

    /// The same, and once so many bytes are on their way all connections break.
    fn run_cut(&self, seed: u64, environment: &[(&str, &str)], cut_at: u64) -> u64 {
        let (address, sent) = relay(self.0.address.strip_prefix("tcp:").unwrap(), cut_at);
        let mut command = self.0.program(&seed.to_string());
        command.env("DXPU_WORKER", format!("tcp:{address}")).envs(environment.iter().copied());
        let output = command.output().unwrap();
        assert!(support::said_well("content", &output).contains("right"));
        sent.load(Ordering::SeqCst)
    }
}

/// Passes connections on to the worker, and counts the bytes on the way to it. All connections of that moment break when `cut_at`
/// bytes have come.
fn relay(worker: &str, cut_at: u64) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, worker) = (listener.local_addr().unwrap().to_string(), worker.to_owned());
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let worker = TcpStream::connect(&worker).unwrap();
            for stream in [&client, &worker] {
                stream.set_nodelay(true).unwrap();
            }
            let (from, to) = (client.try_clone().unwrap(), worker.try_clone().unwrap());
            open.lock().unwrap().extend([client.try_clone().unwrap(), worker.try_clone().unwrap()]);
            let (counted, all) = (counted.clone(), open.clone());
            std::thread::spawn(move || {
                pass(from, to, |count| {
                    let before = counted.fetch_add(count, Ordering::SeqCst);
                    if before < cut_at && before + count >= cut_at {
                        for stream in all.lock().unwrap().drain(..) {
                            let _ = stream.shutdown(Shutdown::Both);
                        }
                    }
                });
            });
            std::thread::spawn(move || pass(worker, client, |_| {}));
        }
    });
    (address, sent)
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut passing: impl FnMut(u64)) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        passing(count as u64);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

const ON: (&str, &str) = ("DXPU_CONTENT", "1");

/// Runs until the worker has kept what the first programs sent, which it does behind their backs.
fn run_until(stage: &Stage, seed: u64, environment: &[(&str, &str)], is_it: impl Fn(u64) -> bool) -> u64 {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let sent = stage.run(seed, environment);
        if is_it(sent) || Instant::now() > until {
            return sent;
        }
    }
}

#[test]
fn what_the_first_program_sent_the_second_names() {
    let stage = Stage::new(256 << 20);
    let first = stage.run(5, &[ON]);
    assert!(first > 58 * MIB as u64, "{first} bytes: everything travels for the first");
    let second = run_until(&stage, 5, &[ON], |sent| sent < 2 * MIB as u64);
    assert!(second < 2 * MIB as u64, "{second} bytes of {first}");
    // One that does not wish for it sends everything, and so does one with other weights.
    assert!(stage.run(5, &[]) > 58 * MIB as u64);
    assert!(stage.run(6, &[ON]) > 20 * MIB as u64);
}

#[test]
fn a_program_with_survival_names_as_others_do() {
    let stage = Stage::new(256 << 20);
    let survive = ("DXPU_SURVIVE", "1");
    let first = stage.run(5, &[ON, survive]);
    assert!(first > 58 * MIB as u64, "{first}");
    let second = run_until(&stage, 5, &[ON, survive], |sent| sent < 2 * MIB as u64);
    assert!(second < 2 * MIB as u64, "{second} bytes of {first}");
}

#[test]
fn a_store_that_forgets_and_a_worker_that_keeps_nothing_change_no_byte() {
    let small = Stage::new(16 << 20);
    for seed in [1, 2, 1, 1] {
        small.run(seed, &[ON]);
    }
    let nothing = Stage::new(0);
    for _ in 0..2 {
        assert!(nothing.run(1, &[ON]) > 58 * MIB as u64);
    }
}

/// The session is lost between a question and the use of what is there, or while bytes travel. The next one asks again.
#[test]
fn a_program_that_survives_a_loss_sees_its_own_bytes() {
    let stage = Stage::new(256 << 20);
    let (survive, on) = (("DXPU_SURVIVE", "1"), ON);
    let first = stage.run_cut(5, &[on, survive], 25 * MIB as u64);
    // What the worker had kept until then, the next session names.
    assert!(first > 25 * MIB as u64, "{first}");
    let whole = run_until(&stage, 5, &[on, survive], |sent| sent < 2 * MIB as u64);
    assert!(whole < 2 * MIB as u64, "{whole}");
    for eighth in 1..8 {
        let sent = stage.run_cut(5, &[on, survive], whole * eighth / 8);
        assert!(sent > whole / 8 * eighth, "{sent} of {whole}, cut at {eighth} eighths");
    }
}
