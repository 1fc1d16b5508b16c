//! TLPs that arrived and wait to be taken.
//!
//! Three queues, as deep as the credits that were given. The caller says which classes it can take now. A non-posted TLP
//! that the caller does not take is passed by those behind it; nothing passes a posted TLP.

use crate::credit::Credits;
use std::collections::VecDeque;
use tlp::{Class, Header, Prefixes, Tlp};

/// Which classes the receiver can take now. Posted TLPs must be taken sooner or later whatever else waits, and so must
/// completions: their room was set aside when the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Willing {
    /// Memory writes and messages.
    pub posted: bool,
    /// Requests.
    pub non_posted: bool,
    /// Answers.
    pub completions: bool,
}

impl Willing {
    /// Everything.
    pub const ALL: Self = Self { posted: true, non_posted: true, completions: true };
    /// Everything but requests: for a caller that has no room for another one.
    pub const NO_REQUESTS: Self = Self { non_posted: false, ..Self::ALL };

    const fn takes(self, class: Class) -> bool {
        match class {
            Class::Posted => self.posted,
            Class::NonPosted => self.non_posted,
            Class::Completion => self.completions,
        }
    }
}

/// A TLP, whole or nearly. Its buffer is used again.
#[derive(Debug)]
pub(crate) struct InTlp {
    /// Prefixes, header as it came, payload.
    pub(crate) bytes: Vec<u8>,
    prefix_bytes: usize,
    pub(crate) front_bytes: usize,
    pub(crate) header: Header,
    pub(crate) digest: Option<u32>,
    pub(crate) data_credits: u32,
    order: u64,
}

#[derive(Debug)]
struct Fronts([u64; 3]);

impl Default for Fronts {
    fn default() -> Self {
        Self([u64::MAX; 3])
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    queues: [VecDeque<InTlp>; 3],
    /// The order of the first in each queue; all ones when it is empty.
    fronts: Fronts,
    next_order: u64,
    spare: Vec<Vec<u8>>,
    /// The one that the caller looks at.
    taken: Option<InTlp>,
    count: usize,
}

impl Inbox {
    /// A TLP with this front and no payload yet.
    pub(crate) fn begin(
        &mut self,
        front: &[u8],
        header: Header,
        digest: Option<u32>,
        data_credits: u32,
    ) -> InTlp {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(front);
        let prefix_bytes = front.len() - header.header_bytes();
        InTlp { bytes, prefix_bytes, front_bytes: front.len(), header, digest, data_credits, order: 0 }
    }

    pub(crate) fn push(&mut self, mut tlp: InTlp) {
        tlp.order = self.next_order;
        self.next_order += 1;
        let class = tlp.header.class().index();
        self.fronts.0[class] = self.fronts.0[class].min(tlp.order);
        self.queues[class].push_back(tlp);
        self.count += 1;
    }

    pub(crate) fn recycle(&mut self, tlp: InTlp) {
        self.spare.push(tlp.bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest TLP that may be taken; its credits are counted as free in `freed`.
    pub(crate) fn take(&mut self, willing: Willing, freed: &mut Credits) -> Option<Tlp<'_>> {
        if let Some(done) = self.taken.take() {
            self.recycle(done);
        }
        if self.count == 0 {
            return None;
        }
        let posted = self.fronts.0[Class::Posted.index()];
        let mut oldest = (u64::MAX, None);
        for class in Class::ALL {
            let order = self.fronts.0[class.index()];
            if willing.takes(class) && order <= posted && order < oldest.0 {
                oldest = (order, Some(class));
            }
        }
        let class = oldest.1?;
        let queue = &mut self.queues[class.index()];
        let tlp = queue.pop_front()?;
        self.fronts.0[class.index()] = queue.front().map_or(u64::MAX, |tlp| tlp.order);
        self.count -= 1;
        freed.add(class, tlp.data_credits);
        Some(self.taken.insert(tlp).view())
    }
}

impl InTlp {
    fn view(&self) -> Tlp<'_> {
        let (prefixes, payload) = (&self.bytes[..self.prefix_bytes], &self.bytes[self.front_bytes..]);
        // They were prefixes when they arrived.
        let prefixes = Prefixes::new(prefixes).unwrap_or(Prefixes::NONE);
        Tlp { prefixes, header: self.header, payload, digest: self.digest }
    }
}
