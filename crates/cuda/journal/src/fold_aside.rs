//! Folding beside the journal: decoding all commands since the last cut takes long, and the client's threads go on meanwhile.
//!
//! ```text
//!   journal ── begin_fold ──▶ Fold ── run (no journal) ──▶ Folded ── end_fold ──▶ journal
//! ```
//!
//! The journal grows at its end while a fold runs, and the fold concerns its beginning only.

use crate::{
    CutRefused,
    calls::is_about_the_session,
    frames::{FrameReader, Unreadable},
    host_data::HostBytes,
    images::Images,
    manifest::{Folding, Manifest, Told},
};
use cuda_wire::TransferId;
use std::collections::{HashMap, HashSet};

/// Commands that are to be folded.
#[derive(Debug)]
pub struct Fold {
    pub(crate) number: u64,
    pub(crate) position: u64,
    pub(crate) epoch: u64,
    pub(crate) reader: FrameReader,
    pub(crate) manifest: Manifest,
    pub(crate) images: Images,
    pub(crate) host: HostBytes,
    pub(crate) answers: HashMap<u32, Told>,
    /// Transfers that landed behind the cut, or have not landed.
    pub(crate) late: HashMap<TransferId, bool>,
    /// Those of them that have not landed.
    pub(crate) expected: HashSet<TransferId>,
}

/// Commands that were folded.
#[derive(Debug)]
pub struct Folded {
    pub(crate) number: u64,
    pub(crate) position: u64,
    pub(crate) epoch: u64,
    /// Calls of the folded frames.
    pub(crate) asked: HashSet<u32>,
    /// Transfers that landed behind the cut, and whether a folded frame asked for them.
    pub(crate) late: HashMap<TransferId, bool>,
    pub(crate) manifest: Manifest,
    pub(crate) images: Images,
    /// Pushes that no frame needs any more.
    pub(crate) dropped: Vec<TransferId>,
}

impl Fold {
    /// Folds. It refuses as long as a call before the cut has no answer, or a transfer has not landed.
    pub fn run(mut self) -> Result<Folded, CutRefused> {
        let asked = self.calls()?;
        if let Some(&call) = asked.iter().find(|call| !self.answers.contains_key(call)) {
            return Err(CutRefused::Unanswered { number: self.number, call });
        }
        let mut reader = self.reader;
        let mut folding = Folding {
            manifest: &mut self.manifest,
            images: &mut self.images,
            host: &self.host,
            answers: &self.answers,
            late: self.late,
            dropped: Vec::new(),
        };
        while let Some(frame) = reader.peek()?.filter(|frame| frame.position < self.position) {
            folding.fold(&frame)?;
            let end = frame.end();
            reader.pass(end);
        }
        let Folding { late, dropped, .. } = folding;
        if let Some(&transfer) = self.expected.iter().find(|transfer| late.get(transfer) == Some(&true)) {
            return Err(CutRefused::NotLanded { number: self.number, transfer });
        }
        Ok(Folded {
            number: self.number,
            position: self.position,
            epoch: self.epoch,
            asked: asked.into_iter().collect(),
            late,
            manifest: self.manifest,
            images: self.images,
            dropped,
        })
    }

    /// The calls of all frames before the cut.
    fn calls(&self) -> Result<Vec<u32>, Unreadable> {
        let mut reader = self.reader.clone();
        let mut calls = Vec::new();
        while let Some(frame) = reader.peek()?.filter(|frame| frame.position < self.position) {
            if frame.call != 0 && !is_about_the_session(frame.opcode) {
                calls.push(frame.call);
            }
            let end = frame.end();
            reader.pass(end);
        }
        Ok(calls)
    }
}
