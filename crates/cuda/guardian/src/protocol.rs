//! What a store and a guardian, or two guardians, say to each other.
//!
//! ```text
//! frame = head (40 bytes) + body (at most 64 KiB)          head = kind u8, 0 0 0, body bytes u32, a u64, b u64, c u128
//!
//! store ─ Hello ─▶ Welcome       store ─ Begin ─▶ Done, then Put, Put, … (no answers), Bury, Ages, Commit ─▶ Committed
//!       ─ Open  ─▶ Opened                                    └ the first that is refused ─▶ DeltaFailed, unasked
//!                                      ─ List ─▶ Entries…, AnswerAges…, ListEnd        ─ Read ─▶ Block, Block, …
//! ```
//!
//! All numbers are little-endian. Fields that a kind does not use are zero, and a frame that breaks a rule is an error:
//! no two frames mean the same. A body has at most [`BODY_BYTES_MAX`] bytes, whatever its head says, so a stranger
//! cannot make the reader allocate more. Long lists come as several frames.

mod answer;
mod head;
mod request;

pub(crate) use answer::Answer;
pub(crate) use head::{BODY_BYTES_MAX, HEAD_BYTES, Head};
pub(crate) use request::{Mode, Open, Request};

use snapshot::{Block, BlockDigest, Digest, EventAge};
use thiserror::Error;

/// The version of everything here. Both sides must have the same: a guardian and its workers come from one executable,
/// and boxes of a pool are told in words when theirs differ.
pub(crate) const VERSION: u32 = 2;

/// The most bytes of an address or of the name of a lease.
pub(crate) const TEXT_BYTES_MAX: usize = 512;

/// The most bytes of a refusal in words.
pub(crate) const REFUSAL_BYTES_MAX: usize = 1024;

/// Bytes of a block's entry in a list.
const ENTRY_BYTES: usize = 28;

/// Bytes of an event's age.
const AGE_BYTES: usize = 12;

/// Bytes of a block's name in a list.
const BLOCK_BYTES: usize = 12;

/// Addresses of dead blocks in one frame.
pub(crate) const DEAD_MAX: usize = BODY_BYTES_MAX / 8;

/// Ages of events in one frame.
pub(crate) const AGES_MAX: usize = BODY_BYTES_MAX / AGE_BYTES;

/// Entries of blocks in one frame.
pub(crate) const ENTRIES_MAX: usize = BODY_BYTES_MAX / ENTRY_BYTES;

/// Blocks that one request may ask for. Their answers are 64 MiB at most, so a reader that goes away is noticed soon.
pub(crate) const READS_MAX: usize = 1024;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// No message has this number.
    #[error("there is no message of kind {0:#x}")]
    Kind(u8),
    /// A body is longer than any may be.
    #[error("a message says that {0} bytes follow, more than any message has")]
    TooLong(u32),
    /// A field that the kind does not use is not zero, or its body has another length than its content.
    #[error("a message of kind {0:#x} is malformed")]
    Malformed(u8),
    /// The other side speaks another version.
    #[error("the other side speaks version {theirs} of the guardian's protocol, this one version {VERSION}")]
    Version {
        /// What it speaks.
        theirs: u32,
    },
}

fn put_block(body: &mut Vec<u8>, block: Block) {
    body.extend(block.address.to_le_bytes());
    body.extend(block.bytes.to_le_bytes());
}

fn block(bytes: &[u8]) -> Block {
    let (address, length) = bytes.split_at(8);
    Block { address: u64_of(address), bytes: u32_of(length) }
}

fn put_entry(body: &mut Vec<u8>, entry: &BlockDigest) {
    put_block(body, entry.block);
    body.extend(entry.digest.0.to_le_bytes());
}

fn entry(bytes: &[u8]) -> BlockDigest {
    let (name, digest) = bytes.split_at(BLOCK_BYTES);
    BlockDigest {
        block: block(name),
        digest: Digest(u128::from_le_bytes(digest.try_into().expect("16 bytes"))),
    }
}

fn put_age(body: &mut Vec<u8>, age: &EventAge) {
    body.extend(age.event.to_le_bytes());
    body.extend(age.age_ns.to_le_bytes());
}

fn age(bytes: &[u8]) -> EventAge {
    let (event, age_ns) = bytes.split_at(4);
    EventAge { event: u32_of(event), age_ns: u64_of(age_ns) }
}

/// A body that is a list of items of one length.
fn items<T>(head: &Head, body: &[u8], bytes: usize, read: fn(&[u8]) -> T) -> Result<Vec<T>, ProtocolError> {
    if !body.len().is_multiple_of(bytes) {
        return Err(ProtocolError::Malformed(head.kind));
    }
    Ok(body.chunks_exact(bytes).map(read).collect())
}

fn text(head: &Head, body: &[u8], bytes_max: usize) -> Result<String, ProtocolError> {
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= bytes_max);
    text.map(str::to_owned).ok_or(ProtocolError::Malformed(head.kind))
}

/// The longest beginning of a text that fits.
pub(crate) fn cut_text(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

#[cfg(test)]
mod tests;
