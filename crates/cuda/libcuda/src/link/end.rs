//! Why the link to a worker ended.

use bulk::Fault;
use cuda_wire::{DecodeError, TransferId};
use std::{io, time::Duration};
use thiserror::Error;

/// Why the link to a worker ended. Each sentence follows "worker … is lost: ".
#[derive(Debug, Error)]
pub(crate) enum LinkEnd {
    /// The worker closed a connection without a word: its session process ended or was killed.
    #[error("the worker closed the connection")]
    Closed,
    /// Sending or receiving failed.
    #[error("{}", cut(.0))]
    Connection(#[from] io::Error),
    /// Nothing came on the events connection, not even an answer to our pings.
    #[error(
        "the worker sent nothing for {0:?}, not even an answer to a ping; check its machine and the network"
    )]
    Silent(Duration),
    /// A notice began and its rest did not come.
    #[error("the worker stopped in the middle of a notice and sent nothing more for {0:?}")]
    SilentInNotice(Duration),
    /// The worker ended the session, in its words.
    #[error("{0}")]
    Told(String),
    /// The device failed, not the program.
    #[error("its device failed: {0}")]
    DeviceLost(String),
    /// A fault, of this program or of another one beside it, has ended their merged contexts.
    #[error("{text} (error {code})")]
    Fault {
        /// The error.
        code: u32,
        /// The worker's words.
        text: String,
    },
    /// The program has failed, here and in another session.
    #[error(
        "the program failed with error {0}, and again at the same place in another session: the fault is its own, not that of a program \
         beside it"
    )]
    OwnFault(u32),
    /// The worker sent what no worker of this version sends.
    #[error("{0}")]
    Protocol(#[from] Breach),
    /// The lanes broke.
    #[error("{0}")]
    Lanes(Fault),
    /// A call needed bytes or notices that will not come any more.
    #[error("a call waited for bytes or notices that will not come any more: a lane broke")]
    Undelivered,
    /// A reply is waited for whose call was not announced: an error of this library.
    #[error("a thread waits for the reply to call {0}, which was not announced: please report this")]
    Unannounced(u32),
    /// A thread of this library is gone.
    #[error("the thread {0} of the client library ended: please report this")]
    ThreadEnded(&'static str),
    /// No other session could take over.
    #[error("{0}")]
    NotResumed(String),
    /// The link had ended before; the thread that noticed has said why.
    #[error("another thread found the connection broken")]
    Ended,
}

/// How a worker broke the protocol.
#[derive(Debug, Error)]
pub(crate) enum Breach {
    /// A frame cannot be decoded.
    #[error("the worker sent {what} that cannot be decoded: {source}")]
    Unreadable {
        /// Which frame.
        what: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The answer to a command cannot be decoded.
    #[error("the worker's answer to {command} cannot be decoded: {source}")]
    Answer {
        /// The command.
        command: &'static str,
        /// What is wrong with its answer.
        source: DecodeError,
    },
    /// A frame is longer than any that this version sends.
    #[error("the worker announced {what} of {bytes} bytes, which is longer than the protocol allows")]
    TooLong {
        /// Which frame.
        what: &'static str,
        /// Its length, as it says.
        bytes: u32,
    },
    /// An answer about blocks of a transfer that have not been asked for.
    #[error("the worker answered for blocks of {0} that this program has not named")]
    UnaskedAnswer(TransferId),
    /// A transfer among the replies is shorter than its name.
    #[error("the worker sent a transfer without a name among the replies")]
    UnnamedTransfer,
    /// A transfer among the replies, for which there is no place.
    #[error("the worker sent {0} among the replies, and this program does not wait for it")]
    UnexpectedTransfer(TransferId),
    /// A reply to a call that was not made, or was answered before.
    #[error("the worker answered call {0}, which this program has not made")]
    UnexpectedReply(u32),
    /// A notice that goes the other way.
    #[error("the worker sent a notice that only clients send")]
    ClientNotice,
}

impl LinkEnd {
    /// The end for a frame that cannot be decoded.
    pub(super) fn unreadable(what: &'static str) -> impl Fn(DecodeError) -> Self {
        move |source| Breach::Unreadable { what, source }.into()
    }

    /// The end for a frame that is too long.
    pub(super) fn too_long(what: &'static str, bytes: u32) -> Self {
        Breach::TooLong { what, bytes }.into()
    }
}

/// What a broken connection means for the user. A connection that ends early has a text of the TLS library or of the
/// kernel, which says nothing about the GPU.
fn cut(error: &io::Error) -> String {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof,
    };
    match error.kind() {
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected => {
            "the connection was cut: the GPU failed, the lease ended or moved, or the worker's machine is gone".to_owned()
        }
        TimedOut => "the network no longer reaches the worker's machine".to_owned(),
        _ => format!("the connection failed ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_connection_is_told_without_the_words_of_a_library() {
        let tls = "peer closed connection without sending TLS close_notify";
        let end = LinkEnd::from(io::Error::new(io::ErrorKind::UnexpectedEof, tls)).to_string();
        assert!(end.contains("the GPU failed, the lease ended or moved") && !end.contains("TLS"), "{end}");
        let other = LinkEnd::from(io::Error::other("disk on fire")).to_string();
        assert_eq!(other, "the connection failed (disk on fire)");
    }
}
