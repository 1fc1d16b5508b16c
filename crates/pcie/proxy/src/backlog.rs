//! TLPs that a link refused for now, and the way of all others past them.
//!
//! A link that has no room for requests still takes writes and answers, and they must be able to pass: what the
//! requests wait for may be behind them. Nothing passes a write that waits.

use fabric::{SendError, Trunk};
use pcie::TlpBuf;
use std::collections::VecDeque;
use tlp::Class;
use units::LinkName;

/// Packets that may wait here. The side is asked for more when there are fewer.
const WAITING_MAX: usize = 512;

/// What one link refused. It is empty while the link has room.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: VecDeque<TlpBuf>,
    /// How many of each class wait.
    counts: [usize; 3],
}

impl Backlog {
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Hands the link what waits here, as far as it has room again.
    pub(crate) fn retry(&mut self, trunk: &mut Trunk, link: LinkName) {
        let Self { waiting, counts } = self;
        let mut is_full = [false; 3];
        waiting.retain(|packet| {
            let class = packet.header.class().index();
            let must_wait = is_full[Class::Posted.index()] || is_full[class];
            let is_refused = must_wait || send(trunk, link, packet) == Sent::Full;
            is_full[class] |= is_refused;
            counts[class] -= usize::from(!is_refused);
            is_refused
        });
    }

    /// Hands the link what `next` gives. What the link refuses, or what may not pass those that wait, stays here; when there
    /// is no room for that either, `next` is not asked any more.
    pub(crate) fn pass(
        &mut self,
        trunk: &mut Trunk,
        link: LinkName,
        mut next: impl FnMut() -> Option<TlpBuf>,
    ) {
        while self.has_room() {
            let Some(packet) = next() else { break };
            let class = packet.header.class().index();
            let must_wait = self.counts[Class::Posted.index()] > 0 || self.counts[class] > 0;
            if must_wait || send(trunk, link, &packet) == Sent::Full {
                self.counts[class] += 1;
                self.waiting.push_back(packet);
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Sent {
    Done,
    Full,
}

fn send(trunk: &mut Trunk, link: LinkName, packet: &TlpBuf) -> Sent {
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

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::{Endpoint, Epoch, LeaseSecret, Link, LinkConfig, Role, Time};
    use tlp::{Bdf, Header, Span, Status, Tag, TransactionId};

    const LINK: LinkName = LinkName(1);
    /// TLPs of each class that the link of these tests takes.
    const QUEUED_MAX: usize = 4;

    fn trunk() -> Trunk {
        let ends = [Endpoint::host(1), Endpoint::new(2, 0)];
        let secret = LeaseSecret([1; 32]);
        let mut config = LinkConfig::new(Role::Host, LINK, Epoch(1), secret, [1; 32], ends);
        config.queued_max = QUEUED_MAX;
        let mut trunk = Trunk::new(1 << 20);
        trunk.add(Link::new(config, Time::ZERO).unwrap());
        trunk
    }

    fn packet(class: Class, number: u16) -> TlpBuf {
        let id = TransactionId::new(Bdf::new(1, 0, 0), Tag::truncated(number));
        let span = Span::of_bytes(0x1000, 4).unwrap();
        let read = Header::memory_read(id, span);
        match class {
            Class::Posted => TlpBuf::memory_write(Bdf::new(1, 0, 0), 0x1000, &[0; 4]).unwrap(),
            Class::NonPosted => TlpBuf::bare(read),
            Class::Completion => TlpBuf::completion(&read, Bdf::default(), Status::UnsupportedRequest),
        }
    }

    /// Feeds packets of these classes; gives how many were asked for and which classes wait afterwards.
    fn feed(backlog: &mut Backlog, trunk: &mut Trunk, classes: &[Class]) -> (usize, Vec<Class>) {
        let mut packets = (0..).zip(classes).map(|(number, class)| packet(*class, number));
        let mut asked = 0;
        backlog.retry(trunk, LINK);
        backlog.pass(trunk, LINK, || packets.next().inspect(|_| asked += 1));
        (asked, backlog.waiting.iter().map(|packet| packet.header.class()).collect())
    }

    fn sent(trunk: &Trunk) -> u64 {
        trunk.link_counters(LINK).unwrap().tlps_sent
    }

    #[test]
    fn what_the_link_takes_never_waits_here() {
        let (mut backlog, mut trunk) = (Backlog::default(), trunk());
        let classes = [Class::Posted, Class::NonPosted, Class::Completion].repeat(QUEUED_MAX);
        assert_eq!(feed(&mut backlog, &mut trunk, &classes), (classes.len(), vec![]));
        assert_eq!(sent(&trunk), classes.len() as u64);
    }

    #[test]
    fn writes_and_answers_pass_requests_that_wait() {
        let (mut backlog, mut trunk) = (Backlog::default(), trunk());
        let mut classes = vec![Class::NonPosted; QUEUED_MAX + 2];
        classes.extend([Class::Posted, Class::Completion, Class::NonPosted]);
        let waiting = vec![Class::NonPosted; 3];
        assert_eq!(feed(&mut backlog, &mut trunk, &classes), (classes.len(), waiting));
        assert_eq!(sent(&trunk), QUEUED_MAX as u64 + 2);
    }

    #[test]
    fn nothing_passes_a_write_that_waits() {
        let (mut backlog, mut trunk) = (Backlog::default(), trunk());
        let mut classes = vec![Class::Posted; QUEUED_MAX + 1];
        classes.extend([Class::Completion, Class::NonPosted]);
        let waiting = vec![Class::Posted, Class::Completion, Class::NonPosted];
        assert_eq!(feed(&mut backlog, &mut trunk, &classes), (classes.len(), waiting.clone()));
        assert_eq!(sent(&trunk), QUEUED_MAX as u64);
        // Nor later, from one call to the next.
        assert_eq!(feed(&mut backlog, &mut trunk, &[Class::Completion]).1.len(), waiting.len() + 1);
        assert_eq!(sent(&trunk), QUEUED_MAX as u64);
    }

    #[test]
    fn the_side_is_asked_for_no_more_than_there_is_room_for() {
        let (mut backlog, mut trunk) = (Backlog::default(), trunk());
        let many = vec![Class::Posted; 2 * WAITING_MAX];
        let (asked, waiting) = feed(&mut backlog, &mut trunk, &many);
        assert_eq!((asked, waiting.len()), (QUEUED_MAX + WAITING_MAX, WAITING_MAX));
        assert!(!backlog.has_room());
        assert_eq!(feed(&mut backlog, &mut trunk, &many).0, 0);
    }

    #[test]
    fn what_waits_goes_in_order_when_the_link_has_room_again() {
        let (mut backlog, mut trunk) = (Backlog::default(), trunk());
        let full = [Class::Posted, Class::NonPosted].map(|class| vec![class; QUEUED_MAX]).concat();
        let more = [Class::NonPosted, Class::Posted, Class::Completion, Class::NonPosted];
        let (_, waiting) = feed(&mut backlog, &mut trunk, &[full, more.to_vec()].concat());
        assert_eq!(waiting, more);
        // A new link under the same name has all its room.
        trunk = self::trunk();
        assert_eq!(feed(&mut backlog, &mut trunk, &[Class::Completion]), (1, vec![]));
        assert_eq!((sent(&trunk), backlog.counts), (more.len() as u64 + 1, [0; 3]));
    }
}
