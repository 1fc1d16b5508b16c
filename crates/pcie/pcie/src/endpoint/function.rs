//! What all functions have in common: configuration space, registers behind BARs, DMA, interrupts.
//!
//! The device on top sees [`Event`]s (a register was written, a read wants an answer, memory it asked for is here) and
//! calls [`Function::dma_read`], [`Function::dma_write`] and [`Function::interrupt`]. Packets stay in here.

use std::collections::VecDeque;
use std::time::Duration;

use tlp::{
    Bdf, Body, Class, Config, Header, Memory, MemoryOp, MessageRouting, ReadCompletionBoundary, SizeLimit,
    Status, TagSpace, code,
};
use units::Time;

use super::interrupts::Msix;
use crate::config::{ConfigSpace, find_capability, find_extended, register};
use crate::flow::{Failure, Finished, JobId, Requester, RequesterOptions, Unexpected};
use crate::flow::{as_completion, memory_reads};
use crate::tlp_buf::{TlpBuf, enabled_runs};

/// Something the device on top must see to.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Registers were written.
    Write {
        /// Which BAR.
        bar: u8,
        /// Where in it.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Registers are read; answer with [`Function::answer`].
    Read(RegisterRead),
    /// Memory that was asked for has come, or will not.
    Dma(Finished),
    /// The function was reset by its driver.
    Reset,
}

/// A read of registers that waits for its answer.
#[derive(Debug, PartialEq, Eq)]
pub struct RegisterRead {
    request: Header,
    first_byte: u64,
    /// Which BAR.
    pub bar: u8,
    /// Where in it.
    pub offset: u64,
    /// How much.
    pub bytes: usize,
}

/// How a function uses its link.
#[derive(Clone, Copy, Debug)]
pub struct FunctionOptions {
    /// The most requests it keeps open, below what the driver allows.
    pub tags_max: u16,
    /// The most it asks for at once, below what the driver allows.
    pub read_bytes_max: SizeLimit,
    /// How long it waits for an answer.
    pub timeout: Duration,
    /// Use these tags whatever the driver allowed: for measurements of links longer than drivers expect.
    pub force_tags: Option<TagSpace>,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            tags_max: 256,
            read_bytes_max: SizeLimit::new(4096).expect("a size of the specification"),
            timeout: Duration::from_millis(500),
            force_tags: None,
        }
    }
}

/// One PCI Express function.
pub struct Function {
    config: ConfigSpace,
    options: FunctionOptions,
    /// Bus, device and function, as the last configuration write called us.
    id: Bdf,
    requester: Requester,
    /// Posted packets and completions, in order. Requests that wait for tags are behind all of them.
    out: VecDeque<TlpBuf>,
    events: VecDeque<Event>,
    msix: Option<Msix>,
    express: Option<u16>,
}

impl Function {
    /// A function with this configuration space.
    pub fn new(config: ConfigSpace, options: FunctionOptions) -> Self {
        let msix = Msix::of(&config);
        let express = find_capability(&config, register::EXPRESS_ID);
        let mut function = Self {
            config,
            options,
            id: Bdf::default(),
            requester: Requester::new(RequesterOptions::default()),
            out: VecDeque::new(),
            events: VecDeque::new(),
            msix,
            express,
        };
        function.requester = function.new_requester();
        function
    }

    /// Its configuration space.
    pub fn config(&self) -> &ConfigSpace {
        &self.config
    }

    /// What it was last called.
    pub fn id(&self) -> Bdf {
        self.id
    }

    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Requests open and waiting for a tag.
    pub fn requests_under_way(&self) -> (usize, usize) {
        (self.requester.open_count(), self.requester.waiting_count())
    }

    /// The next packet for the host.
    pub fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        self.out.pop_front().or_else(|| self.requester.transmit(self.id, now))
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        let ended = self.requester.on_tick(now);
        if !ended.is_empty() {
            self.report(register::ERROR_TIMEOUT, None);
        }
        self.events.extend(ended.into_iter().map(Event::Dma));
    }

    /// When time must pass at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        self.requester.wake_at()
    }

    /// As after power-on. Jobs under way are forgotten: their owner is reset too.
    pub fn reset(&mut self) {
        self.config.reset();
        self.msix = Msix::of(&self.config);
        self.out.clear();
        self.events.clear();
        self.requester = self.new_requester();
    }

    fn new_requester(&self) -> Requester {
        let space = self.options.force_tags.unwrap_or_else(|| self.tag_space());
        let (tags_max, timeout) = (self.options.tags_max, self.options.timeout);
        Requester::new(RequesterOptions { space, tags_max, timeout })
    }

    fn tag_space(&self) -> TagSpace {
        let Some(at) = self.express else { return TagSpace::FiveBits };
        let (one, two) = (register::EXPRESS_DEVICE_CONTROL, register::EXPRESS_DEVICE_CONTROL_2);
        if self.config.u16(at + two) & register::DEVICE_CONTROL_2_TEN_BIT_TAGS != 0 {
            TagSpace::TenBits
        } else if self.config.u16(at + one) & register::DEVICE_CONTROL_EXTENDED_TAG != 0 {
            TagSpace::EightBits
        } else {
            TagSpace::FiveBits
        }
    }

    fn device_control(&self) -> u16 {
        self.express.map_or(0x2810, |at| self.config.u16(at + register::EXPRESS_DEVICE_CONTROL))
    }

    fn max_payload(&self) -> SizeLimit {
        SizeLimit::from_bits((self.device_control() >> 5 & 7) as u8).unwrap_or(tlp::MAX_PAYLOAD_BYTES_RESET)
    }

    fn max_read(&self) -> SizeLimit {
        let allowed = SizeLimit::from_bits((self.device_control() >> 12 & 7) as u8);
        allowed.unwrap_or(tlp::MAX_READ_BYTES_RESET).min(self.options.read_bytes_max)
    }

    /// Asks for guest memory. Its coming is an event with the same name.
    pub fn dma_read(&mut self, job: JobId, address: u64, bytes: usize) {
        if !self.config.bus_master() {
            let outcome = Err(Failure::Status(Status::UnsupportedRequest));
            self.events.push_back(Event::Dma(Finished { job, outcome }));
            return;
        }
        let limit = self.max_read();
        let finished = self.requester.submit(job, bytes, memory_reads(address, bytes, limit));
        self.events.extend(finished.map(Event::Dma));
    }

    /// Writes guest memory. It is posted: no completion says whether it arrived.
    pub fn dma_write(&mut self, address: u64, data: &[u8]) {
        if !self.config.bus_master() {
            return;
        }
        let mut done = 0;
        for (at, bytes) in tlp::split_request(address, data.len() as u64, self.max_payload()) {
            let piece = &data[done..done + bytes as usize];
            done += bytes as usize;
            self.out.extend(TlpBuf::memory_write(self.id, at, piece));
        }
    }

    /// Raises an interrupt: a write like any other, behind the data it tells of. MSI-X where it is on, else MSI.
    pub fn interrupt(&mut self, vector: u16) {
        let message = match &mut self.msix {
            Some(msix) if msix.is_on(&self.config) => msix.raise(&self.config, vector),
            _ => super::interrupts::msi(&self.config, vector),
        };
        if let Some((address, data)) = message {
            self.dma_write(address, &data.to_le_bytes());
        }
    }

    /// Answers a read of registers. An answer of another length is a completer abort.
    pub fn answer(&mut self, read: &RegisterRead, data: &[u8]) {
        if data.len() != read.bytes {
            let abort = TlpBuf::completion(&read.request, self.id, Status::CompleterAbort);
            self.out.push_back(abort);
            return;
        }
        let (limit, boundary) = (self.max_payload(), ReadCompletionBoundary::Bytes128);
        let id = self.id;
        self.out.extend(TlpBuf::completions(&read.request, id, read.first_byte, data, limit, boundary));
    }

    /// A packet from the host has come.
    pub fn receive(&mut self, packet: TlpBuf, _now: Time) {
        match &packet.header.body {
            Body::Config(config) => self.on_config(&packet.header, *config, &packet.payload),
            Body::Memory(memory) => self.on_memory(&packet.header, *memory, &packet.payload),
            Body::Completion(_) => self.on_completion(&packet),
            // Turning off is acknowledged; other messages to an endpoint (unlock, slot power) need nothing.
            Body::Message(message) if message.code == code::PME_TURN_OFF => {
                let ack = Header::message(self.id, MessageRouting::Gather, code::PME_TO_ACK);
                self.out.push_back(TlpBuf::bare(ack));
            }
            Body::Message(_) => {}
            Body::Io(_) | Body::Atomic(_) => self.refuse(&packet.header),
        }
    }

    fn on_completion(&mut self, packet: &TlpBuf) {
        let Some(completion) = as_completion(&packet.header) else { return };
        match self.requester.on_completion(self.id, &packet.header, completion, &packet.payload) {
            Ok(finished) => {
                if let Some(Finished { outcome: Err(Failure::Poisoned), .. }) = &finished {
                    self.report(register::ERROR_POISONED, Some(&packet.header));
                }
                self.events.extend(finished.map(Event::Dma));
            }
            Err(Unexpected { .. }) => {
                self.report(register::ERROR_UNEXPECTED_COMPLETION, Some(&packet.header));
            }
        }
    }

    fn on_config(&mut self, header: &Header, config: Config, payload: &[u8]) {
        // Only function 0 exists; a Type 1 request should have become Type 0 on its way.
        if config.is_type_1 || config.target.function() != 0 {
            return self.refuse(header);
        }
        let Some(data) = payload.first_chunk::<4>().copied().filter(|_| config.is_write) else {
            // A configuration read gets its double word whatever the enables; its lower address is zero.
            let data = self.config.read(config.register);
            let (limit, boundary) = (tlp::MAX_PAYLOAD_BYTES_RESET, ReadCompletionBoundary::Bytes128);
            let id = self.id;
            self.out.extend(TlpBuf::completions(header, id, 0, &data, limit, boundary));
            return;
        };
        self.id = config.target;
        let tags_before = self.tag_space();
        self.config.write(config.register, config.first_enable, data);
        self.out.push_back(TlpBuf::completion(header, self.id, Status::Success));
        if let Some(at) = self.express
            && config.register == at + register::EXPRESS_DEVICE_CONTROL
            && config.first_enable & 0b10 != 0
            && data[1] & (register::DEVICE_CONTROL_FLR >> 8) as u8 != 0
        {
            let id = self.id;
            let answered = self.out.pop_back();
            self.reset();
            self.id = id;
            self.out.extend(answered);
            self.events.push_back(Event::Reset);
            return;
        }
        // More tags count from the next request on; drivers change it before they ask for anything.
        if self.tag_space() != tags_before
            && self.requester.open_count() + self.requester.waiting_count() == 0
        {
            self.requester = self.new_requester();
        }
        self.send_unmasked();
    }

    fn send_unmasked(&mut self) {
        let Some(msix) = &mut self.msix else { return };
        for (address, data) in msix.take_unmasked(&self.config) {
            self.dma_write(address, &data.to_le_bytes());
        }
    }

    fn on_memory(&mut self, header: &Header, memory: Memory, payload: &[u8]) {
        let span = memory.span();
        let bytes = u64::from(span.byte_count());
        let first_byte = span.first_byte();
        let Some((bar, offset)) = self.config.decode(first_byte, bytes) else {
            return self.refuse(header);
        };
        match memory.op {
            MemoryOp::Read => {
                let bytes = bytes as usize;
                let read = RegisterRead { request: *header, first_byte, bar, offset, bytes };
                match self.msix.as_ref().and_then(|msix| msix.read(bar, offset, bytes)) {
                    Some(data) => self.answer(&read, &data),
                    None => self.events.push_back(Event::Read(read)),
                }
            }
            MemoryOp::Write if header.is_poisoned => self.report(register::ERROR_POISONED, Some(header)),
            MemoryOp::Write => {
                let base = offset - (first_byte - span.address);
                for (at, len) in enabled_runs(&span) {
                    let Some(data) = payload.get(at..at + len) else { break };
                    let offset = base.wrapping_add(at as u64);
                    if self.msix.as_mut().is_some_and(|msix| msix.write(bar, offset, data)) {
                        continue;
                    }
                    self.events.push_back(Event::Write { bar, offset, data: data.to_vec() });
                }
                self.send_unmasked();
            }
            MemoryOp::ReadLocked | MemoryOp::DeferrableWrite => self.refuse(header),
        }
    }

    /// This function does not support the request: a non-posted one gets a completion that says so,
    /// and the error is noted.
    fn refuse(&mut self, header: &Header) {
        if header.class() == Class::NonPosted {
            self.out.push_back(TlpBuf::completion(header, self.id, Status::UnsupportedRequest));
        }
        self.report(register::ERROR_UNSUPPORTED, Some(header));
    }

    /// Notes an error where software looks for it, and tells the root complex if it wants to hear.
    fn report(&mut self, error: u32, header: Option<&Header>) {
        let control = self.device_control();
        if let Some(at) = self.express {
            // Device status: an error of this severity, and whether it was an unsupported request.
            let unsupported = if error == register::ERROR_UNSUPPORTED { 1 << 3 } else { 0 };
            self.config.set_bits(at + register::EXPRESS_DEVICE_CONTROL, (1 << 1 | unsupported) << 16);
        }
        let Some(at) = find_extended(&self.config, register::AER_ID) else { return };
        let is_first = self.config.u32(at + register::AER_UNCORRECTABLE) == 0;
        self.config.set_bits(at + register::AER_UNCORRECTABLE, error);
        if is_first && let Some(header) = header {
            self.log_header(at + register::AER_HEADER_LOG, header);
        }
        let is_masked = self.config.u32(at + register::AER_UNCORRECTABLE_MASK) & error != 0;
        let is_fatal = self.config.u32(at + register::AER_SEVERITY) & error != 0;
        let wanted = if is_fatal { 1 << 2 } else { 1 << 1 };
        // An unsupported request is an ordinary answer to enumeration: it is reported only where asked for.
        let unsupported_quiet = error == register::ERROR_UNSUPPORTED && control & 1 << 3 == 0;
        if !is_masked && is_first && control & wanted != 0 && !unsupported_quiet {
            let code = if is_fatal { code::ERR_FATAL } else { code::ERR_NONFATAL };
            let message = Header::message(self.id, MessageRouting::RootComplex, code);
            self.out.push_back(TlpBuf::bare(message));
        }
    }

    fn log_header(&mut self, at: u16, header: &Header) {
        let mut bytes = [0; 16];
        if header.encode(false, &mut bytes).is_ok() {
            for (n, dw) in bytes.chunks_exact(4).enumerate() {
                // The log holds double words as they were sent, most significant byte first.
                let value = u32::from_be_bytes([dw[0], dw[1], dw[2], dw[3]]);
                self.config.set_u16(at + 4 * n as u16, value as u16);
                self.config.set_u16(at + 4 * n as u16 + 2, (value >> 16) as u16);
            }
        }
    }
}
