//! A device that some other program serves, as the device of a slot: the box's proxy drives it by [`Client`].
//!
//! Packets become region accesses and replies become completions. The device must ask for memory by message, as devices
//! built on libvfio-user can: the guest's memory is on another machine, so there is no file to give it. BARs are
//! emulated here, as virtual machines do. Interrupts are MSI; an MSI-X capability is not shown.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pcie::config::register;
use pcie::endpoint::Endpoint;
use pcie::flow::{Failure, Finished, JobId, Request, Requester, RequesterOptions};
use pcie::{Bdf, SizeLimit, Time, TlpBuf, enabled_runs};
use rustix::event::{EventfdFlags, eventfd};
use tlp::{
    Body, Class, Config, Header, Memory, MemoryOp, ReadCompletionBoundary, Span, Status, TransactionId,
};

use crate::client::{Client, ClientError, ClientEvent, RequestId};
use crate::message::{irq, region};

/// Where a device may reach: all that a 64-bit guest can have. The host decides what of it is memory.
const DMA_SPACE: u64 = 1 << 52;
/// Requests of the device that may wait for memory.
const DMA_OPEN_MAX: usize = 256;

struct Bar {
    size: u64,
    /// The lowest bits of the register: kind and width.
    flags: u32,
    base: u64,
}

/// What waits for the device's reply.
enum Waiting {
    Read {
        request: Header,
        first_byte: u64,
    },
    /// One of some writes that together answer a configuration write.
    Write {
        request: Header,
        is_last: bool,
    },
}

/// A device of another program, in a slot.
pub struct ClientEndpoint {
    client: Client,
    is_alive: bool,
    id: Bdf,
    bars: [Option<Bar>; 6],
    /// Configuration space as last written; capabilities as found.
    written: [u8; 256],
    msi: Option<u16>,
    msi_is_64_bit: bool,
    express: Option<u16>,
    /// The byte that leads to the MSI-X capability, and where it leads to without it.
    hidden: Option<(u16, u8)>,
    events: Vec<OwnedFd>,
    msi_is_on: bool,
    waiting: HashMap<RequestId, Waiting>,
    requester: Requester,
    /// Which request of the device each job answers.
    dma: HashMap<JobId, (u16, u64)>,
    next_job: u64,
    out: VecDeque<TlpBuf>,
}

impl ClientEndpoint {
    /// Looks at the device and lets it reach the guest's memory by asking.
    pub fn new(mut client: Client, options: RequesterOptions) -> Result<Self, ClientError> {
        let mut header = [0; 256];
        client.read(region::CONFIG, 0, &mut header)?;
        client.dma_map(0, DMA_SPACE, 0, None)?;
        let vectors = client.irq_info(irq::MSI).map_or(0, |info| info.count.min(32));
        let events = (0..vectors)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| ClientError::Wait(error.into()))?;
        let mut endpoint = Self {
            bars: bars(&client, &header),
            client,
            is_alive: true,
            id: Bdf::default(),
            written: [0; 256],
            msi: None,
            msi_is_64_bit: false,
            express: None,
            hidden: None,
            events,
            msi_is_on: false,
            waiting: HashMap::new(),
            requester: Requester::new(options),
            dma: HashMap::new(),
            next_job: 0,
            out: VecDeque::new(),
        };
        endpoint.find_capabilities(&header);
        Ok(endpoint)
    }

    fn find_capabilities(&mut self, header: &[u8; 256]) {
        let has_list = header[usize::from(register::STATUS)] & register::STATUS_CAPABILITIES as u8 != 0;
        let mut pointer_at = register::CAPABILITIES;
        for _ in 0..if has_list { 48 } else { 0 } {
            let at = u16::from(header[usize::from(pointer_at)] & 0xfc);
            if !(0x40..=0xf0).contains(&at) {
                break;
            }
            match header[usize::from(at)] {
                register::MSI_ID => {
                    self.msi = Some(at);
                    self.msi_is_64_bit = header[usize::from(at) + 2] & 0x80 != 0;
                }
                register::EXPRESS_ID => self.express = Some(at),
                register::MSIX_ID => self.hidden = Some((pointer_at, header[usize::from(at) + 1])),
                _ => {}
            }
            pointer_at = at + 1;
        }
    }

    /// What to wait on: any of them readable means that there may be packets.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.client.as_fd()).chain(self.events.iter().map(|event| event.as_fd()))
    }

    /// Whether the program that serves the device still answers.
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    fn u16(&self, at: u16) -> u16 {
        u16::from_le_bytes([self.written[usize::from(at)], self.written[usize::from(at) + 1]])
    }

    fn u32(&self, at: u16) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn device_control(&self) -> u16 {
        self.express.map_or(0x2810, |at| match self.u16(at + register::EXPRESS_DEVICE_CONTROL) {
            0 => 0x2810,
            control => control,
        })
    }

    fn max_payload(&self) -> SizeLimit {
        SizeLimit::from_bits((self.device_control() >> 5 & 7) as u8).unwrap_or(tlp::MAX_PAYLOAD_BYTES_RESET)
    }

    fn max_read(&self) -> SizeLimit {
        SizeLimit::from_bits((self.device_control() >> 12 & 7) as u8).unwrap_or(tlp::MAX_READ_BYTES_RESET)
    }

    /// A device that is gone answers nothing; its open requests end as if no device were there.
    fn give_up(&mut self, error: &ClientError) {
        tracing::warn!(%error, "the program that serves the device is gone");
        self.is_alive = false;
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            let (Waiting::Read { request, .. } | Waiting::Write { request, .. }) = waiting;
            self.out.push_back(TlpBuf::completion(&request, self.id, Status::UnsupportedRequest));
        }
        self.requester.abort_all(Failure::Removed);
        self.dma.clear();
    }

    fn refuse(&mut self, header: &Header) {
        if header.class() == Class::NonPosted {
            self.out.push_back(TlpBuf::completion(header, self.id, Status::UnsupportedRequest));
        }
    }

    fn answer(&mut self, request: &Header, first_byte: u64, data: &[u8]) {
        let (limit, boundary, id) = (self.max_payload(), ReadCompletionBoundary::Bytes128, self.id);
        self.out.extend(TlpBuf::completions(request, id, first_byte, data, limit, boundary));
    }

    fn on_config(&mut self, header: &Header, config: Config, payload: &[u8]) -> Result<(), ClientError> {
        if config.is_type_1 || config.target.function() != 0 {
            self.refuse(header);
            return Ok(());
        }
        let Some(data) = payload.first_chunk::<4>().filter(|_| config.is_write) else {
            if let Some(value) = self.read_bar_register(config.register) {
                self.answer(header, 0, &value.to_le_bytes());
                return Ok(());
            }
            let request = self.client.begin_read(region::CONFIG, config.register.into(), 4)?;
            self.waiting.insert(request, Waiting::Read { request: *header, first_byte: 0 });
            return Ok(());
        };
        self.id = config.target;
        if self.read_bar_register(config.register).is_some() {
            self.write_bar_register(config.register, config.first_enable, *data);
            self.out.push_back(TlpBuf::completion(header, self.id, Status::Success));
            return Ok(());
        }
        let span = Span {
            address: config.register.into(),
            length_dw: 1,
            enables: tlp::ByteEnables { first: config.first_enable, last: 0 },
        };
        let runs: Vec<(usize, usize)> = enabled_runs(&span).collect();
        if runs.is_empty() {
            self.out.push_back(TlpBuf::completion(header, self.id, Status::Success));
        }
        for (n, (at, bytes)) in runs.iter().enumerate() {
            let (offset, piece) = (u64::from(config.register) + *at as u64, &data[*at..at + bytes]);
            for (place, value) in self.written.iter_mut().skip(offset as usize).zip(piece) {
                *place = *value;
            }
            let request = self.client.begin_write(region::CONFIG, offset, piece)?;
            let is_last = n + 1 == runs.len();
            self.waiting.insert(request, Waiting::Write { request: *header, is_last });
        }
        self.switch_msi()
    }

    /// A BAR register's value; none for other registers.
    fn read_bar_register(&self, at: u16) -> Option<u32> {
        let index = usize::from(at.checked_sub(register::BAR0)? / 4);
        if index >= 6 {
            return None;
        }
        match (&self.bars[index], index.checked_sub(1).and_then(|below| self.bars[below].as_ref())) {
            (Some(bar), _) => Some(bar.base as u32 | bar.flags),
            (None, Some(below)) if below.flags & 4 != 0 => Some((below.base >> 32) as u32),
            _ => Some(0),
        }
    }

    fn write_bar_register(&mut self, at: u16, enables: u8, data: [u8; 4]) {
        let index = usize::from((at - register::BAR0) / 4);
        let mut value = self.read_bar_register(at).unwrap_or(0).to_le_bytes();
        (0..4).filter(|n| enables >> n & 1 != 0).for_each(|n| value[n] = data[n]);
        let value = u64::from(u32::from_le_bytes(value));
        let (bar, is_high) = match self.bars[index].is_some() {
            true => (&mut self.bars[index], false),
            false if index > 0 => (&mut self.bars[index - 1], true),
            false => return,
        };
        let Some(bar) = bar else { return };
        let base = match is_high {
            true if bar.flags & 4 != 0 => bar.base & 0xffff_ffff | value << 32,
            true => return,
            false => bar.base & !0xffff_ffff | value & !0xf,
        };
        bar.base = base & !(bar.size - 1);
    }

    /// Has the device signal its interrupts to us while the guest wants them.
    fn switch_msi(&mut self) -> Result<(), ClientError> {
        let Some(at) = self.msi.filter(|_| !self.events.is_empty()) else { return Ok(()) };
        let is_on = self.u16(at + register::MSI_CONTROL) & register::MSI_CONTROL_ENABLE != 0;
        if is_on != self.msi_is_on {
            self.msi_is_on = is_on;
            match is_on {
                true => {
                    let events: Vec<BorrowedFd<'_>> = self.events.iter().map(|event| event.as_fd()).collect();
                    self.client.set_irqs(irq::MSI, &events)?;
                }
                false => self.client.clear_irqs(irq::MSI)?,
            }
        }
        Ok(())
    }

    fn on_memory(&mut self, header: &Header, memory: Memory, payload: &[u8]) -> Result<(), ClientError> {
        let span = memory.span();
        let (first, bytes) = (span.first_byte(), u64::from(span.byte_count()));
        let is_on = self.u16(register::COMMAND) & register::COMMAND_MEMORY != 0;
        let found = self.bars.iter().enumerate().find_map(|(index, bar)| {
            let bar = bar.as_ref().filter(|_| is_on)?;
            let into = first.checked_sub(bar.base)?;
            (into.checked_add(bytes)? <= bar.size).then_some((index as u32, into))
        });
        let Some((bar, offset)) = found else {
            self.refuse(header);
            return Ok(());
        };
        match memory.op {
            MemoryOp::Read => {
                let request = self.client.begin_read(bar, offset, bytes as usize)?;
                self.waiting.insert(request, Waiting::Read { request: *header, first_byte: first });
            }
            MemoryOp::Write if header.is_poisoned => {}
            MemoryOp::Write => {
                let start = offset - (first - span.address);
                for (at, len) in enabled_runs(&span) {
                    if let Some(data) = payload.get(at..at + len) {
                        self.client.post_write(bar, start.wrapping_add(at as u64), data)?;
                    }
                }
            }
            MemoryOp::ReadLocked | MemoryOp::DeferrableWrite => self.refuse(header),
        }
        Ok(())
    }

    /// Takes what the device has to say.
    fn poll(&mut self) -> Result<(), ClientError> {
        while let Some(event) = self.client.next_event(Duration::ZERO)? {
            self.on_event(event)?;
        }
        for vector in 0..self.events.len() {
            if rustix::io::read(&self.events[vector], &mut [0; 8]).is_ok() && self.msi_is_on {
                self.send_msi(vector as u32);
            }
        }
        Ok(())
    }

    fn on_event(&mut self, event: ClientEvent) -> Result<(), ClientError> {
        match event {
            ClientEvent::Read { request, data } => {
                let Some(Waiting::Read { request, first_byte }) = self.waiting.remove(&request) else {
                    return Ok(());
                };
                match data {
                    Some(mut data) => {
                        self.hide(&request, &mut data);
                        self.answer(&request, first_byte, &data);
                    }
                    None => self.refuse(&request),
                }
            }
            ClientEvent::Written { request, .. } => {
                if let Some(Waiting::Write { request, is_last: true }) = self.waiting.remove(&request) {
                    self.out.push_back(TlpBuf::completion(&request, self.id, Status::Success));
                }
            }
            ClientEvent::DmaRead { id, address, count } => {
                if self.dma.len() >= DMA_OPEN_MAX || count == 0 {
                    return self.client.answer_dma_read(id, address, None);
                }
                self.next_job += 1;
                let job = JobId(self.next_job);
                self.dma.insert(job, (id, address));
                let requests = reads(address, count, self.max_read());
                self.requester.submit(job, count, requests);
            }
            ClientEvent::DmaWrite { id, no_reply, address, data } => {
                let mut done = 0;
                for (at, bytes) in tlp::split_request(address, data.len() as u64, self.max_payload()) {
                    let piece = &data[done..done + bytes as usize];
                    done += bytes as usize;
                    self.out.extend(TlpBuf::memory_write(self.id, at, piece));
                }
                if !no_reply {
                    // Posted: that it is on its way is all that the device is ever told.
                    self.client.answer_dma_write(id, address, data.len(), true)?;
                }
            }
        }
        Ok(())
    }

    fn hide(&self, request: &Header, data: &mut [u8]) {
        if let (Body::Config(config), Some((pointer_at, next))) = (&request.body, self.hidden)
            && let Some(at) = pointer_at.checked_sub(config.register)
            && let Some(byte) = data.get_mut(usize::from(at))
        {
            *byte = next;
        }
    }

    fn send_msi(&mut self, vector: u32) {
        let Some(at) = self.msi else { return };
        let control = self.u16(at + register::MSI_CONTROL);
        let vectors = 1u32 << (control >> 4 & 7).min(5);
        let (high, data_at) = match self.msi_is_64_bit {
            true => (u64::from(self.u32(at + register::MSI_ADDRESS + 4)) << 32, register::MSI_DATA),
            false => (0, register::MSI_DATA - 4),
        };
        let address = high | u64::from(self.u32(at + register::MSI_ADDRESS) & !3);
        let first = u32::from(self.u16(at + data_at)) & !(vectors - 1);
        let message = (first | (vector % vectors)).to_le_bytes();
        self.out.extend(TlpBuf::memory_write(self.id, address, &message));
    }

    fn on_finished(&mut self, finished: Finished) -> Result<(), ClientError> {
        let Some((id, address)) = self.dma.remove(&finished.job) else { return Ok(()) };
        self.client.answer_dma_read(id, address, finished.outcome.ok().as_deref())
    }

    fn attempt(&mut self, what: impl FnOnce(&mut Self) -> Result<(), ClientError>) {
        if self.is_alive
            && let Err(error) = what(self)
        {
            self.give_up(&error);
        }
    }
}

/// The BARs of a device: sizes from its regions, kinds from its configuration space.
fn bars(client: &Client, header: &[u8; 256]) -> [Option<Bar>; 6] {
    std::array::from_fn(|index| {
        let size = client.regions().get(index)?.size;
        let flags = u32::from(header[usize::from(register::BAR0) + 4 * index] & 0xf);
        // I/O space is not carried; sizes that are no power of two cannot be a BAR.
        let is_usable = size >= 16 && size.is_power_of_two() && flags & 1 == 0;
        is_usable.then_some(Bar { size, flags, base: 0 })
    })
}

/// The requests that read guest memory.
fn reads(address: u64, bytes: usize, limit: SizeLimit) -> Vec<Request> {
    let mut start = 0;
    let request = |(at, len): (u64, u32)| {
        let span = Span::of_bytes(at, len).expect("split requests fit into a packet");
        let into = start..start + len as usize;
        start = into.end;
        let header = Header::memory_read(TransactionId::default(), span);
        Request { header, payload: Vec::new(), into, first_byte: at }
    };
    tlp::split_request(address, bytes as u64, limit).map(request).collect()
}

impl Endpoint for ClientEndpoint {
    fn receive(&mut self, packet: TlpBuf, _now: Time) {
        if !self.is_alive {
            return self.refuse(&packet.header);
        }
        let header = packet.header;
        match header.body {
            Body::Config(config) => self.attempt(|this| this.on_config(&header, config, &packet.payload)),
            Body::Memory(memory) => self.attempt(|this| this.on_memory(&header, memory, &packet.payload)),
            Body::Completion(completion) => {
                let id = self.id;
                // A completion without an open request is dropped.
                let ended = self.requester.on_completion(id, &header, &completion, &packet.payload);
                if let Ok(Some(finished)) = ended {
                    self.attempt(|this| this.on_finished(finished));
                }
            }
            Body::Message(_) => {}
            Body::Io(_) | Body::Atomic(_) => self.refuse(&header),
        }
    }

    fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        if self.out.is_empty() {
            self.attempt(Self::poll);
        }
        self.out.pop_front().or_else(|| self.requester.transmit(self.id, now))
    }

    fn on_tick(&mut self, now: Time) {
        for finished in self.requester.on_tick(now) {
            self.attempt(|this| this.on_finished(finished));
        }
    }

    fn wake_at(&self) -> Option<Time> {
        self.requester.wake_at()
    }

    fn reset(&mut self) {
        self.out.clear();
        self.waiting.clear();
        self.requester.abort_all(Failure::Removed);
        self.dma.clear();
        self.written = [0; 256];
        self.bars.iter_mut().flatten().for_each(|bar| bar.base = 0);
        self.attempt(|this| {
            this.msi_is_on = false;
            if !this.events.is_empty() {
                this.client.clear_irqs(irq::MSI)?;
            }
            match this.client.info().resettable {
                true => this.client.reset(),
                false => Ok(()),
            }
        });
    }
}
