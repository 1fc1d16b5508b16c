//! A connection in its first words, driven without ever blocking, so that one thread attends hundreds of strangers.
//!
//! ```text
//!   RawConnection ─▶ Newcomer ─ read_preamble ─▶ into_raw ─▶ the process that serves it
//!                                     └─ (a door) open ─ listen ─▶ words ─ answer ─▶ drain, close
//! ```
//!
//! A door connection is one question and one answer, over TLS where the address says so. Over `shm:` its bytes travel
//! through the Unix socket: rings would cost memory before the client has shown its token.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use rustls::ServerConnection;

use crate::address::Scheme;
use crate::answer::Answer;
use crate::preamble::{PREAMBLE_BYTES, Preamble};
use crate::raw::{Origin, RawConnection, ServeError};
use crate::security::ServerSecurity;
use crate::tls;

/// What is received at once. A question fits.
const PIECE_BYTES: usize = 4096;
/// Pieces of one newcomer before it is the next one's turn.
const PIECES_MAX: usize = 8;

/// An accepted connection whose first words are awaited. Dropping it closes it.
#[derive(Debug)]
pub struct Newcomer {
    raw: RawConnection,
    head: [u8; PREAMBLE_BYTES],
    have: usize,
    speech: Speech,
    words: Vec<u8>,
}

#[derive(Debug)]
enum Speech {
    /// The preamble has not been answered.
    Unanswered,
    Plain,
    Tls(Box<rustls::Connection>),
}

impl AsFd for Newcomer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.socket().as_fd()
    }
}

impl Newcomer {
    /// Of a connection from which nothing has been read.
    pub fn new(raw: RawConnection) -> Self {
        Self { raw, head: [0; PREAMBLE_BYTES], have: 0, speech: Speech::Unanswered, words: Vec::new() }
    }

    /// The client's address, for people.
    pub fn peer(&self) -> &str {
        self.raw.peer()
    }

    /// From where it comes.
    pub fn origin(&self) -> Origin {
        self.raw.origin()
    }

    /// The preamble, once all of it is here. A client that cannot be served is told why before the error returns.
    pub fn read_preamble(&mut self) -> Result<Option<Preamble>, ServeError> {
        if let Some(preamble) = self.raw.preamble() {
            return Ok(Some(*preamble));
        }
        while self.have < PREAMBLE_BYTES {
            match self.raw.socket().try_recv(&mut self.head[self.have..]) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err(self.raw.set_up_error(io::ErrorKind::UnexpectedEof.into())),
                Ok(Some(count)) => self.have += count,
                Err(error) => return Err(self.raw.set_up_error(error)),
            }
        }
        let head = self.head;
        self.raw.judge_preamble(&head).map(Some)
    }

    /// The connection as it was, for a session process to serve. Not a byte behind the preamble has been read.
    pub fn into_raw(self) -> RawConnection {
        self.raw
    }

    /// Accepts a door connection: what the client says next is for [`Self::listen`].
    pub fn open(&mut self, security: &ServerSecurity) -> Result<(), ServeError> {
        self.speech = match (self.raw.scheme(), security) {
            (Scheme::Tls, ServerSecurity::Plain) => {
                self.raw.say_no("this server has no TLS identity");
                return Err(ServeError::NoIdentity);
            }
            (Scheme::Tls, ServerSecurity::Tls(identity)) => {
                let tls = ServerConnection::new(identity.config.clone());
                Speech::Tls(Box::new(tls.map_err(|source| self.tls_error(source))?.into()))
            }
            _ => Speech::Plain,
        };
        self.send(&Answer::Accepted.encode())
    }

    /// Takes in what the client has said by now; at most `most` bytes of it. They are in [`Self::words`]. A client that has
    /// closed its side behind its words is heard first: that it says no more is an error of the next call.
    pub fn listen(&mut self, most: usize) -> Result<(), ServeError> {
        let mut piece = [0; PIECE_BYTES];
        for turn in 0..PIECES_MAX {
            match self.raw.socket().try_recv(&mut piece) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) if turn > 0 => return Ok(()),
                Ok(Some(0)) => return Err(self.raw.set_up_error(io::ErrorKind::UnexpectedEof.into())),
                Ok(Some(count)) => self.take(&piece[..count])?,
                Err(error) => return Err(self.raw.set_up_error(error)),
            }
            if self.words.len() > most {
                let what = "the first message is longer than any client sends";
                return Err(self.raw.set_up_error(io::Error::new(io::ErrorKind::InvalidData, what)));
            }
        }
        Ok(())
    }

    /// What the client has said behind its preamble.
    pub fn words(&self) -> &[u8] {
        &self.words
    }

    /// Whether only the client's own words are awaited: it has finished whatever handshake there is.
    pub fn is_set_up(&self) -> bool {
        match &self.speech {
            Speech::Unanswered => false,
            Speech::Plain => true,
            Speech::Tls(tls) => !tls.is_handshaking(),
        }
    }

    /// Says the one answer, and that nothing follows. Then [`Self::drain`] until the client closes: closing first could
    /// overtake the words.
    pub fn answer(&mut self, words: &[u8]) -> Result<(), ServeError> {
        match &mut self.speech {
            Speech::Unanswered => {}
            Speech::Plain => self.send(words)?,
            Speech::Tls(tls) => {
                tls.writer().write_all(words).map_err(|source| self.raw.set_up_error(source))?;
                tls.send_close_notify();
                self.flush()?;
            }
        }
        self.raw.socket().shutdown(Shutdown::Write);
        Ok(())
    }

    /// Throws away what the client still says. True when it has closed.
    pub fn drain(&mut self) -> bool {
        let mut piece = [0; PIECE_BYTES];
        for _ in 0..PIECES_MAX {
            match self.raw.socket().try_recv(&mut piece) {
                Ok(None) => return false,
                Ok(Some(1..)) => {}
                Ok(Some(0)) | Err(_) => return true,
            }
        }
        // A client that says that much after its answer is not listened to any longer.
        true
    }

    /// Tells a client whose preamble was not answered yet why it is not served, and closes.
    pub fn refuse(self, reason: &str) {
        if let Speech::Unanswered = self.speech {
            self.raw.refuse(reason);
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), ServeError> {
        let Speech::Tls(tls) = &mut self.speech else {
            self.words.extend_from_slice(bytes);
            return Ok(());
        };
        let mut failed = None;
        while !bytes.is_empty() && failed.is_none() {
            match tls.read_tls(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(source) => return Err(self.raw.set_up_error(source)),
            }
            failed = tls.process_new_packets().err();
            let mut plain = [0; PIECE_BYTES];
            while let Ok(count @ 1..) = tls.reader().read(&mut plain) {
                self.words.extend_from_slice(&plain[..count]);
            }
        }
        // The peer learns by an alert why its handshake failed, if it still listens.
        let flushed = self.flush();
        match failed {
            Some(source) => Err(self.tls_error(source)),
            None => flushed,
        }
    }

    fn flush(&mut self) -> Result<(), ServeError> {
        let Speech::Tls(tls) = &mut self.speech else { return Ok(()) };
        let mut out = Vec::new();
        tls::extract(tls, &mut out);
        self.send(&out)
    }

    /// A few kilobytes into a buffer that was empty: it takes them, or the peer reads nothing.
    fn send(&self, bytes: &[u8]) -> Result<(), ServeError> {
        match self.raw.socket().send_now(bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(self.raw.set_up_error(io::ErrorKind::WouldBlock.into())),
            Err(error) => Err(self.raw.set_up_error(error)),
        }
    }

    fn tls_error(&self, source: rustls::Error) -> ServeError {
        ServeError::Tls { peer: self.raw.peer().to_owned(), source }
    }
}
