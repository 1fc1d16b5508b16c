//! Two ends of a link, a scripted network between them, and a clock that jumps to whatever happens next.

#![allow(dead_code)] // Each test uses a part of it.

use fabric::{
    Endpoint, Epoch, Faults, LeaseSecret, Link, LinkConfig, LinkName, PathId, Protection, Role, Scripted,
    Time, Willing,
};
use tlp::{Bdf, Body, Header, MessageRouting, Span, Status, Tag, Tlp, TransactionId};

pub(crate) const HOST: Endpoint = Endpoint::host(11);
pub(crate) const SLOT: Endpoint = Endpoint::new(22, 5);

pub(crate) fn config(role: Role) -> LinkConfig {
    let ends = if role == Role::Host { [HOST, SLOT] } else { [SLOT, HOST] };
    let random = if role == Role::Host { [1; 32] } else { [2; 32] };
    LinkConfig::new(role, LinkName(7), Epoch(3), LeaseSecret([9; 32]), random, ends)
}

pub(crate) struct Pair {
    pub(crate) now: Time,
    /// The host, then the box.
    pub(crate) ends: [Link; 2],
    /// What the host sends, then what the box sends.
    pub(crate) nets: [Scripted; 2],
    datagram: Vec<u8>,
    /// Datagrams that were carried.
    pub(crate) datagrams: u64,
}

impl Pair {
    pub(crate) fn new(faults: Faults, seed: u64, change: impl Fn(&mut LinkConfig)) -> Self {
        let make = |role| {
            let mut config = config(role);
            change(&mut config);
            Link::new(config, Time(0)).unwrap()
        };
        Self {
            now: Time(0),
            ends: [make(Role::Host), make(Role::Box)],
            nets: [Scripted::new(seed, faults), Scripted::new(!seed, faults)],
            datagram: vec![0; 65_536],
            datagrams: 0,
        }
    }

    /// Everything that happens at this moment.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            for end in 0..2 {
                while let Some(datagram) = self.nets[1 - end].receive(self.now) {
                    self.ends[end].on_datagram(self.now, datagram);
                    is_quiet = false;
                }
                while let Some(transmit) = self.ends[end].transmit(self.now, &mut self.datagram) {
                    self.nets[end].send(self.now, transmit.path, &self.datagram[..transmit.bytes]);
                    self.datagrams += 1;
                    is_quiet = false;
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    /// Goes on to the next moment at which something can happen; false when there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let [a, b] = &mut self.ends;
        let due = [a.wake_at(), b.wake_at(), self.nets[0].next_at(), self.nets[1].next_at()];
        match due.into_iter().flatten().min() {
            Some(at) => {
                self.now = self.now.max(at);
                true
            }
            None => false,
        }
    }

    pub(crate) fn establish(&mut self) {
        self.settle();
        while !self.ends.iter().all(Link::is_established) {
            assert!(self.advance(), "nobody greets any more");
            self.settle();
        }
    }
}

/// Payload that says which TLP it belongs to.
pub(crate) fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    for (at, chunk) in payload.chunks_mut(8).enumerate() {
        let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64;
        chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
    }
    payload
}

pub(crate) fn write(number: u64, payload: &[u8]) -> Tlp<'_> {
    // Two tens of bits of the number are in the address; the payload has the rest.
    let span = Span::of_bytes(number % (1 << 40) * 4096, payload.len() as u32).unwrap();
    Tlp::new(Header::memory_write(Bdf(0x100), span), payload)
}

pub(crate) fn read(number: u64, tag: u16) -> Tlp<'static> {
    let id = TransactionId::new(Bdf(0x100), Tag::new(tag).unwrap());
    let span = Span::of_bytes(number % (1 << 40) * 4096, 64).unwrap();
    Tlp::new(Header::memory_read(id, span), &[])
}

pub(crate) fn message(number: u64) -> Tlp<'static> {
    let mut header = Header::message(Bdf(0x100), MessageRouting::RootComplex, tlp::code::VENDOR_TYPE_1);
    if let Body::Message(message) = &mut header.body {
        message.fields = number.to_be_bytes();
    }
    Tlp::new(header, &[])
}

/// The completion of a read, whole.
pub(crate) fn completion<'a>(request: &Header, data: &'a [u8]) -> Tlp<'a> {
    let Body::Memory(memory) = &request.body else { panic!("not a read: {request:?}") };
    let limit = tlp::SizeLimit::new(4096).unwrap();
    let boundary = tlp::ReadCompletionBoundary::Bytes128;
    let span = memory.span();
    let piece = tlp::split_completion(span.first_byte(), span.byte_count(), limit, boundary).next().unwrap();
    Tlp::new(request.completion_data(Bdf(0x200), &piece), data)
}

pub(crate) fn refusal(request: &Header) -> Tlp<'static> {
    Tlp::new(request.completion(Bdf(0x200), Status::UnsupportedRequest), &[])
}

pub(crate) fn plain(config: &mut LinkConfig) {
    config.protection = Protection::Plain;
}

pub(crate) fn two_paths(config: &mut LinkConfig) {
    config.paths = vec![PathId(1), PathId(2)];
}

pub(crate) const ALL: Willing = Willing::ALL;
