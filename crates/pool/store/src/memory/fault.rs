//! How calls to a store in memory can go wrong.

use crate::error::StoreError;
use crate::transaction::Transaction;

/// What a client is about to do; shown to the hook that decides on faults.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Reads a key.
    Read(&'a str),
    /// Lists a prefix.
    List(&'a str),
    /// Commits.
    Commit(&'a Transaction),
    /// Watches a prefix.
    Watch(&'a str),
    /// Compacts.
    Compact,
    /// Campaigns.
    Campaign,
    /// Keeps its leadership alive.
    KeepAlive,
    /// Fences off what it sent before.
    Fence,
    /// Resigns.
    Resign,
    /// Asks for the leader.
    Leader,
}

/// How an operation ends. For one that only reads, every fault is [`Fault::Before`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// As it should.
    #[default]
    None,
    /// It fails and did not happen, and the caller knows.
    Before,
    /// It happens, but the caller never learns.
    After,
    /// It does not happen, and the caller cannot know.
    Lost,
    /// A commit that happens later, when [`Memory::deliver_late`](crate::Memory::deliver_late) is called, if its
    /// conditions hold then. The caller cannot know. Other operations are [`Fault::Lost`].
    Late,
}

#[derive(Debug, thiserror::Error)]
#[error("a fault was asked for")]
struct AskedFor;

pub(super) fn unavailable(doing: &'static str) -> StoreError {
    StoreError::Unavailable { doing, source: AskedFor.into() }
}

pub(super) fn uncertain(doing: &'static str) -> StoreError {
    StoreError::Uncertain { doing, source: AskedFor.into() }
}
