//! A guest with an NVMe driver, a host's port, a link, a box with a disk: all of the cores, in made-up time. One of the ends,
//! or the network between them, can be paused at any moment.

#![allow(unreachable_pub, reason = "a part of a test")]

use fabric::{
    Endpoint as LinkEnd, Event, Faults, LeaseSecret, Link, LinkConfig, LinkName, PathId as LinkPath, Role,
    Scripted, SendError, Time, Willing,
};
use pcie::endpoint::FunctionOptions;
use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, Nvme, NvmeOptions, StoreError};
use pcie::flow::RequesterOptions;
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use pcie::tables::{Epoch, NodeId, PathId, SlotId};
use pcie::{BoxEndpoints, TlpBuf};
use pcie_proxy::DEVICE_WAITS;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const HOST: usize = 0;
pub const BOX: usize = 1;
/// How long the pool forgives a box that is silent.
pub const PATIENCE: Duration = Duration::from_secs(15);
const PATH: LinkPath = LinkPath(1);
const SLOT: SlotId = SlotId(0);
const NODE: NodeId = NodeId(1);
const DELAY: Duration = Duration::from_micros(10);
const BLOCKS: usize = 64;

const ADMIN_SQ: u64 = 0x1000;
const ADMIN_CQ: u64 = 0x2000;
const IO_SQ: u64 = 0x3000;
const IO_CQ: u64 = 0x4000;
const DATA: u64 = 0x8000;
const ENTRIES: u32 = 16;
const BAR0: u64 = 0xe000_0000;

/// What is paused, when, for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub who: Who,
    /// It begins when so many datagrams have been sent.
    pub after_datagrams: u64,
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Box,
    Host,
    Network,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest did all it wanted, and found everything as it should be.
    Whole,
    /// The link gave its box up.
    Lost,
}

#[derive(Clone, Default)]
pub struct Blocks(pub Arc<Mutex<Vec<u8>>>);

impl BlockStore for Blocks {
    fn blocks(&self) -> u64 {
        BLOCKS as u64
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

struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        self.0.lock().unwrap()[at as usize..at as usize + bytes].to_vec()
    }
}

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let memory = self.0.lock().unwrap();
        let Some(from) = memory.get(address as usize..address as usize + into.len()) else { return false };
        into.copy_from_slice(from);
        true
    }
    fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut memory = self.0.lock().unwrap();
        let Some(into) = memory.get_mut(address as usize..address as usize + from.len()) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }
}

#[derive(Default)]
struct Ring {
    tail: u32,
    head: u32,
    phase: bool,
}

pub struct World {
    pub now: Time,
    pub datagrams: u64,
    pub blocks: Blocks,
    port: HostPort,
    boxes: BoxEndpoints,
    memory: Memory,
    links: [Option<Link>; 2],
    nets: [Scripted; 2],
    waiting: [VecDeque<TlpBuf>; 2],
    stopped_until: [Time; 2],
    pause: Option<Pause>,
    lost: bool,
    is_discovered: bool,
    answers: HashMap<u64, Option<Vec<u8>>>,
    next_access: u64,
    rings: [Ring; 2],
    next_id: u16,
    datagram: Vec<u8>,
}

impl World {
    pub fn new(pause: Option<Pause>) -> Self {
        let blocks = Blocks(Arc::new(Mutex::new(vec![0x5a; BLOCKS * BLOCK_BYTES])));
        let function = FunctionOptions { timeout: DEVICE_WAITS, ..FunctionOptions::default() };
        let nvme = Nvme::new(blocks.clone(), NvmeOptions { function, ..NvmeOptions::default() });
        let mut boxes = BoxEndpoints::new(1);
        boxes.insert(SLOT, Box::new(nvme)).unwrap();
        let timeout = PATIENCE + Duration::from_secs(1);
        let requester = RequesterOptions { timeout, ..RequesterOptions::default() };
        let faults = Faults { delay: DELAY, ..Faults::default() };
        let ring = || Ring { phase: true, ..Ring::default() };
        Self {
            now: Time(0),
            datagrams: 0,
            blocks,
            port: HostPort::new(HostPortOptions { requester, ..HostPortOptions::default() }),
            boxes,
            memory: Memory(Mutex::new(vec![0; 1 << 17])),
            links: [None, None],
            nets: [Scripted::new(1, faults), Scripted::new(2, faults)],
            waiting: Default::default(),
            stopped_until: [Time(0); 2],
            pause,
            lost: false,
            is_discovered: false,
            answers: HashMap::new(),
            next_access: 0,
            rings: [ring(), ring()],
            next_id: 0,
            datagram: vec![0; 65_536],
        }
    }

    fn link(role: Role, now: Time) -> Link {
        let (host, slot) = (LinkEnd::host(1), LinkEnd::new(2, 0));
        let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
        let secret = LeaseSecret([9; 32]);
        let random = [role as u8 + 1; 32];
        let mut config = LinkConfig::new(role, LinkName(7), Epoch(1), secret, random, ends);
        config.silent_after = PATIENCE;
        Link::new(config, now).unwrap()
    }

    fn runs(&self, end: usize) -> bool {
        self.now >= self.stopped_until[end]
    }

    /// The pause begins when its moment has come.
    fn begin_pause(&mut self) {
        let Some(pause) = self.pause.filter(|pause| self.datagrams >= pause.after_datagrams) else { return };
        self.pause = None;
        let until = self.now.after(pause.lasts);
        match pause.who {
            Who::Box => self.stopped_until[BOX] = until,
            Who::Host => self.stopped_until[HOST] = until,
            Who::Network => self.nets.iter_mut().for_each(|net| net.cut(PATH, self.now, until)),
        }
    }

    /// Everything that happens at this moment.
    fn settle(&mut self) {
        loop {
            let before = self.datagrams;
            let mut has_moved = false;
            for end in [HOST, BOX] {
                if self.runs(end) {
                    has_moved |= self.turn(end);
                }
            }
            if !has_moved && self.datagrams == before {
                return;
            }
        }
    }

    /// One turn of one end's thread.
    fn turn(&mut self, end: usize) -> bool {
        let Some(mut link) = self.links[end].take() else { return false };
        let now = self.now;
        let mut has_moved = false;
        while let Some(datagram) = self.nets[1 - end].receive(self.now) {
            link.on_datagram(self.now, datagram);
            has_moved = true;
        }
        while let Some(event) = link.next_event() {
            if event == Event::Silent && end == HOST {
                self.lost = true;
                self.port.remove();
            }
        }
        while let Some(tlp) = link.receive(Willing::ALL) {
            let packet = TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() };
            has_moved = true;
            match end {
                HOST => self.port.receive(&packet, &self.memory),
                _ => self.boxes.receive(NODE, SLOT, Epoch(1), packet, now),
            }
        }
        match end {
            HOST => self.port.on_tick(now),
            _ => self.boxes.on_tick(now),
        }
        loop {
            let next = match end {
                HOST => self.port.transmit(now),
                _ => self.boxes.transmit_slot(SLOT, now),
            };
            let Some(packet) = next else { break };
            self.waiting[end].push_back(packet);
        }
        while let Some(packet) = self.waiting[end].front() {
            match link.send(&packet.as_tlp()) {
                Err(SendError::Full(_)) => break,
                sent => sent.unwrap(),
            }
            self.waiting[end].pop_front();
            has_moved = true;
        }
        while let Some(transmit) = link.transmit(self.now, &mut self.datagram) {
            self.nets[end].send(self.now, transmit.path, &self.datagram[..transmit.bytes]);
            self.datagrams += 1;
            has_moved = true;
            self.begin_pause();
            if !self.runs(end) {
                break;
            }
        }
        self.links[end] = Some(link);
        while let Some(output) = self.port.next_output() {
            match output {
                HostOutput::Done { access, data } => drop(self.answers.insert(access.0, data)),
                HostOutput::Discovered(found) => {
                    self.is_discovered = found.is_ok();
                }
                HostOutput::Msi(_) | HostOutput::Msix(_) | HostOutput::Error { .. } => {}
            }
        }
        has_moved
    }

    /// Goes on to the next moment at which something can happen, `at_most` at most.
    fn advance(&mut self, at_most: Time) {
        let mut next = at_most;
        for end in [HOST, BOX] {
            let mut due: Vec<Option<Time>> = vec![self.nets[1 - end].next_at()];
            due.push(self.links[end].as_mut().and_then(Link::wake_at));
            let own = if end == HOST { self.port.wake_at() } else { self.boxes.wake_at() };
            due.push(own);
            if let Some(at) = due.into_iter().flatten().min() {
                next = next.min(at.max(self.stopped_until[end]));
            }
        }
        self.now = Time(next.0.max(self.now.0 + 1));
    }

    /// Lets everything run until `is_done`, or the device is lost.
    fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) -> Result<(), End> {
        let limit = self.now.after(Duration::from_secs(120));
        loop {
            self.settle();
            if self.runs(HOST) && is_done(self) {
                return Ok(());
            }
            if self.lost {
                return Err(End::Lost);
            }
            assert!(self.now < limit, "{what} never happens; paused: {:?}", self.stopped_until);
            self.advance(limit);
        }
    }

    /// Neither end does anything for a while.
    fn idle(&mut self, time: Duration) -> Result<(), End> {
        let until = self.now.after(time);
        while self.now < until {
            self.settle();
            self.advance(until);
        }
        self.until("the host runs", |_| true)
    }

    /// What the guest gets for an access; none where no device is there.
    fn answer_or_none(&mut self, ask: impl FnOnce(&mut HostPort, Access)) -> Result<Option<Vec<u8>>, End> {
        self.until("the host runs", |_| true)?;
        self.next_access += 1;
        let access = self.next_access;
        ask(&mut self.port, Access(access));
        self.until("an answer", |world| world.answers.contains_key(&access))?;
        Ok(self.answers.remove(&access).flatten())
    }

    /// Only a device that was given up answers nothing.
    fn answer(&mut self, ask: impl FnOnce(&mut HostPort, Access)) -> Result<Vec<u8>, End> {
        let data = self.answer_or_none(ask)?;
        assert!(data.is_some() || self.lost, "no answer from a device that is there");
        data.ok_or(End::Lost)
    }

    pub fn config_read(&mut self, at: u16, bytes: usize) -> Result<Option<Vec<u8>>, End> {
        self.answer_or_none(|port, access| port.config_read(access, at, bytes))
    }

    fn config_write(&mut self, at: u16, data: &[u8]) -> Result<(), End> {
        self.answer(|port, access| port.config_write(access, at, data)).map(drop)
    }

    fn register(&mut self, at: u64) -> Result<u32, End> {
        let data = self.answer(|port, access| port.bar_read(access, 0, at, 4))?;
        Ok(u32::from_le_bytes(data.try_into().unwrap()))
    }

    fn set(&mut self, at: u64, data: &[u8]) -> Result<(), End> {
        self.until("the host runs", |_| true)?;
        self.port.bar_write(0, at, data);
        Ok(())
    }

    /// What the manager has both agents do: the box's row, then the host's link and its look at the device.
    pub fn plug(&mut self) -> Result<(), End> {
        self.boxes.pair(SLOT, NODE, PathId(1), Epoch(1)).unwrap();
        self.links[BOX] = Some(Self::link(Role::Box, self.now));
        self.links[HOST] = Some(Self::link(Role::Host, self.now));
        self.begin_pause();
        self.until("a greeting", |world| world.links[HOST].as_ref().is_some_and(Link::is_established))?;
        self.port.discover();
        self.until("a look at the device", |world| world.is_discovered)
    }

    /// As QEMU takes a device: a copy of configuration space, and a walk over its lists of capabilities.
    pub fn realise(&mut self) -> Result<(), End> {
        let config = self.answer(|port, access| port.config_read(access, 0, 4096))?;
        assert_eq!(config[9..12], [0x02, 0x08, 0x01], "an NVMe controller");
        walk(&config);
        Ok(())
    }

    /// As a driver brings it up.
    pub fn bring_up(&mut self) -> Result<(), End> {
        self.config_write(0x10, &(BAR0 as u32).to_le_bytes())?;
        self.config_write(0x14, &0u32.to_le_bytes())?;
        self.config_write(0x04, &6u16.to_le_bytes())?;
        self.set(0x24, &((ENTRIES - 1) << 16 | (ENTRIES - 1)).to_le_bytes())?;
        self.set(0x28, &ADMIN_SQ.to_le_bytes())?;
        self.set(0x30, &ADMIN_CQ.to_le_bytes())?;
        self.set(0x14, &0x0046_0001u32.to_le_bytes())?;
        assert_eq!(self.register(0x1c)?, 1, "it is ready");
        let size = (ENTRIES - 1) << 16 | 1;
        self.command(0, 5, IO_CQ, [size, 1, 0])?;
        self.command(0, 1, IO_SQ, [size, 1 << 16 | 1, 0])
    }

    /// One command, to its end; anything but success is a broken promise.
    fn command(&mut self, queue: usize, opcode: u8, prp: u64, dw: [u32; 3]) -> Result<(), End> {
        self.next_id += 1;
        let mut entry = [0u8; 64];
        entry[0] = opcode;
        entry[2..4].copy_from_slice(&self.next_id.to_le_bytes());
        entry[4..8].copy_from_slice(&(queue as u32).to_le_bytes());
        entry[24..32].copy_from_slice(&prp.to_le_bytes());
        for (n, dw) in dw.iter().enumerate() {
            entry[40 + 4 * n..44 + 4 * n].copy_from_slice(&dw.to_le_bytes());
        }
        let (sq, cq) = ([ADMIN_SQ, IO_SQ][queue], [ADMIN_CQ, IO_CQ][queue]);
        let tail = self.rings[queue].tail;
        assert!(self.memory.write(sq + 64 * u64::from(tail), &entry));
        self.rings[queue].tail = (tail + 1) % ENTRIES;
        let tail = self.rings[queue].tail;
        self.set(0x1000 + 8 * queue as u64, &tail.to_le_bytes())?;
        let (head, phase) = (self.rings[queue].head, self.rings[queue].phase);
        let place = cq + 16 * u64::from(head);
        self.until("a completion", |world| (world.memory.get(place + 14, 1)[0] & 1 != 0) == phase)?;
        let status = u16::from_le_bytes(self.memory.get(place + 14, 2).try_into().unwrap()) >> 1;
        assert_eq!(status, 0, "command {opcode} of queue {queue} failed");
        let ring = &mut self.rings[queue];
        ring.head += 1;
        if ring.head == ENTRIES {
            (ring.head, ring.phase) = (0, !ring.phase);
        }
        let head = self.rings[queue].head;
        self.set(0x1004 + 8 * queue as u64, &head.to_le_bytes())
    }

    /// Writes, rests, reads again: everything must be as it was written, here and on the medium.
    pub fn use_it(&mut self) -> Result<(), End> {
        for round in 0..4u8 {
            let block = u32::from(round) * 8;
            let data: Vec<u8> = (0..8 * BLOCK_BYTES).map(|n| (n as u8) ^ round.wrapping_mul(37)).collect();
            assert!(self.memory.write(DATA, &data));
            self.command(1, 1, DATA, [block, 0, 7])?;
            self.idle(Duration::from_millis(700 * u64::from(round)))?;
            assert!(self.memory.write(DATA, &vec![0; data.len()]));
            self.command(1, 2, DATA, [block, 0, 7])?;
            assert_eq!(self.memory.get(DATA, data.len()), data, "round {round}");
            let at = block as usize * BLOCK_BYTES;
            assert_eq!(self.blocks.0.lock().unwrap()[at..at + data.len()], data, "round {round}");
        }
        self.command(1, 0, 0, [0; 3])
    }

    /// The guest lets go, the host ends the link, the box its row. Nothing on the medium has changed.
    pub fn unplug(&mut self) -> Result<(), End> {
        self.config_write(0x04, &0u16.to_le_bytes())?;
        let before = self.blocks.0.lock().unwrap().clone();
        self.port.remove();
        self.links[HOST] = None;
        self.now = self.now.max(self.stopped_until[BOX]);
        self.boxes.clear(SLOT, Epoch(1)).unwrap();
        self.links[BOX] = None;
        assert_eq!(*self.blocks.0.lock().unwrap(), before, "nothing is emptied by taking it out");
        Ok(())
    }

    /// All of it.
    pub fn story(&mut self) -> End {
        let told = self
            .plug()
            .and_then(|()| self.realise())
            .and_then(|()| self.bring_up())
            .and_then(|()| self.use_it())
            .and_then(|()| self.unplug());
        told.err().unwrap_or(End::Whole)
    }
}

/// As QEMU walks: without counting. Here a list that has no end is found by counting.
pub fn walk(config: &[u8]) {
    let mut steps = 0;
    let mut at = usize::from(config[0x34]);
    while at != 0 {
        steps += 1;
        assert!(steps <= 48, "the list of capabilities has no end");
        at = usize::from(config[at + 1]);
    }
    let (mut steps, mut at) = (0, 0x100);
    while at != 0 {
        steps += 1;
        assert!(steps <= 480, "the list of extended capabilities has no end");
        at = (u32::from_le_bytes(config[at..at + 4].try_into().unwrap()) >> 20 & 0xffc) as usize;
    }
}
