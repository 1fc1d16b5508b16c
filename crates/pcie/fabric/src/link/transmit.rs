//! What goes out: greetings, acknowledgements, packets for the first time and again.

use super::{Current, DEPARTURES, Departure, Event, Link, Phase, Waiting};
use crate::credit::Credits;
use crate::flight::Piece;
use crate::ids::Route;
use crate::seal::{DATAGRAMS_MAX, Protection};
use crate::wire::{
    ACK_WORDS_MAX, Ack, DATA_PACKET_OVERHEAD, DATAGRAM_HEADER_BYTES, DataPacket, DatagramHeader,
    DatagramKind, HeaderPacket, Packet, SEAL_BYTES, Sums,
};
use std::time::Duration;
use units::{PathId, Time};

/// A piece of payload shorter than this part of a datagram waits for the next one, unless it is the last: a payload that
/// travels whole needs one CRC where one that was cut needs two. The datagram stays shorter, which costs nothing but its
/// header.
const PIECE_PART: usize = 8;

/// A look at a link that waits is late when it comes after so many of the longest timeouts: more than a busy machine's
/// scheduler takes, far less than the patience of any owner.
const LOOKS_LATE_MAX: u32 = 2;
/// After so many of the longest timeouts in a row without an answer only one datagram at a time is sent.
const PROBES_AFTER: u32 = 4;

/// A datagram is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Over which path.
    pub path: PathId,
    /// How long it is.
    pub bytes: usize,
}

/// How much more may be on its way. Acknowledgements are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes of packets.
    pub bytes: usize,
    /// TLPs.
    pub tlps: usize,
}

impl Allowance {
    /// As much as the link itself allows.
    pub const ALL: Self = Self { bytes: usize::MAX, tlps: usize::MAX };
    /// Nothing that counts.
    pub const NONE: Self = Self { bytes: 0, tlps: 0 };
}

/// What a datagram is made for.
#[derive(Clone, Copy)]
struct Purpose {
    path: PathId,
    /// Acknowledge, and name this datagram.
    echo: Option<u64>,
    has_ping: bool,
    allowance: Allowance,
}

impl Link {
    /// Writes the next datagram into `out`; None when there is nothing to say now.
    #[inline]
    pub fn transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        self.transmit_within(now, Allowance::ALL, out)
    }

    /// The same, with at most so much more on its way.
    #[inline]
    pub fn transmit_within(&mut self, now: Time, allowance: Allowance, out: &mut [u8]) -> Option<Transmit> {
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        self.transmit_now(now, allowance, out)
    }

    fn transmit_now(&mut self, now: Time, allowance: Allowance, out: &mut [u8]) -> Option<Transmit> {
        if let Some(path) = self.answer_due.take() {
            return self.write_greeting(DatagramKind::Answer, path, out);
        }
        match self.phase {
            Phase::Greeting { next_at, turn } if next_at <= now => {
                // Ever more seldom: a box that is paused has to read all of them when it is back.
                let wait = self.config.timeout_min * turn.saturating_add(1).saturating_mul(4).min(1 << 16);
                let next_at = now.after(wait.min(self.config.timeout_max));
                self.phase = Phase::Greeting { next_at, turn: turn + 1 };
                self.check_silence(now, now);
                return self.write_greeting(DatagramKind::Hello, self.paths.nth(turn), out);
            }
            Phase::Greeting { .. } | Phase::Waiting => return None,
            Phase::Established => {}
        }
        self.look_at_time(now);

        if let Some((path, number)) = self.acks.pong.take() {
            let purpose = Purpose { path, echo: Some(number), has_ping: false, allowance: Allowance::NONE };
            return self.write(now, purpose, out);
        }
        if let Some(path) = self.paths.take_ping(now, &self.patience) {
            let purpose = Purpose { path, echo: None, has_ping: true, allowance: Allowance::NONE };
            return self.write(now, purpose, out);
        }
        // A TLP that was begun is finished, and lost packets go again, whatever the count of TLPs.
        let is_allowed = allowance.bytes > 0
            && (allowance.tlps > 0 || self.current.is_some() || self.flight.first_lost().is_some());
        let has_packets = is_allowed && self.has_packets();
        let has_ping = !has_packets && self.is_ping_due(now);
        let acks = &self.acks;
        let must_ack = acks.is_pending
            && (acks.is_urgent
                || acks.datagrams >= self.config.ack_every
                || acks.deadline.is_some_and(|deadline| deadline <= now));
        if !has_packets && !has_ping && !must_ack {
            self.find_quiet(now);
            return None;
        }
        // Acknowledgements go back where their datagrams came from: that way works, as the sender knows.
        let path = if has_packets || has_ping { self.paths.active().id } else { self.acks.path };
        let echo = self.acks.is_pending.then_some(self.acks.echo);
        let written = self.write(now, Purpose { path, echo, has_ping, allowance }, out);
        if has_packets && written.is_some() {
            // They ask for an answer as well as a ping would. One that was due stays due otherwise, and the link quiet.
            self.ping_at = None;
        }
        self.find_quiet(now);
        written
    }

    /// Callers ask for datagrams until there are none: mostly once more than there are. Where that is plain to see,
    /// the answer is kept.
    fn find_quiet(&mut self, now: Time) {
        let is_quiet = self.current.is_none()
            && self.outbox.is_empty()
            && self.acks.pong.is_none()
            && self.answer_due.is_none()
            && (!self.acks.is_pending || self.acks.deadline.is_some())
            && self.flight.first_lost().is_none();
        self.quiet_until = match is_quiet {
            // What is due by now was just done.
            true => Some(Time(now.0 + 1)),
            false => None,
        };
    }

    pub(super) fn sums(&self) -> Sums {
        match self.config.protection {
            Protection::Plain => Sums::Each,
            Protection::Encrypted => Sums::Sealed,
        }
    }

    fn look_at_time(&mut self, now: Time) {
        let timeout = self.paths.active().timeout();
        if let Some(sent_at) = self.flight.oldest().filter(|at| at.after(timeout) <= now) {
            self.counters.timeouts += 1;
            let change = self.paths.on_timeout(now, &self.patience);
            self.note(change);
            // Another path may have less patience. What is late by that is late now: nothing stays behind that is due.
            self.flight.time_out(now, timeout.min(self.paths.active().timeout()));
            self.check_silence(now, sent_at);
        }
        if self.acks.is_pending && self.acks.deadline.is_none() {
            self.acks.deadline = Some(now.after(self.config.ack_delay));
        }
        // Credits may have been given and lost on their way. A link that waits for them and has nothing else in the air must
        // ask. So must, now and then, a link that waits for the answer to a request: its other end may be gone since it
        // acknowledged the request.
        let is_idle = self.flight.is_idle();
        let wait = match is_idle && !self.outbox.is_empty() {
            true => Some(timeout),
            false => (is_idle && self.requests.count() > 0).then_some(self.config.timeout_max),
        };
        match (self.ping_at, wait) {
            (None, Some(wait)) => self.ping_at = Some(now.after(wait)),
            (Some(at), Some(wait)) => self.ping_at = Some(at.min(now.after(wait))),
            (_, None) => self.ping_at = None,
        }
    }

    fn is_ping_due(&mut self, now: Time) -> bool {
        let Some(due_at) = self.ping_at.filter(|at| *at <= now) else { return false };
        let change = self.paths.on_timeout(now, &self.patience);
        self.note(change);
        self.ping_at = Some(now.after(self.paths.active().timeout()));
        self.check_silence(now, due_at);
        true
    }

    /// Called when an answer is late: what was sent at `owed_since` has not been answered. Silence is measured from there,
    /// never from when the other end was last heard: an idle link hears nothing for hours.
    ///
    /// Only time in which this end looked counts. While a link waits it looks at least once in every longest timeout, so a
    /// longer gap means that this process itself was paused, and answers may lie unread in its socket.
    fn check_silence(&mut self, now: Time, owed_since: Time) {
        let most = self.config.timeout_max * LOOKS_LATE_MAX;
        let waiting = self.waiting.get_or_insert(Waiting { waited: Duration::ZERO, looked_at: owed_since });
        waiting.waited += now.since(waiting.looked_at).min(most);
        waiting.looked_at = now;
        if !self.is_silent && waiting.waited > self.config.silent_after {
            self.is_silent = true;
            self.events.push_back(Event::Silent);
        }
    }

    /// The other end has said nothing for several of the longest timeouts. Then one datagram at a time asks whether it is
    /// there again: sending everything again and again would only fill the buffers that it has to read when it is back.
    fn is_probing(&self) -> bool {
        self.waiting.is_some_and(|waiting| waiting.waited > self.config.timeout_max * PROBES_AFTER)
    }

    /// Whether packets would go if they were allowed to.
    pub(crate) fn has_packets_waiting(&mut self) -> bool {
        self.phase == Phase::Established && self.has_packets()
    }

    fn has_packets(&mut self) -> bool {
        self.flight.in_flight_bytes() < self.config.in_flight_bytes_max
            && (self.flight.in_flight_bytes() == 0 || !self.is_probing())
            && (self.flight.first_lost().is_some()
                || self.flight.has_room(self.peer_window)
                    && (self.current.is_some() || self.outbox.next_class(&self.used, &self.limit).is_some()))
    }

    fn write(&mut self, now: Time, purpose: Purpose, out: &mut [u8]) -> Option<Transmit> {
        let number = self.next_number;
        let is_encrypted = self.config.protection == Protection::Encrypted;
        let session = self.session.as_ref()?;
        if number >= DATAGRAMS_MAX {
            return None; // The slot needs a new epoch; at 10 million datagrams a second that is a year away.
        }
        let header = DatagramHeader {
            kind: DatagramKind::Packets,
            is_encrypted,
            path: purpose.path,
            link: self.config.name,
            epoch: self.config.epoch,
            session: session.number,
            number,
        };
        let seal_bytes = if is_encrypted { SEAL_BYTES } else { 0 };
        let most = out.len().min(self.config.datagram_bytes).min(self.peer_datagram_bytes);
        let end = most.checked_sub(seal_bytes)?;
        let (front, body) = out.get_mut(..end)?.split_first_chunk_mut::<DATAGRAM_HEADER_BYTES>()?;
        header.put(self.epoch_field, front);

        let mut at = 0;
        if let Some(echo) = purpose.echo {
            at += self.write_ack(echo, body)?;
        }
        if purpose.has_ping {
            at += Packet::Ping.encode(self.sums(), &mut body[at..])?;
        }
        at += self.write_packets(now, number, purpose, &mut body[at..]);
        if at == 0 {
            return None;
        }
        self.next_number += 1;
        self.departures[number as usize % DEPARTURES] = Departure { number, at: now, path: purpose.path };
        self.counters.datagrams_sent += 1;
        let bytes = DATAGRAM_HEADER_BYTES + at + seal_bytes;
        if is_encrypted {
            let (front, sealed) = out[..bytes].split_at_mut(DATAGRAM_HEADER_BYTES);
            let (body, seal) = sealed.split_at_mut(at);
            self.session.as_ref()?.seal(number, front, body, seal);
        }
        Some(Transmit { path: purpose.path, bytes })
    }

    fn write_ack(&mut self, echo: u64, out: &mut [u8]) -> Option<usize> {
        let credits = Credits::limit_of(&self.config.room, &self.freed);
        let next = self.assembly.next();
        let written = if self.assembly.has_gap() {
            let mut words = [0; ACK_WORDS_MAX * 8];
            let count = self.assembly.words(&mut words);
            Packet::Ack(Ack { next, echo, credits, words: &words[..count] }).encode(self.sums(), out)?
        } else {
            Packet::Ack(Ack { next, echo, credits, words: &[] }).encode(self.sums(), out)?
        };
        self.told = credits;
        self.acks.is_pending = false;
        self.acks.is_urgent = false;
        self.acks.datagrams = 0;
        self.acks.deadline = None;
        Some(written)
    }

    /// Lost packets first, then the rest of a TLP that was begun, then new ones.
    fn write_packets(&mut self, now: Time, number: u64, purpose: Purpose, out: &mut [u8]) -> usize {
        let mut at = 0;
        let mut tlps_left = purpose.allowance.tlps;
        let shortest = out.len() / PIECE_PART;
        while at < purpose.allowance.bytes && self.flight.in_flight_bytes() < self.config.in_flight_bytes_max
        {
            let out = &mut out[at..];
            if let Some((sequence, piece)) = self.flight.first_lost() {
                let Some(bytes) = self.write_again(sequence, &piece, purpose.path, out) else { break };
                self.flight.send_again(sequence, number, now);
                self.counters.packets_resent += 1;
                at += bytes;
                continue;
            }
            if !self.flight.has_room(self.peer_window) {
                break;
            }
            let (tlp, offset) = match self.current {
                Some(Current { tlp, offset }) => (tlp, offset),
                None if tlps_left == 0 => break,
                None => {
                    let Some(class) = self.outbox.next_class(&self.used, &self.limit) else { break };
                    let Some(tlp) = self.outbox.take(class, &mut self.used) else { break };
                    tlps_left -= 1;
                    self.current = Some(Current { tlp, offset: None });
                    (tlp, None)
                }
            };
            let piece = match offset {
                None => self.write_front(tlp, purpose.path, out),
                Some(offset) => self.write_payload(tlp, offset, shortest, out),
            };
            let Some(piece) = piece else { break };
            self.flight.send(piece, number, now);
            self.counters.packets_sent += 1;
            at += usize::from(piece.bytes);
            let offset = piece.offset + piece.length;
            let is_last = self.outbox.on_packet(tlp, offset);
            self.current = (!is_last).then_some(Current { tlp, offset: Some(offset) });
        }
        at
    }

    /// The header packet of a TLP, as the next one in the sequence.
    #[inline]
    fn write_front(&self, tlp: u32, path: PathId, out: &mut [u8]) -> Option<Piece> {
        let bytes = self.header_packet(self.flight.next(), tlp, path).encode(self.sums(), out)?;
        Some(Piece { tlp, offset: 0, length: 0, bytes: bytes as u16 })
    }

    /// The next piece of a payload, if there is room for one that is worth a packet: `shortest` bytes or the rest.
    #[inline]
    fn write_payload(&self, tlp: u32, offset: u16, shortest: usize, out: &mut [u8]) -> Option<Piece> {
        let left = self.outbox.get(tlp).payload().len() - usize::from(offset);
        let length = left.min(out.len().checked_sub(DATA_PACKET_OVERHEAD)?);
        if length < left.min(shortest) {
            return None;
        }
        let length = length as u16;
        let bytes = self.data_packet(self.flight.next(), tlp, offset, length).encode(self.sums(), out)?;
        Some(Piece { tlp, offset, length, bytes: bytes as u16 })
    }

    #[cold]
    fn write_again(&self, sequence: u64, piece: &Piece, path: PathId, out: &mut [u8]) -> Option<usize> {
        let Piece { tlp, offset, length, .. } = *piece;
        match length {
            0 => self.header_packet(sequence, tlp, path).encode(self.sums(), out),
            _ => self.data_packet(sequence, tlp, offset, length).encode(self.sums(), out),
        }
    }

    #[inline]
    fn header_packet(&self, sequence: u64, tlp: u32, path: PathId) -> HeaderPacket<'_> {
        let tlp = self.outbox.get(tlp);
        let route = Route { source: self.config.local, destination: self.config.remote, path };
        HeaderPacket { sequence: sequence as u32, route, front: tlp.front(), tlp_crc: tlp.tlp_crc }
    }

    #[inline]
    fn data_packet(&self, sequence: u64, tlp: u32, offset: u16, length: u16) -> DataPacket<'_> {
        let tlp = self.outbox.get(tlp);
        let payload = &tlp.payload()[usize::from(offset)..][..usize::from(length)];
        let payload_crc = tlp.payload_crc.filter(|_| payload.len() == tlp.payload().len());
        DataPacket { sequence: sequence as u32, payload, payload_crc }
    }
}
