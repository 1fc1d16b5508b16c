//! A device that does nothing but copy: for measuring what a link does to reads and writes.
//!
//! It has memory of its own (BAR 2) and two engines (BAR 0, 0x100 bytes each):
//!
//! ```text
//! 0x00  address in the host's memory     0x18  status: 0 idle, 1 busy, 2 done, 3 failed
//! 0x08  address in the device's memory   0x1c  vector to raise when done; all ones for none
//! 0x10  length in bytes                  0x20  bytes copied so far
//! 0x14  doorbell: 1 host to device, by reads; 2 device to host, by writes; 3 host to device, pushed by the host
//! ```
//!
//! Reads wait for answers, so tags × read size / round trip bounds them. In a push the host's side writes into BAR 2 and
//! then rings: nothing waits for a round trip, and posted order puts the doorbell behind the data.

use crate::config::{BarKind, Builder, DeviceType, Identity};
use crate::flow::{Finished, JobId};
use crate::tlp_buf::TlpBuf;
use units::Time;

use super::{Endpoint, Event, Function, FunctionOptions, RegisterRead};

/// Engines of the device.
pub const ENGINES: usize = 2;
/// Bytes of an engine's registers.
pub const ENGINE_BYTES: u64 = 0x100;
/// A copy is done in jobs of this size: large enough to be few, small enough that both engines take turns.
const CHUNK: usize = 64 * 1024;
/// Requests that wait for a tag, below which another job is begun. The link must never lack work.
const WAITING_MIN: usize = 64;

/// What a doorbell asks for.
pub mod doorbell {
    /// Host to device, by reads.
    pub const READ: u32 = 1;
    /// Device to host, by writes.
    pub const WRITE: u32 = 2;
    /// Host to device; the host has written the data already.
    pub const PUSHED: u32 = 3;
}

/// How far an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
enum Status {
    #[default]
    Idle = 0,
    Busy = 1,
    Done = 2,
    Failed = 3,
}

#[derive(Default)]
struct Engine {
    host: u64,
    device: u64,
    length: u32,
    vector: u32,
    status: Status,
    copied: u64,
    /// What the doorbell asked for, while busy.
    kind: u32,
    /// Bytes whose copy has begun.
    begun: u64,
    jobs: usize,
    failed: bool,
}

/// How a device is made.
#[derive(Clone, Copy, Debug)]
pub struct DmaOptions {
    /// Bytes of its own memory: a power of two.
    pub memory_bytes: u64,
    /// Tags and read size.
    pub function: FunctionOptions,
}

impl Default for DmaOptions {
    fn default() -> Self {
        Self { memory_bytes: 16 << 20, function: FunctionOptions::default() }
    }
}

/// The device.
pub struct DmaDevice {
    function: Function,
    memory: Vec<u8>,
    engines: [Engine; ENGINES],
    /// Which engine and where in the device's memory each job belongs.
    jobs: std::collections::HashMap<JobId, (usize, u64)>,
    next_job: u64,
    turn: usize,
}

impl DmaDevice {
    /// A device with empty memory.
    ///
    /// # Panics
    ///
    /// When the memory's size is not a power of two of at least 4 KiB.
    pub fn new(options: DmaOptions) -> Self {
        assert!(options.memory_bytes >= 4096);
        let identity = Identity { vendor: 0x1b36, device: 0xd803, class: 0x12_00_00, revision: 0 };
        let config = Builder::endpoint(identity)
            .bar(0, BarKind::Memory32, 4096)
            .bar(2, BarKind::Prefetchable64, options.memory_bytes)
            .express(DeviceType::Endpoint)
            .msi(ENGINES as u8)
            .aer()
            .build();
        Self {
            function: Function::new(config, options.function),
            memory: vec![0; options.memory_bytes as usize],
            engines: Default::default(),
            jobs: std::collections::HashMap::new(),
            next_job: 0,
            turn: 0,
        }
    }

    /// Its memory, for tests and measurements.
    pub fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// Its memory, to fill.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn run(&mut self) {
        while let Some(event) = self.function.next_event() {
            match event {
                Event::Write { bar: 0, offset, data } => self.on_register(offset, &data),
                Event::Write { offset, data, .. } => {
                    // The function has checked that it is inside the BAR.
                    let at = offset as usize;
                    self.memory[at..at + data.len()].copy_from_slice(&data);
                }
                Event::Read(read) => self.on_read(&read),
                Event::Dma(finished) => self.on_dma(finished),
                Event::Reset => self.forget(),
            }
        }
    }

    fn forget(&mut self) {
        self.engines = Default::default();
        self.jobs.clear();
    }

    fn registers(&self, engine: usize) -> [u8; 0x28] {
        let engine = &self.engines[engine];
        let mut page = [0; 0x28];
        page[0x00..0x08].copy_from_slice(&engine.host.to_le_bytes());
        page[0x08..0x10].copy_from_slice(&engine.device.to_le_bytes());
        page[0x10..0x14].copy_from_slice(&engine.length.to_le_bytes());
        page[0x14..0x18].copy_from_slice(&engine.kind.to_le_bytes());
        page[0x18..0x1c].copy_from_slice(&(engine.status as u32).to_le_bytes());
        page[0x1c..0x20].copy_from_slice(&engine.vector.to_le_bytes());
        page[0x20..0x28].copy_from_slice(&engine.copied.to_le_bytes());
        page
    }

    fn on_read(&mut self, read: &RegisterRead) {
        let start = read.offset as usize;
        let data: Vec<u8> = match read.bar {
            0 => (start..start + read.bytes)
                .map(|at| match at / ENGINE_BYTES as usize {
                    engine if engine < ENGINES => {
                        self.registers(engine).get(at % ENGINE_BYTES as usize).copied().unwrap_or(0)
                    }
                    _ => 0,
                })
                .collect(),
            _ => self.memory[start..start + read.bytes].to_vec(),
        };
        self.function.answer(read, &data);
    }

    fn on_register(&mut self, offset: u64, data: &[u8]) {
        if !offset.is_multiple_of(4) || !data.len().is_multiple_of(4) {
            return;
        }
        for (n, dw) in data.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([dw[0], dw[1], dw[2], dw[3]]);
            let at = offset + 4 * n as u64;
            let index = (at / ENGINE_BYTES) as usize;
            if index < ENGINES {
                self.on_register_dw(index, at % ENGINE_BYTES, value);
            }
        }
    }

    fn on_register_dw(&mut self, index: usize, at: u64, value: u32) {
        let engine = &mut self.engines[index];
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match at {
            // What is being used does not change.
            _ if engine.status == Status::Busy => {}
            0x00 => engine.host = low(engine.host),
            0x04 => engine.host = high(engine.host),
            0x08 => engine.device = low(engine.device),
            0x0c => engine.device = high(engine.device),
            0x10 => engine.length = value,
            0x14 => self.ring(index, value),
            0x1c => engine.vector = value,
            _ => {}
        }
    }

    fn ring(&mut self, index: usize, kind: u32) {
        let engine = &mut self.engines[index];
        (engine.kind, engine.begun, engine.copied) = (kind, 0, 0);
        (engine.failed, engine.status) = (false, Status::Busy);
        let end = engine.device.checked_add(engine.length.into());
        if end.is_none_or(|end| end > self.memory.len() as u64) || !(1..=3).contains(&kind) {
            engine.failed = true;
            return self.finish(index);
        }
        if kind == doorbell::PUSHED {
            engine.copied = engine.length.into();
            return self.finish(index);
        }
        self.pump();
    }

    /// Begins as much of the copies as the link can take.
    fn pump(&mut self) {
        for _ in 0..ENGINES {
            self.turn = (self.turn + 1) % ENGINES;
            while self.begin_chunk(self.turn) {}
        }
    }

    /// Begins one chunk of an engine's copy by reads; says whether there may be more.
    fn begin_chunk(&mut self, index: usize) -> bool {
        let engine = &mut self.engines[index];
        let may_read = engine.status == Status::Busy && engine.kind == doorbell::READ && !engine.failed;
        if !may_read {
            return false;
        }
        let left = u64::from(engine.length) - engine.begun;
        if left == 0 {
            if engine.jobs == 0 {
                self.finish(index);
            }
            return false;
        }
        if self.function.requests_under_way().1 >= WAITING_MIN {
            return false;
        }
        let here = left.min(CHUNK as u64) as usize;
        let (host, device) = (engine.host.wrapping_add(engine.begun), engine.device + engine.begun);
        engine.begun += here as u64;
        engine.jobs += 1;
        self.next_job += 1;
        let job = JobId(self.next_job);
        self.jobs.insert(job, (index, device));
        self.function.dma_read(job, host, here);
        true
    }

    fn on_dma(&mut self, finished: Finished) {
        let Some((index, device)) = self.jobs.remove(&finished.job) else { return };
        let engine = &mut self.engines[index];
        engine.jobs -= 1;
        match finished.outcome {
            Ok(data) => {
                let at = device as usize;
                self.memory[at..at + data.len()].copy_from_slice(&data);
                engine.copied += data.len() as u64;
            }
            Err(_) => engine.failed = true,
        }
        if engine.failed && engine.jobs == 0 {
            self.finish(index);
        }
        self.pump();
    }

    /// Writes the next chunk of a copy to the host; says whether there was one.
    fn write_chunk(&mut self) -> bool {
        for step in 0..ENGINES {
            let index = (self.turn + step) % ENGINES;
            let engine = &mut self.engines[index];
            if engine.status != Status::Busy || engine.kind != doorbell::WRITE {
                continue;
            }
            let left = u64::from(engine.length) - engine.begun;
            let here = left.min(CHUNK as u64);
            let (host, device) = (engine.host.wrapping_add(engine.begun), engine.device + engine.begun);
            engine.begun += here;
            engine.copied += here;
            let is_last = here == left;
            let data = &self.memory[device as usize..(device + here) as usize];
            self.function.dma_write(host, data);
            if is_last {
                self.finish(index);
            }
            self.turn = (index + 1) % ENGINES;
            return true;
        }
        false
    }

    fn finish(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        engine.status = if engine.failed { Status::Failed } else { Status::Done };
        if let Ok(vector) = u16::try_from(engine.vector) {
            self.function.interrupt(vector);
        }
    }
}

impl Endpoint for DmaDevice {
    fn receive(&mut self, packet: TlpBuf, now: Time) {
        self.function.receive(packet, now);
        self.run();
    }

    fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        loop {
            if let Some(packet) = self.function.transmit(now) {
                return Some(packet);
            }
            if !self.write_chunk() {
                // Tags may have come free since the last answer.
                self.pump();
                self.run();
                return self.function.transmit(now);
            }
        }
    }

    fn on_tick(&mut self, now: Time) {
        self.function.on_tick(now);
        self.run();
    }

    fn wake_at(&self) -> Option<Time> {
        self.function.wake_at()
    }

    fn reset(&mut self) {
        self.function.reset();
        self.forget();
        self.memory.fill(0);
    }
}
