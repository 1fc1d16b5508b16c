//! How a session's lanes end.

use thiserror::Error;

/// Why the lanes ended. The first reason counts. Callers that only must stop get a [`cuda_wire::LinkLost`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// This side closed them.
    #[error("this side closed the lanes")]
    Closed,
    /// A connection broke.
    #[error("lane {lane} broke: {text}")]
    Connection {
        /// Which lane.
        lane: usize,
        /// What the system says.
        text: String,
    },
    /// The peer sent what no well-behaved peer sends.
    #[error("the peer broke the protocol of the lanes: {text}")]
    Protocol {
        /// What it did.
        text: String,
    },
    /// A source or sink panicked, or a thread could not be started.
    #[error("the lanes failed on this side: {text}")]
    Internal {
        /// What happened.
        text: String,
    },
}

impl Fault {
    pub(crate) fn protocol(text: impl Into<String>) -> Self {
        Self::Protocol { text: text.into() }
    }

    pub(crate) fn connection(lane: usize, error: &std::io::Error) -> Self {
        Self::Connection { lane, text: error.to_string() }
    }
}
