//! Sent frames by their position in the command stream, in buffers that come back.
//!
//! A buffer that is at least half full is taken over as it is. A smaller one is copied to the end of the last segment,
//! because a buffer of a mebibyte for a command of a hundred bytes would fill the budget with nothing. Truncated buffers
//! are handed out again, so that a journal that is cut regularly allocates nothing.

use crate::mutant::{Mutant, is_planted};
use cuda_wire::CommandHeader;
use std::{collections::VecDeque, sync::Arc};
use thiserror::Error;

/// Room of a new segment: as much as the client's send buffers have.
const SEGMENT_BYTES: usize = 1 << 20;

/// Empty buffers kept for later. Enough for what a busy program sends between two cuts.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Empty reference counts kept for later.
const SHELLS_MAX: usize = 128;

/// A sent buffer does not hold what the client's own encoder writes.
///
/// The frames cannot be replayed, so the caller drops the protection and says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the command at position {position} cannot be read again: {why}")]
pub struct Unreadable {
    /// Where in the command stream.
    pub position: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Frames one behind the other. A replay shares it, so it is only appended to while no replay does.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    start: u64,
    bytes: Arc<Vec<u8>>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// All frames since the last truncation.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    segments: VecDeque<Segment>,
    start: u64,
    end: u64,
    held_bytes: u64,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
    shells: Vec<Arc<Vec<u8>>>,
}

impl Frames {
    /// The position of the first frame that is kept.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The position after the last frame.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Memory of the kept frames, unused room included.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Keeps `frames` and gives back an empty buffer.
    pub(crate) fn sent(&mut self, mut frames: Vec<u8>) -> Vec<u8> {
        let is_sparse = frames.len() * 2 < frames.capacity() && frames.len() <= SEGMENT_BYTES / 2;
        if frames.is_empty() {
            return frames;
        }
        if is_sparse {
            self.append(&frames);
            frames.clear();
            return frames;
        }
        let room = frames.capacity();
        self.push(frames);
        self.take_spare().unwrap_or_else(|| Vec::with_capacity(room))
    }

    fn append(&mut self, frames: &[u8]) {
        let last = self.segments.back_mut().and_then(|last| Arc::get_mut(&mut last.bytes));
        if let Some(bytes) = last.filter(|bytes| bytes.capacity() - bytes.len() >= frames.len()) {
            bytes.extend_from_slice(frames);
            self.end += frames.len() as u64;
            return;
        }
        let mut segment = self.take_spare().unwrap_or_default();
        segment.reserve_exact(SEGMENT_BYTES);
        segment.extend_from_slice(frames);
        self.push(segment);
    }

    fn push(&mut self, frames: Vec<u8>) {
        self.held_bytes += frames.capacity() as u64;
        let start = self.end;
        self.end += frames.len() as u64;
        let mut bytes = self.shells.pop().unwrap_or_default();
        match Arc::get_mut(&mut bytes) {
            Some(shell) => *shell = frames,
            None => bytes = Arc::new(frames),
        }
        self.segments.push_back(Segment { start, bytes });
    }

    fn take_spare(&mut self) -> Option<Vec<u8>> {
        let spare = self.spare.pop()?;
        self.spare_bytes -= spare.capacity();
        Some(spare)
    }

    /// Drops all frames before `position`, which is the end of a frame.
    pub(crate) fn truncate(&mut self, position: u64) {
        let position = self.planted_position(position);
        while self.segments.front().is_some_and(|segment| segment.end() <= position) {
            let Some(mut segment) = self.segments.pop_front() else { return };
            self.held_bytes -= segment.bytes.capacity() as u64;
            // A replay may still read it; then it goes with the replay.
            let Some(bytes) = Arc::get_mut(&mut segment.bytes) else { continue };
            let mut bytes = std::mem::take(bytes);
            bytes.clear();
            if self.spare_bytes + bytes.capacity() <= SPARE_BYTES_MAX {
                self.spare_bytes += bytes.capacity();
                self.spare.push(bytes);
            }
            if self.shells.len() < SHELLS_MAX {
                self.shells.push(segment.bytes);
            }
        }
        self.start = self.start.max(position.min(self.end));
    }

    /// `position`, or where a planted defect cuts instead: a frame earlier or later.
    fn planted_position(&self, position: u64) -> u64 {
        let (is_lost, is_doubled) =
            (is_planted(Mutant::FrameLostAtTruncation), is_planted(Mutant::FrameDoubledAtTruncation));
        if !is_lost && !is_doubled {
            return position;
        }
        let mut reader = self.reader();
        let mut before = position;
        while let Ok(Some(frame)) = reader.peek() {
            let (start, end) = (frame.position, frame.end());
            if start >= position {
                return if is_lost { end } else { before };
            }
            before = start;
            reader.pass(end);
        }
        if is_lost { position } else { before }
    }

    /// All frames, for reading while the journal goes on.
    pub(crate) fn reader(&self) -> FrameReader {
        let segments = self.segments.clone();
        FrameReader { segments, segment: 0, position: self.start, end: self.end }
    }
}

/// One command as it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Where it starts.
    pub(crate) position: u64,
    pub(crate) opcode: u16,
    /// The name of its reply, or 0.
    pub(crate) call: u32,
    /// With its header.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(crate) fn body(&self) -> &'a [u8] {
        &self.bytes[CommandHeader::BYTES..]
    }

    pub(crate) fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }

    /// The error that this frame makes no sense.
    pub(crate) fn unreadable(&self, why: impl ToString) -> Unreadable {
        Unreadable { position: self.position, why: why.to_string() }
    }
}

/// Reads kept frames in order.
#[derive(Clone, Debug)]
pub(crate) struct FrameReader {
    segments: VecDeque<Segment>,
    segment: usize,
    position: u64,
    end: u64,
}

impl FrameReader {
    /// The position of the next frame.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.position >= self.end
    }

    /// The next frame, which stays the next one.
    pub(crate) fn peek(&mut self) -> Result<Option<Frame<'_>>, Unreadable> {
        if self.is_at_end() {
            return Ok(None);
        }
        while self.segments[self.segment].end() <= self.position {
            self.segment += 1;
        }
        let segment = &self.segments[self.segment];
        let rest = &segment.bytes[(self.position - segment.start) as usize..];
        let torn = || Unreadable { position: self.position, why: "its buffer ends in the middle".to_owned() };
        let header = rest.first_chunk::<{ CommandHeader::BYTES }>().ok_or_else(torn)?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let bytes = rest.get(..CommandHeader::BYTES + word(0) as usize).ok_or_else(torn)?;
        Ok(Some(Frame { position: self.position, opcode: word(4) as u16, call: word(8), bytes }))
    }

    /// Goes past the frame that ends at `position`.
    pub(crate) fn pass(&mut self, position: u64) {
        self.position = position;
    }

    /// The bytes of the frames from `from` to the present position, all of the present segment.
    pub(crate) fn passed_since(&self, from: u64) -> &[u8] {
        let segment = &self.segments[self.segment];
        &segment.bytes[(from - segment.start) as usize..(self.position - segment.start) as usize]
    }

    /// Whether the next frame is in the same buffer as the one before it.
    pub(crate) fn is_within_segment(&self) -> bool {
        self.position < self.segments[self.segment].end()
    }
}
