//! All links of one proxy, and the order in which they send.
//!
//! Links with packets to send stand in a line. The first writes one datagram and goes to the end of the line, so that of
//! n busy links each gets one n-th of the network, however much any of them has to send. The bytes on their way are
//! bounded for all links together: that many fit into the buffers of a network card or a socket. A link keeps its
//! place in the line, whatever else happens to it; acknowledgements and greetings go at once and do not count.

use crate::Counters;
use crate::inbox::Willing;
use crate::link::{Allowance, Event, Link, SendError};
use crate::wire::DatagramHeader;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use tlp::{Tlp, TransactionId};
use units::{LinkName, NodeId, PathId, Time};

/// A datagram is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrunkTransmit {
    /// Of which link.
    pub link: LinkName,
    /// To which proxy.
    pub node: NodeId,
    /// Over which path.
    pub path: PathId,
    /// How long it is.
    pub bytes: usize,
}

/// What a proxy dropped before any link saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrunkCounters {
    /// Not the beginning of a datagram, or its CRC is wrong.
    pub malformed_datagrams: u64,
    /// Of a link that has ended, or never was.
    pub unknown_links: u64,
}

#[derive(Debug)]
struct Entry {
    link: Link,
    remote: NodeId,
    is_called: bool,
    is_in_line: bool,
    /// When its entry in the timers is due.
    timer: Option<Time>,
    in_flight: Allowance,
}

/// Spreads the names of links. The manager gives them out, so no attacker can choose ones that collide; and a lookup is
/// made for every TLP, which a hash against attackers would dominate.
#[derive(Clone, Copy, Debug, Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The table looks at the highest and at the lowest bits.
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// All links of one proxy.
#[derive(Debug)]
pub struct Trunk {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_name: HashMap<LinkName, u32, BuildHasherDefault<NameHasher>>,
    /// Links to which something happened: they may have to acknowledge, or have packets now.
    called: VecDeque<u32>,
    /// Those that have packets.
    line: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    in_flight: Allowance,
    in_flight_max: Allowance,
    counters: TrunkCounters,
}

impl Trunk {
    /// A proxy without links, which has at most so many bytes on their way.
    pub fn new(in_flight_bytes_max: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::default(),
            called: VecDeque::new(),
            line: VecDeque::new(),
            timers: BinaryHeap::new(),
            in_flight: Allowance::NONE,
            in_flight_max: Allowance { bytes: in_flight_bytes_max, tlps: usize::MAX },
            counters: TrunkCounters::default(),
        }
    }

    /// Bounds the TLPs on their way for all links together, too: a proxy in hardware keeps each in a slot until it is
    /// acknowledged, and has only so many.
    pub fn limit_tlps(&mut self, in_flight_tlps_max: usize) {
        self.in_flight_max.tlps = in_flight_tlps_max.max(1);
    }

    /// Begins to serve a link. Gives back the one that had its name: an older epoch of the same slot, most likely.
    pub fn add(&mut self, link: Link) -> Option<Link> {
        let old = self.remove(link.name());
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        self.by_name.insert(link.name(), index);
        let remote = link.remote().node;
        let entry = Entry {
            link,
            remote,
            is_called: false,
            is_in_line: false,
            timer: None,
            in_flight: Allowance::NONE,
        };
        self.entries[index as usize] = Some(entry);
        self.call(index);
        old
    }

    /// Ends a link. Whatever is still on its way for it is dropped.
    pub fn remove(&mut self, name: LinkName) -> Option<Link> {
        let index = self.by_name.remove(&name)?;
        let entry = self.entries[index as usize].take()?;
        self.in_flight.bytes -= entry.in_flight.bytes;
        self.in_flight.tlps -= entry.in_flight.tlps;
        self.line.retain(|other| *other != index);
        self.called.retain(|other| *other != index);
        self.timers.retain(|Reverse((_, other))| *other != index);
        self.free.push(index);
        Some(entry.link)
    }

    /// The link of this name.
    pub fn link(&self, name: LinkName) -> Option<&Link> {
        let index = *self.by_name.get(&name)?;
        self.entries[index as usize].as_ref().map(|entry| &entry.link)
    }

    /// The links that are served, in no order.
    pub fn names(&self) -> impl Iterator<Item = LinkName> + '_ {
        self.by_name.keys().copied()
    }

    /// What was dropped before any link saw it.
    pub fn counters(&self) -> &TrunkCounters {
        &self.counters
    }

    /// The counters of one link.
    pub fn link_counters(&self, name: LinkName) -> Option<&Counters> {
        self.link(name).map(Link::counters)
    }

    /// See [`Link::send`]. None when there is no such link.
    pub fn send(&mut self, name: LinkName, tlp: &Tlp<'_>) -> Option<Result<(), SendError>> {
        let index = *self.by_name.get(&name)?;
        let sent = self.entries[index as usize].as_mut()?.link.send(tlp);
        self.call(index);
        Some(sent)
    }

    /// See [`Link::receive`].
    pub fn receive(&mut self, name: LinkName, willing: Willing) -> Option<Tlp<'_>> {
        let index = *self.by_name.get(&name)?;
        self.call(index);
        self.entries[index as usize].as_mut()?.link.receive(willing)
    }

    /// See [`Link::next_event`].
    pub fn next_event(&mut self, name: LinkName) -> Option<Event> {
        let index = *self.by_name.get(&name)?;
        self.entries[index as usize].as_mut()?.link.next_event()
    }

    /// See [`Link::forget_request`].
    pub fn forget_request(&mut self, name: LinkName, id: TransactionId) -> bool {
        let index = self.by_name.get(&name).copied();
        let entry = index.and_then(|index| self.entries[index as usize].as_mut());
        entry.is_some_and(|entry| entry.link.forget_request(id))
    }

    /// Takes a datagram; gives the link it was for, which may have TLPs or events now.
    pub fn on_datagram(&mut self, now: Time, datagram: &mut [u8]) -> Option<LinkName> {
        let Ok((header, _)) = DatagramHeader::decode(datagram) else {
            self.counters.malformed_datagrams += 1;
            return None;
        };
        let Some(index) = self.by_name.get(&header.link).copied() else {
            self.counters.unknown_links += 1;
            return None;
        };
        self.entries[index as usize].as_mut()?.link.on_decoded(now, header, datagram);
        self.recount(index);
        self.call(index);
        Some(header.link)
    }

    /// Writes the next datagram into `out`; None when no link has anything to send now.
    pub fn transmit(&mut self, now: Time, out: &mut [u8]) -> Option<TrunkTransmit> {
        while let Some(Reverse((at, index))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            if let Some(entry) = self.entries[index as usize].as_mut().filter(|entry| entry.timer == Some(at))
            {
                entry.timer = None;
                self.call(index);
            }
        }
        while let Some(index) = self.called.pop_front() {
            let Some(entry) = self.entries[index as usize].as_mut() else { continue };
            entry.is_called = false;
            // With no other link in the line it is this one's turn anyway.
            let is_alone = self.line.is_empty() && self.called.is_empty();
            let allowance = if is_alone { left(self.in_flight_max, self.in_flight) } else { Allowance::NONE };
            if let Some(transmit) = entry.link.transmit_within(now, allowance, out) {
                let (link, node) = (entry.link.name(), entry.remote);
                self.recount(index);
                self.call(index);
                return Some(TrunkTransmit { link, node, path: transmit.path, bytes: transmit.bytes });
            }
            if entry.link.has_packets_waiting() && !std::mem::replace(&mut entry.is_in_line, true) {
                self.line.push_back(index);
            }
            self.recount(index);
            self.set_timer(index);
        }
        // Each once at most: with no TLP to spare, only those go on that have begun one or lost a packet.
        let mut turns = self.line.len();
        while turns > 0
            && self.in_flight.bytes < self.in_flight_max.bytes
            && let Some(index) = self.line.pop_front()
        {
            turns -= 1;
            let allowance = left(self.in_flight_max, self.in_flight);
            let Some(entry) = self.entries[index as usize].as_mut() else { continue };
            entry.is_in_line = false;
            let transmit = entry.link.transmit_within(now, allowance, out);
            let (link, node) = (entry.link.name(), entry.remote);
            if entry.link.has_packets_waiting() {
                entry.is_in_line = true;
                self.line.push_back(index);
            }
            self.recount(index);
            self.set_timer(index);
            if let Some(transmit) = transmit {
                return Some(TrunkTransmit { link, node, path: transmit.path, bytes: transmit.bytes });
            }
        }
        None
    }

    /// When [`Trunk::transmit`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        let may_send =
            self.in_flight.bytes < self.in_flight_max.bytes && self.in_flight.tlps < self.in_flight_max.tlps;
        if !self.line.is_empty() && may_send || !self.called.is_empty() {
            return Some(Time(0));
        }
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    fn call(&mut self, index: u32) {
        if let Some(entry) = self.entries[index as usize].as_mut()
            && !std::mem::replace(&mut entry.is_called, true)
        {
            self.called.push_back(index);
        }
    }

    /// Only ever sooner: a timer that rings too early is set again.
    fn set_timer(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let wake_at = entry.link.wake_at();
        if let Some(at) = wake_at.filter(|at| entry.timer.is_none_or(|timer| *at < timer)) {
            entry.timer = Some(at);
            self.timers.push(Reverse((at, index)));
        }
    }

    /// Keeps the sum of what is on its way.
    fn recount(&mut self, index: u32) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        let Allowance { bytes, tlps } = entry.in_flight;
        entry.in_flight =
            Allowance { bytes: entry.link.in_flight_bytes(), tlps: entry.link.in_flight_tlps() };
        self.in_flight.bytes = self.in_flight.bytes - bytes + entry.in_flight.bytes;
        self.in_flight.tlps = self.in_flight.tlps - tlps + entry.in_flight.tlps;
    }
}

fn left(max: Allowance, used: Allowance) -> Allowance {
    Allowance { bytes: max.bytes.saturating_sub(used.bytes), tlps: max.tlps.saturating_sub(used.tlps) }
}
