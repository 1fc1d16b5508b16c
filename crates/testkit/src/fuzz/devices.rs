//! Devices and their peers: vfio-user messages of a virtual machine, packets of a host, packets of a box.

use std::time::{Duration, Instant};

use pcie::endpoint::Endpoint;
use pcie::endpoint::dma::{DmaDevice, DmaOptions};
use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, Nvme, NvmeOptions, StoreError};
use pcie::host::{Access, HostMemory, HostPort, HostPortOptions};
use pcie::tables::{EntryId, Epoch, NodeId, PathId, SlotId};
use pcie::{BoxEndpoints, Switch, SwitchOptions, SwitchOutput, Time, TlpBuf};
use tlp::Tlp;
use vfio_user::message::{Capabilities, Direction, HEADER_BYTES, Header, Reply, Request};
use vfio_user::{AccessId, Answer, Bus, Completions, DATA_BYTES_MAX, Device, Session, Shape};

/// A message of the vfio-user protocol. What decodes, encodes to something that means the same.
pub fn vfio_message(bytes: &[u8]) {
    let Some((head, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(head, DATA_BYTES_MAX) else { return };
    assert_eq!(Header::decode(&header.encode(), DATA_BYTES_MAX), Ok(header));
    let body = &body[..header.body_bytes.min(body.len())];
    match header.direction {
        Direction::Command { .. } => {
            let Ok(request) = Request::decode(header.command, body) else { return };
            let again = request.encode();
            assert_eq!(Request::decode(header.command, &again), Ok(request));
            if let Request::Version { capabilities, .. } = request
                && let Ok(known) = Capabilities::decode(capabilities)
            {
                assert_eq!(Capabilities::decode(&known.encode()).ok(), Some(known));
            }
        }
        Direction::Reply { .. } => {
            let Ok(reply) = Reply::decode(header.command, body) else { return };
            let again = reply.encode();
            assert_eq!(Reply::decode(header.command, &again), Ok(reply));
        }
    }
}

/// A device that checks what it was promised.
struct Promised {
    shape: Shape,
}

impl Promised {
    fn check(&self, region: u32, offset: u64, count: usize) {
        let size = self.shape.regions[region as usize].size;
        assert!(count > 0 && count <= DATA_BYTES_MAX && offset + count as u64 <= size);
    }
}

impl Device for Promised {
    fn shape(&self) -> Shape {
        self.shape.clone()
    }
    fn attach(&mut self, _: Bus) {}
    fn read(&mut self, access: AccessId, region: u32, offset: u64, count: usize) -> Answer<Vec<u8>> {
        self.check(region, offset, count);
        if access.0.is_multiple_of(3) { Answer::Later } else { Answer::Now(vec![0; count]) }
    }
    fn write(&mut self, access: AccessId, region: u32, offset: u64, data: &[u8]) -> Answer<()> {
        self.check(region, offset, data.len());
        if access.0.is_multiple_of(5) { Answer::Later } else { Answer::Now(()) }
    }
    fn reset(&mut self, _: AccessId) -> Answer<()> {
        Answer::Now(())
    }
    fn detach(&mut self) {}
}

/// What a virtual machine sends after it has connected: messages, each with its header, without file descriptors.
pub fn vfio_session(mut bytes: &[u8]) {
    let Ok(completions) = Completions::new() else { return };
    let mut device = Promised { shape: Shape::pci_express(&[4096, 0, 1 << 20], 8, 0) };
    let start = Instant::now();
    let mut session = Session::new(&mut device, completions, Duration::from_millis(10), AccessId(1));
    let mut asked = 0;
    let mut answered = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::decode(head, DATA_BYTES_MAX) else { break };
        let Some((body, rest)) = rest.split_at_checked(header.body_bytes) else { break };
        bytes = rest;
        asked += usize::from(header.direction == Direction::Command { no_reply: false });
        if session.on_message(header, body, Vec::new(), &mut device, start).is_err() {
            // A peer that breaks the protocol is cut off and hears no more.
            asked -= usize::from(header.direction == Direction::Command { no_reply: false });
            break;
        }
        answered += session.take_replies().len();
    }
    session.on_tick(&mut device, start + Duration::from_secs(1));
    answered += session.take_replies().len();
    assert_eq!(asked, answered, "every command is answered once");
    session.close(&mut device);
}

struct Blocks(Vec<u8>);

impl BlockStore for Blocks {
    fn blocks(&self) -> u64 {
        (self.0.len() / BLOCK_BYTES) as u64
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError> {
        into.copy_from_slice(&self.0[block as usize * BLOCK_BYTES..][..into.len()]);
        Ok(())
    }
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError> {
        self.0[block as usize * BLOCK_BYTES..][..from.len()].copy_from_slice(from);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The packets that `bytes` are, up to the first that is none.
fn packets(mut bytes: &[u8]) -> impl Iterator<Item = TlpBuf> {
    std::iter::from_fn(move || {
        let (tlp, rest) = Tlp::decode_front(bytes).ok()?;
        bytes = rest;
        Some(TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() })
    })
}

const NODES: [NodeId; 2] = [NodeId(1), NodeId(2)];

/// Packets of a host, for a switch with an NVMe device and a copying device. Everything that comes out is a packet.
pub fn pcie_from_host(bytes: &[u8]) {
    let mut switch = Switch::new(SwitchOptions { slots: 2, ..SwitchOptions::default() });
    let mut boxes = BoxEndpoints::new(2);
    let dma = DmaDevice::new(DmaOptions { memory_bytes: 1 << 16, ..DmaOptions::default() });
    let devices: [Box<dyn Endpoint>; 2] =
        [Box::new(dma), Box::new(Nvme::new(Blocks(vec![0; 1 << 16]), NvmeOptions::default()))];
    for (slot, device) in devices.into_iter().enumerate() {
        let (entry, slot) = (EntryId(slot as u16), SlotId(slot as u16));
        boxes.insert(slot, device).expect("the slot exists");
        boxes.pair(slot, NODES[0], PathId(0), Epoch(1)).expect("the slot is free");
        switch.plug(entry, NODES[1], slot, PathId(0), Epoch(1)).expect("the row is free");
    }
    let mut now = Time::ZERO;
    for packet in packets(bytes) {
        now += Duration::from_millis(1);
        switch.receive_from_host(packet, now);
        while let Some(output) = switch.next_output() {
            match output {
                SwitchOutput::Up(packet) => assert!(packet.as_tlp().header.check().is_ok()),
                SwitchOutput::Down { route, packet, .. } => {
                    boxes.receive(NODES[0], route.slot, route.epoch, packet, now);
                }
                SwitchOutput::Reset(entry) => boxes.reset(SlotId(entry.0)),
            }
        }
        // A device may be told to copy gigabytes: a bounded part of it is enough here.
        for _ in 0..64 {
            let Some(out) = boxes.transmit(now) else { break };
            assert!(out.packet.header.check().is_ok());
            switch.receive_from_network(NODES[1], out.slot, out.epoch, out.packet, now);
        }
    }
    switch.on_tick(now + Duration::from_secs(1));
    boxes.on_tick(now + Duration::from_secs(10));
}

/// A page of guest memory.
struct Page(std::cell::RefCell<[u8; 4096]>);

impl HostMemory for Page {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let page = self.0.borrow();
        let place = usize::try_from(address).ok().and_then(|at| page.get(at..at.checked_add(into.len())?));
        place.map(|place| into.copy_from_slice(place)).is_some()
    }
    fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut page = self.0.borrow_mut();
        let place =
            usize::try_from(address).ok().and_then(|at| page.get_mut(at..at.checked_add(from.len())?));
        place.map(|place| place.copy_from_slice(from)).is_some()
    }
}

/// Packets of a box, for a host's port that looks at its device and has accesses under way.
pub fn pcie_from_box(bytes: &[u8]) {
    let mut port = HostPort::new(HostPortOptions { msix: true, ..HostPortOptions::default() });
    let memory = Page(std::cell::RefCell::new([0; 4096]));
    port.discover();
    let mut accesses = 0;
    for (n, packet) in packets(bytes).enumerate() {
        let now = Time::from_millis(n as u64);
        while port.transmit(now).is_some() {}
        port.receive(&packet, &memory);
        if n % 4 == 0 {
            accesses += 1;
            port.config_read(Access(n as u64), (n % 4090) as u16, 1 + n % 6);
            port.config_write(Access(n as u64 | 1 << 32), 0x10, &[n as u8; 8]);
            port.bar_read(Access(n as u64 | 2 << 32), (n % 6) as u8, n as u64, 4);
            accesses += 2;
        }
        while let Some(packet) = port.transmit(now) {
            assert!(packet.header.check().is_ok());
        }
    }
    port.on_tick(Time::from_secs(1_000));
    let mut answered = 0;
    port.remove();
    while let Some(output) = port.next_output() {
        answered += usize::from(matches!(output, pcie::host::HostOutput::Done { .. }));
    }
    assert_eq!(accesses, answered, "every access is answered once");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    /// Seeds that stop at their first byte would teach a fuzzer nothing.
    #[test]
    fn every_seed_is_understood_to_its_end() {
        for target in ["pcie_from_host", "pcie_from_box"] {
            for (name, bytes) in corpus::seeds(target).expect("the corpus is there") {
                let length: usize = packets(&bytes).map(|packet| packet.as_tlp().encoded_bytes()).sum();
                assert_eq!(length, bytes.len(), "{target}/{name}");
            }
        }
        for (name, bytes) in corpus::seeds("vfio_message").expect("the corpus is there") {
            let head = bytes.first_chunk::<HEADER_BYTES>().expect("a header");
            let header = Header::decode(head, DATA_BYTES_MAX).expect("a header");
            assert_eq!(header.body_bytes + HEADER_BYTES, bytes.len(), "{name}");
        }
    }
}
