//! Which requests are open: a completion that answers none of them is dropped.

use tlp::{Bdf, TransactionId};

/// Requesters behind one end of a link: the functions of a device, or a root complex and its ports. A bound, so that a
/// caller's mistake does not become memory.
const REQUESTERS_MAX: usize = 256;
const WORDS: usize = 1024 / 64;

/// Why a request cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The tag names a request that is still open.
    #[error("{0} is open already")]
    TagInUse(TransactionId),
    /// More functions ask than a link serves.
    #[error("more than {REQUESTERS_MAX} requesters")]
    TooManyRequesters,
}

#[derive(Debug)]
struct Requester {
    id: Bdf,
    open: [u64; WORDS],
}

/// The open requests of one end of a link.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    requesters: Vec<Requester>,
    count: usize,
}

impl Requests {
    fn find(&mut self, id: TransactionId) -> Option<(&mut u64, u64)> {
        let tag = id.tag.value();
        let requester = self.requesters.iter_mut().find(|known| known.id == id.requester)?;
        Some((&mut requester.open[usize::from(tag / 64)], 1 << (tag % 64)))
    }

    pub(crate) fn check(&mut self, id: TransactionId) -> Result<(), RequestError> {
        let is_full = self.requesters.len() == REQUESTERS_MAX;
        match self.find(id) {
            Some((word, bit)) if *word & bit != 0 => Err(RequestError::TagInUse(id)),
            None if is_full => Err(RequestError::TooManyRequesters),
            _ => Ok(()),
        }
    }

    pub(crate) fn open(&mut self, id: TransactionId) {
        if self.find(id).is_none() {
            self.requesters.push(Requester { id: id.requester, open: [0; WORDS] });
        }
        if let Some((word, bit)) = self.find(id) {
            *word |= bit;
            self.count += 1;
        }
    }

    pub(crate) fn is_open(&mut self, id: TransactionId) -> bool {
        self.find(id).is_some_and(|(word, bit)| *word & bit != 0)
    }

    /// True when it was open.
    pub(crate) fn close(&mut self, id: TransactionId) -> bool {
        let was_open = self.find(id).is_some_and(|(word, bit)| {
            let was_open = *word & bit != 0;
            *word &= !bit;
            was_open
        });
        self.count -= usize::from(was_open);
        was_open
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }
}
