//! A session with a client made of maps.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

use cuda_abi::CuResult;
use cuda_driver::{
    DRIVER_VA_BYTES, Departure, Driver, HostLink, Landing, LinkLost, Over, Sink, Source, WaitTarget,
};
use cuda_wire::*;
use driver_soft::{SoftConfig, SoftDriver};
use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

pub mod guard;

pub const CONTEXT: ContextId = ContextId(0);
pub const LEGACY: StreamId = StreamId(1);

/// Waits as a session does for its client.
pub trait Waits: Driver {
    fn context_synchronize(&self, context: ContextId) -> CuResult<()> {
        self.wait(WaitTarget::Context(context))
    }

    fn stream_synchronize(&self, stream: StreamId) -> CuResult<()> {
        self.wait(WaitTarget::Stream(stream))
    }

    fn event_synchronize(&self, event: EventId) -> CuResult<()> {
        self.wait(WaitTarget::Event(event))
    }

    fn read_back(&self, stream: StreamId, source: Plane, shape: Shape) -> CuResult<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_back_begin(stream, source, shape)?.wait(&mut bytes)?;
        Ok(bytes)
    }
}

impl<T: Driver> Waits for T {}

/// The client's side, in memory.
#[derive(Default)]
pub struct FakeLink {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pushed: HashMap<TransferId, Vec<u8>>,
    sent: HashMap<TransferId, Vec<u8>>,
    printed: Vec<u8>,
    called: Vec<u64>,
    /// Host functions that do not return before they are allowed to.
    held: HashMap<u64, bool>,
    pulls: u64,
    is_lost: bool,
}

impl FakeLink {
    pub fn push(&self, transfer: TransferId, bytes: &[u8]) {
        self.state.lock().unwrap().pushed.insert(transfer, bytes.to_vec());
        self.changed.notify_all();
    }

    pub fn sent(&self, transfer: TransferId) -> Option<Vec<u8>> {
        self.state.lock().unwrap().sent.get(&transfer).cloned()
    }

    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.state.lock().unwrap().printed).into_owned()
    }

    pub fn called(&self) -> Vec<u64> {
        self.state.lock().unwrap().called.clone()
    }

    pub fn hold(&self, token: u64) {
        self.state.lock().unwrap().held.insert(token, true);
    }

    pub fn let_go(&self, token: u64) {
        self.state.lock().unwrap().held.insert(token, false);
        self.changed.notify_all();
    }

    pub fn pulls(&self) -> u64 {
        self.state.lock().unwrap().pulls
    }

    pub fn lose(&self) {
        self.state.lock().unwrap().is_lost = true;
        self.changed.notify_all();
    }
}

impl HostLink for FakeLink {
    fn receive(&self, transfer: TransferId, bytes: u64, pull: bool, sink: &dyn Sink) -> Result<(), LinkLost> {
        let mut state = self.state.lock().unwrap();
        state.pulls += u64::from(pull);
        let data = loop {
            if state.is_lost {
                return Err(LinkLost);
            }
            if let Some(data) = state.pushed.get(&transfer) {
                break data.clone();
            }
            state = self.changed.wait(state).unwrap();
        };
        if !pull {
            state.pushed.remove(&transfer);
        }
        drop(state);
        assert_eq!(data.len() as u64, bytes);
        // Pieces come in any order, from several threads.
        let pieces: Vec<(usize, &[u8])> = data.chunks(1000).enumerate().collect();
        std::thread::scope(|scope| {
            let (first, second) = pieces.split_at(pieces.len() / 2);
            for half in [second, first] {
                scope.spawn(move || {
                    half.iter().rev().for_each(|(index, piece)| sink.take(*index as u64 * 1000, piece))
                });
            }
        });
        Ok(())
    }

    fn send(&self, transfer: TransferId, bytes: u64, source: &dyn Source) -> Result<(), LinkLost> {
        let mut data = vec![0; bytes as usize];
        for (index, piece) in data.chunks_mut(777).enumerate() {
            source.fill(index as u64 * 777, piece);
        }
        let mut state = self.state.lock().unwrap();
        if state.is_lost {
            return Err(LinkLost);
        }
        state.sent.insert(transfer, data);
        Ok(())
    }

    // The soft driver's streams have threads of their own, which wait.
    fn receive_later(&self, _: TransferId, _: u64, _: bool, _: Box<dyn Landing>, over: Over) {
        over(Err(LinkLost));
    }

    fn send_part(&self, _: TransferId, _: u64, _: u64, _: Box<dyn Departure>, over: Over) {
        over(Err(LinkLost));
    }

    fn host_call(&self, token: u64) -> Result<(), LinkLost> {
        let mut state = self.state.lock().unwrap();
        while state.held.get(&token) == Some(&true) {
            if state.is_lost {
                return Err(LinkLost);
            }
            state = self.changed.wait(state).unwrap();
        }
        state.called.push(token);
        Ok(())
    }

    fn print(&self, text: &[u8]) {
        self.state.lock().unwrap().printed.extend_from_slice(text);
    }
}

/// A driver with one legacy stream, its link, and a place for allocations.
pub struct Session {
    pub driver: SoftDriver,
    pub link: Arc<FakeLink>,
    pub base: u64,
    next: AtomicU64,
    next_stream: AtomicU64,
}

impl Session {
    pub fn new() -> Self {
        Self::with(SoftConfig { memory_bytes: 1 << 30, ..SoftConfig::default() })
    }

    pub fn with(config: SoftConfig) -> Self {
        Self::at(Self::some_base(), config)
    }

    /// Addresses for a session. Tests run beside each other in one process: each has a range of its own.
    pub fn some_base() -> u64 {
        static RANGES: AtomicU64 = AtomicU64::new(0);
        0x2000_0000_0000 + RANGES.fetch_add(1, Ordering::Relaxed) % 128 * (128 << 30)
    }

    /// A session with its memory at these addresses.
    pub fn at(base: u64, config: SoftConfig) -> Self {
        let driver = SoftDriver::new(config);
        let range = VaRange { base, bytes: (16 << 30) + DRIVER_VA_BYTES };
        assert_eq!(driver.reserve_addresses(&[range]), Some(range));
        let link = Arc::new(FakeLink::default());
        driver.attach(link.clone());
        driver.stream_create(LEGACY, CONTEXT, 2, 0).unwrap();
        Self { driver, link, base, next: AtomicU64::new(base), next_stream: AtomicU64::new(100) }
    }

    /// An address for so many bytes.
    pub fn place(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes.next_multiple_of(512), Ordering::Relaxed)
    }

    pub fn alloc(&self, bytes: u64) -> u64 {
        let address = self.place(bytes);
        self.driver.memory_allocate(CONTEXT, address, bytes).unwrap();
        address
    }

    pub fn alloc_with(&self, bytes: &[u8]) -> u64 {
        let address = self.alloc(bytes.len() as u64);
        self.write(LEGACY, address, bytes).unwrap();
        address
    }

    pub fn stream(&self, kind: u32) -> StreamId {
        let stream = StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed) as u32);
        self.driver.stream_create(stream, CONTEXT, kind, 0).unwrap();
        stream
    }

    pub fn event(&self) -> EventId {
        let event = EventId(self.next_stream.fetch_add(1, Ordering::Relaxed) as u32);
        self.driver.event_create(event, CONTEXT, 0).unwrap();
        event
    }

    pub fn write(&self, stream: StreamId, address: u64, bytes: &[u8]) -> CuResult<()> {
        self.driver.enqueue(stream, copy_in(address, bytes))
    }

    pub fn read(&self, stream: StreamId, address: u64, bytes: u64) -> CuResult<Vec<u8>> {
        self.driver.read_back(stream, Plane::line(address), Shape::line(bytes))
    }

    pub fn read_u32(&self, stream: StreamId, address: u64) -> u32 {
        u32::from_le_bytes(self.read(stream, address, 4).unwrap().try_into().unwrap())
    }

    pub fn words(&self, stream: StreamId, address: u64, count: u64) -> Vec<u32> {
        let bytes = self.read(stream, address, count * 4).unwrap();
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    pub fn wait_value(&self, stream: StreamId, address: u64, value: u32) {
        let op = MemoryOp { kind: 1, flags: 1, address, value: value.into() };
        self.driver.enqueue(stream, Op::MemoryOps { ops: vec![op] }).unwrap();
    }

    pub fn write_value(&self, stream: StreamId, address: u64, value: u32) {
        let op = MemoryOp { kind: 2, flags: 0, address, value: value.into() };
        self.driver.enqueue(stream, Op::MemoryOps { ops: vec![op] }).unwrap();
    }

    pub fn load(&self, module: u32, image: &[u8]) -> CuResult<ModuleInfo> {
        let source = ImageSource::Inline { bytes: Bytes(image) };
        self.driver.module_load(ModuleId(module), CONTEXT, [0; 32], source, Vec::new())
    }
}

pub fn copy_in<'a>(address: u64, bytes: &'a [u8]) -> Op<'a> {
    let data = HostData::Inline { bytes: Bytes(bytes) };
    Op::CopyIn { target: Plane::line(address), shape: Shape::line(bytes.len() as u64), data }
}

pub fn fill32(address: u64, count: u64, value: u32) -> Op<'static> {
    Op::Fill { target: Plane::line(address), shape: Shape::line(count * 4), element_bytes: 4, value }
}

pub fn copy(target: u64, source: u64, bytes: u64) -> Op<'static> {
    Op::CopyDevice { target: Plane::line(target), source: Plane::line(source), shape: Shape::line(bytes) }
}

/// A launch of the kernel at `index` of `module` with packed parameters.
pub fn launch(module: u32, index: u32, grid: u32, block: u32, parameters: &[u8]) -> Op<'_> {
    Op::Launch {
        kernel: KernelRef { module: ModuleId(module), index },
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
        cooperative: false,
        attributes: Vec::new(),
        parameters: Bytes(parameters),
    }
}

/// Parameters of 8 bytes each, packed.
pub fn parameters(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
