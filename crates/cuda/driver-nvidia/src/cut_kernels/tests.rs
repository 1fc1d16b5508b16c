//! The kernels' very text on the PTX engine, against the core's digest.

mod on_a_gpu;

use super::*;
use ptx::{AbortFlag, FlatMemory, Hooks, Launch, Module, Program, Run, link};
use snapshot::{Digest, Key};

const BASE: u64 = 0x6000_0000_0000;

struct NoWorld;

impl Hooks for NoWorld {
    fn print(&self, _: &[u8]) {}
    fn malloc(&self, _: u64) -> u64 {
        0
    }
    fn free(&self, _: u64) {}
    fn clock(&self) -> u64 {
        0
    }
    fn global_timer(&self) -> u64 {
        0
    }
}

/// A device with both kernels and places for their tables.
struct Device {
    memory: FlatMemory,
    program: Program,
    next: u64,
}

impl Device {
    fn new() -> Self {
        let module = Module::parse(text().as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let program = Program::bind(link(vec![module]).unwrap(), |_| 0);
        Self { memory: FlatMemory::new(BASE, 4 << 20), program, next: BASE }
    }

    fn place(&mut self, bytes: usize, align: u64) -> u64 {
        let address = self.next.next_multiple_of(256) + align;
        self.next = address + bytes as u64;
        address
    }

    fn upload(&mut self, bytes: &[u8]) -> u64 {
        let address = self.place(bytes.len(), 0);
        self.memory.write(address, bytes).unwrap();
        address
    }

    fn download(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read(address, &mut data).unwrap();
        data
    }

    fn run(&self, kernel: &str, grid: u32, shared: usize, params: &[u64]) {
        let params = params.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut launch = Launch::new(kernel, [grid, 1, 1], [THREADS, 1, 1], params);
        launch.dynamic_shared = shared as u32;
        let abort = AbortFlag::default();
        let run = Run::new(&self.program, launch, &self.memory, &NoWorld, &abort).unwrap();
        run.work();
        run.finish().unwrap_or_else(|fault| panic!("{fault}"));
    }
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn digests(bytes: &[u8]) -> Vec<Digest> {
    bytes.chunks(16).map(|digest| Digest(u128::from_le_bytes(digest.try_into().unwrap()))).collect()
}

/// Blocks of these lengths, this far from a multiple of 16, with what they hold.
fn blocks(device: &mut Device) -> (u64, Vec<Vec<u8>>) {
    let shapes = [
        (BLOCK_BYTES, 0),
        (BLOCK_BYTES, 0),
        (BLOCK_BYTES, 0),
        (BLOCK_BYTES - 1, 0),
        (BLOCK_BYTES - 16, 0),
        (40_000, 0),
        (512, 0),
        (17, 0),
        (16, 0),
        (15, 0),
        (1, 0),
        (1000, 4),
        (33, 1),
        (BLOCK_BYTES, 8),
    ];
    let mut table = Vec::new();
    let mut contents = Vec::new();
    for (index, (bytes, align)) in shapes.into_iter().enumerate() {
        let data = match index {
            0 => vec![0; bytes],
            1 => vec![0xff; bytes],
            _ => pattern(bytes, index as u64),
        };
        let address = device.place(bytes, align);
        device.memory.write(address, &data).unwrap();
        table.extend(address.to_le_bytes());
        table.extend((bytes as u64).to_le_bytes());
        contents.push(data);
    }
    (device.upload(&table), contents)
}

#[test]
fn the_kernels_digest_is_the_cores_bit_for_bit_and_finds_what_changed() {
    for (seed, grid) in [(1, 3), (2, 64)] {
        let key = Key::from_seed(&[seed; 32]);
        let mut device = Device::new();
        let (table, contents) = blocks(&mut device);
        let count = contents.len();
        let key_at = device.upload(&key.to_bytes());
        let committed = device.upload(&[0xff; 16 * 32]);
        let pending = device.upload(&[0; 16 * 32]);
        let dirty = device.upload(&[0; 4 * 32]);
        let dirty_count = device.upload(&[0; 4]);
        let skipped = device.upload(&6u64.to_le_bytes());
        let digest = |device: &Device, committed, pending| {
            device.memory.write(dirty_count, &[0; 4]).unwrap();
            let params = [table, count as u64, key_at, committed, pending, dirty, dirty_count, skipped, 7];
            device.run("dxpu_digest", grid, DIGEST_SHARED_BYTES, &params);
            let found = u32::from_le_bytes(device.download(dirty_count, 4).try_into().unwrap());
            let places = device.download(dirty, found as usize * 4);
            let mut places: Vec<u32> =
                places.chunks(4).map(|place| u32::from_le_bytes(place.try_into().unwrap())).collect();
            places.sort_unstable();
            places
        };
        let all: Vec<u32> = (0..count as u32).collect();
        assert_eq!(digest(&device, committed, pending), all, "nothing is committed");
        let expected: Vec<Digest> = contents.iter().map(|data| key.digest(data)).collect();
        assert_eq!(digests(&device.download(pending, count * 16)), expected);
        // The pending table is committed; nothing changed, then a bit of some blocks.
        assert!(digest(&device, pending, committed).is_empty());
        let table_bytes = device.download(table, count * 16);
        for place in [2, 3, 7, 12, 13] {
            let address = u64::from_le_bytes(table_bytes[place * 16..place * 16 + 8].try_into().unwrap());
            let last = contents[place].len() - 1;
            device.memory.write(address + last as u64, &[contents[place][last] ^ 0x80]).unwrap();
        }
        assert_eq!(digest(&device, pending, committed), [2, 3, 7, 12, 13]);
        // A cut that is skipped touches nothing, not even its table of blocks.
        device.memory.write(skipped, &7u64.to_le_bytes()).unwrap();
        device.memory.write(dirty_count, &[9; 4]).unwrap();
        device.run("dxpu_digest", grid, DIGEST_SHARED_BYTES, &[8, 99, 8, 8, 8, 8, dirty_count, skipped, 7]);
        assert_eq!(device.download(dirty_count, 4), [9; 4]);
    }
}

#[test]
fn the_shadow_has_what_changed_and_nothing_else() {
    let mut device = Device::new();
    let (table, contents) = blocks(&mut device);
    let places = [13u32, 0, 5, 9, 12, 3];
    let list: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
    let dirty = device.upload(&list);
    let dirty_count = device.upload(&(places.len() as u32).to_le_bytes());
    let slot = BLOCK_BYTES as u64;
    let shadow = device.upload(&vec![0xa5; 4 * BLOCK_BYTES]);
    // Three slots at a time: 0..3, then 3..6; the fourth slot is not ours.
    for first in [0, 3] {
        let params = [table, dirty, dirty_count, first, 3, shadow];
        device.run("dxpu_shadow", 2, 0, &params);
        for index in 0..3 {
            let data = &contents[places[first as usize + index] as usize];
            let copied = device.download(shadow + index as u64 * slot, data.len());
            assert!(&copied == data, "place {}", places[first as usize + index]);
        }
        assert_eq!(device.download(shadow + 3 * slot, BLOCK_BYTES), vec![0xa5; BLOCK_BYTES]);
    }
    // No more than there are.
    device.memory.write(shadow, &[0xa5; 16]).unwrap();
    device.run("dxpu_shadow", 2, 0, &[table, dirty, dirty_count, 6, 3, shadow]);
    assert_eq!(device.download(shadow, 16), [0xa5; 16]);
}
