//! What one link's side has to send and the link does not take yet.
//!
//! A link that has no room for requests still takes writes and answers, and they must be able to pass: what the
//! requests wait for may be behind them.

use fabric::{SendError, Trunk};
use pcie::Packet;
use std::collections::VecDeque;
use tlp::Class;
use units::LinkName;

/// Packets that may wait here. The side is asked for more when there are fewer.
const WAITING_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Lane {
    waiting: VecDeque<Packet>,
}

impl Lane {
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    pub(crate) fn push(&mut self, packet: Packet) {
        self.waiting.push_back(packet);
    }

    /// Hands over what the link takes now. Says whether anything went.
    pub(crate) fn flush(&mut self, trunk: &mut Trunk, link: LinkName) -> bool {
        let before = self.waiting.len();
        let mut is_full = [false; 3];
        let mut at = 0;
        while at < self.waiting.len() && !is_full[Class::Posted.index()] {
            let packet = &self.waiting[at];
            let class = packet.header.class();
            if is_full[class.index()] || send(trunk, link, packet) == Sent::Full {
                // Nothing passes a posted packet; the loop ends there.
                is_full[class.index()] = true;
                at += 1;
            } else if at == 0 {
                self.waiting.pop_front();
            } else {
                self.waiting.remove(at);
            }
        }
        self.waiting.len() < before
    }
}

#[derive(PartialEq, Eq)]
enum Sent {
    Done,
    Full,
}

fn send(trunk: &mut Trunk, link: LinkName, packet: &Packet) -> Sent {
    let tlp = packet.as_tlp();
    match trunk.send(link, &tlp) {
        Some(Err(SendError::Full(_))) => Sent::Full,
        Some(Err(SendError::Request(_))) => {
            // The requester gave the old request up and uses its tag again; what still comes for it is dropped.
            trunk.forget_request(link, packet.header.id());
            match trunk.send(link, &tlp) {
                Some(Err(SendError::Full(_))) => Sent::Full,
                Some(Err(error)) => {
                    tracing::warn!(%link, %error, "a packet was dropped");
                    Sent::Done
                }
                _ => Sent::Done,
            }
        }
        Some(Err(error)) => {
            tracing::warn!(%link, %error, "a packet was dropped");
            Sent::Done
        }
        // A link that has ended takes everything with it.
        Some(Ok(())) | None => Sent::Done,
    }
}
