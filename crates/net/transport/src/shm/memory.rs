//! Descriptors of memory that a client passes over the socket of a connection, to be mapped by the server.
//!
//! They come in the order in which they were passed, and beside the bytes in the rings: whoever passes one says so in the
//! rings afterwards. A thread that sleeps sees the socket become readable; it moves what is there into the queue, so that it
//! can sleep on.

use crate::fd;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Descriptors that may wait to be taken. A client says of each one before it passes the next; more are a broken or hostile
/// peer, which must not fill this process's table of descriptors.
const WAITING_MAX: usize = 4;

/// What becomes of memory on one side of a connection.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Neither side speaks of memory.
    Refused,
    /// The client's side: the server takes it.
    Offered,
    /// The server's side.
    Taken(Mutex<Waiting>),
}

/// Descriptors that were passed and not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: VecDeque<OwnedFd>,
    /// The peer has closed its socket, or broken the rules on it.
    is_over: bool,
}

impl Waiting {
    fn look(&mut self, socket: BorrowedFd<'_>) {
        while !self.is_over {
            match fd::take_passed_fd(socket) {
                Ok(Some(memory)) if self.queue.len() < WAITING_MAX => self.queue.push_back(memory),
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => self.is_over = true,
            }
        }
    }
}

impl Memory {
    /// Whether it was memory that made the socket readable, and not the end.
    pub(crate) fn is_there(&self, socket: BorrowedFd<'_>) -> bool {
        let Self::Taken(waiting) = self else { return false };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.look(socket);
        !waiting.is_over
    }

    /// The next descriptor, if one was passed.
    pub(crate) fn take(&self, socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        let Self::Taken(waiting) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.queue.is_empty() {
            waiting.look(socket);
        }
        Ok(waiting.queue.pop_front())
    }
}
