//! Devices, proxies and a host, and the time that everything between them takes.

use super::super::agenda::{Agenda, Instant, ps};
use super::super::constants::Constants;
use super::super::crossing::Wire;
use super::super::traffic::{Traffic, Volume};
use super::super::world::{Layout, WIRE_PART, memory_us, next_unit};
use super::memory::Memory;
use super::pair::{Pair, Way};
use bench_harness::copier::{Copier, MEMORY_BAR, MEMORY_BYTES, copier, ring, window};
use fabric::{LinkName, Willing};
use pcie::endpoint::Endpoint;
use pcie::endpoint::dma::{DmaDevice, doorbell};
use pcie::host::HostPort;
use pcie::{SizeLimit, Time, TlpBuf};
use std::collections::VecDeque;
use tlp::{Body, Class};

/// Half of a device's memory: one engine's.
const HALF: u32 = (MEMORY_BYTES / 2) as u32;
/// The longest datagram of a network that is made for it.
const JUMBO_BYTES: usize = 4096;
/// What the host stores at a time.
const STORE_BYTES: usize = 4096;

enum Event {
    /// A device, or the host on its behalf, looks whether it can send.
    Issue {
        gpu: usize,
    },
    /// A device begins its next transfers.
    Begin {
        gpu: usize,
    },
    /// A packet reaches the near proxy.
    AtProxy {
        gpu: usize,
        way: Way,
        packet: TlpBuf,
    },
    /// A proxy looks for something to send.
    Ask {
        pair: usize,
        way: Way,
    },
    /// A datagram reaches the far proxy of a way.
    Datagram {
        pair: usize,
        way: Way,
        link: LinkName,
        bytes: Vec<u8>,
    },
    /// The far proxy takes TLPs from its link.
    Take {
        gpu: usize,
        way: Way,
    },
    /// A packet leaves the far proxy.
    Crossed {
        gpu: usize,
        way: Way,
        packet: TlpBuf,
    },
    AtHost {
        gpu: usize,
        packet: TlpBuf,
    },
    /// Host memory has the data of a read.
    FromHost {
        gpu: usize,
        packet: TlpBuf,
    },
    AtGpu {
        gpu: usize,
        packet: TlpBuf,
    },
}

struct Gpu {
    traffic: Traffic,
    device: DmaDevice,
    port: HostPort,
    up: Wire,
    down: Wire,
    /// Packets on the way to its proxy, or waiting there.
    waiting: [usize; 2],
    /// Of a step that is under way.
    bytes_awaited: u64,
    /// Stores of the host that are not sent yet, and where the next ones go.
    stores: VecDeque<TlpBuf>,
    store_at: u64,
}

/// The whole simulation.
pub struct CoreWorld {
    constants: Constants,
    layout: Layout,
    gpus: Vec<Gpu>,
    pairs: Vec<Pair>,
    memory: Memory,
    memory_time: Instant,
    /// TLPs on their way, by GPU, as last looked at: up, down.
    counts: [Vec<usize>; 2],
    agenda: Agenda<Event>,
    now: Instant,
    moved: Volume,
    /// Times at which reads were issued, if they are recorded.
    issues: Option<Vec<Instant>>,
}

impl CoreWorld {
    /// A world in which GPU `i` does `traffic[i]`, beginning at a time within `spread_us` that `seed` picks.
    pub fn new(
        constants: &Constants,
        layout: Layout,
        traffic: &[Traffic],
        seed: u64,
        spread_us: f64,
    ) -> Self {
        Self::with_datagrams(constants, layout, traffic, seed, spread_us, JUMBO_BYTES)
    }

    /// The same with datagrams of another length: long ones carry more, short ones delay no other link.
    pub fn with_datagrams(
        constants: &Constants,
        layout: Layout,
        traffic: &[Traffic],
        seed: u64,
        spread_us: f64,
        datagram_bytes: usize,
    ) -> Self {
        let wire = |latency_us| Wire::new(constants.wire_gbps * constants.wire_efficiency, latency_us);
        let hop_us = constants.native_rtt_us * WIRE_PART;
        let gpu_wire = wire(if layout == Layout::Native { 2.0 * hop_us } else { hop_us });
        let how = Copier {
            tags: constants.tags.round().clamp(1.0, 768.0) as u16,
            read_bytes: size(constants.read_request_bytes),
            payload_bytes: size(constants.write_payload_bytes),
        };
        let gpus = traffic.iter().enumerate().map(|(gpu, &traffic)| {
            let (device, port) = copier(how, gpu);
            Gpu {
                traffic,
                device,
                port,
                up: gpu_wire,
                down: gpu_wire,
                waiting: [0; 2],
                bytes_awaited: 0,
                stores: VecDeque::new(),
                store_at: 0,
            }
        });
        let pairs = match &layout {
            Layout::Native => Vec::new(),
            Layout::Remote { proxy_of } => {
                let count = proxy_of.iter().max().map_or(0, |last| last + 1);
                let of = |pair| (0..traffic.len()).filter(move |gpu| proxy_of[*gpu] == pair);
                (0..count).map(|pair| Pair::new(constants, of(pair), &wire(hop_us), datagram_bytes)).collect()
            }
        };
        let mut world = Self {
            constants: *constants,
            gpus: gpus.collect(),
            pairs,
            memory: Memory::default(),
            memory_time: ps(memory_us(constants)),
            counts: [vec![0; traffic.len()], vec![0; traffic.len()]],
            layout,
            agenda: Agenda::new(),
            now: 0,
            moved: Volume::default(),
            issues: None,
        };
        let mut dice = seed;
        for gpu in 0..world.gpus.len() {
            let begins = ps(spread_us * next_unit(&mut dice));
            if world.gpus[gpu].traffic != Traffic::Idle {
                world.agenda.put(begins, Event::Begin { gpu });
            }
        }
        world
    }

    /// Remembers when reads are issued from now on.
    pub fn watch_reads(&mut self) {
        self.issues = Some(Vec::new());
    }

    /// When reads were issued, in microseconds.
    pub fn read_times_us(&self) -> Vec<f64> {
        self.issues.iter().flatten().map(|&at| at as f64 / 1e6).collect()
    }

    /// Lets time pass until `until_us`.
    pub fn run(&mut self, until_us: f64) {
        let until = ps(until_us);
        while let Some((at, event)) = self.agenda.take() {
            if at > until {
                self.agenda.put(at, event);
                break;
            }
            self.now = at;
            self.handle(event);
        }
        self.now = until;
    }

    /// What was moved so far.
    pub fn moved(&self) -> Volume {
        self.moved
    }

    fn pair_of(&self, gpu: usize) -> Option<usize> {
        match &self.layout {
            Layout::Native => None,
            Layout::Remote { proxy_of } => proxy_of.get(gpu).copied(),
        }
    }

    fn time(&self) -> Time {
        Time(self.now / 1000)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Issue { gpu } => self.issue(gpu),
            Event::Begin { gpu } => self.begin(gpu),
            Event::AtProxy { gpu, way, packet } => self.at_proxy(gpu, way, &packet),
            Event::Ask { pair, way } => {
                if self.pairs[pair].proxy(way).asked_at == Some(self.now) {
                    self.pairs[pair].proxy(way).asked_at = None;
                    self.ask(pair, way);
                }
            }
            Event::Datagram { pair, way, link, bytes } => self.on_datagram(pair, way, link, bytes),
            Event::Take { gpu, way } => self.take(gpu, way),
            Event::Crossed { gpu, way: Way::Up, packet } => {
                let bytes = self.bytes_on_wire(&packet);
                let pair = self.pair_of(gpu).expect("only what is remote crosses");
                let at = self.pairs[pair].host_up.send(self.now, bytes);
                self.agenda.put(at, Event::AtHost { gpu, packet });
            }
            Event::Crossed { gpu, way: Way::Down, packet } => self.towards_gpu(gpu, packet),
            Event::AtHost { gpu, packet } => self.at_host(gpu, &packet),
            Event::FromHost { gpu, packet } => self.down_from_host(gpu, packet),
            Event::AtGpu { gpu, packet } => self.at_gpu(gpu, packet),
        }
    }

    /// Data, headers and framing, as a wire carries them.
    fn bytes_on_wire(&self, packet: &TlpBuf) -> f64 {
        let (constants, payload) = (&self.constants, packet.payload.len() as f64);
        match packet.header.class() {
            Class::Completion => {
                let pieces = (payload / constants.completion_bytes).ceil().max(1.0);
                payload + pieces * constants.completion_overhead_bytes
            }
            Class::Posted | Class::NonPosted => payload + constants.request_overhead_bytes,
        }
    }

    fn begin(&mut self, gpu: usize) {
        let now = self.time();
        let side = &mut self.gpus[gpu];
        let (device, half) = (&mut side.device, u64::from(HALF));
        match side.traffic {
            Traffic::Read | Traffic::Write | Traffic::WritePeer { .. } => {
                let (kind, host) = match side.traffic {
                    Traffic::Read => (doorbell::READ, 0),
                    Traffic::WritePeer { peer } => (doorbell::WRITE, window(peer)),
                    _ => (doorbell::WRITE, 0),
                };
                ring(device, 0, host, 0, HALF, kind, now);
                ring(device, 1, host + half, half, HALF, kind, now);
            }
            Traffic::Steps { read_bytes, write_bytes, .. } => {
                side.bytes_awaited = read_bytes + write_bytes;
                ring(device, 0, 0, 0, read_bytes as u32, doorbell::READ, now);
                ring(device, 1, half, half, write_bytes as u32, doorbell::WRITE, now);
            }
            Traffic::HostWrites | Traffic::Idle => {}
        }
        self.issue(gpu);
    }

    /// Sends what tags and the proxy's credits allow.
    fn issue(&mut self, gpu: usize) {
        let credits = self.constants.port_credits.round().max(1.0) as usize;
        let (now, pair) = (self.time(), self.pair_of(gpu));
        while self.gpus[gpu].waiting[Way::Up as usize] < credits
            && let Some(packet) = self.gpus[gpu].device.transmit(now)
        {
            if let Some(issues) = &mut self.issues
                && packet.header.class() == Class::NonPosted
            {
                issues.push(self.now);
            }
            let bytes = self.bytes_on_wire(&packet);
            let at = self.gpus[gpu].up.send(self.now, bytes);
            self.gpus[gpu].waiting[Way::Up as usize] += 1;
            let event = match pair {
                Some(_) => Event::AtProxy { gpu, way: Way::Up, packet },
                None => Event::AtHost { gpu, packet },
            };
            self.agenda.put(at, event);
        }
        while self.gpus[gpu].traffic == Traffic::HostWrites
            && self.gpus[gpu].waiting[Way::Down as usize] < credits
        {
            let packet = self.next_store(gpu);
            self.gpus[gpu].waiting[Way::Down as usize] += 1;
            self.down_from_host(gpu, packet);
        }
    }

    /// Read avoidance: the host's port turns a piece of memory into writes.
    fn next_store(&mut self, gpu: usize) -> TlpBuf {
        let now = self.time();
        let side = &mut self.gpus[gpu];
        loop {
            if let Some(packet) = side.stores.pop_front() {
                return packet;
            }
            let is_pushed = side.port.push(MEMORY_BAR, side.store_at, 0, STORE_BYTES, &self.memory);
            debug_assert!(is_pushed);
            side.store_at = (side.store_at + STORE_BYTES as u64) % MEMORY_BYTES;
            while let Some(packet) = side.port.transmit(now) {
                side.stores.push_back(packet);
            }
        }
    }

    fn at_proxy(&mut self, gpu: usize, way: Way, packet: &TlpBuf) {
        let Some(pair) = self.pair_of(gpu) else { return };
        let sent = self.pairs[pair].proxy(way).trunk.send(LinkName(gpu as u32), &packet.as_tlp());
        assert_eq!(sent, Some(Ok(())), "credits keep the queue short, and tags are used once at a time");
        self.ask(pair, way);
    }

    /// Sends datagrams while the cable is free; then it is asked again when it will be. So packets that wait for the
    /// cable share a datagram.
    fn ask(&mut self, pair: usize, way: Way) {
        let conversion = ps(self.constants.conversion_rtt_us / 4.0);
        loop {
            if self.pairs[pair].proxy(way).cable.is_busy(self.now) {
                break;
            }
            let counts = &mut self.counts[way as usize];
            let Some(left) = self.pairs[pair].transmit(way, self.now, conversion, counts) else { break };
            let gpu = left.link.0 as usize;
            let event = Event::Datagram { pair, way, link: left.link, bytes: left.bytes };
            self.agenda.put(left.arrives_at, event);
            let waiting = &mut self.gpus[gpu].waiting[way as usize];
            // Completions have room of their own, and were not counted.
            let freed = left.tlps.min(*waiting);
            *waiting -= freed;
            if freed > 0 {
                self.agenda.put(self.now, Event::Issue { gpu });
            }
            if freed > 0 && way == Way::Down {
                for writer in self.writers_of(gpu) {
                    self.agenda.put(self.now, Event::Take { gpu: writer, way: Way::Up });
                }
            }
        }
        let proxy = self.pairs[pair].proxy(way);
        if let Some(at) = proxy.trunk.wake_at() {
            let at = (at.0 * 1000).max(proxy.cable.free_at()).max(self.now + 1);
            if proxy.asked_at.is_none_or(|asked| asked > at) {
                proxy.asked_at = Some(at);
                self.agenda.put(at, Event::Ask { pair, way });
            }
        }
    }

    /// A datagram of `way` reaches the far proxy, which sends the other way.
    fn on_datagram(&mut self, pair: usize, way: Way, link: LinkName, bytes: Vec<u8>) {
        let (gpu, back) = (link.0 as usize, if way == Way::Up { Way::Down } else { Way::Up });
        let counts = &mut self.counts[back as usize];
        self.pairs[pair].on_datagram(back, self.now, link, bytes, counts);
        self.take_ready(gpu, way);
        self.ask(pair, back);
    }

    /// Takes what arrived: at once, or, where a GPU is written to, when the GPU has given its credit back.
    fn take_ready(&mut self, gpu: usize, way: Way) {
        let is_written = self.gpus[gpu].traffic == Traffic::HostWrites || !self.writers_of(gpu).is_empty();
        if way == Way::Down && is_written {
            let at = self.now + ps(self.constants.gpu_credit_us);
            self.agenda.put(at, Event::Take { gpu, way });
        } else {
            self.take(gpu, way);
        }
    }

    fn writers_of(&self, peer: usize) -> Vec<usize> {
        let writes = |gpu: &usize| self.gpus[*gpu].traffic == Traffic::WritePeer { peer };
        (0..self.gpus.len()).filter(writes).collect()
    }

    /// Where the host sends on to a peer, no more is taken than its proxy has slots for: a full second crossing pushes
    /// back on the first, through the first link's credits.
    fn has_room_ahead(&self, gpu: usize, way: Way) -> bool {
        match self.gpus[gpu].traffic {
            Traffic::WritePeer { peer } if way == Way::Up => {
                self.gpus[peer].waiting[Way::Down as usize]
                    < self.constants.proxy_slots.round().max(1.0) as usize
            }
            _ => true,
        }
    }

    fn take(&mut self, gpu: usize, way: Way) {
        let Some(pair) = self.pair_of(gpu) else { return };
        let back = if way == Way::Up { Way::Down } else { Way::Up };
        let conversion = ps(self.constants.conversion_rtt_us / 4.0);
        while self.has_room_ahead(gpu, way) {
            let trunk = &mut self.pairs[pair].proxy(back).trunk;
            let Some(tlp) = trunk.receive(LinkName(gpu as u32), Willing::ALL) else { break };
            let packet = TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() };
            if let Traffic::WritePeer { peer } = self.gpus[gpu].traffic
                && way == Way::Up
            {
                self.gpus[peer].waiting[Way::Down as usize] += 1;
            }
            self.agenda.put(self.now + conversion, Event::Crossed { gpu, way, packet });
        }
        self.ask(pair, back);
    }

    /// A packet reached the host: its port answers reads and writes memory.
    fn at_host(&mut self, gpu: usize, packet: &TlpBuf) {
        if self.layout == Layout::Native {
            self.gpus[gpu].waiting[Way::Up as usize] -= 1;
            self.issue(gpu);
        }
        let now = self.time();
        self.gpus[gpu].port.receive(packet, &self.memory);
        while let Some(packet) = self.gpus[gpu].port.transmit(now) {
            self.agenda.put(self.now + self.memory_time, Event::FromHost { gpu, packet });
        }
        let written = self.memory.written.replace(0);
        if written > 0 {
            self.moved.up.arrived(self.now, written);
            self.arrived(gpu, written);
        }
        for (peer, packet) in self.memory.for_peers.take() {
            self.down_from_host(peer, packet);
        }
    }

    fn down_from_host(&mut self, gpu: usize, packet: TlpBuf) {
        let bytes = self.bytes_on_wire(&packet);
        match self.pair_of(gpu) {
            Some(pair) => {
                let at = self.pairs[pair].host_down.send(self.now, bytes);
                self.agenda.put(at, Event::AtProxy { gpu, way: Way::Down, packet });
            }
            None => self.towards_gpu(gpu, packet),
        }
    }

    fn towards_gpu(&mut self, gpu: usize, packet: TlpBuf) {
        let bytes = self.bytes_on_wire(&packet);
        let at = self.gpus[gpu].down.send(self.now, bytes);
        self.agenda.put(at, Event::AtGpu { gpu, packet });
    }

    fn at_gpu(&mut self, gpu: usize, packet: TlpBuf) {
        let (now, bytes) = (self.time(), packet.payload.len() as u64);
        let is_answer = matches!(packet.header.body, Body::Completion(_));
        self.gpus[gpu].device.receive(packet, now);
        if is_answer {
            self.moved.down.arrived(self.now, bytes);
            self.arrived(gpu, bytes);
        } else if self.gpus[gpu].traffic == Traffic::HostWrites {
            self.moved.down.arrived(self.now, bytes);
            if self.layout == Layout::Native {
                self.gpus[gpu].waiting[Way::Down as usize] -= 1;
            }
        } else {
            self.moved.peer.arrived(self.now, bytes);
        }
        self.issue(gpu);
    }

    /// A step's bytes arrived; after the last of them the GPU works again.
    fn arrived(&mut self, gpu: usize, bytes: u64) {
        let Traffic::Steps { compute_us, .. } = self.gpus[gpu].traffic else { return };
        let side = &mut self.gpus[gpu];
        side.bytes_awaited -= bytes;
        if side.bytes_awaited == 0 {
            self.agenda.put(self.now + ps(compute_us), Event::Begin { gpu });
        }
    }
}

/// The nearest size of the specification, or the one above.
fn size(bytes: f64) -> SizeLimit {
    let bytes = (bytes.round() as u32).next_power_of_two().clamp(128, 4096);
    SizeLimit::new(bytes).expect("a size of the specification")
}
