//! What a link is told when it is made.

use crate::credit::Credits;
use crate::ids::Endpoint;
use crate::path::Patience;
use crate::seal::{LeaseSecret, Protection};
use crate::wire::{
    self, ACK_WORDS_MAX, DATA_PACKET_OVERHEAD, DATAGRAM_HEADER_BYTES, HEADER_PACKET_BYTES_MAX, SEAL_BYTES,
};
use std::time::Duration;
use units::{Epoch, LinkName, PathId, TooLarge};

/// Which end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Borrows the device; greets first.
    Host,
    /// Lends it.
    Box,
}

/// What a link is told when it is made.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Names the link on the network.
    pub name: LinkName,
    /// Raised with every pairing of the slot, and when a proxy that serves it begins anew. It must fit into a datagram.
    pub epoch: Epoch,
    /// Known to both ends.
    pub secret: LeaseSecret,
    /// Fresh from a good source, for this link alone.
    pub random: [u8; wire::RANDOM_BYTES],
    /// Whether TLPs are encrypted. Both ends must say the same.
    pub protection: Protection,
    /// Which end this is.
    pub role: Role,
    /// This end.
    pub local: Endpoint,
    /// The other end.
    pub remote: Endpoint,
    /// Ways between them, the preferred one first.
    pub paths: Vec<PathId>,
    /// The longest datagram to send or take.
    pub datagram_bytes: usize,
    /// Packets that may be on their way, and may arrive out of order: a power of two from 64 to 4096.
    pub window: u32,
    /// Bytes that may be on their way.
    pub in_flight_bytes_max: usize,
    /// TLPs and payload that this end has room for, of each class.
    pub room: Credits,
    /// TLPs of one class that may wait to be sent.
    pub queued_max: usize,
    /// Bytes of payload in the TLPs of one class with which no more of them may wait. What waits is written when it comes and read
    /// when it leaves: more than fills the link for a round trip only leaves the processor's cache in between.
    pub queued_bytes_max: usize,
    /// How long an acknowledgement may wait for company.
    pub ack_delay: Duration,
    /// How many datagrams it may stand for.
    pub ack_every: u32,
    /// Datagrams that may overtake another before it is taken for lost.
    pub reorder_slack: u64,
    /// The least and the most time to wait for an acknowledgement.
    pub timeout_min: Duration,
    /// See [`LinkConfig::timeout_min`].
    pub timeout_max: Duration,
    /// Timeouts in a row after which another path is tried.
    pub failover_after: u32,
    /// How often a path that is down is asked whether it is back.
    pub ping_every: Duration,
    /// How long the other end may say nothing while it owes something, until [`super::Event::Silent`]. Counted from when it
    /// began to owe it; an owner that gives a device up because of it should wait for as long as the pool waits
    /// for a box.
    pub silent_after: Duration,
}

/// Why a link cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkConfigError {
    /// An epoch that a datagram has no room for. It is refused: cut off, it would be an earlier pairing's.
    #[error("a link whose epoch datagrams cannot carry")]
    Epoch(#[from] TooLarge),
    /// There must be a path.
    #[error("a link without a path")]
    NoPath,
    /// A window that is no power of two from 64 to 4096.
    #[error("a window of {0} packets is no power of two from 64 to 4096")]
    Window(u32),
    /// A datagram that a header packet and an acknowledgement do not fit into.
    #[error("datagrams of {0} bytes are too short or too long")]
    DatagramBytes(usize),
    /// Credits that the largest TLP of a class needs.
    #[error("room for less than one whole TLP of each class")]
    Room,
}

/// What must fit into a datagram: an acknowledgement of a whole window, and some payload.
const DATAGRAM_BYTES_MIN: usize = DATAGRAM_HEADER_BYTES
    + SEAL_BYTES
    + 44
    + ACK_WORDS_MAX * 8
    + HEADER_PACKET_BYTES_MAX
    + DATA_PACKET_OVERHEAD
    + 64;
/// What UDP can carry.
const DATAGRAM_BYTES_MAX: usize = 65_507;

impl LinkConfig {
    /// A link with one path, 1, and values that suit a datacenter: round trips from 5 us to 1 ms, datagrams of 1452
    /// bytes, room for two TLPs of 4 KiB for each microsecond of a 10 us round trip.
    pub fn new(
        role: Role,
        name: LinkName,
        epoch: Epoch,
        secret: LeaseSecret,
        random: [u8; wire::RANDOM_BYTES],
        [local, remote]: [Endpoint; 2],
    ) -> Self {
        Self {
            name,
            epoch,
            secret,
            random,
            protection: Protection::Encrypted,
            role,
            local,
            remote,
            paths: vec![PathId(1)],
            datagram_bytes: 1452,
            window: 1024,
            in_flight_bytes_max: 256 << 10,
            // Requests bring little, completions must all find room: a requester may have 768 tags open.
            room: Credits::room([256, 1024, 1024], [128 << 10, 16 << 10, 512 << 10]),
            queued_max: 1024,
            queued_bytes_max: 256 << 10,
            ack_delay: Duration::from_micros(20),
            ack_every: 8,
            reorder_slack: 16,
            timeout_min: Duration::from_micros(200),
            timeout_max: Duration::from_millis(20),
            failover_after: 3,
            ping_every: Duration::from_millis(10),
            silent_after: Duration::from_millis(500),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LinkConfigError> {
        if self.paths.is_empty() {
            return Err(LinkConfigError::NoPath);
        }
        if !self.window.is_power_of_two() || !(64..=4096).contains(&self.window) {
            return Err(LinkConfigError::Window(self.window));
        }
        if !(DATAGRAM_BYTES_MIN..=DATAGRAM_BYTES_MAX).contains(&self.datagram_bytes) {
            return Err(LinkConfigError::DatagramBytes(self.datagram_bytes));
        }
        let whole = crate::credit::data_credits(tlp::PAYLOAD_BYTES_MAX);
        if (0..3).any(|class| self.room.headers[class] == 0 || self.room.data[class] < whole) {
            return Err(LinkConfigError::Room);
        }
        Ok(())
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience {
            timeout_min: self.timeout_min,
            timeout_max: self.timeout_max,
            failover_after: self.failover_after,
            ping_every: self.ping_every,
        }
    }
}
