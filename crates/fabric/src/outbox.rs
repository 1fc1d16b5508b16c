//! TLPs that wait to be sent, and those that were and may have to be again.
//!
//! Three queues. A TLP leaves its queue when its class has credits and the order allows it: never before one of its own
//! class, and a non-posted TLP or a completion never before a posted one that was there first. Relaxed and ID-based
//! ordering would allow more; we take no such liberty.

use crate::credit::{Credits, data_credits};
use crate::wire::crc;
use std::collections::VecDeque;
use tlp::{Class, EncodeError, Tlp};

/// A TLP in bytes. Its buffer is used again for the next one.
#[derive(Debug)]
pub(crate) struct OutTlp {
    /// Prefixes, header, payload.
    bytes: Vec<u8>,
    front_bytes: usize,
    pub(crate) tlp_crc: u32,
    class: Class,
    data_credits: u32,
    order: u64,
    /// Packets on their way that the peer does not have yet.
    missing: u16,
    /// No packet is left to be made of it.
    is_whole: bool,
}

impl OutTlp {
    pub(crate) fn front(&self) -> &[u8] {
        &self.bytes[..self.front_bytes]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.front_bytes..]
    }
}

#[derive(Debug)]
pub(crate) struct Outbox {
    tlps: Vec<OutTlp>,
    free: Vec<u32>,
    queues: [VecDeque<u32>; 3],
    next_order: u64,
    queued: usize,
    queued_max: usize,
}

impl Outbox {
    pub(crate) fn new(queued_max: usize) -> Self {
        Self {
            tlps: Vec::new(),
            free: Vec::new(),
            queues: Default::default(),
            next_order: 0,
            queued: 0,
            queued_max,
        }
    }

    pub(crate) fn has_room(&self, class: Class) -> bool {
        self.queues[class.index()].len() < self.queued_max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Bytes are encoded once, here.
    pub(crate) fn push(&mut self, tlp: &Tlp<'_>) -> Result<(), EncodeError> {
        let mut header = [0; 16];
        let header_bytes = tlp.header.encode(tlp.digest.is_some(), &mut header)?;
        let (announced, given) = (tlp.header.payload_bytes(), tlp.payload.len());
        if announced != given {
            return Err(EncodeError::PayloadLength { announced, given });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.tlps.push(OutTlp {
                bytes: Vec::new(),
                front_bytes: 0,
                tlp_crc: 0,
                class: Class::Posted,
                data_credits: 0,
                order: 0,
                missing: 0,
                is_whole: false,
            });
            (self.tlps.len() - 1) as u32
        });
        let out = &mut self.tlps[index as usize];
        out.bytes.clear();
        out.bytes.extend_from_slice(tlp.prefixes.as_bytes());
        out.bytes.extend_from_slice(&header[..header_bytes]);
        out.front_bytes = out.bytes.len();
        out.bytes.extend_from_slice(tlp.payload);
        // A digest goes to the last receiver as it is, right or wrong; ours covers this network only.
        out.tlp_crc = tlp.digest.unwrap_or_else(|| crc(&out.bytes));
        (out.missing, out.is_whole) = (0, false);
        out.class = tlp.class();
        out.data_credits = data_credits(given);
        out.order = self.next_order;
        self.next_order += 1;
        self.queues[out.class.index()].push_back(index);
        self.queued += 1;
        Ok(())
    }

    pub(crate) fn get(&self, index: u32) -> &OutTlp {
        &self.tlps[index as usize]
    }

    /// A packet was made of it; `is_last` when it was the last one.
    pub(crate) fn on_packet(&mut self, index: u32, is_last: bool) {
        let tlp = &mut self.tlps[index as usize];
        tlp.missing += 1;
        tlp.is_whole = is_last;
    }

    /// The peer has one of its packets.
    pub(crate) fn on_arrival(&mut self, index: u32) {
        let tlp = &mut self.tlps[index as usize];
        tlp.missing -= 1;
        if tlp.missing == 0 && tlp.is_whole {
            self.free.push(index);
        }
    }

    /// The class whose first TLP may go now: the oldest of those that have credits and pass no posted TLP.
    pub(crate) fn next_class(&self, used: &Credits, limit: &Credits) -> Option<Class> {
        if self.queued == 0 {
            return None;
        }
        let mut posted = u64::MAX;
        let mut oldest = (u64::MAX, None);
        for class in Class::ALL {
            let Some(index) = self.queues[class.index()].front() else { continue };
            let tlp = self.get(*index);
            if class == Class::Posted {
                posted = tlp.order;
            }
            let may_go = tlp.order <= posted && tlp.order < oldest.0;
            if may_go && used.has_room(limit, class, tlp.data_credits) {
                oldest = (tlp.order, Some(class));
            }
        }
        oldest.1
    }

    /// Takes the first TLP of a class and charges it.
    pub(crate) fn take(&mut self, class: Class, used: &mut Credits) -> Option<u32> {
        let index = self.queues[class.index()].pop_front()?;
        self.queued -= 1;
        used.add(class, self.get(index).data_credits);
        Some(index)
    }
}
