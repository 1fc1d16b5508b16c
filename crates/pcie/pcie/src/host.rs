//! The host's end of one slot.
//!
//! A virtual machine reads and writes configuration space and BARs; each becomes requests to the device in the slot, and
//! their answers become the virtual machine's. What the device sends by itself reads and writes the guest's memory, and
//! nothing but that: a packet with another device's name, or a completion without a request, is dropped.

mod discover;
mod learn;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

pub use discover::{DiscoverError, DiscoveredBar, Discovery};
use learn::Learnt;
use tlp::{
    Bdf, Body, Class, Header, Memory, MemoryOp, ReadCompletionBoundary, SizeLimit, Status, TransactionId,
    code,
};
use units::Time;

use crate::config::register;
use crate::flow::{
    Failure, Finished, JobId, Request, Requester, RequesterOptions, as_completion, memory_reads,
};
use crate::tables::Window;
use crate::tlp_buf::{TlpBuf, enabled_runs};

/// The guest's memory. The implementation refuses whatever is not the guest's.
pub trait HostMemory {
    /// Copies out; false when not all of it may be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
    /// Copies in; false when not all of it may be written.
    fn write(&self, address: u64, from: &[u8]) -> bool;
}

/// An access of the guest that waits for its answer. Named by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Access(pub u64);

/// Something for the virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostOutput {
    /// An access is answered; `None` means that no device was there. Reads of registers are all ones then. Reads of
    /// configuration space are answered with [`HostPort::remembered`]: all ones would be a list of capabilities that leads
    /// to itself, and virtual machines follow it for ever.
    Done {
        /// Which.
        access: Access,
        /// The bytes of a read; empty for a write.
        data: Option<Vec<u8>>,
    },
    /// The device raised this MSI vector.
    Msi(u16),
    /// The device raised this MSI-X vector.
    Msix(u16),
    /// The device reported an uncorrectable error.
    Error {
        /// The link cannot be trusted any longer.
        is_fatal: bool,
    },
    /// The device was looked at.
    Discovered(Result<Discovery, DiscoverError>),
}

/// What was wrong with packets from the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Packets that named another requester than the slot's device.
    pub foreign_requester: u64,
    /// Completions that answer no open request.
    pub unexpected_completion: u64,
    /// Reads and writes outside the guest's memory.
    pub outside_memory: u64,
    /// Requests a device does not send.
    pub unsupported: u64,
}

/// How a port behaves.
#[derive(Clone, Copy, Debug)]
pub struct HostPortOptions {
    /// What the device is called on this host.
    pub device: Bdf,
    /// What asks on the guest's behalf.
    pub root: Bdf,
    /// Tags and timeout of accesses.
    pub requester: RequesterOptions,
    /// Show the device's MSI-X capability.
    pub msix: bool,
}

impl Default for HostPortOptions {
    fn default() -> Self {
        let timeout = Duration::from_millis(200);
        Self {
            device: Bdf::new(1, 0, 0),
            root: Bdf::default(),
            requester: RequesterOptions { timeout, ..RequesterOptions::default() },
            msix: false,
        }
    }
}

/// MPS 128, MRRS 512, relaxed ordering and no-snoop allowed.
const DEVICE_CONTROL_RESET_VALUE: u16 = 0x2810;
/// Jobs with this bit are the port's own.
const OWN_JOB: u64 = 1 << 63;

/// The host's end of one slot.
pub struct HostPort {
    options: HostPortOptions,
    requester: Requester,
    /// For the device, in the order in which it leaves.
    out: VecDeque<TlpBuf>,
    outputs: VecDeque<HostOutput>,
    /// Which part of its padded buffer a configuration read wants.
    trims: HashMap<JobId, (usize, usize)>,
    learnt: Learnt,
    discovering: Option<discover::Stage>,
    is_present: bool,
    violations: Violations,
}

impl HostPort {
    /// A port with a device behind it.
    pub fn new(options: HostPortOptions) -> Self {
        Self {
            options,
            requester: Requester::new(options.requester),
            out: VecDeque::new(),
            outputs: VecDeque::new(),
            trims: HashMap::new(),
            learnt: Learnt::default(),
            discovering: None,
            is_present: true,
            violations: Violations::default(),
        }
    }

    /// What was wrong so far.
    pub fn violations(&self) -> Violations {
        self.violations
    }

    /// The windows the guest gave the device: below 4 GiB and above, as the host's table keeps them.
    pub fn windows(&self) -> (Option<Window>, Option<Window>) {
        self.learnt.windows()
    }

    /// Takes the next output.
    pub fn next_output(&mut self) -> Option<HostOutput> {
        self.outputs.pop_front()
    }

    /// Gives requests that wait their tags, as far as there are any, and puts them behind what is to be sent already. A
    /// caller that takes packets later than the guest makes them calls this after each access: then they leave in the
    /// guest's order, and a read that was made before a write leaves before it.
    pub fn stage(&mut self, now: Time) {
        while let Some(request) = self.requester.transmit(self.options.root, now) {
            self.out.push_back(request);
        }
    }

    /// Packets that [`HostPort::transmit`] gives without another access or answer.
    pub fn staged_count(&self) -> usize {
        self.out.len()
    }

    /// The next packet for the device.
    pub fn transmit(&mut self, now: Time) -> Option<TlpBuf> {
        self.out.pop_front().or_else(|| self.requester.transmit(self.options.root, now))
    }

    /// When [`HostPort::on_tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        self.requester.wake_at()
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        for finished in self.requester.on_tick(now) {
            self.finish(finished);
        }
    }

    /// The guest reads configuration space.
    pub fn config_read(&mut self, access: Access, offset: u16, bytes: usize) {
        let job = JobId(access.0);
        let (first, end) = (offset & !3, usize::from(offset) + bytes);
        if !self.is_present || end > 4096 {
            return self.nobody(access);
        }
        let registers: Vec<u16> = (first..end.next_multiple_of(4) as u16).step_by(4).collect();
        if !self.requester.is_busy(job) {
            self.trims.insert(job, (usize::from(offset), bytes));
        }
        self.submit(job, registers.len() * 4, self.config_reads(&registers));
    }

    /// The guest writes configuration space.
    pub fn config_write(&mut self, access: Access, offset: u16, data: &[u8]) {
        let end = usize::from(offset) + data.len();
        if !self.is_present || end > 4096 {
            return self.nobody(access);
        }
        self.learnt.config_written(offset, data);
        let mut requests = Vec::new();
        for register in (offset & !3..end as u16).step_by(4) {
            let (mut payload, mut enables) = ([0; 4], 0);
            for (byte, place) in payload.iter_mut().enumerate() {
                let at = usize::from(register) + byte;
                if let Some(value) = at.checked_sub(usize::from(offset)).and_then(|at| data.get(at)) {
                    *place = *value;
                    enables |= 1 << byte;
                }
            }
            requests.push(self.config_write_request(register, enables, payload));
        }
        self.submit(JobId(access.0), 0, requests);
    }

    /// What a read of configuration space gives when the device does not answer: what was there when the device was looked
    /// at; all ones for its identity alone, by which a guest sees that it is gone.
    pub fn remembered(&self, offset: u16, bytes: usize) -> Option<Vec<u8>> {
        self.learnt.remembered(offset, bytes)
    }

    fn config_reads(&self, registers: &[u16]) -> Vec<Request> {
        let (unset, device) = (TransactionId::default(), self.options.device);
        let request = |(n, register): (usize, &u16)| Request {
            header: Header::config_read(unset, false, device, *register),
            payload: Vec::new(),
            into: n * 4..n * 4 + 4,
            first_byte: 0,
        };
        registers.iter().enumerate().map(request).collect()
    }

    fn config_write_request(&self, register: u16, enables: u8, data: [u8; 4]) -> Request {
        let (unset, device) = (TransactionId::default(), self.options.device);
        let header = Header::config_write(unset, false, device, register, enables);
        Request { header, payload: data.to_vec(), into: 0..0, first_byte: 0 }
    }

    /// The guest reads registers.
    pub fn bar_read(&mut self, access: Access, bar: u8, offset: u64, bytes: usize) {
        let Some(base) = self.learnt.bar_base(bar).filter(|_| self.is_present) else {
            return self.nobody(access);
        };
        let limit = SizeLimit::new(4096).expect("a size of the specification");
        self.submit(JobId(access.0), bytes, memory_reads(base.wrapping_add(offset), bytes, limit));
    }

    /// The guest writes registers: posted, so there is nothing to wait for.
    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        let Some(base) = self.learnt.bar_base(bar).filter(|_| self.is_present) else { return };
        let mut done = 0;
        let address = base.wrapping_add(offset);
        for (at, bytes) in tlp::split_request(address, data.len() as u64, self.learnt.max_payload()) {
            let piece = &data[done..done + bytes as usize];
            done += bytes as usize;
            self.out.extend(TlpBuf::memory_write(self.options.root, at, piece));
        }
    }

    /// Read avoidance: writes `bytes` of the guest's memory into a BAR, so that the device need not ask for them. False
    /// when not all of it is the guest's memory; then nothing is sent.
    pub fn push(
        &mut self,
        bar: u8,
        offset: u64,
        address: u64,
        bytes: usize,
        memory: &dyn HostMemory,
    ) -> bool {
        let mut data = vec![0; bytes];
        if !memory.read(address, &mut data) {
            return false;
        }
        self.bar_write(bar, offset, &data);
        true
    }

    /// The virtual machine keeps the MSI-X table to itself: point the device's own table at this port.
    pub fn arm_msix(&mut self, vectors: u16) {
        let Some((bar, offset)) = self.learnt.msix_table() else { return };
        for vector in 0..vectors {
            let mut entry = [0; 16];
            entry[0..8].copy_from_slice(&learn::MSIX_ADDRESS.to_le_bytes());
            entry[8..12].copy_from_slice(&(learn::MSIX_COOKIE | u32::from(vector)).to_le_bytes());
            self.bar_write(bar, offset + u64::from(vector) * 16, &entry);
        }
    }

    fn submit(&mut self, job: JobId, bytes: usize, requests: impl IntoIterator<Item = Request>) {
        // A caller that starts its numbers anew may meet one that is still waited for: the later one gets nothing.
        if self.requester.is_busy(job) {
            if job.0 & OWN_JOB == 0 {
                self.nobody(Access(job.0));
            }
            return;
        }
        if let Some(finished) = self.requester.submit(job, bytes, requests) {
            self.finish(finished);
        }
    }

    fn nobody(&mut self, access: Access) {
        self.outputs.push_back(HostOutput::Done { access, data: None });
    }

    fn finish(&mut self, finished: Finished) {
        if finished.job.0 & OWN_JOB != 0 {
            return self.discovery_step(finished.outcome.ok());
        }
        let trim = self.trims.remove(&finished.job);
        let data = finished.outcome.ok().map(|mut buffer| {
            if let Some((offset, bytes)) = trim {
                self.learnt.overlay(offset & !3, &mut buffer);
                buffer.drain(..offset % 4);
                buffer.truncate(bytes);
            }
            buffer
        });
        self.outputs.push_back(HostOutput::Done { access: Access(finished.job.0), data });
    }

    /// The caller does not wait for this access any longer. It drops the answer, if one comes.
    pub fn abandon(&mut self, access: Access) {
        self.trims.remove(&JobId(access.0));
    }

    /// The device is gone: what was asked is answered with nothing, what is on its way is dropped.
    pub fn remove(&mut self) {
        self.is_present = false;
        self.out.clear();
        for finished in self.requester.abort_all(Failure::Removed) {
            self.finish(finished);
        }
    }

    /// Another device of the same kind, fresh from power-on, is behind the port now. Nothing of the old one counts.
    pub fn replace(&mut self) {
        self.remove();
        self.learnt.reset();
        self.is_present = true;
    }

    /// The guest resets the device: a function-level reset. What was asked before is not waited for, and not asked if it has
    /// not left yet. Writes and answers leave ahead of the reset, as the guest made them.
    pub fn reset(&mut self, access: Access) {
        self.out.retain(|packet| packet.header.class() != Class::NonPosted);
        for finished in self.requester.abort_all(Failure::Removed) {
            self.finish(finished);
        }
        let control = self.learnt.express().map(|at| at + register::EXPRESS_DEVICE_CONTROL);
        self.learnt.reset();
        match control.filter(|_| self.is_present) {
            Some(control) => {
                let bits = u32::from(register::DEVICE_CONTROL_FLR | DEVICE_CONTROL_RESET_VALUE);
                let request = self.config_write_request(control, 0b0011, bits.to_le_bytes());
                self.submit(JobId(access.0), 0, [request]);
            }
            None => self.nobody(access),
        }
    }

    /// A packet from the device has come.
    pub fn receive(&mut self, packet: &TlpBuf, memory: &dyn HostMemory) {
        if !self.is_present {
            return;
        }
        let header = &packet.header;
        if let Some(completion) = as_completion(header) {
            let root = self.options.root;
            match self.requester.on_completion(root, header, completion, &packet.payload) {
                Ok(Some(finished)) => self.finish(finished),
                Ok(None) => {}
                Err(_) => self.violations.unexpected_completion += 1,
            }
            return;
        }
        if header.id().requester != self.options.device {
            // No answer either: the name in it is another device's.
            self.violations.foreign_requester += 1;
            return;
        }
        match &header.body {
            Body::Memory(request) => self.on_memory(header, request, &packet.payload, memory),
            Body::Message(message) => match message.code {
                code::ERR_FATAL => self.outputs.push_back(HostOutput::Error { is_fatal: true }),
                code::ERR_NONFATAL => self.outputs.push_back(HostOutput::Error { is_fatal: false }),
                _ => {}
            },
            _ => self.refuse(header),
        }
    }

    fn refuse(&mut self, header: &Header) {
        self.violations.unsupported += 1;
        if header.class() == Class::NonPosted {
            let refusal = TlpBuf::completion(header, self.options.root, Status::UnsupportedRequest);
            self.out.push_back(refusal);
        }
    }

    fn on_memory(&mut self, header: &Header, request: &Memory, payload: &[u8], memory: &dyn HostMemory) {
        let span = request.span();
        match request.op {
            MemoryOp::Read => {
                let mut data = vec![0; usize::from(span.byte_count())];
                let first = span.first_byte();
                // A flush read has no byte enabled: it asks whether everything before it has arrived. It has.
                let is_flush = span.length_dw == 1 && span.enables.first == 0;
                if !is_flush && !memory.read(first, &mut data) {
                    self.violations.outside_memory += 1;
                    let refusal = TlpBuf::completion(header, self.options.root, Status::UnsupportedRequest);
                    self.out.push_back(refusal);
                    return;
                }
                let (limit, boundary) = (self.learnt.max_payload(), ReadCompletionBoundary::Bytes64);
                let root = self.options.root;
                self.out.extend(TlpBuf::completions(header, root, first, &data, limit, boundary));
            }
            MemoryOp::Write if header.is_poisoned => {}
            MemoryOp::Write => {
                if let Some(interrupt) = self.learnt.interrupt(request.address, payload) {
                    self.outputs.push_back(interrupt);
                    return;
                }
                for (at, bytes) in enabled_runs(&span) {
                    let Some(data) = payload.get(at..at + bytes) else { break };
                    if !memory.write(span.address + at as u64, data) {
                        self.violations.outside_memory += 1;
                    }
                }
            }
            MemoryOp::ReadLocked | MemoryOp::DeferrableWrite => self.refuse(header),
        }
    }
}
