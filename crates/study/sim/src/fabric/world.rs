//! GPUs, proxies, a host, and everything that travels between them.

use super::agenda::{Agenda, Instant, ps};
use super::constants::Constants;
use super::crossing::{Crosses, Crossing, Departure, Wire};
use super::traffic::{Traffic, Volume};

/// Where the GPUs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In the server, each on a wire of its own, peers under one PCIe bridge.
    Native,
    /// Behind proxies: for each GPU, which pair of proxies it uses.
    Remote {
        /// Pair of proxies of each GPU, counted from 0.
        proxy_of: Vec<usize>,
    },
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A GPU asks for host memory.
    ReadRequest,
    /// Its answer.
    Completion,
    /// A GPU writes host memory.
    Write,
    /// The host writes a GPU's memory.
    HostWrite,
    /// A GPU writes another's memory.
    PeerWrite { peer: usize },
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    gpu: usize,
    kind: Kind,
    /// Data it carries or asks for.
    bytes: f64,
    /// How long its receiver keeps the credit.
    credit: Instant,
}

impl Crosses for Packet {
    fn payload_bytes(&self) -> f64 {
        if self.kind == Kind::ReadRequest { 0.0 } else { self.bytes }
    }

    fn credit(&self) -> Instant {
        self.credit
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

#[derive(Debug)]
enum Event {
    /// A GPU (or the host on its behalf) looks whether it can send.
    Issue { gpu: usize },
    /// A packet reaches the near proxy of a crossing.
    AtProxy { proxy: usize, way: Way, packet: Packet },
    /// A proxy's slot was acknowledged.
    SlotFree { proxy: usize, way: Way },
    /// A packet leaves the far proxy.
    Crossed { proxy: usize, way: Way, packet: Packet },
    /// A packet reaches host memory (or the peer's bridge).
    AtHost { packet: Packet },
    /// Host memory has the data of a read.
    MemoryReady { packet: Packet },
    /// A packet reaches a GPU.
    AtGpu { packet: Packet },
    /// A GPU has worked long enough.
    ComputeDone { gpu: usize },
}

/// One GPU's side of things.
#[derive(Debug)]
struct Gpu {
    traffic: Traffic,
    up: Wire,
    down: Wire,
    tags_free: usize,
    credits_free: usize,
    /// What the present step still has to ask for, and still has to see arrive.
    reads_to_issue: u64,
    writes_to_issue: u64,
    bytes_awaited: u64,
    /// Which of the two is tried first: they take turns.
    reads_first: bool,
}

/// A pair of proxies: the host's wires and both ways across.
#[derive(Debug)]
struct Proxies {
    host_up: Wire,
    host_down: Wire,
    up: Crossing<Packet>,
    down: Crossing<Packet>,
}

/// The whole simulation.
#[derive(Debug)]
pub struct World {
    constants: Constants,
    layout: Layout,
    gpus: Vec<Gpu>,
    proxies: Vec<Proxies>,
    agenda: Agenda<Event>,
    now: Instant,
    moved: Volume,
    /// Times at which reads were issued, if they are recorded.
    issues: Option<Vec<Instant>>,
    memory: Instant,
}

/// A quarter of the native round trip is the way on each of the two wires of a remote path (each way), half of it host memory.
pub(super) const WIRE_PART: f64 = 0.125;

/// What host memory takes. The published round trip was measured, so the packets' own time on the wires is part of it.
pub(super) fn memory_us(constants: &Constants) -> f64 {
    let completions = (constants.read_request_bytes / constants.completion_bytes).ceil();
    let bytes = constants.request_overhead_bytes
        + constants.read_request_bytes
        + completions * constants.completion_overhead_bytes;
    let on_wires_us = bytes / (constants.wire_gbps * constants.wire_efficiency * 1e3);
    (constants.native_rtt_us * (1.0 - 4.0 * WIRE_PART) - on_wires_us).max(0.0)
}

impl World {
    /// A world in which GPU `i` does `traffic[i]`, beginning at a time within `spread_us` that `seed` picks.
    pub fn new(
        constants: &Constants,
        layout: Layout,
        traffic: &[Traffic],
        seed: u64,
        spread_us: f64,
    ) -> Self {
        let wire = |latency_us| Wire::new(constants.wire_gbps * constants.wire_efficiency, latency_us);
        let hop_us = constants.native_rtt_us * WIRE_PART;
        let gpu_wire_us = if layout == Layout::Native { 2.0 * hop_us } else { hop_us };
        let gpus = traffic.iter().map(|&traffic| Gpu {
            traffic,
            up: wire(gpu_wire_us),
            down: wire(gpu_wire_us),
            tags_free: constants.tags.round().max(1.0) as usize,
            credits_free: constants.port_credits.round().max(1.0) as usize,
            reads_to_issue: 0,
            writes_to_issue: 0,
            bytes_awaited: 0,
            reads_first: true,
        });
        let pairs = match &layout {
            Layout::Native => 0,
            Layout::Remote { proxy_of } => proxy_of.iter().max().map_or(0, |last| last + 1),
        };
        let proxies = (0..pairs).map(|_| Proxies {
            host_up: wire(hop_us),
            host_down: wire(hop_us),
            up: Crossing::new(constants),
            down: Crossing::new(constants),
        });
        let mut world = Self {
            constants: *constants,
            layout,
            gpus: gpus.collect(),
            proxies: proxies.collect(),
            agenda: Agenda::new(),
            now: 0,
            moved: Volume::default(),
            issues: None,
            memory: ps(memory_us(constants)),
        };
        let mut dice = seed;
        for gpu in 0..world.gpus.len() {
            let begins = ps(spread_us * next_unit(&mut dice));
            match world.gpus[gpu].traffic {
                Traffic::Idle => {}
                Traffic::Steps { .. } => world.agenda.put(begins, Event::ComputeDone { gpu }),
                _ => world.agenda.put(begins, Event::Issue { gpu }),
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

    fn proxy_of(&self, gpu: usize) -> Option<usize> {
        match &self.layout {
            Layout::Native => None,
            Layout::Remote { proxy_of } => proxy_of.get(gpu).copied(),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Issue { gpu } => self.issue(gpu),
            Event::ComputeDone { gpu } => self.begin_transfers(gpu),
            Event::AtProxy { proxy, way, packet } => {
                let now = self.now;
                let departure = self.crossing(proxy, way).arrive(now, packet);
                self.left(proxy, way, departure);
            }
            Event::SlotFree { proxy, way } => {
                let now = self.now;
                let departure = self.crossing(proxy, way).slot_freed(now);
                self.left(proxy, way, departure);
            }
            Event::Crossed { proxy, way: Way::Up, packet } => {
                let bytes = self.bytes_on_wire(&packet);
                let at = self.proxies[proxy].host_up.send(self.now, bytes);
                self.agenda.put(at, Event::AtHost { packet });
            }
            Event::Crossed { way: Way::Down, packet, .. } => self.towards_gpu(packet),
            Event::AtHost { packet } => self.at_host(packet),
            Event::MemoryReady { packet } => self.answer(packet),
            Event::AtGpu { packet } => self.at_gpu(packet),
        }
    }

    fn crossing(&mut self, proxy: usize, way: Way) -> &mut Crossing<Packet> {
        let pair = &mut self.proxies[proxy];
        match way {
            Way::Up => &mut pair.up,
            Way::Down => &mut pair.down,
        }
    }

    /// A packet left its near proxy, or none did.
    fn left(&mut self, proxy: usize, way: Way, departure: Option<Departure<Packet>>) {
        let Some(Departure { packet, delivered_at, slot_free_at }) = departure else { return };
        self.agenda.put(delivered_at, Event::Crossed { proxy, way, packet });
        self.agenda.put(slot_free_at, Event::SlotFree { proxy, way });
        let leaves_its_port = match packet.kind {
            Kind::ReadRequest | Kind::Write | Kind::PeerWrite { .. } => way == Way::Up,
            Kind::HostWrite => true,
            Kind::Completion => false,
        };
        if leaves_its_port {
            self.return_credit(packet.gpu);
        }
    }

    fn return_credit(&mut self, gpu: usize) {
        self.gpus[gpu].credits_free += 1;
        self.issue(gpu);
    }

    /// Data, headers and framing, as a wire carries them.
    fn bytes_on_wire(&self, packet: &Packet) -> f64 {
        let constants = &self.constants;
        match packet.kind {
            Kind::ReadRequest => constants.request_overhead_bytes,
            Kind::Completion => {
                let pieces = (packet.bytes / constants.completion_bytes).ceil();
                packet.bytes + pieces * constants.completion_overhead_bytes
            }
            Kind::Write | Kind::HostWrite | Kind::PeerWrite { .. } => {
                packet.bytes + constants.request_overhead_bytes
            }
        }
    }

    fn begin_transfers(&mut self, gpu: usize) {
        if let Traffic::Steps { read_bytes, write_bytes, .. } = self.gpus[gpu].traffic {
            let side = &mut self.gpus[gpu];
            side.reads_to_issue = read_bytes;
            side.writes_to_issue = write_bytes;
            side.bytes_awaited = read_bytes + write_bytes;
            self.issue(gpu);
        }
    }

    /// Sends whatever tags and credits allow.
    fn issue(&mut self, gpu: usize) {
        while self.gpus[gpu].credits_free > 0 {
            let sent = match self.gpus[gpu].traffic {
                Traffic::Idle => false,
                Traffic::Read => self.send_read(gpu, u64::MAX),
                Traffic::Write => self.send(gpu, Kind::Write, u64::MAX),
                Traffic::HostWrites => self.send(gpu, Kind::HostWrite, u64::MAX),
                Traffic::WritePeer { peer } => self.send(gpu, Kind::PeerWrite { peer }, u64::MAX),
                Traffic::Steps { .. } => self.send_of_step(gpu),
            };
            if !sent {
                break;
            }
        }
    }

    /// Reads and writes of a step take turns.
    fn send_of_step(&mut self, gpu: usize) -> bool {
        let side = &mut self.gpus[gpu];
        let (reads, writes) = (side.reads_to_issue, side.writes_to_issue);
        side.reads_first = !side.reads_first;
        // A read that has no tag does not hold the writes up.
        if side.reads_first && self.send(gpu, Kind::Write, writes) {
            return true;
        }
        self.send_read(gpu, reads) || self.send(gpu, Kind::Write, writes)
    }

    /// Asks for host memory, if `left` bytes of it are wanted and there is a tag.
    fn send_read(&mut self, gpu: usize, left: u64) -> bool {
        if self.gpus[gpu].tags_free == 0 {
            return false;
        }
        let sent = self.send(gpu, Kind::ReadRequest, left);
        if sent {
            self.gpus[gpu].tags_free -= 1;
            if let Some(issues) = &mut self.issues {
                issues.push(self.now);
            }
        }
        sent
    }

    /// Sends one packet, if there are bytes left for it.
    fn send(&mut self, gpu: usize, kind: Kind, left: u64) -> bool {
        if left == 0 {
            return false;
        }
        let largest = match kind {
            Kind::ReadRequest => self.constants.read_request_bytes,
            _ => self.constants.write_payload_bytes,
        };
        let bytes = largest.min(left as f64);
        let side = &mut self.gpus[gpu];
        match (side.traffic, kind) {
            (Traffic::Steps { .. }, Kind::ReadRequest) => side.reads_to_issue = left - bytes as u64,
            (Traffic::Steps { .. }, _) => side.writes_to_issue = left - bytes as u64,
            _ => {}
        }
        side.credits_free -= 1;
        let credit = if kind == Kind::HostWrite { ps(self.constants.gpu_credit_us) } else { 0 };
        let packet = Packet { gpu, kind, bytes, credit };
        let on_wire = self.bytes_on_wire(&packet);
        match (kind, self.proxy_of(gpu)) {
            (Kind::HostWrite, Some(proxy)) => {
                let at = self.proxies[proxy].host_down.send(self.now, on_wire);
                self.agenda.put(at, Event::AtProxy { proxy, way: Way::Down, packet });
            }
            (Kind::HostWrite, None) => {
                let at = self.gpus[gpu].down.send(self.now, on_wire);
                self.agenda.put(at, Event::AtGpu { packet });
            }
            (_, Some(proxy)) => {
                let at = self.gpus[gpu].up.send(self.now, on_wire);
                self.agenda.put(at, Event::AtProxy { proxy, way: Way::Up, packet });
            }
            (_, None) => {
                let at = self.gpus[gpu].up.send(self.now, on_wire);
                self.agenda.put(at, Event::AtHost { packet });
            }
        }
        true
    }

    /// A packet reached the host, or, in a server, the bridge above the GPUs.
    fn at_host(&mut self, packet: Packet) {
        if self.layout == Layout::Native {
            self.return_credit(packet.gpu);
        }
        match packet.kind {
            Kind::ReadRequest => {
                self.agenda.put(self.now + self.memory, Event::MemoryReady { packet });
            }
            Kind::Write => {
                self.moved.up.arrived(self.now, packet.bytes as u64);
                self.arrived(packet.gpu, packet.bytes as u64);
            }
            Kind::PeerWrite { peer } => {
                // A box proxy knows no way but the one to its host, which sends the packet down again (section 3.3.3).
                let packet = Packet { credit: ps(self.constants.gpu_credit_us), ..packet };
                self.down_from_host(peer, packet);
            }
            Kind::Completion | Kind::HostWrite => {}
        }
    }

    /// Host memory answers a read.
    fn answer(&mut self, request: Packet) {
        self.down_from_host(request.gpu, Packet { kind: Kind::Completion, ..request });
    }

    fn down_from_host(&mut self, target: usize, packet: Packet) {
        let bytes = self.bytes_on_wire(&packet);
        match self.proxy_of(target) {
            Some(proxy) => {
                let at = self.proxies[proxy].host_down.send(self.now, bytes);
                self.agenda.put(at, Event::AtProxy { proxy, way: Way::Down, packet });
            }
            None => self.towards_gpu(packet),
        }
    }

    /// The last wire.
    fn towards_gpu(&mut self, packet: Packet) {
        let target = match packet.kind {
            Kind::PeerWrite { peer } => peer,
            _ => packet.gpu,
        };
        let bytes = self.bytes_on_wire(&packet);
        let at = self.gpus[target].down.send(self.now, bytes);
        self.agenda.put(at, Event::AtGpu { packet });
    }

    fn at_gpu(&mut self, packet: Packet) {
        let bytes = packet.bytes as u64;
        match packet.kind {
            Kind::Completion => {
                self.gpus[packet.gpu].tags_free += 1;
                self.moved.down.arrived(self.now, bytes);
                self.arrived(packet.gpu, bytes);
                self.issue(packet.gpu);
            }
            Kind::HostWrite => {
                self.moved.down.arrived(self.now, bytes);
                if self.layout == Layout::Native {
                    self.return_credit(packet.gpu);
                }
            }
            Kind::PeerWrite { .. } => self.moved.peer.arrived(self.now, bytes),
            Kind::ReadRequest | Kind::Write => {}
        }
    }

    /// A step's bytes arrived; after the last of them the GPU works again.
    fn arrived(&mut self, gpu: usize, bytes: u64) {
        let Traffic::Steps { compute_us, .. } = self.gpus[gpu].traffic else { return };
        let side = &mut self.gpus[gpu];
        side.bytes_awaited -= bytes;
        if side.bytes_awaited == 0 {
            self.agenda.put(self.now + ps(compute_us), Event::ComputeDone { gpu });
        }
    }
}

/// The next number in [0, 1) of a generator that is good enough to scatter starting times (splitmix64).
pub(super) fn next_unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
