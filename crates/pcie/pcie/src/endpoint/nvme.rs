//! An NVMe controller with one namespace: the device that every operating system has a driver for.
//!
//! As much of NVMe 1.4 as a driver needs: the admin queue, identify, I/O queues, features, asynchronous events, log
//! pages, read, write, write zeroes, flush, PRP lists. Blocks are 512 bytes, pages 4096.
//!
//! ```text
//!   doorbell ──▶ fetch entries ──▶ admin or I/O ──▶ (fetch PRP list) ──▶ (gather data) ──▶ store
//!                  dma_read                            dma_read            dma_read          │
//!                                      interrupt ◀── completion entry ◀── (scatter data) ◀───┘
//! ```

mod admin;
mod command;
mod identify;
mod io;
mod queue;

use std::collections::{BTreeMap, HashMap};

pub use command::{Command, Status};

use crate::config::{BarKind, Builder, DeviceType, Identity};
use crate::flow::{Finished, JobId};
use crate::tlp_buf::TlpBuf;
use units::Time;

use super::{Endpoint, Event, Function, FunctionOptions, RegisterRead};
use queue::{CompletionQueue, SubmissionQueue};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 512;
const PAGE: u64 = 4096;
/// The most one command transfers: 2^5 pages.
const TRANSFER_LOG_PAGES: u8 = 5;
const TRANSFER_BYTES_MAX: usize = (PAGE as usize) << TRANSFER_LOG_PAGES;
/// Entries of the largest queue.
const QUEUE_ENTRIES_MAX: u32 = 1024;
/// I/O queues of each kind.
const QUEUES_MAX: u16 = 16;
/// Commands worked on at once. Others wait in their queues, in the guest's memory.
const COMMANDS_MAX: usize = 128;
/// Entries fetched at once.
const FETCH_MAX: u32 = 16;

/// Why a block could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store failed")]
pub struct StoreError;

/// Where the blocks are.
pub trait BlockStore: Send {
    /// How many blocks of [`BLOCK_BYTES`] there are.
    fn blocks(&self) -> u64;
    /// Reads whole blocks; the range has been checked.
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError>;
    /// Writes whole blocks; the range has been checked.
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError>;
    /// What was written survives.
    fn flush(&mut self) -> Result<(), StoreError>;
}

/// Controller registers at the start of BAR 0.
mod register {
    pub(super) const CAP: u64 = 0x00;
    pub(super) const VS: u64 = 0x08;
    pub(super) const INTMS: u64 = 0x0c;
    pub(super) const INTMC: u64 = 0x10;
    pub(super) const CC: u64 = 0x14;
    pub(super) const CSTS: u64 = 0x1c;
    pub(super) const AQA: u64 = 0x24;
    pub(super) const ASQ: u64 = 0x28;
    pub(super) const ACQ: u64 = 0x30;
    pub(super) const DOORBELLS: u64 = 0x1000;
}

const VERSION: u32 = 0x0001_0400;
const CC_ENABLE: u32 = 1;
const CSTS_READY: u32 = 1 << 0;
const CSTS_FATAL: u32 = 1 << 1;
const CSTS_SHUTDOWN_DONE: u32 = 2 << 2;

/// How a controller is made.
#[derive(Clone, Debug)]
pub struct NvmeOptions {
    /// Up to 20 characters.
    pub serial: String,
    /// Offer MSI-X beside MSI. QEMU 11.1 cannot unplug such a device.
    pub msix: bool,
    /// How it uses its link.
    pub function: FunctionOptions,
}

impl Default for NvmeOptions {
    fn default() -> Self {
        Self { serial: "dxpu-0".into(), msix: false, function: FunctionOptions::default() }
    }
}

#[derive(Default)]
struct Registers {
    cc: u32,
    csts: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    masked: u32,
}

/// What a DMA read was for.
enum Step {
    Fetch { queue: u16, count: u32 },
    PrpList { io: u64 },
    Gather { io: u64, at: usize },
}

/// The controller.
pub struct Nvme<S> {
    function: Function,
    store: S,
    serial: String,
    registers: Registers,
    submission: BTreeMap<u16, SubmissionQueue>,
    completion: BTreeMap<u16, CompletionQueue>,
    steps: HashMap<JobId, Step>,
    transfers: HashMap<u64, io::Transfer>,
    next_name: u64,
    /// Asynchronous event requests that wait for an event.
    event_requests: Vec<Command>,
    features: BTreeMap<u8, u32>,
}

impl<S: BlockStore> Nvme<S> {
    /// A controller in front of `store`.
    pub fn new(store: S, options: NvmeOptions) -> Self {
        let identity = Identity { vendor: 0x1b36, device: 0x0010, class: 0x01_08_02, revision: 2 };
        let vectors = 32;
        let mut builder = Builder::endpoint(identity)
            .subsystem(0x1af4, 0x1100)
            .bar(0, BarKind::Memory64, 0x4000)
            .express(DeviceType::Endpoint)
            .msi(vectors)
            .aer();
        if options.msix {
            builder = builder.msix(vectors.into(), 0, 0x2000, 0x3000);
        }
        Self {
            function: Function::new(builder.build(), options.function),
            store,
            serial: options.serial,
            registers: Registers::default(),
            submission: BTreeMap::new(),
            completion: BTreeMap::new(),
            steps: HashMap::new(),
            transfers: HashMap::new(),
            next_name: 0,
            event_requests: Vec::new(),
            features: BTreeMap::new(),
        }
    }

    /// The store, for tests and for owners that replace it.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn new_name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }

    /// Asks for guest memory, to go on with `step` when it is here.
    fn ask(&mut self, step: Step, address: u64, bytes: usize) {
        let job = JobId(self.new_name());
        self.steps.insert(job, step);
        self.function.dma_read(job, address, bytes);
    }

    /// Works off events until there is none.
    fn run(&mut self) {
        while let Some(event) = self.function.next_event() {
            match event {
                Event::Write { bar: 0, offset, data } => self.on_write(offset, &data),
                Event::Write { .. } => {}
                Event::Read(read) => self.on_read(&read),
                Event::Dma(finished) => self.on_dma(finished),
                Event::Reset => self.forget(),
            }
        }
    }

    fn on_dma(&mut self, finished: Finished) {
        let Some(step) = self.steps.remove(&finished.job) else { return };
        match step {
            Step::Fetch { queue, count } => match finished.outcome {
                Ok(entries) => self.on_entries(queue, count, &entries),
                // Without its queues a controller can do nothing but say so.
                Err(_) => self.registers.csts |= CSTS_FATAL,
            },
            Step::PrpList { io } => self.on_prp_list(io, finished.outcome.ok()),
            Step::Gather { io, at } => self.on_gathered(io, at, finished.outcome.ok()),
        }
    }

    /// Everything but the registers of the admin queue is as after power-on.
    fn forget(&mut self) {
        self.submission.clear();
        self.completion.clear();
        self.steps.clear();
        self.transfers.clear();
        self.event_requests.clear();
        self.features.clear();
        self.registers.cc = 0;
        self.registers.csts = 0;
        self.registers.masked = 0;
    }

    fn on_read(&mut self, read: &RegisterRead) {
        let mut page = [0; 0x40];
        let mut put = |at: u64, bytes: &[u8]| page[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(register::CAP, &capabilities().to_le_bytes());
        put(register::VS, &VERSION.to_le_bytes());
        put(register::INTMS, &self.registers.masked.to_le_bytes());
        put(register::INTMC, &self.registers.masked.to_le_bytes());
        put(register::CC, &self.registers.cc.to_le_bytes());
        put(register::CSTS, &self.registers.csts.to_le_bytes());
        put(register::AQA, &self.registers.aqa.to_le_bytes());
        put(register::ASQ, &self.registers.asq.to_le_bytes());
        put(register::ACQ, &self.registers.acq.to_le_bytes());
        let data: Vec<u8> = (read.offset..read.offset + read.bytes as u64)
            .map(|at| usize::try_from(at).ok().and_then(|at| page.get(at)).copied().unwrap_or(0))
            .collect();
        self.function.answer(read, &data);
    }

    fn on_write(&mut self, offset: u64, data: &[u8]) {
        // Drivers write 64-bit registers in one piece or in two halves; both are a sequence of double words.
        if !offset.is_multiple_of(4) || !data.len().is_multiple_of(4) {
            return;
        }
        for (n, dw) in data.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes([dw[0], dw[1], dw[2], dw[3]]);
            self.on_write_dw(offset + 4 * n as u64, value);
        }
    }

    fn on_write_dw(&mut self, offset: u64, value: u32) {
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            register::INTMS => self.registers.masked |= value,
            register::INTMC => self.unmask(value),
            register::CC => self.on_control(value),
            register::AQA => self.registers.aqa = value & 0x0fff_0fff,
            register::ASQ => self.registers.asq = low(self.registers.asq) & !0xfff,
            0x2c => self.registers.asq = high(self.registers.asq),
            register::ACQ => self.registers.acq = low(self.registers.acq) & !0xfff,
            0x34 => self.registers.acq = high(self.registers.acq),
            register::DOORBELLS.. => {
                let number = (offset - register::DOORBELLS) / 4;
                let queue = (number / 2) as u16;
                match number % 2 {
                    0 => self.on_tail(queue, value),
                    _ => self.on_head(queue, value),
                }
            }
            _ => {}
        }
    }

    fn on_control(&mut self, value: u32) {
        let before = self.registers.cc;
        if before & CC_ENABLE != 0 && value & CC_ENABLE == 0 {
            self.forget();
            self.registers.cc = value;
            return;
        }
        self.registers.cc = value;
        if before & CC_ENABLE == 0 && value & CC_ENABLE != 0 {
            self.enable();
        }
        if value >> 14 & 3 != 0 {
            let _ = self.store.flush();
            self.registers.csts |= CSTS_SHUTDOWN_DONE;
        }
    }

    fn enable(&mut self) {
        // Page size 4 KiB and the NVM command set are all there is.
        if self.registers.cc >> 7 & 0xf != 0 || self.registers.cc >> 4 & 7 != 0 {
            self.registers.csts |= CSTS_FATAL;
            return;
        }
        let entries = |value: u32| (value & 0xfff) + 1;
        let (asq, acq) = (entries(self.registers.aqa), entries(self.registers.aqa >> 16));
        self.submission.insert(0, SubmissionQueue::new(self.registers.asq, asq, 0));
        self.completion.insert(0, CompletionQueue::new(self.registers.acq, acq, Some(0)));
        self.registers.csts = CSTS_READY;
    }
}

/// The capabilities register: 1024 entries, contiguous queues, 10 s to get ready, 4 KiB pages, NVM commands.
fn capabilities() -> u64 {
    u64::from(QUEUE_ENTRIES_MAX - 1) | 1 << 16 | 20 << 24 | 1 << 37
}

impl<S: BlockStore> Endpoint for Nvme<S> {
    fn receive(&mut self, packet: TlpBuf, now: Time) {
        self.function.receive(packet, now);
        self.run();
    }

    fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        self.function.transmit(now)
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
        self.registers = Registers::default();
    }
}
