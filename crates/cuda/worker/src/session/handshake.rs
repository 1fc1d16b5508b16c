//! The first words on each connection.

use crate::admission::Admitted;
use crate::config::SessionConfig;
use cuda_abi::CudaError;
use cuda_wire::{Handshake, Hello, PROTOCOL_VERSION, Refusal};
use std::io;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use transport::{Connection, Rx};

/// A client that only says its first words needs no more.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// Why there is no session with this client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the connection broke during the handshake")]
    Io(#[from] io::Error),
    #[error("the client's first message is malformed: {0}")]
    Malformed(String),
    #[error("refused: {}", .0.text)]
    Refused(Refusal),
}

/// Reads exactly `target` before `deadline`.
fn read_by(rx: &mut Rx, mut target: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !target.is_empty() {
        match rx.try_recv(target)? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(count) => target = &mut target[count..],
            None => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || !rx.wait(Some(left))? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
    }
    Ok(())
}

/// Reads one handshake frame's body.
fn read_body(rx: &mut Rx, deadline: Instant) -> Result<Vec<u8>, HandshakeError> {
    let mut prefix = [0; 4];
    read_by(rx, &mut prefix, deadline)?;
    let malformed = |error: cuda_wire::DecodeError| HandshakeError::Malformed(error.to_string());
    let length = Handshake::body_length(prefix).map_err(malformed)?;
    if length > HELLO_BYTES_MAX {
        return Err(HandshakeError::Malformed(format!(
            "it has {length} bytes, at most {HELLO_BYTES_MAX} are allowed"
        )));
    }
    let mut body = vec![0; length];
    read_by(rx, &mut body, deadline)?;
    Ok(body)
}

/// Reads and checks a client's hello. Returns it and what the client may have.
pub(crate) fn read_hello(
    rx: &mut Rx,
    config: &SessionConfig,
    deadline: Instant,
) -> Result<(Hello, Admitted), HandshakeError> {
    let body = read_body(rx, deadline)?;
    // The kind and the version come first in every version; the rest may differ.
    if let [1, low, high, ..] = body[..] {
        check_version(u16::from_le_bytes([low, high]))?;
    }
    let hello = match Handshake::from_body(&body) {
        Ok(Handshake::Hello(hello)) => hello,
        Ok(_) => return Err(HandshakeError::Malformed("not a hello".to_owned())),
        Err(error) => return Err(HandshakeError::Malformed(error.to_string())),
    };
    if usize::from(hello.lanes) > cuda_wire::LANES_MAX {
        let text =
            format!("{} lanes are too many, at most {} are possible", hello.lanes, cuda_wire::LANES_MAX);
        return Err(refused(CudaError::INVALID_VALUE, &text));
    }
    // Last, so that only a client that is let in is remembered as let in.
    let mut admitted = config.admission.admit(&hello.token)?;
    if !config.takes_turns {
        // No other lease is on this worker's GPU, or none that it could take turns with.
        admitted.share = None;
    }
    let admitted = admitted.with_wish(&hello)?;
    Ok((hello, admitted))
}

pub(crate) fn check_version(theirs: u16) -> Result<(), HandshakeError> {
    if theirs == PROTOCOL_VERSION {
        return Ok(());
    }
    let (who, what) = match theirs < PROTOCOL_VERSION {
        true => ("client", "machine that runs the program"),
        false => ("worker", "machine with the GPU"),
    };
    let text = format!(
        "the client speaks version {theirs} of the command stream, this worker {PROTOCOL_VERSION}: the {who} is \
         older; install the same dxpu on the {what}"
    );
    Err(refused(CudaError::SYSTEM_DRIVER_MISMATCH, &text))
}

pub(crate) fn refused(code: CudaError, text: &str) -> HandshakeError {
    HandshakeError::Refused(Refusal { code: code.code(), text: text.to_owned() })
}

/// Compares in constant time. Hashes are compared, since they have one length.
pub(crate) fn is_same_secret(ours: &[u8], theirs: &[u8]) -> bool {
    blake3::hash(ours).as_bytes().ct_eq(blake3::hash(theirs).as_bytes()).into()
}

/// Reads the first words of an events or lane connection: the session's secret.
pub(crate) fn read_join(rx: &mut Rx, secret: &[u8; 32], deadline: Instant) -> Result<(), HandshakeError> {
    match Handshake::from_body(&read_body(rx, deadline)?) {
        Ok(Handshake::Join(join)) if is_same_secret(&join.session_secret, secret) => Ok(()),
        Ok(Handshake::Join(_)) => {
            Err(refused(CudaError::NOT_PERMITTED, "this connection does not belong to the session"))
        }
        Ok(_) => Err(HandshakeError::Malformed("not a join".to_owned())),
        Err(error) => Err(HandshakeError::Malformed(error.to_string())),
    }
}

/// Tells the client why it is not served, and gives it a moment to hear it: closing at once could overtake the words.
pub(crate) fn say_no(mut connection: Connection, refusal: Refusal) {
    const HEARD_WITHIN: Duration = Duration::from_secs(1);
    let frame = Handshake::Refusal(refusal).to_frame();
    if connection.tx.send(&[&frame]).is_err() || connection.tx.finish().is_err() {
        return;
    }
    let deadline = Instant::now() + HEARD_WITHIN;
    let mut rest = [0; 4096];
    while read_by(&mut connection.rx, &mut rest[..1], deadline).is_ok() {
        // Whatever it still says; a client that says a lot is not waited for.
        if Instant::now() >= deadline {
            return;
        }
        let _ = connection.rx.try_recv(&mut rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_the_same_or_not() {
        assert!(is_same_secret(b"token", b"token"));
        for other in [&b""[..], b"toke", b"token ", b"Token"] {
            assert!(!is_same_secret(b"token", other));
        }
    }

    #[test]
    fn another_version_is_told_who_is_older() {
        let text = |theirs| check_version(theirs).unwrap_err().to_string();
        assert!(check_version(PROTOCOL_VERSION).is_ok());
        assert!(text(0).contains("client is older"), "{}", text(0));
        assert!(text(999).contains("worker is older"), "{}", text(999));
    }
}
