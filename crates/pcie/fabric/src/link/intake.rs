//! What comes in: from a datagram of unknown origin to whole TLPs, with a check at every step.

use super::{DEPARTURES, Link, Partial, Phase};
use crate::assembly::{Arrival, Held};
use crate::credit::data_credits;
use crate::ids::Route;
use crate::seal::Protection;
use crate::wire::{
    Ack, DATA, DATAGRAM_HEADER_BYTES, DataPacket, DatagramHeader, DatagramKind, HEADER, HeaderPacket, Packet,
    crc, crc_and_front,
};
use tlp::{Body, Class, Header, Prefixes};
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
        self.waiting = None;
        self.is_silent = false;
        self.counters.datagrams_received += 1;
        self.on_packets(now, header.path, header.number, body);
    }

    fn on_packets(&mut self, now: Time, path: PathId, number: u64, mut body: &[u8]) {
        let sums = self.sums();
        let mut asks_for_ack = false;
        // The two kinds that TLPs are made of are read where they are used: one value for all kinds would be moved about.
        while let Some(kind) = body.first() {
            let used = match *kind {
                HEADER => HeaderPacket::decode_front(body, sums).map(|(it, rest)| {
                    asks_for_ack = true;
                    self.on_header_packet(path, &it);
                    rest
                }),
                DATA => DataPacket::decode_front(body, sums).map(|(it, rest)| {
                    asks_for_ack = true;
                    self.on_data_packet(&it);
                    rest
                }),
                _ => Packet::decode_front(body, sums).map(|(packet, rest)| {
                    match packet {
                        Packet::Ack(ack) => self.on_ack(now, &ack),
                        _ => {
                            asks_for_ack = true;
                            self.acks.pong = Some((path, number));
                        }
                    }
                    rest
                }),
            };
            let Ok(rest) = used else {
                self.counters.corrupt_packets += 1;
                self.acks.is_urgent = true;
                asks_for_ack = true;
                break;
            };
            body = rest;
        }
        if asks_for_ack {
            self.acks.is_pending = true;
            self.acks.datagrams += 1;
            (self.acks.path, self.acks.echo) = (path, number);
            self.acks.deadline.get_or_insert(now.after(self.config.ack_delay));
        }
        self.quiet_until = self.acks.deadline.filter(|_| self.only_acknowledges());
    }

    fn on_header_packet(&mut self, path: PathId, it: &HeaderPacket<'_>) {
        if it.route.path != path {
            self.counters.wrong_routes += 1;
        } else if self.assembly.is_next(it.sequence) {
            self.on_header(&it.route, it.tlp_crc, it.front);
            self.advance();
        } else {
            self.on_out_of_order(it.sequence, &Packet::Header(*it));
        }
    }

    fn on_data_packet(&mut self, it: &DataPacket<'_>) {
        if self.assembly.is_next(it.sequence) {
            self.on_data(it.payload, it.payload_crc);
            self.advance();
        } else {
            self.on_out_of_order(it.sequence, &Packet::Data(*it));
        }
    }

    /// Nothing is to be said but an acknowledgement that may wait: so it is at the end where writes arrive, for nearly every
    /// datagram.
    fn only_acknowledges(&self) -> bool {
        let acks = &self.acks;
        acks.is_pending
            && !acks.is_urgent
            && acks.datagrams < self.config.ack_every
            && acks.pong.is_none()
            && self.answer_due.is_none()
            && self.ping_at.is_none()
            && self.current.is_none()
            && self.outbox.is_empty()
            && self.flight.is_idle()
            && self.requests.count() == 0
            && !self.paths.has_down()
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

    #[cold]
    fn on_out_of_order(&mut self, sequence: u32, packet: &Packet<'_>) {
        match self.assembly.arrive(sequence, packet) {
            // Tell of the gap at once: the sooner it is known, the sooner it is filled.
            Arrival::Early => self.acks.is_urgent = true,
            Arrival::Duplicate => self.counters.duplicate_packets += 1,
            Arrival::Beyond => self.counters.packets_beyond_window += 1,
        }
    }

    /// The first missing packet came and was used: so are those that waited for it.
    fn advance(&mut self) {
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
            self.drop_tlp(unfinished.tlp);
        }
        self.is_skipping = true;
        if route.source != self.config.remote || route.destination != self.config.local {
            self.counters.wrong_routes += 1;
            return;
        }
        let behind_prefixes = Prefixes::split(front).map_or(&[][..], |(_, rest)| rest);
        let decoded = Header::decode(behind_prefixes);
        let (header, has_digest) = match &decoded {
            Ok(it) if it.header.header_bytes() == behind_prefixes.len() => (&it.header, it.has_digest),
            _ => {
                self.counters.malformed_tlps += 1;
                return;
            }
        };
        let payload_bytes = header.payload_bytes();
        let (class, data) = (header.class(), data_credits(payload_bytes));
        if !self.charged.has_room_in(&self.config.room, &self.freed, class, data) {
            self.counters.without_credit += 1;
            return;
        }
        self.charged.add(class, data);
        let tlp = self.inbox.begin(front, header, payload_bytes, has_digest.then_some(tlp_crc));
        if class == Class::Completion && !self.requests.is_open(header.id()) {
            self.counters.unexpected_completions += 1;
            self.drop_tlp(tlp);
            return;
        }
        self.is_skipping = false;
        if payload_bytes == 0 {
            self.finish(tlp, tlp_crc, None);
        } else {
            self.partial = Some(Partial { tlp, tlp_crc, payload_crc: None });
        }
    }

    /// A data packet, in order.
    fn on_data(&mut self, payload: &[u8], payload_crc: Option<u32>) {
        let Some(partial) = &mut self.partial else {
            self.counters.stray_data += u64::from(!self.is_skipping);
            return;
        };
        let tlp = self.inbox.get_mut(partial.tlp);
        partial.payload_crc = payload_crc.filter(|_| tlp.payload.is_empty());
        tlp.payload.extend_from_slice(payload);
        let (have, want) = (tlp.payload.len(), tlp.payload_bytes);
        let Partial { tlp, tlp_crc, payload_crc } = *partial;
        if have < want {
            return;
        }
        self.partial = None;
        if have == want {
            self.finish(tlp, tlp_crc, payload_crc);
        } else {
            self.counters.malformed_tlps += 1;
            self.drop_tlp(tlp);
        }
    }

    /// A TLP is whole. The CRC of its payload is known when it came in one packet.
    fn finish(&mut self, index: u32, tlp_crc: u32, payload_crc: Option<u32>) {
        let tlp = self.inbox.get(index);
        // A digest is for the last receiver to check. Without one the CRC is ours.
        let sum = || crc_and_front(payload_crc.unwrap_or_else(|| crc(&tlp.payload)), tlp.front());
        if tlp.digest.is_none() && sum() != tlp_crc {
            self.counters.malformed_tlps += 1;
            self.drop_tlp(index);
            return;
        }
        if let Body::Completion(completion) = &tlp.header.body
            && completion.is_last()
        {
            self.requests.close(completion.id);
        }
        self.inbox.push(index);
    }

    /// It was paid for and is not wanted: its room is free again.
    fn drop_tlp(&mut self, index: u32) {
        let tlp = self.inbox.get(index);
        self.freed.add(tlp.class, tlp.data_credits);
        self.inbox.recycle(index);
    }
}
