//! Lines: one JSON object each, with a bound.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, BufRead, Read, Write};
use thiserror::Error;

/// The longest line, with its end. Paths, addresses and a sentence fit many times; a peer that sends more is broken.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Why a line cannot be read or written.
#[derive(Debug, Error)]
pub enum LineError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Connection(#[from] io::Error),
    /// The connection ended within a line.
    #[error("the connection ended in the middle of a line")]
    Torn,
    /// A line is too long.
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// A line is none of the words of this version.
    #[error("a line is no word of this version ({0}); install the same dxpu for `dxpu run` and its library")]
    Unknown(#[from] serde_json::Error),
}

/// One word as a line.
pub fn encode<T: Serialize>(word: &T) -> Result<Vec<u8>, LineError> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    Ok(line)
}

/// The word of a line, with or without its end.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    if line.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    Ok(serde_json::from_slice(line)?)
}

/// Writes one word, with one write: lines of several threads do not mix.
pub fn write_line<T: Serialize>(out: &mut impl Write, word: &T) -> Result<(), LineError> {
    out.write_all(&encode(word)?)?;
    out.flush()?;
    Ok(())
}

/// Reads one word. `None`: the other side has closed the connection after a whole line.
pub fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>, LineError> {
    let mut line = Vec::new();
    // One byte more than the bound tells a line that is too long from one that is as long as can be.
    from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    if line.last() != Some(&b'\n') {
        return Err(LineError::Torn);
    }
    decode(&line).map(Some)
}

#[cfg(test)]
mod tests;
