//! TLPs that wait to be sent, and those that were and may have to be again.
//!
//! Three queues. A TLP leaves its queue when its class has credits and the order allows it: never before one of its own
//! class, and a non-posted TLP or a completion never before a posted one that was there first. Relaxed and ID-based
//! ordering would allow more; we take no such liberty.

use crate::credit::{Credits, data_credits};
use crate::wire::{TLP_FRONT_BYTES_MAX, crc, crc_and_front};
use std::collections::VecDeque;
use tlp::{Class, EncodeError, Tlp};

/// A TLP in bytes. Its buffer is used again for the next one.
#[derive(Debug)]
pub(crate) struct OutTlp {
    /// Prefixes and header, which take the first `front_bytes`.
    front: [u8; TLP_FRONT_BYTES_MAX],
    front_bytes: usize,
    payload: Vec<u8>,
    pub(crate) tlp_crc: u32,
    /// Of its payload alone, for its packet if it needs only one; None when the TLP brought a digest.
    pub(crate) payload_crc: Option<u32>,
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
        &self.front[..self.front_bytes]
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn as_front(&self) -> Front {
        Front { order: self.order, data_credits: self.data_credits }
    }
}

/// What decides whether the first TLP of a queue may go.
#[derive(Clone, Copy, Debug)]
struct Front {
    /// All ones when the queue is empty.
    order: u64,
    data_credits: u32,
}

impl Front {
    const NONE: Self = Self { order: u64::MAX, data_credits: 0 };
}

#[derive(Debug)]
pub(crate) struct Outbox {
    tlps: Vec<OutTlp>,
    free: Vec<u32>,
    queues: [VecDeque<u32>; 3],
    fronts: [Front; 3],
    next_order: u64,
    queued: usize,
    queued_max: usize,
    /// Payload in each queue.
    queued_bytes: [usize; 3],
    queued_bytes_max: usize,
}

impl Outbox {
    /// A queue takes at most `queued_max` TLPs, and no more once there are `queued_bytes_max` bytes of payload in it.
    pub(crate) fn new(queued_max: usize, queued_bytes_max: usize) -> Self {
        Self {
            tlps: Vec::new(),
            free: Vec::new(),
            queues: Default::default(),
            fronts: [Front::NONE; 3],
            next_order: 0,
            queued: 0,
            queued_max,
            queued_bytes: [0; 3],
            queued_bytes_max,
        }
    }

    pub(crate) fn has_room(&self, class: Class) -> bool {
        let at = class.index();
        self.queues[at].len() < self.queued_max && self.queued_bytes[at] < self.queued_bytes_max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Bytes are encoded once, here.
    pub(crate) fn push(&mut self, tlp: &Tlp<'_>) -> Result<(), EncodeError> {
        let (announced, given) = (tlp.header.payload_bytes(), tlp.payload.len());
        if announced != given {
            return Err(EncodeError::PayloadLength { announced, given });
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.tlps.push(OutTlp {
                front: [0; TLP_FRONT_BYTES_MAX],
                front_bytes: 0,
                payload: Vec::new(),
                tlp_crc: 0,
                payload_crc: None,
                class: Class::Posted,
                data_credits: 0,
                order: 0,
                missing: 0,
                is_whole: false,
            });
            (self.tlps.len() - 1) as u32
        });
        let out = &mut self.tlps[index as usize];
        let prefixes = tlp.prefixes.as_bytes();
        if !prefixes.is_empty() {
            out.front[..prefixes.len()].copy_from_slice(prefixes);
        }
        // In its place at once: bytes that were just written one by one are slow to copy.
        let encoded = match out.front[prefixes.len()..].first_chunk_mut() {
            Some(place) => tlp.header.encode(tlp.digest.is_some(), place).map_err(EncodeError::from),
            None => Err(EncodeError::NoRoom { need: tlp.encoded_bytes(), have: TLP_FRONT_BYTES_MAX }),
        };
        let header_bytes = match encoded {
            Ok(bytes) => bytes,
            Err(error) => {
                self.free.push(index);
                return Err(error);
            }
        };
        out.front_bytes = prefixes.len() + header_bytes;
        out.payload.clear();
        out.payload.extend_from_slice(tlp.payload);
        // A digest goes to the last receiver as it is, right or wrong; ours covers this network only.
        (out.tlp_crc, out.payload_crc) = match tlp.digest {
            Some(digest) => (digest, None),
            None => {
                let payload_crc = crc(tlp.payload);
                (crc_and_front(payload_crc, out.front()), Some(payload_crc))
            }
        };
        (out.missing, out.is_whole) = (0, false);
        out.class = tlp.class();
        out.data_credits = data_credits(given);
        out.order = self.next_order;
        self.next_order += 1;
        let front = &mut self.fronts[out.class.index()];
        if front.order == u64::MAX {
            *front = out.as_front();
        }
        self.queues[out.class.index()].push_back(index);
        self.queued_bytes[out.class.index()] += given;
        self.queued += 1;
        Ok(())
    }

    /// TLPs that have left their queue and are not known to have arrived.
    pub(crate) fn on_their_way(&self) -> usize {
        self.tlps.len() - self.free.len() - self.queued
    }

    pub(crate) fn get(&self, index: u32) -> &OutTlp {
        &self.tlps[index as usize]
    }

    /// A packet was made of it, and its payload up to `end` is in packets now; true when that is all.
    pub(crate) fn on_packet(&mut self, index: u32, end: u16) -> bool {
        let tlp = &mut self.tlps[index as usize];
        tlp.missing += 1;
        tlp.is_whole = usize::from(end) == tlp.payload.len();
        tlp.is_whole
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
        let posted = self.fronts[Class::Posted.index()].order;
        let mut oldest = (u64::MAX, None);
        for class in Class::ALL {
            let Front { order, data_credits } = self.fronts[class.index()];
            if order <= posted && order < oldest.0 && used.has_room(limit, class, data_credits) {
                oldest = (order, Some(class));
            }
        }
        oldest.1
    }

    /// Takes the first TLP of a class and charges it.
    pub(crate) fn take(&mut self, class: Class, used: &mut Credits) -> Option<u32> {
        let index = self.queues[class.index()].pop_front()?;
        self.queued -= 1;
        self.queued_bytes[class.index()] -= self.get(index).payload().len();
        used.add(class, self.fronts[class.index()].data_credits);
        let next = self.queues[class.index()].front().map(|next| self.get(*next));
        self.fronts[class.index()] = next.map_or(Front::NONE, OutTlp::as_front);
        Some(index)
    }
}
