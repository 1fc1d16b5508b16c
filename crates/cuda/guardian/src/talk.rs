//! The asking side of a connection: a store that talks with a guardian, or a guardian with another.

use crate::error::Broken;
use crate::protocol::{AGES_MAX, Answer, DEAD_MAX, ENTRIES_MAX, Open, READS_MAX, Request};
use crate::stream::Stream;
use cuda_driver::Committed;
use snapshot::{Block, BlockDigest, Bytes, EventAge, Seal};
use std::time::Duration;

/// The most entries of a list: an image of a tebibyte in whole blocks. A guardian that sends more is not believed.
const LIST_MAX: usize = 1 << 24;

/// What a guardian says of an image that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageState {
    /// The last committed cut; 0 for none.
    pub committed: u64,
    /// The last cut that another box has too; 0 for none.
    pub copied: u64,
    /// Bytes of guard memory that it takes.
    pub image_bytes: u64,
}

/// The images of a guardian by lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The memory of all images together.
    pub bytes_max: u64,
    /// What of it is taken.
    pub used: u64,
    /// Each lease that has images here, and the memory that they take.
    pub leases: Vec<(String, u64)>,
}

/// A connection to a guardian. After an error other than [`Broken::Refused`] it is of no use any more.
pub(crate) struct Talk {
    stream: Stream,
    /// Why the guardian has thrown the delta away, if it has.
    failed: Option<String>,
}

impl Talk {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, failed: None }
    }

    /// A guardian that says nothing for this long is lost.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<(), Broken> {
        Ok(self.stream.set_patience(patience)?)
    }

    /// The next answer to a request. What the guardian says unasked is remembered on the way.
    fn hear(&mut self) -> Result<(Answer, Option<Bytes>), Broken> {
        loop {
            match self.stream.hear()? {
                (Answer::DeltaFailed { text, .. }, _) => _ = self.failed.get_or_insert(text),
                (Answer::Refused(text), _) => return Err(Broken::Refused(text)),
                heard => return Ok(heard),
            }
        }
    }

    fn done(&mut self, request: &Request) -> Result<(), Broken> {
        self.stream.ask(request)?;
        match self.hear()?.0 {
            Answer::Done => Ok(()),
            _ => Err(Broken::Unexpected),
        }
    }

    /// The memory of all images of the guardian, where other boxes reach it, and which of them gets second copies.
    pub(crate) fn hello(&mut self) -> Result<(u64, String, String), Broken> {
        self.stream.ask(&Request::Hello)?;
        match self.hear()?.0 {
            Answer::Welcome { bytes_max, address, copy_at } => Ok((bytes_max, address, copy_at)),
            _ => Err(Broken::Unexpected),
        }
    }

    /// Opens an image: the bytes that it may have, and its last committed cut.
    pub(crate) fn open(&mut self, open: Open) -> Result<(u64, u64), Broken> {
        self.stream.ask(&Request::Open(Box::new(open)))?;
        match self.hear()?.0 {
            Answer::Opened { bytes_max, committed } => Ok((bytes_max, committed)),
            _ => Err(Broken::Unexpected),
        }
    }

    pub(crate) fn begin(&mut self, base: u64, number: u64) -> Result<(), Broken> {
        let begun = self.done(&Request::Begin { base, number });
        self.failed = None;
        begun
    }

    /// Sends a block without waiting for an answer. An error may be about an earlier one.
    pub(crate) fn put(&mut self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), Broken> {
        if self.failed.is_none() && self.stream.has_come() {
            match self.stream.hear()?.0 {
                Answer::DeltaFailed { text, .. } => self.failed = Some(text),
                _ => return Err(Broken::Unexpected),
            }
        }
        match &self.failed {
            Some(text) => Err(Broken::Refused(text.clone())),
            None => self.stream.ask_with(&Request::Put(*entry), bytes),
        }
    }

    /// Waits until the guardian has taken all blocks that were put.
    pub(crate) fn all_came(&mut self) -> Result<(), Broken> {
        self.state()?;
        self.failed.take().map_or(Ok(()), |text| Err(Broken::Refused(text)))
    }

    pub(crate) fn commit(
        &mut self,
        number: u64,
        dead: &[u64],
        events: &[EventAge],
        seal: Seal,
    ) -> Result<Committed, Broken> {
        if let Some(text) = self.failed.take() {
            return Err(Broken::Refused(text));
        }
        for dead in dead.chunks(DEAD_MAX) {
            self.stream.ask(&Request::Bury(dead.to_vec()))?;
        }
        for ages in events.chunks(AGES_MAX) {
            self.stream.ask(&Request::Ages(ages.to_vec()))?;
        }
        self.stream.ask(&Request::Commit { number, seal })?;
        let heard = self.hear();
        self.failed = None;
        match heard?.0 {
            Answer::Committed { level, image_bytes } => Ok(Committed { level, image_bytes }),
            _ => Err(Broken::Unexpected),
        }
    }

    pub(crate) fn abandon(&mut self, number: u64) -> Result<(), Broken> {
        // A delta that the guardian has thrown away needs no more.
        if self.failed.take().is_some() {
            return Ok(());
        }
        match self.done(&Request::Abandon { number }) {
            Err(Broken::Refused(_)) if self.failed.take().is_some() => Ok(()),
            abandoned => abandoned,
        }
    }

    pub(crate) fn state(&mut self) -> Result<ImageState, Broken> {
        self.stream.ask(&Request::State)?;
        match self.hear()?.0 {
            Answer::State { committed, copied, image_bytes } => {
                Ok(ImageState { committed, copied, image_bytes })
            }
            _ => Err(Broken::Unexpected),
        }
    }

    /// All blocks and events of a cut.
    pub(crate) fn list(&mut self, number: u64) -> Result<(Vec<BlockDigest>, Vec<EventAge>), Broken> {
        self.stream.ask(&Request::List { number })?;
        let (mut entries, mut ages) = (Vec::new(), Vec::new());
        loop {
            match self.hear()?.0 {
                Answer::Entries(part) => entries.extend(part),
                Answer::Ages(part) => ages.extend(part),
                Answer::ListEnd { entries: count } if count == entries.len() as u64 => {
                    return Ok((entries, ages));
                }
                _ => return Err(Broken::Unexpected),
            }
            if entries.len() > LIST_MAX + ENTRIES_MAX || ages.len() > LIST_MAX {
                return Err(Broken::Unexpected);
            }
        }
    }

    /// Asks for blocks, which [`Self::next_block`] gives in this order.
    pub(crate) fn ask_for(&mut self, number: u64, blocks: &[Block]) -> Result<(), Broken> {
        for blocks in blocks.chunks(READS_MAX) {
            self.stream.ask(&Request::Read { number, blocks: blocks.to_vec() })?;
        }
        Ok(())
    }

    /// The next block that was asked for, whose bytes go into `into`. One of another length is not believed.
    pub(crate) fn next_block_into(&mut self, into: &mut [u8]) -> Result<Block, Broken> {
        match self.stream.hear_into(into)? {
            Answer::Block(block) if block.bytes as usize == into.len() => Ok(block),
            Answer::Refused(text) => Err(Broken::Refused(text)),
            _ => Err(Broken::Unexpected),
        }
    }

    /// The next block that was asked for.
    pub(crate) fn next_block(&mut self) -> Result<(Block, Bytes), Broken> {
        match self.hear()? {
            (Answer::Block(block), Some(bytes)) => Ok((block, bytes)),
            _ => Err(Broken::Unexpected),
        }
    }

    pub(crate) fn end(&mut self) -> Result<(), Broken> {
        self.done(&Request::End)
    }

    pub(crate) fn leave(&mut self) -> Result<(), Broken> {
        self.done(&Request::Leave)
    }

    pub(crate) fn park(&mut self) -> Result<(), Broken> {
        self.done(&Request::Park)
    }

    /// Which leases have images, and what memory they take.
    pub(crate) fn census(&mut self) -> Result<Census, Broken> {
        self.stream.ask(&Request::Census)?;
        let mut leases = Vec::new();
        loop {
            match self.hear()?.0 {
                Answer::Lease { bytes, lease } if leases.len() < LIST_MAX => leases.push((lease, bytes)),
                Answer::CensusEnd { bytes_max, used } => return Ok(Census { bytes_max, used, leases }),
                _ => return Err(Broken::Unexpected),
            }
        }
    }

    pub(crate) fn end_lease(&mut self, lease: &str) -> Result<(), Broken> {
        self.done(&Request::EndLease(lease.to_owned()))
    }
}
