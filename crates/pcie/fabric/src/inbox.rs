//! TLPs that arrived and wait to be taken.
//!
//! Three queues, as deep as the credits that were given. The caller says which classes it can take now. A non-posted TLP
//! that the caller does not take is passed by those behind it; nothing passes a posted TLP.

use crate::credit::{Credits, data_credits};
use crate::wire::{TLP_FRONT_BYTES_MAX, put_front};
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

/// A TLP, whole or nearly. Its place and its buffer are used again.
#[derive(Debug)]
pub(crate) struct InTlp {
    /// Prefixes and header as they came, which take the first `front_bytes`.
    front: [u8; TLP_FRONT_BYTES_MAX],
    prefix_bytes: usize,
    front_bytes: usize,
    /// What has come of it so far.
    pub(crate) payload: Vec<u8>,
    /// How much must come.
    pub(crate) payload_bytes: usize,
    pub(crate) header: Header,
    pub(crate) digest: Option<u32>,
    pub(crate) data_credits: u32,
    pub(crate) class: Class,
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
    tlps: Vec<InTlp>,
    free: Vec<u32>,
    queues: [VecDeque<u32>; 3],
    /// The order of the first in each queue; all ones when it is empty.
    fronts: Fronts,
    next_order: u64,
    /// The one that the caller looks at.
    taken: Option<u32>,
    count: usize,
}

impl Inbox {
    /// A TLP with this front and no payload yet; gives its place.
    pub(crate) fn begin(
        &mut self,
        front: &[u8],
        header: &Header,
        payload_bytes: usize,
        digest: Option<u32>,
    ) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tlps.push(InTlp {
                front: [0; TLP_FRONT_BYTES_MAX],
                prefix_bytes: 0,
                front_bytes: 0,
                payload: Vec::new(),
                payload_bytes: 0,
                header: *header,
                digest: None,
                data_credits: 0,
                class: Class::Posted,
                order: 0,
            });
            (self.tlps.len() - 1) as u32
        });
        let tlp = &mut self.tlps[index as usize];
        put_front(front, &mut tlp.front);
        (tlp.front_bytes, tlp.prefix_bytes) = (front.len(), front.len() - header.header_bytes());
        tlp.payload.clear();
        (tlp.payload_bytes, tlp.data_credits) = (payload_bytes, data_credits(payload_bytes));
        (tlp.header, tlp.class, tlp.digest) = (*header, header.class(), digest);
        index
    }

    pub(crate) fn get(&self, index: u32) -> &InTlp {
        &self.tlps[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut InTlp {
        &mut self.tlps[index as usize]
    }

    /// It is whole.
    pub(crate) fn push(&mut self, index: u32) {
        let tlp = &mut self.tlps[index as usize];
        tlp.order = self.next_order;
        self.next_order += 1;
        let class = tlp.class.index();
        self.fronts.0[class] = self.fronts.0[class].min(tlp.order);
        self.queues[class].push_back(index);
        self.count += 1;
    }

    pub(crate) fn recycle(&mut self, index: u32) {
        self.free.push(index);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest TLP that may be taken; its credits are counted as free in `freed`.
    pub(crate) fn take(&mut self, willing: Willing, freed: &mut Credits) -> Option<&InTlp> {
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
        let index = queue.pop_front()?;
        self.fronts.0[class.index()] = queue.front().map_or(u64::MAX, |next| self.tlps[*next as usize].order);
        self.count -= 1;
        self.taken = Some(index);
        let tlp = &self.tlps[index as usize];
        freed.add(class, tlp.data_credits);
        Some(tlp)
    }

    /// The caller is done with the TLP that it took last.
    pub(crate) fn give_back(&mut self) {
        if let Some(done) = self.taken.take() {
            self.recycle(done);
        }
    }
}

impl InTlp {
    pub(crate) fn front(&self) -> &[u8] {
        &self.front[..self.front_bytes]
    }

    pub(crate) fn view(&self) -> Tlp<'_> {
        let prefixes = match self.prefix_bytes {
            0 => Prefixes::NONE,
            // They were prefixes when they arrived.
            bytes => Prefixes::new(&self.front[..bytes]).unwrap_or(Prefixes::NONE),
        };
        Tlp { prefixes, header: self.header, payload: &self.payload, digest: self.digest }
    }
}
