//! Greetings: how two ends find out that they share a lease.

use super::{Event, Link, Phase, Role, Transmit};
use crate::credit::Credits;
use crate::seal::{Protection, Session};
use crate::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader, DatagramKind, Hello, RANDOM_BYTES};
use units::PathId;

impl Link {
    pub(super) fn write_greeting(
        &mut self,
        kind: DatagramKind,
        path: PathId,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let header = DatagramHeader {
            kind,
            is_encrypted: self.config.protection == Protection::Encrypted,
            path,
            link: self.config.name,
            epoch: self.config.epoch,
            session: 0,
            number: 0,
        };
        let hello = Hello {
            random: self.config.random,
            answers: match kind {
                DatagramKind::Answer => self.peer_random?,
                DatagramKind::Hello | DatagramKind::Packets => [0; RANDOM_BYTES],
            },
            window: self.config.window,
            datagram_bytes: self.config.datagram_bytes as u32,
            credits: Credits::limit_of(&self.config.room, &Credits::default()),
        };
        let bytes = DATAGRAM_HEADER_BYTES + Hello::BYTES;
        let out = out.get_mut(..bytes)?;
        let (header, body) = (header.encode().ok()?, hello.encode());
        out[..header.len()].copy_from_slice(&header);
        out[header.len()..header.len() + body.len()].copy_from_slice(&body);
        let (signed, mac) = out.split_at_mut(header.len() + body.len());
        mac.copy_from_slice(&self.greeting_key.sign(signed));
        self.counters.datagrams_sent += 1;
        Some(Transmit { path, bytes })
    }

    /// `whole` is the datagram, `body` what follows its header.
    pub(super) fn on_greeting(&mut self, header: &DatagramHeader, whole: &[u8], body: &[u8]) {
        let Ok((hello, mac)) = Hello::decode(body) else {
            self.counters.malformed_datagrams += 1;
            return;
        };
        let is_for_us = match (header.kind, self.config.role) {
            (DatagramKind::Hello, Role::Box) => self.peer_random.is_none_or(|known| known == hello.random),
            (DatagramKind::Answer, Role::Host) => hello.answers == self.config.random,
            _ => false,
        };
        let is_sound = header.is_encrypted == (self.config.protection == Protection::Encrypted)
            && hello.window.is_power_of_two()
            && (64..=4096).contains(&hello.window)
            && hello.datagram_bytes >= self.config.datagram_bytes.min(1024) as u32;
        let signed = &whole[..whole.len() - mac.len()];
        if !is_for_us || !is_sound || !self.greeting_key.is_right(signed, mac) {
            self.counters.foreign_hellos += 1;
            return;
        }
        self.quiet_until = None;
        self.waiting = None;
        self.is_silent = false;
        if self.config.role == Role::Box {
            self.answer_due = Some(header.path);
        }
        if self.phase == Phase::Established {
            return;
        }
        self.peer_random = Some(hello.random);
        let randoms = match self.config.role {
            Role::Host => [&self.config.random, &hello.random],
            Role::Box => [&hello.random, &self.config.random],
        };
        let (secret, name, epoch) = (&self.config.secret, self.config.name, self.epoch_field);
        let is_host = self.config.role == Role::Host;
        self.session = Some(Session::new(secret, name, epoch, randoms, is_host, self.config.protection));
        self.limit = hello.credits;
        self.peer_window = u64::from(hello.window);
        self.peer_datagram_bytes = hello.datagram_bytes as usize;
        self.phase = Phase::Established;
        self.events.push_back(Event::Established);
    }
}
