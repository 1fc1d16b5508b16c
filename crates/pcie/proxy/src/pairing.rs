//! Pairings of a host's slot with a box's slot, as the manager says them.

use fabric::{Endpoint, LeaseSecret, Link, LinkConfig, LinkConfigError, Protection, Role};
use ring::rand::{SecureRandom, SystemRandom};
use std::net::SocketAddr;
use std::time::Duration;
use units::{Epoch, LinkName, NodeId, PathId, SlotId, Time};

/// How long a device waits for what it reads from its guest's memory: for as long as it is paired, in effect. Packets are not
/// lost between the proxies, so an answer that is late is late because the host or the network is paused. Whether that has
/// lasted too long is for the link and the manager to say; they then end the pairing, which resets the device.
pub const DEVICE_WAITS: Duration = Duration::from_secs(3600);

/// One slot of a host and one slot of a box, for one lease.
#[derive(Clone, Debug)]
pub struct Pairing {
    /// Raised with every pairing of the box's slot.
    pub epoch: Epoch,
    /// The host's proxy.
    pub host_node: NodeId,
    /// The box's proxy.
    pub box_node: NodeId,
    /// The slot of the box.
    pub box_slot: SlotId,
    /// Where the other proxy is, by path: the first is path 1.
    pub remote_paths: Vec<SocketAddr>,
    /// Known to both ends.
    pub secret: [u8; 32],
    /// How long the other end may be silent while it owes an answer, before its device is given up. As long as the pool
    /// waits for a box that does not report: a pause that the pool forgives costs the guest a delay and nothing else.
    pub patience: Duration,
}

/// Why a pairing cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairingError {
    /// The link refuses it, for example because its epoch does not fit into a datagram.
    #[error("no link can be made for it")]
    Link(#[from] LinkConfigError),
    /// No address of the other proxy.
    #[error("the other proxy has no path in common with this one")]
    NoPath,
    /// An address that cannot be read.
    #[error("`{0}` is no path; write udp:IP:PORT")]
    Address(String),
    /// The machine has no randomness.
    #[error("the system gives no random numbers")]
    Random,
}

/// Reads `udp:IP:PORT`.
pub fn parse_path(text: &str) -> Result<SocketAddr, PairingError> {
    let address = text.strip_prefix("udp:").and_then(|address| address.parse().ok());
    address.ok_or_else(|| PairingError::Address(text.to_owned()))
}

impl Pairing {
    /// The link's name on the network: a box's slot has one link at a time.
    pub fn link(&self) -> LinkName {
        LinkName::of(self.box_node, self.box_slot)
    }

    /// Where the other end is on each path that both have.
    pub(crate) fn addresses(&self, local_paths: usize) -> impl Iterator<Item = (PathId, SocketAddr)> + '_ {
        (1..=u16::MAX).map(PathId).zip(self.remote_paths.iter().take(local_paths).copied())
    }

    pub(crate) fn remote_node(&self, role: Role) -> NodeId {
        if role == Role::Host { self.box_node } else { self.host_node }
    }

    /// This proxy's end of the link, which begins now.
    pub(crate) fn make_link(
        &self,
        role: Role,
        local_paths: usize,
        protection: Protection,
        now: Time,
    ) -> Result<Link, PairingError> {
        Ok(Link::new(self.link_config(role, local_paths, protection)?, now)?)
    }

    fn link_config(
        &self,
        role: Role,
        local_paths: usize,
        protection: Protection,
    ) -> Result<LinkConfig, PairingError> {
        let host = Endpoint { node: self.host_node, slot: SlotId(0) };
        let slot = Endpoint { node: self.box_node, slot: self.box_slot };
        let ends = if role == Role::Host { [host, slot] } else { [slot, host] };
        let mut random = [0; fabric::wire::RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| PairingError::Random)?;
        let secret = LeaseSecret(self.secret);
        let mut config = LinkConfig::new(role, self.link(), self.epoch, secret, random, ends);
        config.paths = self.addresses(local_paths).map(|(path, _)| path).collect();
        config.protection = protection;
        config.silent_after = self.patience;
        if config.paths.is_empty() {
            return Err(PairingError::NoPath);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::TooLarge;

    #[test]
    fn paths_are_read_as_people_write_them() {
        assert_eq!(parse_path("udp:127.0.0.1:4791").unwrap().port(), 4791);
        assert_eq!(parse_path("udp:[::1]:7").unwrap().port(), 7);
        for wrong in ["127.0.0.1:1", "udp:", "udp:host:1", "tcp:127.0.0.1:1"] {
            assert_eq!(parse_path(wrong), Err(PairingError::Address(wrong.into())));
        }
    }

    #[test]
    fn a_pairing_without_a_common_path_or_with_an_epoch_too_large_is_refused() {
        let remote_paths = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        let good = Pairing {
            epoch: Epoch(3),
            host_node: NodeId(1),
            box_node: NodeId(2),
            box_slot: SlotId(5),
            remote_paths,
            secret: [7; 32],
            patience: Duration::from_secs(15),
        };
        let config = good.link_config(Role::Host, 1, Protection::Encrypted).unwrap();
        assert_eq!(config.paths, [PathId(1)]);
        assert_eq!(config.silent_after, Duration::from_secs(15));
        assert_eq!((config.name, config.remote), (LinkName(2 << 16 | 5), Endpoint::new(2, 5)));
        let refused = |pairing: Pairing| {
            let made = pairing.make_link(Role::Box, 2, Protection::Encrypted, Time::ZERO);
            made.expect_err("it must be refused")
        };
        // Cut off at 32 bits it would be epoch 3, whose tenant is gone and whose datagrams may still be on their way.
        let value = (1 << 32) + 3;
        let too_large = LinkConfigError::Epoch(TooLarge { what: "epoch", value, bits: 32 });
        assert_eq!(refused(Pairing { epoch: Epoch(value), ..good.clone() }), PairingError::Link(too_large));
        assert_eq!(refused(Pairing { remote_paths: vec![], ..good }), PairingError::NoPath);
    }
}
