//! The delta that a connection is sending.

use crate::error::Refusal;
use crate::shelf::Writer;
use snapshot::{BlockDigest, Bytes, EventAge, Seal};

/// The most events with timing of one cut. A program has a few thousand.
const EVENTS_MAX: usize = 1 << 20;

/// What a connection has begun.
#[derive(Default)]
pub(super) struct Delta {
    /// The cut; 0: none is begun.
    number: u64,
    ages: Vec<EventAge>,
    /// Why it was thrown away. What follows of it is not looked at.
    failed: Option<String>,
}

impl Delta {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn fail(&mut self, text: String) {
        self.failed = Some(text);
        self.ages = Vec::new();
    }

    pub(super) fn begin(&mut self, writer: &Writer, base: u64, number: u64) -> Result<(), Refusal> {
        writer.begin(base, number)?;
        *self = Self { number, ..Self::default() };
        Ok(())
    }

    /// Brings blocks of a delta that another connection has begun.
    pub(super) fn join(&mut self, writer: &Writer, number: u64) -> Result<(), Refusal> {
        writer.join(number)?;
        *self = Self { number, ..Self::default() };
        Ok(())
    }

    pub(super) fn put(&mut self, writer: &Writer, entry: BlockDigest, bytes: Bytes) -> Result<(), Refusal> {
        writer.put(self.number, entry, bytes)
    }

    pub(super) fn bury(&mut self, writer: &Writer, dead: &[u64]) -> Result<(), Refusal> {
        writer.bury(self.number, dead)
    }

    pub(super) fn ages(&mut self, ages: Vec<EventAge>) -> Result<(), Refusal> {
        if self.ages.len() + ages.len() > EVENTS_MAX {
            return Err(Refusal::OutOfPlace("the cut has too many events"));
        }
        self.ages.extend(ages);
        Ok(())
    }

    /// The bytes of the image.
    pub(super) fn commit(&mut self, writer: &Writer, number: u64, seal: Seal) -> Result<u64, Refusal> {
        let ended = std::mem::take(self);
        if let Some(text) = ended.failed {
            // The refusal that was told, for a store that has not heard it yet.
            let _ = writer.abandon(number);
            return Err(Refusal::Thrown(text));
        }
        writer.commit(number, seal, ended.ages)?;
        Ok(writer.state()?.image_bytes)
    }

    pub(super) fn abandon(&mut self, writer: &Writer, number: u64) -> Result<(), Refusal> {
        let ended = std::mem::take(self);
        match writer.abandon(number) {
            Err(_) if ended.failed.is_some() => Ok(()),
            abandoned => abandoned,
        }
    }
}
