//! The ordering rules, and a queue that keeps them while some kinds of packet are held back.
//!
//! | may the row pass the column? | posted            | non-posted | completion          |
//! | ---------------------------- | ----------------- | ---------- | ------------------- |
//! | posted                       | no (RO, IDO: yes) | must       | yes                 |
//! | non-posted                   | no (IDO: yes)     | yes        | yes                 |
//! | completion                   | no (RO, IDO: yes) | must       | other requests only |
//!
//! "Must" keeps a link from locking up: when non-posted packets cannot move, what they wait for still can.

use std::collections::VecDeque;

use tlp::{Class, Header};

use crate::tlp_buf::TlpBuf;

/// Whether `later` may overtake `earlier`.
pub fn may_pass(later: &Header, earlier: &Header) -> bool {
    if later.traffic_class != earlier.traffic_class {
        return true;
    }
    let relaxed = later.attributes.relaxed_ordering;
    let other_source = later.attributes.id_ordering && source(later) != source(earlier);
    match (later.class(), earlier.class()) {
        (Class::Posted, Class::Posted) | (Class::Completion, Class::Posted) => relaxed || other_source,
        (Class::NonPosted, Class::Posted) => other_source,
        (Class::Completion, Class::Completion) => later.id() != earlier.id(),
        _ => true,
    }
}

/// The function that a packet comes from, as ID-based ordering means it.
fn source(header: &Header) -> tlp::Bdf {
    match &header.body {
        tlp::Body::Completion(completion) => completion.completer,
        _ => header.id().requester,
    }
}

/// The queue has no room for another packet of this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full for {0:?} packets")]
pub struct QueueFull(pub Class);

/// Packets on their way to one receiver, which may hold back some classes.
///
/// Each class has its own bound: a queue full of requests still takes completions.
pub struct OrderedQueue {
    packets: VecDeque<TlpBuf>,
    counts: [usize; 3],
    bound: usize,
}

impl OrderedQueue {
    /// Room for `bound` packets of each class.
    pub fn new(bound: usize) -> Self {
        Self { packets: VecDeque::new(), counts: [0; 3], bound }
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds one at the end. A full class gives it back as an error: the sender waits.
    pub fn push(&mut self, packet: TlpBuf) -> Result<(), QueueFull> {
        let class = packet.header.class();
        if self.counts[class.index()] >= self.bound {
            return Err(QueueFull(class));
        }
        self.counts[class.index()] += 1;
        self.packets.push_back(packet);
        Ok(())
    }

    /// Takes the first packet that the receiver has room for and that may pass all packets before it.
    pub fn pop(&mut self, mut has_room: impl FnMut(&Header) -> bool) -> Option<TlpBuf> {
        let at = (0..self.packets.len()).find(|&at| {
            let header = &self.packets[at].header;
            let passes = self.packets.iter().take(at).all(|earlier| may_pass(header, &earlier.header));
            passes && has_room(header)
        })?;
        let packet = self.packets.remove(at)?;
        self.counts[packet.header.class().index()] -= 1;
        Some(packet)
    }

    /// Drops everything, as a link that went down does.
    pub fn clear(&mut self) -> usize {
        let dropped = self.packets.len();
        self.packets.clear();
        self.counts = [0; 3];
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tlp::{Attributes, Bdf, Span, Status, Tag, TransactionId};

    fn id(requester: u8, tag: u16) -> TransactionId {
        TransactionId::new(Bdf::new(requester, 0, 0), Tag::truncated(tag))
    }

    fn span() -> Span {
        Span::of_bytes(0x1000, 4).unwrap()
    }

    fn posted(requester: u8) -> Header {
        Header::memory_write(Bdf::new(requester, 0, 0), span())
    }

    fn read(requester: u8, tag: u16) -> Header {
        Header::memory_read(id(requester, tag), span())
    }

    fn completion(requester: u8, tag: u16) -> Header {
        read(requester, tag).completion(Bdf::new(9, 0, 0), Status::Success)
    }

    fn relaxed(header: Header) -> Header {
        header.with_attributes(Attributes { relaxed_ordering: true, ..Attributes::default() })
    }

    fn by_id(header: Header) -> Header {
        header.with_attributes(Attributes { id_ordering: true, ..Attributes::default() })
    }

    #[test]
    fn the_table_holds() {
        let check =
            |later, earlier, expected, why: &str| assert_eq!(may_pass(&later, &earlier), expected, "{why}");
        check(posted(1), posted(1), false, "posted keep their order");
        check(relaxed(posted(1)), posted(1), true, "unless relaxed");
        check(by_id(posted(1)), posted(2), true, "or of another requester");
        check(by_id(posted(1)), posted(1), false, "not of the same");
        check(read(1, 0), posted(1), false, "a read pushes writes before it");
        check(relaxed(read(1, 0)), posted(1), false, "even a relaxed one");
        check(completion(1, 0), posted(1), false, "an answer pushes writes before it");
        check(relaxed(completion(1, 0)), posted(1), true, "unless relaxed");
        check(posted(1), read(1, 0), true, "writes get past reads that are stuck");
        check(completion(1, 0), read(1, 0), true, "so do answers");
        check(completion(1, 0), completion(1, 0), false, "pieces of one answer stay in order");
        check(completion(1, 0), completion(1, 1), true, "answers to different reads need not");
    }

    #[test]
    fn an_interrupt_follows_its_data() {
        let mut queue = OrderedQueue::new(8);
        let data = TlpBuf::memory_write(Bdf::new(1, 0, 0), 0x1000, &[1; 4]).unwrap();
        let interrupt = TlpBuf::memory_write(Bdf::new(1, 0, 0), 0xfee0_0000, &[2; 4]).unwrap();
        queue.push(data.clone()).unwrap();
        queue.push(interrupt.clone()).unwrap();
        // The receiver has no room for the data, but would have for the interrupt.
        let mut asked = 0;
        assert_eq!(
            queue.pop(|header| {
                asked += 1;
                *header != data.header
            }),
            None
        );
        assert_eq!(asked, 1, "nobody even asks for the interrupt");
        assert_eq!(queue.pop(|_| true), Some(data));
        assert_eq!(queue.pop(|_| true), Some(interrupt));
    }

    fn any_header() -> impl Strategy<Value = Header> {
        (0..3u8, 1..3u8, 0..3u16, any::<bool>(), any::<bool>()).prop_map(|(kind, requester, tag, ro, ido)| {
            let header = match kind {
                0 => posted(requester),
                1 => read(requester, tag),
                _ => completion(requester, tag),
            };
            let attributes = Attributes { relaxed_ordering: ro, id_ordering: ido, ..Attributes::default() };
            header.with_attributes(attributes)
        })
    }

    proptest! {
        /// Whatever the receiver holds back and when: no packet passes one it may not, none is lost, and with
        /// non-posted packets stuck forever all the others still leave.
        #[test]
        fn no_schedule_breaks_the_rules_or_locks_up(
            headers in proptest::collection::vec(any_header(), 1..40),
            rooms in proptest::collection::vec(0..8u8, 0..200),
        ) {
            let mut queue = OrderedQueue::new(64);
            for (n, header) in headers.iter().enumerate() {
                queue.push(TlpBuf { header: *header, payload: vec![n as u8; 4] }).unwrap();
            }
            let mut left = Vec::new();
            for room in rooms {
                let open = |header: &Header| room >> header.class().index() & 1 != 0;
                left.extend(queue.pop(open).map(|packet| usize::from(packet.payload[0])));
            }
            // From now on reads are stuck and everything else has room.
            while let Some(packet) = queue.pop(|header| header.class() != Class::NonPosted) {
                left.push(usize::from(packet.payload[0]));
            }
            let stuck: Vec<usize> = queue.packets.iter().map(|packet| usize::from(packet.payload[0])).collect();
            prop_assert!(stuck.iter().all(|n| headers[*n].class() == Class::NonPosted));
            left.extend(stuck);
            let mut all = left.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..headers.len()).collect::<Vec<_>>());
            for (place, later) in left.iter().enumerate() {
                for earlier in left[place + 1..].iter().filter(|earlier| *earlier < later) {
                    prop_assert!(may_pass(&headers[*later], &headers[*earlier]));
                }
            }
        }
    }
}
