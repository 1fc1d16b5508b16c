//! What a server says first: 64 bytes in the clear, the counterpart of the preamble.
//!
//! Without it a client could not tell a refusal from a broken network, nor a plain server from a TLS one. It travels
//! together with the first TLS record, so it costs no round trip.
//!
//! ```text
//! offset  0      8          10     11           12      60         64
//!         | magic | version | code | text bytes | text  | checksum |
//! ```
//!
//! The text of an acceptance is empty. Its first byte says what the server can do beyond the least; whoever does not know of it
//! does not look there.
//!
//! It is not authenticated: an attacker that can forge it can also cut the connection.

use crate::preamble::{PROTOCOL_VERSION, fnv1a};

/// Length of an encoded answer.
pub(crate) const ANSWER_BYTES: usize = 64;
/// Differs from the preamble's magic, so that a mirror is not taken for a server.
const MAGIC: [u8; 8] = *b"\xd6dxpu\r\n\x1a";
const TEXT_AT: usize = 12;
const CHECKSUM_AT: usize = 60;
/// Said in the first byte behind an acceptance: descriptors of memory are taken.
const TAKES_MEMORY: u8 = 1;
/// The most text a refusal can carry.
pub const REFUSAL_TEXT_BYTES_MAX: usize = CHECKSUM_AT - TEXT_AT;

/// Accepted or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    /// The same, and the server takes descriptors of memory over the socket of this connection.
    TakesMemory,
    Refused {
        text: String,
    },
}

/// Bytes that are not an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Some other protocol.
    #[error("the server does not speak dxpu: its first bytes are {first:02x?}")]
    Magic {
        /// What came instead.
        first: [u8; 8],
    },
    /// The checksum or a field is wrong.
    #[error("the server's answer is damaged")]
    Damaged,
    /// A well-formed answer of another version.
    #[error("the server speaks version {theirs} of the connection protocol, this side {PROTOCOL_VERSION}")]
    Version {
        /// The server's version.
        theirs: u16,
    },
}

impl Answer {
    pub(crate) fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        if let Answer::Refused { text } = self {
            bytes[10] = 1;
            let printable = text.bytes().map(|b| if is_printable(b) { b } else { b'?' });
            let mut length = 0;
            for (slot, byte) in bytes[TEXT_AT..CHECKSUM_AT].iter_mut().zip(printable) {
                *slot = byte;
                length += 1;
            }
            bytes[11] = length;
        }
        if *self == Answer::TakesMemory {
            bytes[TEXT_AT] = TAKES_MEMORY;
        }
        let checksum = fnv1a(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, AnswerError> {
        let first: [u8; 8] = std::array::from_fn(|at| bytes[at]);
        if first != MAGIC {
            return Err(AnswerError::Magic { first });
        }
        let checksum = u32::from_le_bytes(std::array::from_fn(|at| bytes[CHECKSUM_AT + at]));
        if checksum != fnv1a(&bytes[..CHECKSUM_AT]) {
            return Err(AnswerError::Damaged);
        }
        let theirs = u16::from_le_bytes([bytes[8], bytes[9]]);
        let text = bytes[TEXT_AT..CHECKSUM_AT].get(..usize::from(bytes[11])).ok_or(AnswerError::Damaged)?;
        match bytes[10] {
            // A refusal is readable in every version: "wrong version" is the most useful one.
            1 if text.iter().all(|byte| is_printable(*byte)) => {
                Ok(Answer::Refused { text: text.iter().map(|byte| char::from(*byte)).collect() })
            }
            _ if theirs != PROTOCOL_VERSION => Err(AnswerError::Version { theirs }),
            0 if bytes[TEXT_AT] & TAKES_MEMORY != 0 => Ok(Answer::TakesMemory),
            0 => Ok(Answer::Accepted),
            _ => Err(AnswerError::Damaged),
        }
    }
}

/// The text is shown in a terminal or a log: no control characters.
fn is_printable(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers_come_back_as_they_were() {
        for answer in
            [Answer::Accepted, Answer::TakesMemory, Answer::Refused { text: "no such session".to_owned() }]
        {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn a_refusal_cannot_move_the_cursor_of_a_terminal() {
        let refused = Answer::Refused { text: format!("\x1b[2J{}", "long ".repeat(20)) };
        let Ok(Answer::Refused { text }) = Answer::decode(&refused.encode()) else { panic!() };
        assert!(text.starts_with("?[2Jlong"));
        assert_eq!(text.len(), REFUSAL_TEXT_BYTES_MAX);
    }

    /// A client that knows of no abilities takes the answer for what it always was: code 0, no text.
    #[test]
    fn an_ability_is_said_where_older_clients_do_not_look() {
        let (plain, able) = (Answer::Accepted.encode(), Answer::TakesMemory.encode());
        assert_eq!(plain[..TEXT_AT], able[..TEXT_AT]);
        assert_eq!((able[10], able[11]), (0, 0));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in any::<[u8; 32]>(), more in any::<[u8; 32]>(), magic in any::<bool>()) {
            let mut all = [0; ANSWER_BYTES];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&more);
            if magic {
                all[..8].copy_from_slice(&MAGIC);
                let checksum = fnv1a(&all[..CHECKSUM_AT]);
                all[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            }
            let _ = Answer::decode(&all);
        }
    }
}
