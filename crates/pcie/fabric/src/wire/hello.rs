//! Greetings: both ends prove that they know the lease's secret, and bring fresh randomness for the keys.
//!
//! ```text
//!   header │ random (32 B) │ the host's random (32 B; zero in a hello) │ window, datagram (2 × 4 B) │ credits (24 B) │ MAC (32 B)
//! ```
//!
//! The MAC covers the header too; the link checks it.

use super::{WireError, be32};
use crate::credit::Credits;

/// Randomness that each end brings.
pub const RANDOM_BYTES: usize = 32;
/// Length of the proof.
pub const MAC_BYTES: usize = 32;
const BODY_BYTES: usize = 2 * RANDOM_BYTES + 8 + 24;

/// What a greeting says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's.
    pub random: [u8; RANDOM_BYTES],
    /// In an answer: what it answers.
    pub answers: [u8; RANDOM_BYTES],
    /// Packets that the sender can hold out of order.
    pub window: u32,
    /// The longest datagram that the sender takes.
    pub datagram_bytes: u32,
    /// The first credits that the sender gives.
    pub credits: Credits,
}

impl Hello {
    /// Length of a greeting behind the datagram's header.
    pub const BYTES: usize = BODY_BYTES + MAC_BYTES;

    /// Reads a greeting that fills `bytes`; gives the MAC as well.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8; MAC_BYTES]), WireError> {
        let Some((body, mac)) = bytes.split_first_chunk::<BODY_BYTES>() else {
            return Err(WireError::Truncated);
        };
        let mac = mac.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        let mut hello = Self {
            random: [0; RANDOM_BYTES],
            answers: [0; RANDOM_BYTES],
            window: be32(body, 64),
            datagram_bytes: be32(body, 68),
            credits: get_credits(&body[72..]),
        };
        hello.random.copy_from_slice(&body[..32]);
        hello.answers.copy_from_slice(&body[32..64]);
        Ok((hello, mac))
    }

    /// Its bytes without the MAC.
    pub fn encode(&self) -> [u8; BODY_BYTES] {
        let mut body = [0; BODY_BYTES];
        body[..32].copy_from_slice(&self.random);
        body[32..64].copy_from_slice(&self.answers);
        body[64..68].copy_from_slice(&self.window.to_be_bytes());
        body[68..72].copy_from_slice(&self.datagram_bytes.to_be_bytes());
        put_credits(&self.credits, &mut body[72..]);
        body
    }
}

pub(super) fn get_credits(bytes: &[u8]) -> Credits {
    let at = |index: usize| be32(bytes, index * 4);
    Credits { headers: [at(0), at(1), at(2)], data: [at(3), at(4), at(5)] }
}

pub(super) fn put_credits(credits: &Credits, out: &mut [u8]) {
    for (out, count) in out.chunks_exact_mut(4).zip(credits.headers.iter().chain(&credits.data)) {
        out.copy_from_slice(&count.to_be_bytes());
    }
}
