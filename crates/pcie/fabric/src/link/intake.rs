//! What comes in: from a datagram of unknown origin to whole TLPs, with a check at every step.

use super::{DEPARTURES, Link, Partial, Phase};
use crate::assembly::{Arrival, Held};
use crate::credit::{Credits, data_credits};
use crate::ids::Route;
use crate::seal::Protection;
use crate::wire::{Ack, DATAGRAM_HEADER_BYTES, DatagramHeader, DatagramKind, Packet, crc, crc_and};
use tlp::{Body, Class, DecodedHeader, Header, Prefixes};
use units::{PathId, Time};

impl Link {
    /// Takes a datagram that may be for this link; decrypts it in place. Whatever is wrong with it is counted, and
    /// changes nothing else.
    pub fn on_datagram(&mut self, now: Time, datagram: &mut [u8]) {
        match DatagramHeader::decode(datagram) {
            Ok((header, _)) => self.on_decoded(now, header, datagram),
            Err(_) => self.counters.malformed_datagrams += 1,
        }
    }

    /// The same for a caller that has read the header already.
    pub(crate) fn on_decoded(&mut self, now: Time, header: DatagramHeader, datagram: &mut [u8]) {
        if header.link != self.config.name {
            self.counters.foreign_links += 1;
            return;
        }
        if header.epoch != self.config.epoch {
            self.counters.other_epochs += 1;
            return;
        }
        if !self.paths.contains(header.path) {
            self.counters.foreign_paths += 1;
            return;
        }
        if header.kind != DatagramKind::Packets {
            let (whole, body) = (&*datagram, &datagram[DATAGRAM_HEADER_BYTES..]);
            self.on_greeting(&header, whole, body);
            return;
        }
        let Some(session) = &self.session else {
            self.counters.other_sessions += 1;
            return;
        };
        let is_encrypted = self.config.protection == Protection::Encrypted;
        if header.session != session.number
            || header.is_encrypted != is_encrypted
            || self.phase != Phase::Established
        {
            self.counters.other_sessions += 1;
            return;
        }
        if !self.replay.is_new(header.number) {
            self.counters.replayed_datagrams += 1;
            return;
        }
        let (front, sealed) = datagram.split_at_mut(DATAGRAM_HEADER_BYTES);
        let Some(body) = session.open(header.number, front, sealed) else {
            self.counters.forged_datagrams += 1;
            return;
        };
        self.replay.record(header.number);
        self.quiet_until = None;
        self.waiting = None;
        self.is_silent = false;
        self.counters.datagrams_received += 1;
        self.on_packets(now, header.path, header.number, body);
    }

    fn on_packets(&mut self, now: Time, path: PathId, number: u64, mut body: &[u8]) {
        let sums = self.sums();
        let mut asks_for_ack = false;
        while !body.is_empty() {
            let Ok((packet, rest)) = Packet::decode_front(body, sums) else {
                self.counters.corrupt_packets += 1;
                self.acks.is_urgent = true;
                asks_for_ack = true;
                break;
            };
            body = rest;
            match packet {
                Packet::Header(it) => {
                    asks_for_ack = true;
                    if it.route.path != path {
                        self.counters.wrong_routes += 1;
                        continue;
                    }
                    self.on_sequenced(it.sequence, &packet);
                }
                Packet::Data(it) => {
                    asks_for_ack = true;
                    self.on_sequenced(it.sequence, &packet);
                }
                Packet::Ack(ack) => self.on_ack(now, &ack),
                Packet::Ping => {
                    asks_for_ack = true;
                    self.acks.pong = Some((path, number));
                }
            }
        }
        if asks_for_ack {
            self.acks.is_pending = true;
            self.acks.datagrams += 1;
            (self.acks.path, self.acks.echo) = (path, number);
        }
    }

    fn on_ack(&mut self, now: Time, ack: &Ack<'_>) {
        let outbox = &mut self.outbox;
        if !self.flight.on_ack(ack.next, ack.received(), |tlp| outbox.on_arrival(tlp)) {
            self.counters.impossible_acks += 1;
            return;
        }
        self.limit.advance(&ack.credits);
        self.flight.find_lost(self.config.reorder_slack);
        let departure = self.departures[ack.echo as usize % DEPARTURES];
        if departure.number == ack.echo {
            // Once for each: an acknowledgement that was repeated would make the way look longer than it is.
            self.departures[ack.echo as usize % DEPARTURES].number = u64::MAX;
            let change = self.paths.on_answer(departure.path, now.since(departure.at), &self.patience);
            self.note(change);
        }
        self.ping_at = None;
    }

    fn on_sequenced(&mut self, sequence: u32, packet: &Packet<'_>) {
        match self.assembly.arrive(sequence, packet) {
            Arrival::Next => {}
            Arrival::Early => {
                // Tell of the gap at once: the sooner it is known, the sooner it is filled.
                self.acks.is_urgent = true;
                return;
            }
            Arrival::Duplicate => {
                self.counters.duplicate_packets += 1;
                return;
            }
            Arrival::Beyond => {
                self.counters.packets_beyond_window += 1;
                return;
            }
        }
        match packet {
            Packet::Header(it) => self.on_header(&it.route, it.tlp_crc, it.front),
            Packet::Data(it) => self.on_data(it.payload, it.payload_crc),
            Packet::Ack(_) | Packet::Ping => {}
        }
        while let Some(held) = self.assembly.advance() {
            match &held {
                Held { header: Some((route, tlp_crc)), bytes, .. } => self.on_header(route, *tlp_crc, bytes),
                Held { header: None, bytes, payload_crc } => self.on_data(bytes, *payload_crc),
            }
            self.assembly.recycle(held);
        }
    }

    /// A header packet, in order.
    fn on_header(&mut self, route: &Route, tlp_crc: u32, front: &[u8]) {
        if let Some(unfinished) = self.partial.take() {
            self.counters.malformed_tlps += 1;
            self.drop_tlp(unfinished);
        }
        self.is_skipping = true;
        if route.source != self.config.remote || route.destination != self.config.local {
            self.counters.wrong_routes += 1;
            return;
        }
        let Some(DecodedHeader { header, has_digest }) = decode_front(front) else {
            self.counters.malformed_tlps += 1;
            return;
        };
        let (class, data) = (header.class(), data_credits(header.payload_bytes()));
        let granted = Credits::limit_of(&self.config.room, &self.freed);
        if !self.charged.has_room(&granted, class, data) {
            self.counters.without_credit += 1;
            return;
        }
        self.charged.add(class, data);
        let tlp = self.inbox.begin(front, header, has_digest.then_some(tlp_crc), data);
        let partial = Partial { tlp, tlp_crc, payload_crc: None };
        if class == Class::Completion && !self.requests.is_open(header.id()) {
            self.counters.unexpected_completions += 1;
            self.drop_tlp(partial);
            return;
        }
        self.is_skipping = false;
        if header.payload_bytes() == 0 {
            self.finish(partial);
        } else {
            self.partial = Some(partial);
        }
    }

    /// A data packet, in order.
    fn on_data(&mut self, payload: &[u8], payload_crc: Option<u32>) {
        let Some(mut partial) = self.partial.take() else {
            self.counters.stray_data += u64::from(!self.is_skipping);
            return;
        };
        let want = partial.tlp.front_bytes + partial.tlp.header.payload_bytes();
        let is_first = partial.tlp.bytes.len() == partial.tlp.front_bytes;
        partial.payload_crc = payload_crc.filter(|_| is_first);
        partial.tlp.bytes.extend_from_slice(payload);
        match partial.tlp.bytes.len() {
            have if have < want => self.partial = Some(partial),
            have if have == want => self.finish(partial),
            _ => {
                self.counters.malformed_tlps += 1;
                self.drop_tlp(partial);
            }
        }
    }

    /// A TLP is whole.
    fn finish(&mut self, partial: Partial) {
        let tlp = &partial.tlp;
        // A digest is for the last receiver to check. Without one the CRC is ours.
        let (front, payload) = tlp.bytes.split_at(tlp.front_bytes);
        let sum = || crc_and(partial.payload_crc.unwrap_or_else(|| crc(payload)), front);
        if tlp.digest.is_none() && sum() != partial.tlp_crc {
            self.counters.malformed_tlps += 1;
            self.drop_tlp(partial);
            return;
        }
        if let Body::Completion(completion) = &tlp.header.body
            && completion.is_last()
        {
            self.requests.close(completion.id);
        }
        self.inbox.push(partial.tlp);
    }

    /// It was paid for and is not wanted: its room is free again.
    fn drop_tlp(&mut self, partial: Partial) {
        self.freed.add(partial.tlp.header.class(), partial.tlp.data_credits);
        self.inbox.recycle(partial.tlp);
    }
}

/// Prefixes and TLP header that fill `front`.
fn decode_front(front: &[u8]) -> Option<DecodedHeader> {
    let (_, rest) = Prefixes::split(front).ok()?;
    let decoded = Header::decode(rest).ok()?;
    (decoded.header.header_bytes() == rest.len()).then_some(decoded)
}
