//! Asking a worker to protect a session: its cuts go into an image that outlives it.

use crate::log;
use cuda_abi::CudaError;
use cuda_wire::{Command, GuardInfo, ImageName, ReplyHeader, Wire, begin_command, finish_command, header};
use std::{fmt::Write, io, time::Duration};
use transport::Connection;

/// The call of a command that is answered before the program's first one.
const CALL: u32 = u32::MAX;
/// The longest answer: a few names.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// The image of a link: its name, and what opens it. Drawn once, and kept over all sessions.
pub(super) struct Identity {
    name: ImageName,
    secret: [u8; 32],
}

impl Identity {
    /// `None`: the operating system has no random bytes.
    pub(super) fn draw() -> Option<Self> {
        let name = ImageName { bytes: worker_link::random()? };
        Some(Self { name, secret: worker_link::random()? })
    }

    /// The image's name and its secret.
    pub(super) fn parts(&self) -> (ImageName, [u8; 32]) {
        (self.name, self.secret)
    }

    /// The image's name in hexadecimal digits.
    pub(super) fn hex(&self) -> String {
        self.name.bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Has the worker of a fresh connection bring the image into its guardian, beside the session that writes it.
    pub(super) fn fetch(
        &self,
        command: &mut Connection,
        incarnation: u64,
        from: String,
        timeout: Duration,
    ) -> io::Result<()> {
        let fetch = Command::ImageFetch { image: self.name, secret: self.secret, incarnation, from };
        let (head, body) = ask(command, &fetch, timeout)?;
        match CudaError::from_code(head.status) {
            None => Ok(()),
            Some(error) if body.is_empty() => Err(io::Error::other(format!("{error:?}"))),
            Some(_) => Err(io::Error::other(String::from_utf8_lossy(&body).into_owned())),
        }
    }

    /// Has the session of a fresh connection protected. `Ok(None)`: this worker keeps no images.
    pub(super) fn guard(
        &self,
        command: &mut Connection,
        incarnation: u64,
        timeout: Duration,
    ) -> io::Result<Option<Guarded>> {
        let guard = Command::Guard { image: self.name, secret: self.secret, incarnation };
        let (head, body) = ask(command, &guard, timeout)?;
        match CudaError::from_code(head.status) {
            None => {
                let info = GuardInfo::from_bytes(&body).map_err(io::Error::other)?;
                Ok(Some(Guarded { info, memory_credit_bytes: head.memory_credit_bytes }))
            }
            Some(CudaError::NOT_SUPPORTED) => Ok(None),
            Some(error) => {
                let words = String::from_utf8_lossy(&body).into_owned();
                let words = if words.is_empty() { format!("{error:?}") } else { words };
                log::warn(&format!("the worker keeps no image of this program's GPU memory: {words}"));
                Ok(None)
            }
        }
    }
}

/// A session that is protected.
pub(super) struct Guarded {
    pub(super) info: GuardInfo,
    /// What the reply gives back of the memory credit.
    pub(super) memory_credit_bytes: u64,
}

/// Sends a command on a connection that nobody else uses yet, and waits for its answer.
fn ask(
    command: &mut Connection,
    what: &Command<'_>,
    timeout: Duration,
) -> io::Result<(ReplyHeader, Vec<u8>)> {
    command.tx.send(&[&frame(what, CALL)])?;
    if !command.rx.wait(Some(timeout))? {
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {timeout:?}")));
    }
    let mut head = [0; ReplyHeader::BYTES];
    command.rx.recv_exact(&mut head)?;
    let head: ReplyHeader = header(&head).map_err(io::Error::other)?;
    if head.call != CALL || head.bytes > ANSWER_BYTES_MAX {
        return Err(io::Error::other("the worker's first answer makes no sense"));
    }
    let mut body = vec![0; head.bytes as usize];
    command.rx.recv_exact(&mut body)?;
    Ok((head, body))
}

/// A command as a frame.
pub(super) fn frame(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_command(&mut out, command.opcode(), call);
    command.put_body(&mut out);
    finish_command(&mut out, start);
    out
}
