//! The same text on a GPU, through this driver: right to the bit, and how fast. Run it by hand where there is one:
//! `cargo test --release -p driver-nvidia on_a_gpu -- --ignored --nocapture`.

use super::super::*;
use crate::{NvidiaConfig, NvidiaDriver};
use cuda_driver::{
    DRIVER_VA_BYTES, Departure, Driver, HostLink, Landing, LinkLost, Over, Sink, Source, WaitTarget,
};
use cuda_wire::*;
use snapshot::Key;
use std::sync::Arc;

const CONTEXT: ContextId = ContextId(0);
const STREAM: StreamId = StreamId(1);
const MODULE: ModuleId = ModuleId(1);
const BASE: u64 = 0x6000_0000_0000;

/// Copies here take their bytes along, so nothing is asked of the client.
struct NoLink;

impl HostLink for NoLink {
    fn receive(&self, _: TransferId, _: u64, _: bool, _: &dyn Sink) -> Result<(), LinkLost> {
        Err(LinkLost)
    }
    fn send(&self, _: TransferId, _: u64, _: &dyn Source) -> Result<(), LinkLost> {
        Err(LinkLost)
    }
    fn receive_later(&self, _: TransferId, _: u64, _: bool, _: Box<dyn Landing>, over: Over) {
        over(Err(LinkLost));
    }
    fn send_part(&self, _: TransferId, _: u64, _: u64, _: Box<dyn Departure>, over: Over) {
        over(Err(LinkLost));
    }
    fn host_call(&self, _: u64) -> Result<(), LinkLost> {
        Err(LinkLost)
    }
    fn print(&self, _: &[u8]) {}
}

struct Gpu {
    driver: NvidiaDriver,
    kernels: Vec<String>,
    next: u64,
}

impl Gpu {
    fn new() -> Self {
        let driver = NvidiaDriver::new(&NvidiaConfig::default()).unwrap();
        let range = VaRange { base: BASE, bytes: (256 << 30) + DRIVER_VA_BYTES };
        assert_eq!(driver.reserve_addresses(&[range]), Some(range));
        driver.attach(Arc::new(NoLink));
        driver.stream_create(STREAM, CONTEXT, 1, 0).unwrap();
        let text = text();
        let image = ImageSource::Inline { bytes: Bytes(text.as_bytes()) };
        let info = driver.module_load(MODULE, CONTEXT, [0; 32], image, Vec::new()).unwrap();
        let kernels = info.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        let gpu = Self { driver, kernels, next: BASE };
        gpu.driver.kernel_set_attribute(gpu.kernel("dxpu_digest"), 8, DIGEST_SHARED_BYTES as i32).unwrap();
        gpu
    }

    fn kernel(&self, name: &str) -> KernelRef {
        let index = self.kernels.iter().position(|kernel| kernel == name).unwrap() as u32;
        KernelRef { module: MODULE, index }
    }

    fn allocate(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(2 << 20);
        self.driver.memory_allocate(CONTEXT, address, bytes).unwrap();
        address
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        for (index, piece) in bytes.chunks(1 << 20).enumerate() {
            let data = HostData::Inline { bytes: Bytes(piece) };
            let target = Plane::line(address + (index << 20) as u64);
            let op = Op::CopyIn { target, shape: Shape::line(piece.len() as u64), data };
            self.driver.enqueue(STREAM, op).unwrap();
        }
        self.driver.wait(WaitTarget::Stream(STREAM)).unwrap();
    }

    fn read(&self, address: u64, bytes: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let read = self.driver.read_back_begin(STREAM, Plane::line(address), Shape::line(bytes)).unwrap();
        read.wait(&mut out).unwrap();
        out
    }

    /// Milliseconds of a launch.
    fn run(&self, name: &str, grid: u32, shared: usize, values: &[u64], event: u32) -> f32 {
        let parameters: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let events = [EventId(event), EventId(event + 1)];
        for event in events {
            self.driver.event_create(event, CONTEXT, 0).unwrap();
        }
        let launch = Op::Launch {
            kernel: self.kernel(name),
            grid: [grid, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: shared as u32,
            cooperative: false,
            attributes: Vec::new(),
            parameters: Bytes(&parameters),
        };
        self.driver.enqueue(STREAM, Op::Record { event: events[0], flags: 0 }).unwrap();
        self.driver.enqueue(STREAM, launch).unwrap();
        self.driver.enqueue(STREAM, Op::Record { event: events[1], flags: 0 }).unwrap();
        self.driver.wait(WaitTarget::Stream(STREAM)).unwrap();
        self.driver.event_elapsed(events[0], events[1]).unwrap()
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_kernels_on_a_gpu() {
    let bytes = 16u64 << 30;
    let count = bytes / BLOCK_BYTES as u64;
    let key = Key::from_seed(&[3; 32]);
    let mut gpu = Gpu::new();
    let data = gpu.allocate(bytes);
    let fill =
        Op::Fill { target: Plane::line(data), shape: Shape::line(bytes), element_bytes: 4, value: 0x5a17 };
    gpu.driver.enqueue(STREAM, fill).unwrap();
    let special = [0, 1, 77, count / 2, count - 1];
    let contents: Vec<Vec<u8>> = special.iter().map(|&at| super::pattern(BLOCK_BYTES, at + 5)).collect();
    for (at, bytes) in special.iter().zip(&contents) {
        gpu.write(data + at * BLOCK_BYTES as u64, bytes);
    }
    let table: Vec<u8> = (0..count)
        .flat_map(|at| [data + at * BLOCK_BYTES as u64, BLOCK_BYTES as u64].map(u64::to_le_bytes).concat())
        .collect();
    let [blocks, committed, pending] = [0; 3].map(|_: u8| gpu.allocate(count * 16));
    let (dirty, counter, key_at) = (gpu.allocate(count * 4), gpu.allocate(512), gpu.allocate(1 << 20));
    let shadow = gpu.allocate(bytes);
    gpu.write(blocks, &table);
    gpu.write(key_at, &key.to_bytes());
    gpu.write(committed, &vec![0xff; count as usize * 16]);
    gpu.write(counter, &[0; 4]);
    let grid = 3 * 132;
    let skipped = gpu.allocate(512);
    gpu.write(skipped, &[0; 8]);
    let digest = [blocks, count, key_at, committed, pending, dirty, counter, skipped, 1];
    let first_ms = gpu.run("dxpu_digest", grid, DIGEST_SHARED_BYTES, &digest, 100);
    let found = super::digests(&gpu.read(pending, count * 16));
    let plain = key.digest(&0x5a17u32.to_le_bytes().repeat(BLOCK_BYTES / 4));
    for (at, digest) in found.iter().enumerate() {
        let expected = match special.iter().position(|&place| place == at as u64) {
            Some(place) => key.digest(&contents[place]),
            None => plain,
        };
        assert_eq!(*digest, expected, "block {at}");
    }
    assert_eq!(gpu.read(counter, 4), (count as u32).to_le_bytes(), "all are dirty at first");
    let copy_ms = gpu.run("dxpu_shadow", grid, 0, &[blocks, dirty, counter, 0, count, shadow], 200);
    gpu.write(counter, &[0; 4]);
    let again = [blocks, count, key_at, pending, committed, dirty, counter, skipped, 1];
    let clean_ms = gpu.run("dxpu_digest", grid, DIGEST_SHARED_BYTES, &again, 300);
    assert_eq!(gpu.read(counter, 4), [0; 4], "nothing changed");
    // The shadow's blocks lie in the order of the list, and have their digests.
    gpu.write(counter, &[0; 4]);
    let moved: Vec<u8> = (0..count)
        .flat_map(|at| [shadow + at * BLOCK_BYTES as u64, BLOCK_BYTES as u64].map(u64::to_le_bytes).concat())
        .collect();
    gpu.write(blocks, &moved);
    gpu.run("dxpu_digest", grid, DIGEST_SHARED_BYTES, &digest, 400);
    let mut copied = super::digests(&gpu.read(pending, count * 16));
    let mut original = found;
    copied.sort_unstable();
    original.sort_unstable();
    assert_eq!(copied, original);
    let rate = |ms: f32| bytes as f64 / 1e9 / f64::from(ms);
    println!(
        "{} GiB: digest {:.2} TB/s (all dirty {:.2}), shadow {:.2} TB/s of payload",
        bytes >> 30,
        rate(clean_ms),
        rate(first_ms),
        rate(copy_ms)
    );
}
