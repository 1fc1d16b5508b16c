//! The NVMe controller behind both proxies, with a driver written here: what drivers rely on, and what they should not do.

mod world;

use pcie::endpoint::nvme::{BLOCK_BYTES, Nvme, NvmeOptions};
use pcie::tables::SlotId;
use proptest::prelude::*;
use world::{Blocks, World};

const ADMIN_SQ: u64 = 0x1000;
const ADMIN_CQ: u64 = 0x2000;
const IO_SQ: u64 = 0x3000;
const IO_CQ: u64 = 0x4000;
const DATA: u64 = 0x2_0000;
const LIST: u64 = 0x1_0000;
const ENTRIES: u32 = 16;
const BLOCKS: usize = 2048;

#[derive(Default)]
struct Ring {
    tail: u32,
    head: u32,
    phase: bool,
}

struct Driver {
    world: World,
    blocks: Blocks,
    rings: [Ring; 2],
    next_id: u16,
}

/// A command before it has a name.
#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    opcode: u8,
    flags: u8,
    namespace: u32,
    prp1: u64,
    prp2: u64,
    dw: [u32; 6],
}

impl Driver {
    fn new() -> Self {
        let blocks = Blocks::new(BLOCKS);
        let mut world = World::new(1);
        world.boxes.insert(SlotId(0), Box::new(Nvme::new(blocks.clone(), NvmeOptions::default()))).unwrap();
        world.plug(0, 1);
        world.enumerate(1);
        let device = World::device(0);
        assert!(world.config_write(device, 0x10, World::low_base(0) as u32));
        assert!(world.config_write(device, 0x54, 0xfee0_0000));
        assert!(world.config_write(device, 0x50, 0x0051_0000));
        assert!(world.config_write(device, 0x04, 6));
        let base = World::low_base(0);
        world.write32(base + 0x24, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        world.write(base + 0x28, &ADMIN_SQ.to_le_bytes());
        world.write(base + 0x30, &ADMIN_CQ.to_le_bytes());
        world.write32(base + 0x14, 0x0046_0001);
        assert_eq!(world.read32(base + 0x1c), 1);
        let rings = [Ring { phase: true, ..Ring::default() }, Ring { phase: true, ..Ring::default() }];
        let mut driver = Self { world, blocks, rings, next_id: 0 };
        let size = (ENTRIES - 1) << 16 | 1;
        let create =
            |opcode, prp1, dw11| Entry { opcode, prp1, dw: [size, dw11, 0, 0, 0, 0], ..Entry::default() };
        assert_eq!(driver.run(0, create(5, IO_CQ, 1 << 16 | 3)), (0, 0));
        assert_eq!(driver.run(0, create(1, IO_SQ, 1 << 16 | 1)), (0, 0));
        driver.world.interrupts.clear();
        driver
    }

    /// Puts a command into a queue and rings.
    fn submit(&mut self, queue: usize, entry: Entry) -> u16 {
        self.next_id += 1;
        let mut bytes = [0u8; 64];
        (bytes[0], bytes[1]) = (entry.opcode, entry.flags);
        bytes[2..4].copy_from_slice(&self.next_id.to_le_bytes());
        bytes[4..8].copy_from_slice(&entry.namespace.to_le_bytes());
        bytes[24..32].copy_from_slice(&entry.prp1.to_le_bytes());
        bytes[32..40].copy_from_slice(&entry.prp2.to_le_bytes());
        for (n, dw) in entry.dw.iter().enumerate() {
            bytes[40 + 4 * n..44 + 4 * n].copy_from_slice(&dw.to_le_bytes());
        }
        let base = [ADMIN_SQ, IO_SQ][queue] as usize;
        let ring = &mut self.rings[queue];
        let at = base + 64 * ring.tail as usize;
        self.world.memory[at..at + 64].copy_from_slice(&bytes);
        ring.tail = (ring.tail + 1) % ENTRIES;
        let (tail, doorbell) = (ring.tail, World::low_base(0) + 0x1000 + 8 * queue as u64);
        self.world.write32(doorbell, tail);
        self.next_id
    }

    /// The next completion: command, status, result.
    fn reap(&mut self, queue: usize) -> Option<(u16, u16, u32)> {
        let base = [ADMIN_CQ, IO_CQ][queue] as usize;
        let ring = &mut self.rings[queue];
        let entry = &self.world.memory[base + 16 * ring.head as usize..][..16];
        let status = u16::from_le_bytes([entry[14], entry[15]]);
        if (status & 1 != 0) != ring.phase {
            return None;
        }
        let found = (
            u16::from_le_bytes([entry[12], entry[13]]),
            status >> 1,
            u32::from_le_bytes(entry[..4].try_into().unwrap()),
        );
        ring.head += 1;
        if ring.head == ENTRIES {
            (ring.head, ring.phase) = (0, !ring.phase);
        }
        let (head, doorbell) = (ring.head, World::low_base(0) + 0x1004 + 8 * queue as u64);
        self.world.write32(doorbell, head);
        Some(found)
    }

    /// Runs one command: status and result.
    fn run(&mut self, queue: usize, entry: Entry) -> (u16, u32) {
        let id = self.submit(queue, entry);
        for _ in 0..100 {
            if let Some((done, status, result)) = self.reap(queue) {
                assert_eq!(done, id);
                return (status, result);
            }
            self.world.pass(std::time::Duration::from_millis(20));
        }
        panic!("never completed: {entry:?}");
    }

    fn io(&mut self, opcode: u8, block: u64, count: u32, prp1: u64, prp2: u64) -> u16 {
        let dw = [block as u32, (block >> 32) as u32, count.wrapping_sub(1) & 0xffff, 0, 0, 0];
        self.run(1, Entry { opcode, namespace: 1, prp1, prp2, dw, ..Entry::default() }).0
    }

    /// Writes a PRP list of `pages` at `at`, each page two apart, so that nothing is contiguous.
    fn list(&mut self, at: u64, pages: impl Iterator<Item = u64>) {
        for (n, page) in pages.enumerate() {
            let place = at as usize + 8 * n;
            self.world.memory[place..place + 8].copy_from_slice(&page.to_le_bytes());
        }
    }
}

#[test]
fn data_of_every_shape_arrives() {
    let mut driver = Driver::new();
    let disk = driver.blocks.0.lock().unwrap().clone();
    // One block, at an odd place in a page.
    assert_eq!(driver.io(2, 7, 1, DATA + 0xe04, 0), 0);
    assert_eq!(driver.world.memory[DATA as usize + 0xe04..][..508], disk[7 * 512..][..508]);
    // Two pages.
    assert_eq!(driver.io(2, 8, 16, DATA, DATA + 0x5000), 0);
    assert_eq!(driver.world.memory[DATA as usize..][..4096], disk[8 * 512..][..4096]);
    assert_eq!(driver.world.memory[DATA as usize + 0x5000..][..4096], disk[16 * 512..][..4096]);
    // The largest transfer, beginning inside a page, with a list that begins two entries before its page ends.
    let pages: Vec<u64> = (0..32).map(|n| DATA + 0x2000 + n * 0x2000).collect();
    driver.list(LIST + 0xff0, pages[..1].iter().copied().chain([LIST + 0x2000]));
    driver.list(LIST + 0x2000, pages[1..].iter().copied());
    assert_eq!(driver.io(2, 0, 256, DATA + 0x200, LIST + 0xff0), 0);
    let mut seen = driver.world.memory[DATA as usize + 0x200..DATA as usize + 0x1000].to_vec();
    for page in &pages {
        seen.extend(&driver.world.memory[*page as usize..][..4096]);
    }
    assert_eq!(seen[..256 * 512], disk[..256 * 512]);
    // And back, to another place.
    assert_eq!(driver.io(1, 1000, 256, DATA + 0x200, LIST + 0xff0), 0);
    assert_eq!(driver.blocks.0.lock().unwrap()[1000 * 512..][..256 * 512], disk[..256 * 512]);
    assert_eq!(driver.io(0, 0, 1, 0, 0), 0, "flush");
    assert_eq!(driver.io(8, 1000, 10, 0, 0), 0, "write zeroes");
    assert!(driver.blocks.0.lock().unwrap()[1000 * 512..1010 * 512].iter().all(|byte| *byte == 0));
}

#[test]
fn an_interrupt_follows_every_completion_and_names_its_queue() {
    let mut driver = Driver::new();
    assert_eq!(driver.io(2, 0, 1, DATA, 0), 0);
    assert_eq!(driver.world.interrupts, [(0xfee0_0000, 1)]);
    assert_eq!(
        driver.run(0, Entry { opcode: 6, prp1: DATA, dw: [1, 0, 0, 0, 0, 0], ..Entry::default() }).0,
        0
    );
    assert_eq!(driver.world.interrupts.last(), Some(&(0xfee0_0000, 0)));
    // Masked: silent until unmasked, then told.
    let base = World::low_base(0);
    driver.world.write32(base + 0x0c, 0b10);
    let id = driver.submit(1, Entry { opcode: 2, namespace: 1, prp1: DATA, ..Entry::default() });
    assert_eq!(driver.world.interrupts.len(), 2);
    driver.world.write32(base + 0x10, 0b10);
    assert_eq!(driver.world.interrupts.len(), 3);
    assert_eq!(driver.reap(1).unwrap().0, id);
}

#[test]
fn a_full_completion_queue_waits_for_its_driver() {
    let mut driver = Driver::new();
    let read = Entry { opcode: 2, namespace: 1, prp1: DATA, ..Entry::default() };
    let mut submitted = Vec::new();
    let mut done = Vec::new();
    for _ in 0..14 {
        submitted.push(driver.submit(1, read));
    }
    // Fifteen fit; with fourteen not looked at, five more overflow the ring unless the controller waits.
    for _ in 0..5 {
        submitted.push(driver.submit(1, read));
    }
    while let Some((id, status, _)) = driver.reap(1) {
        assert_eq!(status, 0);
        done.push(id);
    }
    assert_eq!(done, submitted);
}

#[test]
fn mistakes_are_answered_with_the_status_that_names_them() {
    let mut driver = Driver::new();
    let blocks = BLOCKS as u64;
    for (status, (opcode, block, count, prp1, prp2)) in [
        (0x080, (2, blocks, 1, DATA, 0)),
        (0x080, (1, blocks - 1, 2, DATA, 0)),
        (0x080, (2, u64::MAX, 1, DATA, 0)),
        (0x002, (2, 0, 257, DATA, LIST)),
        (0x013, (2, 0, 1, DATA + 1, 0)),
        (0x013, (2, 0, 16, DATA, DATA + 0x5008)),
        (0x013, (2, 0, 64, DATA, LIST + 4)),
        (0x004, (1, 0, 1, 0xf000_0000, 0)),
        (0x004, (1, 0, 64, DATA, 0xf000_0000)),
        (0x001, (0x77, 0, 1, DATA, 0)),
    ] {
        let got = driver.io(opcode, block, count, prp1, prp2);
        assert_eq!(got, status, "{opcode} {block} {count} {prp1:#x} {prp2:#x}");
    }
    // A list that leads on to itself, for ever.
    driver.list(LIST + 0xff8, [LIST + 0xff8].into_iter());
    assert_eq!(driver.io(2, 0, 256, DATA, LIST + 0xff8), 0x013);
    let admin = |opcode, dw: [u32; 6]| Entry { opcode, prp1: DATA, namespace: 1, dw, ..Entry::default() };
    for (status, entry) in [
        (0x101, admin(5, [15 << 16 | 99, 3, 0, 0, 0, 0])),
        (0x101, admin(5, [15 << 16 | 1, 3, 0, 0, 0, 0])),
        (0x102, admin(5, [2, 3, 0, 0, 0, 0])),
        (0x108, admin(5, [15 << 16 | 2, 99 << 16 | 3, 0, 0, 0, 0])),
        (0x100, admin(1, [15 << 16 | 2, 9 << 16 | 1, 0, 0, 0, 0])),
        (0x10c, admin(4, [1, 0, 0, 0, 0, 0])),
        (0x101, admin(0, [0, 0, 0, 0, 0, 0])),
        (0x002, admin(6, [0x55, 0, 0, 0, 0, 0])),
        (0x109, admin(2, [0x77, 0, 0, 0, 0, 0])),
        (0x002, admin(9, [0x55, 0, 0, 0, 0, 0])),
        (0x001, admin(0x99, [0; 6])),
    ] {
        assert_eq!(driver.run(0, entry).0, status, "{entry:?}");
    }
    assert_eq!(
        driver.run(0, admin(9, [7, 0xffff_ffff, 0, 0, 0, 0])),
        (0, 15 << 16 | 15),
        "sixteen queues at most"
    );
    assert_eq!(driver.io(2, 0, 1, DATA, 0), 0, "it still works");
}

#[test]
fn queues_can_be_deleted_and_the_controller_reset() {
    let mut driver = Driver::new();
    let delete = |opcode| Entry { opcode, dw: [1, 0, 0, 0, 0, 0], ..Entry::default() };
    assert_eq!(driver.run(0, delete(0)).0, 0);
    assert_eq!(driver.run(0, delete(4)).0, 0);
    let base = World::low_base(0);
    driver.world.write32(base + 0x14, 0x0046_4001);
    assert_eq!(driver.world.read32(base + 0x1c) & 0xc, 8, "shut down");
    driver.world.write32(base + 0x14, 0);
    assert_eq!(driver.world.read32(base + 0x1c), 0);
}

#[test]
fn memory_that_never_answers_fails_the_command_and_not_the_controller() {
    let mut driver = Driver::new();
    let write = Entry { opcode: 1, namespace: 1, prp1: DATA, dw: [0, 0, 7, 0, 0, 0], ..Entry::default() };
    // The network dies between the doorbell and the data: everything up to now is delivered, nothing after.
    driver.world.cut = true;
    driver.submit(1, write);
    driver.world.pass(std::time::Duration::from_secs(2));
    driver.world.cut = false;
    // The doorbell was lost with it. The driver rings again.
    let tail = driver.rings[1].tail;
    driver.world.write32(World::low_base(0) + 0x1008, tail);
    assert_eq!(driver.reap(1).map(|(_, status, _)| status), Some(0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Whatever a guest puts into its queues, the controller completes it, touches nothing but this guest's memory and
    /// blocks, and goes on working.
    #[test]
    fn commands_of_any_kind_are_completed(
        entries in proptest::collection::vec(
            (0usize..2, 0u8..16, prop_oneof![Just(1u32), any::<u32>()],
             prop_oneof![0u64..0x8_0000, any::<u64>()], prop_oneof![0u64..0x8_0000, any::<u64>()],
             any::<[u32; 6]>(), prop_oneof![3 => Just(0u8), 1 => any::<u8>()]), 1..12)
    ) {
        let mut driver = Driver::new();
        for (queue, opcode, namespace, prp1, prp2, mut dw, flags) in entries {
            // Deleting the queue under test, or waiting for an event, leaves nothing to reap; so does a driver that
            // overwrites its own queues, which is why its memory is kept away from them.
            if queue == 0 && matches!(opcode, 0 | 1 | 4 | 5 | 0xc) {
                continue;
            }
            let away = |prp: u64| if prp < 0x1_0000 { prp + 0x1_0000 } else { prp };
            dw[0] %= 4096;
            dw[1] %= 2;
            let entry = Entry { opcode, flags, namespace, prp1: away(prp1), prp2: away(prp2), dw };
            driver.run(queue, entry);
        }
        prop_assert_eq!(driver.io(2, 0, 1, DATA, 0), 0);
        prop_assert_eq!(driver.blocks.0.lock().unwrap().len(), BLOCKS * BLOCK_BYTES);
    }
}
