//! Why a guardian refuses, in words for the user of the program that the image protects.

use crate::protocol::ProtocolError;
use snapshot::ImageError;
use std::io;
use thiserror::Error;

/// Why a guardian refuses a request. Whatever it is, committed images stay as they were.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The image's own rules.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// No image has this name and this secret. The same words for either, so that a stranger learns nothing.
    #[error("this guardian has no such image")]
    NoSuchImage,
    /// A writer opened the image after this one.
    #[error("another session writes this image now")]
    Replaced,
    /// The image was ended by its owner, or its time without a writer was over.
    #[error("the image has ended")]
    Ended,
    /// All images together have all the memory that the guardian may take.
    #[error(
        "the guard memory of this box is full ({used} of {bytes_max} bytes); the delta is thrown away and the last image \
         stays. Give the box more with --guard-memory, or protect fewer programs{hint}"
    )]
    MemoryFull {
        /// What all images take.
        used: u64,
        /// What they may take.
        bytes_max: u64,
        /// What stands in the way of more room; empty, or a sentence.
        hint: String,
    },
    /// A part of the delta was refused before, with these words.
    #[error("{0}")]
    Thrown(String),
    /// A message that makes no sense at this point.
    #[error("{0}")]
    OutOfPlace(&'static str),
    /// Another guardian could not be asked, or refused.
    #[error("the guardian at {address} cannot give the image: {reason}")]
    Peer {
        /// Where it is.
        address: String,
        /// Why not.
        reason: String,
    },
    /// The disk did not take an image, or did not give it back.
    #[error("{0}")]
    Disk(String),
}

/// Why a connection between a store and a guardian, or two guardians, is over.
#[derive(Debug, Error)]
pub enum Broken {
    /// The other side has closed it.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side said nothing, or took nothing, for too long.
    #[error("the other side does not answer")]
    Silent,
    /// As the system says it.
    #[error("{0}")]
    Io(io::Error),
    /// What came is no message.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A message that answers nothing that was asked.
    #[error("the other side answered something else than what was asked")]
    Unexpected,
    /// It refuses, in words.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            UnexpectedEof | BrokenPipe | ConnectionReset => Self::Closed,
            WouldBlock | TimedOut => Self::Silent,
            _ => Self::Io(error),
        }
    }
}
