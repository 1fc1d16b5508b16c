//! Packets on their way: which are there, which are lost, when to send again.
//!
//! ```text
//!            base                 next
//!   ─ there ─┤ there, flying, lost ├─ not sent yet ─▶ sequence
//! ```
//!
//! Packets keep their sequence number for ever; datagrams that carry them have new numbers. Every transmission is
//! written into a log in the order of sending. A packet is lost when a datagram well after the one that carried it
//! arrived, or when nothing arrived for a timeout. Taking a late packet for lost costs its repetition, nothing more.

use std::collections::VecDeque;
use std::time::Duration;
use units::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the datagram of that number.
    Flying { datagram: u64 },
    /// To be sent again.
    Lost,
    /// The peer has it.
    There,
}

/// Which piece of which TLP a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) tlp: u32,
    /// Where in the payload it begins.
    pub(crate) offset: u16,
    /// How much of the payload it brings; 0 for the header packet.
    pub(crate) length: u16,
    /// Bytes of the whole packet.
    pub(crate) bytes: u16,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    piece: Piece,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    sequence: u64,
    datagram: u64,
    at: Time,
}

#[derive(Debug)]
pub(crate) struct Flight {
    /// In place `sequence & mask`.
    ring: Vec<Sent>,
    mask: u64,
    base: u64,
    next: u64,
    log: VecDeque<Transmission>,
    lost: VecDeque<u64>,
    bytes: usize,
    /// The newest datagram of which something arrived.
    newest_there: u64,
}

impl Flight {
    pub(crate) fn new(window: usize) -> Self {
        let empty = Sent { piece: Piece { tlp: 0, offset: 0, length: 0, bytes: 0 }, state: State::There };
        Self {
            ring: vec![empty; window],
            mask: window as u64 - 1,
            base: 0,
            next: 0,
            log: VecDeque::new(),
            lost: VecDeque::new(),
            bytes: 0,
            newest_there: 0,
        }
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.base == self.next
    }

    pub(crate) fn has_room(&self, peer_window: u64) -> bool {
        self.next - self.base < peer_window.min(self.ring.len() as u64)
    }

    /// The place of the next packet.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The next packet is in the datagram now.
    #[inline]
    pub(crate) fn send(&mut self, piece: Piece, datagram: u64, at: Time) {
        let sequence = self.next;
        self.next += 1;
        self.bytes += usize::from(piece.bytes);
        self.ring[(sequence & self.mask) as usize] = Sent { piece, state: State::Flying { datagram } };
        self.log.push_back(Transmission { sequence, datagram, at });
    }

    /// The first packet to send again, if there is one.
    pub(crate) fn first_lost(&mut self) -> Option<(u64, Piece)> {
        while let Some(sequence) = self.lost.front() {
            let sent = self.ring[(sequence & self.mask) as usize];
            if *sequence >= self.base && sent.state == State::Lost {
                return Some((*sequence, sent.piece));
            }
            self.lost.pop_front();
        }
        None
    }

    /// A lost one is in the datagram now.
    pub(crate) fn send_again(&mut self, sequence: u64, datagram: u64, at: Time) {
        if self.lost.front() == Some(&sequence) {
            self.lost.pop_front();
        }
        let sent = &mut self.ring[(sequence & self.mask) as usize];
        sent.state = State::Flying { datagram };
        self.bytes += usize::from(sent.piece.bytes);
        self.log.push_back(Transmission { sequence, datagram, at });
    }

    /// Takes an acknowledgement; calls `there` with the TLP of each packet that arrived. False when it tells of packets
    /// that were never sent.
    pub(crate) fn on_ack(
        &mut self,
        next: u32,
        received: impl Iterator<Item = u32>,
        mut there: impl FnMut(u32),
    ) -> bool {
        // Behind `base` it is an old one, which says nothing new; counted as a distance that is at most the window.
        let ahead = next.wrapping_sub(self.base as u32);
        if ahead > 1 << 31 {
            return true;
        }
        let first_missing = self.base + u64::from(ahead);
        if first_missing > self.next {
            return false;
        }
        for sequence in self.base..first_missing {
            self.mark_there(sequence, &mut there);
        }
        for distance in received {
            let sequence = first_missing + u64::from(distance);
            if sequence >= self.next {
                return false;
            }
            self.mark_there(sequence, &mut there);
        }
        while self.base < self.next && self.ring[(self.base & self.mask) as usize].state == State::There {
            self.base += 1;
        }
        true
    }

    fn mark_there(&mut self, sequence: u64, there: &mut impl FnMut(u32)) {
        let sent = &mut self.ring[(sequence & self.mask) as usize];
        match sent.state {
            State::There => return,
            State::Flying { datagram } => {
                self.bytes -= usize::from(sent.piece.bytes);
                self.newest_there = self.newest_there.max(datagram);
            }
            State::Lost => {}
        }
        sent.state = State::There;
        there(sent.piece.tlp);
    }

    /// Looks through the log for packets whose datagram must be lost: one that is `slack` numbers older than another
    /// that arrived. Gives how many.
    pub(crate) fn find_lost(&mut self, slack: u64) -> u64 {
        let (mut found, limit) = (0, self.newest_there.saturating_sub(slack));
        while let Some(first) = self.log.front() {
            let is_current = self.is_flying(first);
            if is_current && first.datagram >= limit {
                break;
            }
            if is_current {
                self.lose(first.sequence);
                found += 1;
            }
            self.log.pop_front();
        }
        found
    }

    /// When the oldest transmission that is still open was made.
    pub(crate) fn oldest(&mut self) -> Option<Time> {
        while let Some(first) = self.log.front() {
            if self.is_flying(first) {
                return Some(first.at);
            }
            self.log.pop_front();
        }
        None
    }

    /// Takes for lost what was sent `timeout` ago or earlier. Gives how many.
    pub(crate) fn time_out(&mut self, now: Time, timeout: Duration) -> u64 {
        let mut found = 0;
        while let Some(first) = self.log.front() {
            let is_current = self.is_flying(first);
            if is_current && first.at.after(timeout) > now {
                break;
            }
            if is_current {
                self.lose(first.sequence);
                found += 1;
            }
            self.log.pop_front();
        }
        found
    }

    fn is_flying(&self, transmission: &Transmission) -> bool {
        let sent = &self.ring[(transmission.sequence & self.mask) as usize];
        transmission.sequence >= self.base && sent.state == State::Flying { datagram: transmission.datagram }
    }

    fn lose(&mut self, sequence: u64) {
        let sent = &mut self.ring[(sequence & self.mask) as usize];
        sent.state = State::Lost;
        self.bytes -= usize::from(sent.piece.bytes);
        self.lost.push_back(sequence);
    }
}
