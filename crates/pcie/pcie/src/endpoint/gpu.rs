//! The dxpu GPU function: connections of a guest to a worker, through registers and rings in the guest's memory.
//!
//! ```text
//!   guest's memory                       GpuFunction                         worker connection
//!   outbound ring ◀── reads (tags) ───── Channel ─────── Action::Bytes ─────▶ taken
//!   status block  ◀── posted writes ────    │
//!   inbound ring  ◀── posted writes ────────┘ ◀───────── push, finish, desert
//! ```
//!
//! It carries bytes and knows nothing of what they mean. [`gpu_registers`] has its registers. A guest that lies is told so
//! ([`gpu_registers::state::FAULT`]) and harms only itself: what is read and written is what it named.

mod channel;

use std::collections::{HashMap, VecDeque};

use gpu_registers::{CHANNELS, PAGE_BYTES, control, identity, register, state, status};

use self::channel::{Channel, Finish, Phase};
use super::{Event, Function, FunctionOptions, RegisterRead};
use crate::config::{BarKind, Builder, DeviceType, Identity};
use crate::flow::{Finished, JobId};
use crate::tlp_buf::TlpBuf;
use units::Time;

/// Requests that wait for a tag, below which another job is begun. The link must never lack work.
const WAITING_MIN: usize = 64;

/// A channel's number, from 0.
pub type ChannelId = usize;

/// Something for the owner of the function, which has the connections to the worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// The guest wants a connection: answer with [`GpuFunction::opened`] or [`GpuFunction::refused`].
    Open(ChannelId),
    /// The guest sends bytes: say [`GpuFunction::taken`] when they are out of the way.
    Bytes(ChannelId, Vec<u8>),
    /// The guest sends no more; it still reads.
    Finish(ChannelId),
    /// The connection is over. Nothing more is taken from it and nothing more comes.
    Close(ChannelId),
}

/// The function.
pub struct GpuFunction {
    function: Function,
    channels: Vec<Channel>,
    jobs: HashMap<JobId, ChannelId>,
    next_job: u64,
    /// Channels that are not idle, a bit each: most are, and every packet asks for all of them.
    live: u64,
    turn: u32,
    actions: VecDeque<Action>,
    pass: Vec<u8>,
}

impl GpuFunction {
    /// A function with all channels idle.
    pub fn new(options: FunctionOptions) -> Self {
        let identity = Identity {
            vendor: gpu_registers::VENDOR,
            device: gpu_registers::DEVICE,
            class: gpu_registers::CLASS,
            revision: 0,
        };
        let config = Builder::endpoint(identity)
            .bar(0, BarKind::Memory32, gpu_registers::BAR_BYTES)
            .express(DeviceType::Endpoint)
            .msi(32)
            .aer()
            .build();
        Self {
            function: Function::new(config, options),
            channels: (0..CHANNELS).map(|_| Channel::default()).collect(),
            jobs: HashMap::new(),
            next_job: 0,
            live: 0,
            turn: 0,
            actions: VecDeque::new(),
            pass: Vec::new(),
        }
    }

    /// What the guest finds to show the worker. A pass that is too long is none.
    pub fn set_pass(&mut self, pass: &[u8]) {
        self.pass.clear();
        if pass.len() as u64 <= identity::PASS_BYTES_MAX {
            self.pass.extend_from_slice(pass);
        }
    }

    /// A packet from the host has come.
    pub fn receive(&mut self, packet: TlpBuf, now: Time) {
        self.function.receive(packet, now);
        self.run();
    }

    /// The next packet for the host.
    pub fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        if let Some(packet) = self.function.transmit(now) {
            return Some(packet);
        }
        // Tags may have come free since the last answer.
        self.run();
        self.function.transmit(now)
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        self.function.on_tick(now);
        self.run();
    }

    /// When [`GpuFunction::on_tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        self.function.wake_at()
    }

    /// As after power-on; every connection is over.
    pub fn reset(&mut self) {
        self.function.reset();
        self.forget();
    }

    /// Takes the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The connection that the guest asked for is there.
    pub fn opened(&mut self, id: ChannelId) {
        let channel = &mut self.channels[id];
        match channel.phase {
            Phase::Opening => {
                channel.phase = Phase::Open;
                channel.state |= state::OPEN;
                self.tell(id, status::STATE);
                self.run();
            }
            // Closed before it was open: what was sent meanwhile is still delivered.
            Phase::Closing => self.run(),
            Phase::Idle | Phase::Open | Phase::Broken => {}
        }
    }

    /// There is no connection for the guest.
    pub fn refused(&mut self, id: ChannelId) {
        self.break_off(id, state::REFUSED);
    }

    /// So many of the guest's bytes are out of the way.
    pub fn taken(&mut self, id: ChannelId, bytes: usize) {
        self.channels[id].take(bytes);
        self.run();
    }

    /// How many bytes [`GpuFunction::push`] takes.
    pub fn room(&self, id: ChannelId) -> usize {
        self.channels[id].room()
    }

    /// Sends bytes to the guest; gives how many of them there was room for.
    pub fn push(&mut self, id: ChannelId, mut data: &[u8]) -> usize {
        let mut pushed = 0;
        while !data.is_empty() && self.channels[id].room() > 0 {
            let (address, bytes) = self.channels[id].place(data.len());
            self.function.dma_write(address, &data[..bytes]);
            data = &data[bytes..];
            pushed += bytes;
        }
        if pushed > 0 {
            self.tell(id, status::INBOUND_PUT);
        }
        pushed
    }

    /// Nothing more is pushed.
    pub fn finish(&mut self, id: ChannelId) {
        self.add_state(id, state::FINISHED);
    }

    /// The worker takes no more of the guest's bytes.
    pub fn desert(&mut self, id: ChannelId) {
        self.add_state(id, state::DESERTED);
        self.drop_jobs(id);
        self.run();
    }

    fn add_state(&mut self, id: ChannelId, bit: u32) {
        let channel = &mut self.channels[id];
        if matches!(channel.phase, Phase::Open | Phase::Closing) && channel.state & bit == 0 {
            channel.state |= bit;
            self.tell(id, status::STATE);
        }
    }

    /// Writes a word of the status block, behind everything that was written before. A guest that has closed looks
    /// no longer.
    fn tell(&mut self, id: ChannelId, word: u64) {
        let channel = &mut self.channels[id];
        if channel.phase == Phase::Closing || !channel.has_status() {
            return;
        }
        let value = match word {
            status::INBOUND_PUT => channel.inbound_put(),
            status::STATE => channel.state,
            _ => match channel.news_of_space() {
                Some(come) => come,
                None => return,
            },
        };
        let (address, vector) = (channel.status_at + word, channel.vector());
        self.function.dma_write(address, &value.to_le_bytes());
        if let Ok(vector) = u16::try_from(vector) {
            self.function.interrupt(vector);
        }
    }

    fn run(&mut self) {
        loop {
            while let Some(event) = self.function.next_event() {
                match event {
                    Event::Write { offset, data, .. } => self.on_write(offset, &data),
                    Event::Read(read) => self.on_read(&read),
                    Event::Dma(finished) => self.on_dma(finished),
                    Event::Reset => self.forget(),
                }
            }
            let mut left = self.live;
            while left != 0 {
                self.settle(left.trailing_zeros() as ChannelId);
                left &= left - 1;
            }
            // A read that is refused at once is an event again.
            if !self.ask() {
                return;
            }
        }
    }

    /// Begins to read what guests have rung for, channel after channel. Says whether anything was begun.
    fn ask(&mut self) -> bool {
        let mut began = false;
        let mut left = self.live;
        while left != 0 && self.function.requests_under_way().1 < WAITING_MIN {
            let next = self.turn + 1;
            self.turn = (next + left.rotate_right(next).trailing_zeros()) % u64::BITS;
            let id = self.turn as ChannelId;
            self.next_job += 1;
            let job = JobId(self.next_job);
            match self.channels[id].ask(job) {
                None => left &= !(1 << id),
                Some((address, bytes)) => {
                    began = true;
                    self.jobs.insert(job, id);
                    self.function.dma_read(job, address, bytes);
                }
            }
        }
        began
    }

    /// What follows from what has come and what was taken.
    fn settle(&mut self, id: ChannelId) {
        let channel = &mut self.channels[id];
        if channel.finish == Finish::Wanted && channel.phase == Phase::Open && channel.has_all_come() {
            channel.finish = Finish::Done;
            self.actions.push_back(Action::Finish(id));
        }
        let channel = &mut self.channels[id];
        if channel.phase == Phase::Closing && channel.is_delivered() {
            *channel = Channel::default();
            self.live &= !(1 << id);
            self.actions.push_back(Action::Close(id));
        }
    }

    fn on_dma(&mut self, finished: Finished) {
        let Some(id) = self.jobs.remove(&finished.job) else { return };
        match finished.outcome {
            Err(_) => self.break_off(id, state::FAULT),
            Ok(data) => {
                self.channels[id].arrived(finished.job, data);
                while let Some(data) = self.channels[id].next_bytes() {
                    self.actions.push_back(Action::Bytes(id, data));
                }
                self.tell(id, status::OUTBOUND_TAKEN);
            }
        }
    }

    fn on_read(&mut self, read: &RegisterRead) {
        let bytes: Vec<u8> = (read.offset..read.offset + read.bytes as u64)
            .map(|at| self.register(at & !3).to_le_bytes()[(at % 4) as usize])
            .collect();
        self.function.answer(read, &bytes);
    }

    fn register(&self, at: u64) -> u32 {
        match (at / PAGE_BYTES).checked_sub(1) {
            Some(id) => self.channels.get(id as usize).map_or(0, |channel| channel.get(at % PAGE_BYTES)),
            None => match at {
                identity::MAGIC => gpu_registers::MAGIC,
                identity::VERSION => gpu_registers::VERSION,
                identity::CHANNELS => CHANNELS as u32,
                identity::RING_BYTES_MAX => gpu_registers::RING_BYTES_MAX,
                identity::PASS_BYTES => self.pass.len() as u32,
                identity::PASS.. => {
                    let byte = |n| self.pass.get((at - identity::PASS) as usize + n).copied().unwrap_or(0);
                    u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
                }
                _ => 0,
            },
        }
    }

    fn on_write(&mut self, offset: u64, data: &[u8]) {
        // Registers are written as whole double words; anything else is not for us.
        if !offset.is_multiple_of(4) || !data.len().is_multiple_of(4) {
            return;
        }
        for (n, dw) in data.chunks_exact(4).enumerate() {
            let at = offset + 4 * n as u64;
            let Some(id) = (at / PAGE_BYTES).checked_sub(1).map(|page| page as usize) else { continue };
            if id < CHANNELS {
                self.on_register(id, at % PAGE_BYTES, u32::from_le_bytes([dw[0], dw[1], dw[2], dw[3]]));
            }
        }
    }

    fn on_register(&mut self, id: ChannelId, at: u64, value: u32) {
        let channel = &mut self.channels[id];
        let is_used = matches!(channel.phase, Phase::Opening | Phase::Open);
        match at {
            register::CONTROL => self.on_control(id, value),
            register::OUTBOUND_PUT if is_used => {
                if channel.ring(value).is_err() {
                    self.break_off(id, state::FAULT);
                }
            }
            register::INBOUND_TAKEN if is_used => {
                if channel.give_back(value).is_err() {
                    self.break_off(id, state::FAULT);
                }
            }
            // A doorbell of a channel that is not open: the guest's write came late.
            register::OUTBOUND_PUT | register::INBOUND_TAKEN => {}
            _ => channel.set(at, value),
        }
    }

    fn on_control(&mut self, id: ChannelId, command: u32) {
        let channel = &mut self.channels[id];
        match (command, channel.phase) {
            (control::OPEN, Phase::Idle) => {
                if channel.is_possible() {
                    channel.phase = Phase::Opening;
                    self.live |= 1 << id;
                    self.actions.push_back(Action::Open(id));
                } else {
                    (channel.phase, channel.state) = (Phase::Broken, state::FAULT);
                    self.tell(id, status::STATE);
                }
            }
            (control::FINISH, Phase::Opening | Phase::Open) if channel.finish == Finish::Not => {
                channel.finish = Finish::Wanted;
            }
            (control::CLOSE, Phase::Opening | Phase::Open) => channel.phase = Phase::Closing,
            // Nothing is left to deliver.
            (control::CLOSE, Phase::Broken) => *channel = Channel::default(),
            (control::RESET, _) => self.end(id),
            _ => {}
        }
    }

    /// The channel cannot go on: the guest is told, and the function's owner too.
    fn break_off(&mut self, id: ChannelId, why: u32) {
        match self.channels[id].phase {
            Phase::Idle | Phase::Broken => {}
            Phase::Closing => self.end(id),
            Phase::Opening | Phase::Open => {
                self.drop_jobs(id);
                let channel = &mut self.channels[id];
                self.live &= !(1 << id);
                channel.phase = Phase::Broken;
                channel.state |= why | state::FINISHED | state::DESERTED;
                self.actions.push_back(Action::Close(id));
                self.tell(id, status::STATE);
            }
        }
    }

    fn end(&mut self, id: ChannelId) {
        self.drop_jobs(id);
        let channel = std::mem::take(&mut self.channels[id]);
        self.live &= !(1 << id);
        if !matches!(channel.phase, Phase::Idle | Phase::Broken) {
            self.actions.push_back(Action::Close(id));
        }
    }

    fn drop_jobs(&mut self, id: ChannelId) {
        for job in self.channels[id].drop_jobs() {
            self.jobs.remove(&job);
        }
    }

    fn forget(&mut self) {
        for id in 0..CHANNELS {
            self.end(id);
        }
    }
}
