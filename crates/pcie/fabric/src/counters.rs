//! What happened on a link, counted.

/// Of one link. Everything that is dropped is counted under its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TLPs taken from the caller.
    pub tlps_sent: u64,
    /// TLPs handed to the caller.
    pub tlps_received: u64,
    /// Datagrams written.
    pub datagrams_sent: u64,
    /// Datagrams that were right.
    pub datagrams_received: u64,
    /// Packets sent for the first time.
    pub packets_sent: u64,
    /// Packets sent again.
    pub packets_resent: u64,
    /// Times that nothing was heard for a whole timeout.
    pub timeouts: u64,
    /// Times that the link moved to another path.
    pub failovers: u64,

    /// Dropped: not the beginning of a datagram, or its CRC is wrong.
    pub malformed_datagrams: u64,
    /// Dropped: of another link than this one.
    pub foreign_links: u64,
    /// Dropped: of an older or newer epoch.
    pub other_epochs: u64,
    /// Dropped: of another session of this epoch, or before there was one.
    pub other_sessions: u64,
    /// Dropped: over a path that this link does not have.
    pub foreign_paths: u64,
    /// Dropped: the seal is broken.
    pub forged_datagrams: u64,
    /// Dropped: seen before, or too old to tell.
    pub replayed_datagrams: u64,
    /// Dropped: a packet whose form or CRC is wrong, and the rest of its datagram.
    pub corrupt_packets: u64,
    /// Dropped: a packet that had arrived before.
    pub duplicate_packets: u64,
    /// Dropped: a packet from beyond the window.
    pub packets_beyond_window: u64,
    /// Dropped: a packet of data that belongs to no TLP.
    pub stray_data: u64,
    /// Dropped: a TLP whose route is not this link's.
    pub wrong_routes: u64,
    /// Dropped: a TLP that is malformed, or whose CRC is wrong.
    pub malformed_tlps: u64,
    /// Dropped: a TLP for which the peer had no credit.
    pub without_credit: u64,
    /// Dropped: a completion that answers no open request.
    pub unexpected_completions: u64,
    /// Dropped: an acknowledgement of what was never sent.
    pub impossible_acks: u64,
    /// Dropped: a greeting that is not from the peer, or from another session of it.
    pub foreign_hellos: u64,
}

impl Counters {
    /// Everything that was dropped for being wrong; repeated packets are not.
    pub const fn refused(&self) -> u64 {
        self.malformed_datagrams
            + self.foreign_links
            + self.other_epochs
            + self.other_sessions
            + self.foreign_paths
            + self.forged_datagrams
            + self.corrupt_packets
            + self.packets_beyond_window
            + self.stray_data
            + self.wrong_routes
            + self.malformed_tlps
            + self.without_credit
            + self.unexpected_completions
            + self.impossible_acks
            + self.foreign_hellos
    }
}
