//! Both proxies with a root complex above them and devices below: everything but the network.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, StoreError};
use pcie::flow::{JobId, Requester, RequesterOptions};
use pcie::tables::{EntryId, Epoch, NodeId, PathId, SlotId};
use pcie::{Bdf, BoxEndpoints, Switch, SwitchOptions, SwitchOutput, Time, TlpBuf};
use tlp::{Body, Header, MemoryOp, ReadCompletionBoundary, SizeLimit, Span, Status, TransactionId};

pub const HOST: NodeId = NodeId(1);
pub const BOX: NodeId = NodeId(2);
pub const ROOT: Bdf = Bdf::new(0, 0, 0);

/// Blocks in memory, shared with the test.
#[derive(Clone, Default)]
pub struct Blocks(pub Arc<Mutex<Vec<u8>>>);

impl Blocks {
    pub fn new(count: usize) -> Self {
        let bytes = (0..count * BLOCK_BYTES).map(|n| ((n * 31) >> 3) as u8).collect();
        Self(Arc::new(Mutex::new(bytes)))
    }
}

impl BlockStore for Blocks {
    fn blocks(&self) -> u64 {
        (self.0.lock().unwrap().len() / BLOCK_BYTES) as u64
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let at = block as usize * BLOCK_BYTES;
        into.copy_from_slice(&self.0.lock().unwrap()[at..at + into.len()]);
        Ok(())
    }
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError> {
        let at = block as usize * BLOCK_BYTES;
        self.0.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A host with memory, a switch and one box. Time passes only when the test says so.
pub struct World {
    pub switch: Switch,
    pub boxes: BoxEndpoints,
    pub memory: Vec<u8>,
    /// Writes to where no memory is: interrupts.
    pub interrupts: Vec<(u64, u32)>,
    pub messages: Vec<u8>,
    /// Packets dropped between the proxies when set.
    pub cut: bool,
    pub now: Time,
    requester: Requester,
    next_job: u64,
    answers: BTreeMap<JobId, Option<Vec<u8>>>,
    /// Everything that went through the network, oldest first.
    pub passed: VecDeque<(bool, TlpBuf)>,
}

impl World {
    pub fn new(slots: u16) -> Self {
        let timeout = Duration::from_millis(100);
        Self {
            switch: Switch::new(SwitchOptions { slots, ..SwitchOptions::default() }),
            boxes: BoxEndpoints::new(slots),
            memory: vec![0; 1 << 20],
            interrupts: Vec::new(),
            messages: Vec::new(),
            cut: false,
            now: Time::ZERO,
            requester: Requester::new(RequesterOptions { timeout, ..RequesterOptions::default() }),
            next_job: 0,
            answers: BTreeMap::new(),
            passed: VecDeque::new(),
        }
    }

    /// The manager pairs row `n` with slot `n` of the box, on both ends.
    pub fn plug(&mut self, n: u16, epoch: u64) {
        self.boxes.pair(SlotId(n), HOST, PathId(0), Epoch(epoch)).unwrap();
        self.switch.plug(EntryId(n), BOX, SlotId(n), PathId(0), Epoch(epoch)).unwrap();
        self.settle();
    }

    pub fn unplug(&mut self, n: u16, epoch: u64) {
        self.switch.unplug(EntryId(n), Epoch(epoch)).unwrap();
        self.boxes.clear(SlotId(n), Epoch(epoch)).unwrap();
        self.settle();
    }

    /// Moves packets until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(packet) = self.requester.transmit(ROOT, self.now) {
                self.switch.receive_from_host(packet, self.now);
                moved = true;
            }
            while let Some(output) = self.switch.next_output() {
                moved = true;
                match output {
                    SwitchOutput::Up(packet) => self.at_root(packet),
                    SwitchOutput::Down { route, packet, .. } if !self.cut => {
                        self.passed.push_back((false, packet.clone()));
                        assert_eq!(route.node, BOX);
                        self.boxes.receive(HOST, route.slot, route.epoch, packet, self.now);
                    }
                    SwitchOutput::Down { .. } => {}
                    SwitchOutput::Reset(entry) => self.boxes.reset(SlotId(entry.0)),
                }
            }
            while let Some(out) = self.boxes.transmit(self.now) {
                moved = true;
                assert_eq!(out.host, HOST);
                if !self.cut {
                    self.passed.push_back((true, out.packet.clone()));
                    self.switch.receive_from_network(BOX, out.slot, out.epoch, out.packet, self.now);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.switch.on_tick(self.now);
        self.boxes.on_tick(self.now);
        for finished in self.requester.on_tick(self.now) {
            self.answers.insert(finished.job, finished.outcome.ok());
        }
        self.settle();
    }

    /// A packet at the root complex.
    fn at_root(&mut self, packet: TlpBuf) {
        let header = packet.header;
        match header.body {
            Body::Completion(completion) => {
                match self.requester.on_completion(ROOT, &header, &completion, &packet.payload) {
                    Ok(Some(finished)) => drop(self.answers.insert(finished.job, finished.outcome.ok())),
                    Ok(None) => {}
                    Err(error) => panic!("the root complex was sent {error}"),
                }
            }
            Body::Memory(memory) => {
                let span = memory.span();
                let (first, count) = (span.first_byte() as usize, usize::from(span.byte_count()));
                let inside = first.checked_add(count).is_some_and(|end| end <= self.memory.len());
                match memory.op {
                    MemoryOp::Read => {
                        let limit = SizeLimit::new(128).unwrap();
                        let boundary = ReadCompletionBoundary::Bytes64;
                        let answers: Vec<TlpBuf> = match inside {
                            true => {
                                let data = self.memory[first..first + count].to_vec();
                                TlpBuf::completions(&header, ROOT, first as u64, &data, limit, boundary)
                                    .collect()
                            }
                            false => vec![TlpBuf::completion(&header, ROOT, Status::UnsupportedRequest)],
                        };
                        for answer in answers {
                            self.switch.receive_from_host(answer, self.now);
                        }
                    }
                    _ if inside => {
                        for (at, len) in pcie::enabled_runs(&span) {
                            let to = span.address as usize + at;
                            self.memory[to..to + len].copy_from_slice(&packet.payload[at..at + len]);
                        }
                    }
                    _ => {
                        let data = u32::from_le_bytes(packet.payload[..4].try_into().unwrap());
                        self.interrupts.push((memory.address, data));
                    }
                }
            }
            Body::Message(message) => self.messages.push(message.code),
            _ => panic!("nothing else goes up: {header:?}"),
        }
    }

    fn ask(&mut self, requests: Vec<pcie::flow::Request>, bytes: usize) -> Option<Vec<u8>> {
        self.next_job += 1;
        let job = JobId(self.next_job);
        self.requester.submit(job, bytes, requests);
        self.settle();
        for _ in 0..40 {
            if let Some(answer) = self.answers.remove(&job) {
                return answer;
            }
            self.pass(Duration::from_millis(10));
        }
        panic!("neither an answer nor a timeout");
    }

    fn is_type_1(bus: u8) -> bool {
        bus != 1
    }

    /// Reads a double word of configuration space; none when no device is there.
    pub fn config_read(&mut self, target: Bdf, at: u16) -> Option<u32> {
        let header =
            Header::config_read(TransactionId::default(), Self::is_type_1(target.bus()), target, at & !3);
        let request = pcie::flow::Request { header, payload: vec![], into: 0..4, first_byte: 0 };
        let data = self.ask(vec![request], 4)?;
        Some(u32::from_le_bytes(data.try_into().unwrap()))
    }

    pub fn config_write(&mut self, target: Bdf, at: u16, value: u32) -> bool {
        let type_1 = Self::is_type_1(target.bus());
        let header = Header::config_write(TransactionId::default(), type_1, target, at, 0xf);
        let payload = value.to_le_bytes().to_vec();
        self.ask(vec![pcie::flow::Request { header, payload, into: 0..0, first_byte: 0 }], 0).is_some()
    }

    pub fn read(&mut self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let span = Span::of_bytes(address, bytes as u32).unwrap();
        let header = Header::memory_read(TransactionId::default(), span);
        self.ask(
            vec![pcie::flow::Request { header, payload: vec![], into: 0..bytes, first_byte: address }],
            bytes,
        )
    }

    pub fn read32(&mut self, address: u64) -> u32 {
        self.read(address, 4).map_or(u32::MAX, |data| u32::from_le_bytes(data.try_into().unwrap()))
    }

    pub fn write(&mut self, address: u64, data: &[u8]) {
        let packet = TlpBuf::memory_write(ROOT, address, data).unwrap();
        self.switch.receive_from_host(packet, self.now);
        self.settle();
    }

    pub fn write32(&mut self, address: u64, value: u32) {
        self.write(address, &value.to_le_bytes());
    }

    /// Numbers the buses (1: the upstream port; 2: the ports; 3 and up: a device each) and gives every port 16 MiB below
    /// 4 GiB and 1 GiB above.
    pub fn enumerate(&mut self, slots: u8) {
        let upstream = Bdf::new(1, 0, 0);
        assert!(self.config_write(upstream, 0x18, u32::from(2 + slots) << 16 | 2 << 8 | 1));
        let window = |low: u32, high: u32| (high & 0xfff0_0000) | low >> 16;
        let first = 0x8000_0000u32;
        assert!(self.config_write(upstream, 0x20, window(first, first + (u32::from(slots) << 24) - 1)));
        assert!(self.config_write(upstream, 0x24, 0xfff0_0001));
        assert!(self.config_write(upstream, 0x28, 0x80) && self.config_write(upstream, 0x2c, 0x8f));
        assert!(self.config_write(upstream, 0x04, 6));
        for slot in 0..slots {
            let port = Bdf::new(2, slot, 0);
            let bus = u32::from(3 + slot);
            assert!(self.config_write(port, 0x18, bus << 16 | bus << 8 | 2));
            let base = Self::low_base(slot) as u32;
            assert!(self.config_write(port, 0x20, window(base, base + 0xff_ffff)));
            let high = Self::high_base(slot);
            let range = (high as u32 | 0x3ff0_0000) & 0xfff0_0000 | (high as u32) >> 16 | 0x0001_0001;
            assert!(self.config_write(port, 0x24, range));
            let upper = (high >> 32) as u32;
            assert!(self.config_write(port, 0x28, upper) && self.config_write(port, 0x2c, upper));
            assert!(self.config_write(port, 0x04, 6));
        }
    }

    pub fn low_base(slot: u8) -> u64 {
        0x8000_0000 + (u64::from(slot) << 24)
    }

    pub fn high_base(slot: u8) -> u64 {
        (0x80 + u64::from(slot)) << 32
    }

    pub fn device(slot: u8) -> Bdf {
        Bdf::new(3 + slot, 0, 0)
    }
}
