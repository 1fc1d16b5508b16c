//! Both proxies, a switch and devices: enumeration, routing, hot-plug, removal, and proxies that lie.

mod world;

use pcie::endpoint::dma::{DmaDevice, DmaOptions, doorbell};
use pcie::endpoint::nvme::{Nvme, NvmeOptions};
use pcie::tables::{EntryId, Epoch, NodeId, SlotId};
use pcie::{Bdf, TlpBuf};
use tlp::{Body, Header, Span, Status, Tag, TransactionId};
use world::{BOX, Blocks, HOST, World};

/// Two DMA devices and an NVMe device, enumerated, with memory placed and engines allowed to act.
fn three_devices() -> World {
    let mut world = World::new(3);
    for slot in 0..2u16 {
        let options = DmaOptions { memory_bytes: 1 << 20, ..DmaOptions::default() };
        world.boxes.insert(SlotId(slot), Box::new(DmaDevice::new(options))).unwrap();
    }
    let nvme = Nvme::new(Blocks::new(256), NvmeOptions::default());
    world.boxes.insert(SlotId(2), Box::new(nvme)).unwrap();
    for slot in 0..3 {
        world.plug(slot, 1);
    }
    world.enumerate(3);
    for slot in 0..3 {
        place(&mut world, slot);
    }
    world
}

fn place(world: &mut World, slot: u8) {
    let device = World::device(slot);
    assert!(world.config_write(device, 0x10, World::low_base(slot) as u32));
    assert!(world.config_write(device, 0x14, 0));
    assert!(world.config_write(device, 0x18, World::high_base(slot) as u32));
    assert!(world.config_write(device, 0x1c, (World::high_base(slot) >> 32) as u32));
    // MSI to an address of its own, with the slot in the number.
    assert!(world.config_write(device, 0x54, 0xfee0_0000));
    assert!(world.config_write(device, 0x5c, 0x40 + 0x10 * u32::from(slot)));
    assert!(world.config_write(device, 0x50, 0x0011_0000));
    assert!(world.config_write(device, 0x04, 6));
}

/// Has engine 0 of a DMA device copy, and gives its status.
fn copy(world: &mut World, slot: u8, host: u64, device: u64, bytes: u32, kind: u32) -> u32 {
    let base = World::low_base(slot);
    world.write(base, &host.to_le_bytes());
    world.write(base + 8, &device.to_le_bytes());
    world.write32(base + 0x10, bytes);
    world.write32(base + 0x1c, 1);
    world.write32(base + 0x14, kind);
    world.read32(base + 0x18)
}

#[test]
fn the_host_finds_the_switch_and_what_is_in_its_slots() {
    let mut world = World::new(3);
    world.boxes.insert(SlotId(1), Box::new(DmaDevice::new(DmaOptions::default()))).unwrap();
    world.plug(1, 1);
    assert_eq!(world.config_read(Bdf::new(1, 0, 0), 0), Some(0xd801_1b36));
    assert_eq!(world.config_read(Bdf::new(2, 0, 0), 0), None, "buses are not numbered yet");
    world.enumerate(3);
    for port in 0..3 {
        assert_eq!(world.config_read(Bdf::new(2, port, 0), 0), Some(0xd802_1b36));
    }
    assert_eq!(world.config_read(Bdf::new(2, 3, 0), 0), None);
    assert_eq!(world.config_read(Bdf::new(2, 0, 1), 0), None);
    assert_eq!(world.config_read(World::device(1), 0), Some(0xd803_1b36));
    assert_eq!(world.config_read(World::device(0), 0), None, "an empty slot");
    assert_eq!(world.config_read(Bdf::new(4, 1, 0), 0), None, "only device 0 is on a link");
    assert_eq!(world.config_read(Bdf::new(9, 0, 0), 0), None);
    let row = *world.switch.table().entry(EntryId(1)).unwrap();
    assert_eq!((row.used, row.bus, row.device), (true, Some(4), 0));
    assert_eq!(row.memory.unwrap().base, World::low_base(1));
    assert_eq!(row.prefetchable.unwrap().limit, World::high_base(1) + 0x3fff_ffff);
    assert!(!world.switch.table().has_overlaps());
}

#[test]
fn engines_copy_both_ways_and_the_interrupt_comes_last() {
    let mut world = three_devices();
    let pattern: Vec<u8> = (0..200_000u32).map(|n| ((n * 7) >> 2) as u8).collect();
    world.memory[0x1_0001..0x1_0001 + pattern.len()].copy_from_slice(&pattern);
    assert_eq!(copy(&mut world, 0, 0x1_0001, 0x40, 200_000, doorbell::READ), 2);
    assert_eq!(world.read(World::high_base(0) + 0x40, 256).unwrap(), pattern[..256]);
    assert_eq!(world.interrupts, [(0xfee0_0000, 0x41)]);
    assert_eq!(copy(&mut world, 0, 0x8_0003, 0x40, 200_000, doorbell::WRITE), 2);
    assert_eq!(world.memory[0x8_0003..][..200_000], pattern[..]);
    // Pushed: no read crosses the network.
    world.passed.clear();
    for (n, piece) in pattern[..4096].chunks(128).enumerate() {
        world.write(World::high_base(1) + n as u64 * 128, piece);
    }
    assert_eq!(copy(&mut world, 1, 0, 0, 4096, doorbell::PUSHED), 2);
    let device_reads = world.passed.iter().filter(|(up, packet)| {
        *up && matches!(packet.header.body, Body::Memory(m) if m.op == tlp::MemoryOp::Read)
    });
    assert_eq!(device_reads.count(), 0);
    assert_eq!(world.read(World::high_base(1) + 0xf80, 128).unwrap(), pattern[0xf80..0x1000]);
    assert_eq!(copy(&mut world, 0, 0xf000_0000, 0, 4096, doorbell::READ), 3, "no memory there");
    assert_eq!(copy(&mut world, 0, 0, 1 << 20, 1, doorbell::READ), 3, "beyond the device's memory");
}

#[test]
fn without_permission_to_be_master_nothing_is_read() {
    let mut world = three_devices();
    assert!(world.config_write(World::device(0), 0x04, 2));
    assert_eq!(copy(&mut world, 0, 0x1000, 0, 4096, doorbell::READ), 3);
    assert!(world.config_write(World::device(0), 0x04, 6));
    // Neither does its port let anything through.
    assert!(world.config_write(Bdf::new(2, 0, 0), 0x04, 2));
    assert_eq!(copy(&mut world, 0, 0x1000, 0, 4096, doorbell::READ), 3);
}

#[test]
fn a_device_that_is_torn_out_leaves_no_request_behind() {
    let mut world = three_devices();
    // Slot control: interrupts on presence and link changes; the port's own MSI.
    let port = Bdf::new(2, 0, 0);
    assert!(world.config_write(port, 0x54, 0xfee0_1000) && world.config_write(port, 0x5c, 0x99));
    assert!(world.config_write(port, 0x50, 0x0001_0000));
    assert!(world.config_write(port, 0x98, 0x0000_1028));
    world.interrupts.clear();
    world.cut = true;
    let before = world.now;
    // Asked while the network is dead: the switch answers for the device after its timeout.
    assert_eq!(world.read(World::low_base(0), 4), None);
    assert!(world.now.since(before) <= std::time::Duration::from_millis(60));
    let aer = world.config_read(port, 0x104).unwrap();
    assert_eq!(aer & 1 << 14, 1 << 14, "completion timeout");
    world.unplug(0, 2);
    assert_eq!(world.interrupts, [(0xfee0_1000, 0x99)]);
    let status = world.config_read(port, 0x98).unwrap() >> 16;
    assert_eq!(status & 0x148, 0x108, "presence and link changed, nobody present");
    assert_ne!(world.config_read(port, 0x104).unwrap() & 1 << 5, 0, "surprise down");
    world.cut = false;
    assert_eq!(world.config_read(World::device(0), 0), None);
    assert_eq!(world.read32(World::low_base(1) + 0x18), 0, "its neighbours live");
    // Back again, as after power-on, in a later epoch.
    world.plug(0, 3);
    assert_eq!(world.config_read(World::device(0), 0x04).unwrap() & 7, 0);
    place(&mut world, 0);
    assert_eq!(copy(&mut world, 0, 0x1000, 0, 4096, doorbell::READ), 2);
}

#[test]
fn removal_by_request_ends_with_the_power_off() {
    let mut world = three_devices();
    let port = Bdf::new(2, 1, 0);
    world.switch.request_removal(EntryId(1));
    assert_ne!(world.config_read(port, 0x98).unwrap() >> 16 & 1, 0, "the button is pressed");
    // Power on first (it was plugged in off), then off: that resets the device.
    assert!(world.config_write(port, 0x98, 0x0000_01c0));
    world.write32(World::low_base(1) + 0x10, 77);
    assert_eq!(world.read32(World::low_base(1) + 0x10), 77);
    assert!(world.config_write(port, 0x98, 0x0000_07c0));
    assert_eq!(world.config_read(World::device(1), 0x04).unwrap() & 7, 0, "as after power-on");
    world.unplug(1, 2);
    let aer = world.config_read(port, 0x104).unwrap();
    assert_eq!(aer & 1 << 5, 0, "no surprise");
}

#[test]
fn a_reset_of_the_secondary_bus_resets_the_device() {
    let mut world = three_devices();
    let port = Bdf::new(2, 1, 0);
    assert!(world.config_write(port, 0x3c, 0x0040_0000));
    assert!(world.config_write(port, 0x3c, 0));
    assert_eq!(world.config_read(World::device(1), 0x10), Some(0));
    assert_ne!(world.config_read(World::device(0), 0x10), Some(0));
}

fn write_to(requester: Bdf, address: u64) -> TlpBuf {
    TlpBuf::memory_write(requester, address, &[0xee; 64]).unwrap()
}

/// The box's proxy is taken over. Whatever it sends, only the memory its own device may reach changes, and no other
/// device is answered.
#[test]
fn a_box_that_lies_reaches_nobody_else() {
    let mut world = three_devices();
    let read = |requester: Bdf, address: u64| {
        let id = TransactionId::new(requester, Tag::new(5).unwrap());
        TlpBuf::bare(Header::memory_read(id, Span::of_bytes(address, 64).unwrap()))
    };
    let completion = |requester: Bdf, tag: u16| {
        let id = TransactionId::new(requester, Tag::new(tag).unwrap());
        let asked = Header::memory_read(id, Span::of_bytes(0, 4).unwrap());
        let mut packet = TlpBuf::completion(&asked, World::device(0), Status::Success);
        if let Body::Completion(completion) = &mut packet.header.body {
            completion.length_dw = 1;
        }
        packet.payload = vec![0xee; 4];
        packet
    };
    let (own, other) = (World::device(0), World::device(1));
    world.memory.fill(0);
    let now = world.now;
    let send = |world: &mut World, source: NodeId, slot: u16, epoch: u64, packet: TlpBuf| {
        world.switch.receive_from_network(source, SlotId(slot), Epoch(epoch), packet, now);
        world.settle();
    };
    // Wrong routes and epochs.
    send(&mut world, NodeId(7), 0, 1, write_to(own, 0x100));
    send(&mut world, HOST, 0, 1, write_to(own, 0x100));
    send(&mut world, BOX, 9, 1, write_to(own, 0x100));
    send(&mut world, BOX, 0, 0, write_to(own, 0x100));
    send(&mut world, BOX, 0, 2, write_to(own, 0x100));
    assert_eq!(world.switch.violations().not_paired, 5);
    // In another's name.
    send(&mut world, BOX, 0, 1, write_to(other, 0x100));
    send(&mut world, BOX, 0, 1, read(other, 0x100));
    send(&mut world, BOX, 0, 1, write_to(Bdf::new(0, 0, 0), 0x100));
    send(&mut world, BOX, 0, 1, write_to(Bdf::new(2, 0, 0), 0x100));
    assert_eq!(world.switch.violations().foreign_requester, 4);
    // Completions without a request, for every requester and tag there is.
    for requester in [world::ROOT, own, other, Bdf::new(2, 1, 0)] {
        for tag in [0, 1, 31, 255, 1023] {
            send(&mut world, BOX, 0, 1, completion(requester, tag));
        }
    }
    assert_eq!(world.switch.violations().unexpected_completion, 20);
    assert!(world.memory.iter().all(|byte| *byte == 0));
    assert!(world.interrupts.is_empty() && world.messages.is_empty());
    // A neighbour's registers and memory: the write goes up, where the root complex has nothing at that address.
    send(&mut world, BOX, 0, 1, write_to(own, World::high_base(1)));
    send(&mut world, BOX, 0, 1, write_to(own, World::low_base(1)));
    assert!(world.read(World::high_base(1), 64).unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(world.read32(World::low_base(1)), 0);
    // Configuration of others, and broadcast messages, go nowhere.
    let id = TransactionId::new(own, Tag::new(1).unwrap());
    let config = TlpBuf { header: Header::config_write(id, true, other, 0x04, 0xf), payload: vec![0; 4] };
    send(&mut world, BOX, 0, 1, config);
    let broadcast = Header::message(own, tlp::MessageRouting::Broadcast, 0x19);
    send(&mut world, BOX, 0, 1, TlpBuf::bare(broadcast));
    assert_eq!(world.config_read(other, 0x04).unwrap() & 7, 6);
    assert!(world.messages.is_empty());
    // And its own device still works.
    assert_eq!(copy(&mut world, 0, 0x1000, 0, 4096, doorbell::READ), 2);
}

/// The host's proxy is taken over: it reaches the device it was given, and no other.
#[test]
fn a_host_that_lies_reaches_no_device_but_its_own() {
    let mut world = three_devices();
    let now = world.now;
    let mut write = write_to(world::ROOT, World::low_base(1) + 0x10);
    write.payload.fill(0xee);
    let refused = world.boxes.refused();
    for (source, slot, epoch) in [(NodeId(9), 1, 1), (HOST, 1, 0), (HOST, 1, 2), (HOST, 7, 1), (BOX, 1, 1)] {
        world.boxes.receive(source, SlotId(slot), Epoch(epoch), write.clone(), now);
    }
    assert_eq!(world.boxes.refused(), refused + 5);
    assert_eq!(world.read32(World::low_base(1) + 0x10), 0);
    // After the pairing ended, the old host is a stranger and the device has forgotten it.
    world.write32(World::low_base(1) + 0x10, 1234);
    world.write(World::high_base(1), &[0xaa; 64]);
    world.unplug(1, 2);
    world.boxes.receive(HOST, SlotId(1), Epoch(1), write, now);
    assert_eq!(world.boxes.refused(), refused + 6);
    world.plug(1, 3);
    place(&mut world, 1);
    assert_eq!(world.read32(World::low_base(1) + 0x10), 0);
    assert!(
        world.read(World::high_base(1), 64).unwrap().iter().all(|byte| *byte == 0),
        "no data left behind"
    );
}

#[test]
fn the_power_goes_off_when_every_device_has_agreed() {
    let mut world = three_devices();
    let off = Header::message(world::ROOT, tlp::MessageRouting::Broadcast, tlp::code::PME_TURN_OFF);
    world.switch.receive_from_host(TlpBuf::bare(off), world.now);
    world.settle();
    assert_eq!(world.messages, [tlp::code::PME_TO_ACK]);
}
