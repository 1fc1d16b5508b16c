//! Packets as they arrive: each once, in order, those that came too early kept until it is their turn.

use crate::ids::Route;
use crate::wire::{ACK_WORDS_MAX, Packet};

/// What became of a packet that is not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is kept.
    Early,
    /// It was here before.
    Duplicate,
    /// It is further ahead than a packet may be.
    Beyond,
}

/// A packet that is kept.
#[derive(Debug)]
pub(crate) struct Held {
    /// For a header packet, its way and the CRC of its TLP.
    pub(crate) header: Option<(Route, u32)>,
    /// For a data packet, the CRC of its payload where it is known.
    pub(crate) payload_crc: Option<u32>,
    /// Prefixes and TLP header, or a piece of payload.
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Assembly {
    /// The first packet that is missing.
    next: u64,
    /// One above the highest that is kept.
    end: u64,
    /// In place `sequence & mask`.
    ring: Vec<Option<Held>>,
    mask: u64,
    spare: Vec<Vec<u8>>,
}

impl Assembly {
    pub(crate) fn new(window: usize) -> Self {
        let ring = std::iter::repeat_with(|| None).take(window).collect();
        Self { next: 0, end: 0, ring, mask: window as u64 - 1, spare: Vec::new() }
    }

    /// The lower half of the first missing packet's number.
    pub(crate) fn next(&self) -> u32 {
        self.next as u32
    }

    pub(crate) fn has_gap(&self) -> bool {
        self.end > self.next
    }

    /// Whether it is the first missing packet: use it now, then call [`Assembly::advance`].
    pub(crate) fn is_next(&self, sequence: u32) -> bool {
        sequence == self.next as u32
    }

    /// A packet that is not the next one.
    pub(crate) fn arrive(&mut self, sequence: u32, packet: &Packet<'_>) -> Arrival {
        let ahead = sequence.wrapping_sub(self.next as u32);
        if ahead == 0 || ahead >= 1 << 31 {
            return Arrival::Duplicate;
        }
        if u64::from(ahead) >= self.ring.len() as u64 {
            return Arrival::Beyond;
        }
        let sequence = self.next + u64::from(ahead);
        let place = &mut self.ring[(sequence & self.mask) as usize];
        if place.is_some() {
            return Arrival::Duplicate;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        let (header, payload_crc) = match packet {
            Packet::Header(it) => {
                bytes.extend_from_slice(it.front);
                (Some((it.route, it.tlp_crc)), None)
            }
            Packet::Data(it) => {
                bytes.extend_from_slice(it.payload);
                (None, it.payload_crc)
            }
            Packet::Ack(_) | Packet::Ping => return Arrival::Beyond,
        };
        *place = Some(Held { header, payload_crc, bytes });
        self.end = self.end.max(sequence + 1);
        Arrival::Early
    }

    /// The next packet was used; gives the one after it, if that is here.
    pub(crate) fn advance(&mut self) -> Option<Held> {
        self.next += 1;
        // Mostly nothing is kept; then the ring, which is larger than the first cache, is not touched.
        if !self.has_gap() {
            return None;
        }
        self.ring[(self.next & self.mask) as usize].take()
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, held: Held) {
        self.spare.push(held.bytes);
    }

    /// Which packets are kept, as the words of an acknowledgement; gives how many bytes they are.
    pub(crate) fn words(&self, out: &mut [u8; ACK_WORDS_MAX * 8]) -> usize {
        if !self.has_gap() {
            return 0;
        }
        let first = self.next + 1;
        let words = ((self.end - first).div_ceil(64) as usize).min(ACK_WORDS_MAX);
        for (index, out) in out.chunks_exact_mut(8).take(words).enumerate() {
            let start = first + index as u64 * 64;
            let mut word = 0u64;
            for bit in 0..64.min(self.end - start) {
                let is_here = self.ring[((start + bit) & self.mask) as usize].is_some();
                word |= u64::from(is_here) << bit;
            }
            out.copy_from_slice(&word.to_be_bytes());
        }
        words * 8
    }
}
