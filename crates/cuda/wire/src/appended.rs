//! What stands behind a message. Peers of the same protocol that do not know it neither send nor miss it.

use crate::codec::{DecodeError, Reader, Wire};

/// What a client wishes beyond a session. It is the last part of its message, and no wish takes no bytes: a message of a client
/// without one is the same as before there were any. A worker that knows none refuses the message of a client that has one, and
/// says that bytes are left. One that knows classes and no timelines refuses the class, or is held to a lease and keeps no
/// timeline; the same holds for content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendedWish {
    /// The class of the client's program, by number, at most 63; 0 is `dedicated`.
    pub class: u8,
    /// The worker is to say when what has run ([`crate::Notice::Timed`]).
    pub timeline: bool,
    /// The worker is to keep blocks of what the client sends, for the next program of its tenant
    /// ([`crate::Notice::ContentKept`]).
    pub content: bool,
}

const TIMELINE: u8 = 0x80;
const CONTENT: u8 = 0x40;

impl Wire<'_> for AppendedWish {
    fn put(&self, out: &mut Vec<u8>) {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let byte =
            self.class & !(TIMELINE | CONTENT) | flag(self.timeline, TIMELINE) | flag(self.content, CONTENT);
        if byte != 0 {
            out.push(byte);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.left() == 0 {
            return Ok(Self::default());
        }
        match u8::take(reader)? {
            // Two encodings must not mean the same.
            0 => Err(DecodeError::Unknown { what: "wish", value: 0 }),
            byte => Ok(Self {
                class: byte & !(TIMELINE | CONTENT),
                timeline: byte & TIMELINE != 0,
                content: byte & CONTENT != 0,
            }),
        }
    }
}

/// Places in a list of the same message. None takes no bytes, so a message without them is the same as before there were any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendedPlaces(pub Vec<u32>);

impl Wire<'_> for AppendedPlaces {
    fn put(&self, out: &mut Vec<u8>) {
        if !self.0.is_empty() {
            self.0.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.left() == 0 {
            return Ok(Self::default());
        }
        let places = Vec::take(reader)?;
        // Two encodings must not mean the same.
        if places.is_empty() {
            Err(DecodeError::Unknown { what: "places", value: 0 })
        } else {
            Ok(Self(places))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handshake, Hello, PROTOCOL_VERSION};

    fn hello(class: u8, timeline: bool) -> Handshake {
        wishing(AppendedWish { class, timeline, content: false })
    }

    fn wishing(wish: AppendedWish) -> Handshake {
        Handshake::Hello(Hello {
            protocol: PROTOCOL_VERSION,
            token: "t".into(),
            program: "p".into(),
            pid: 1,
            va_candidates: Vec::new(),
            lanes: 1,
            wish,
        })
    }

    #[test]
    fn a_client_without_a_wish_says_what_it_always_said() {
        let without = hello(0, false).to_frame();
        let content = |class, timeline| wishing(AppendedWish { class, timeline, content: true });
        for with in [hello(2, false), hello(0, true), hello(2, true), content(0, false), content(2, true)] {
            let with = with.to_frame();
            assert_eq!(with.len(), without.len() + 1);
            assert_eq!(with[4..with.len() - 1], without[4..], "the wish is appended");
            assert_eq!(Handshake::from_body(&with[4..]).unwrap().to_frame(), with);
        }
        assert_eq!(hello(2, false).to_frame().last(), Some(&2), "a class alone is what it was");
        assert_eq!(Handshake::from_body(&without[4..]).unwrap().to_frame(), without);
        let mut zero = without[4..].to_vec();
        zero.push(0);
        assert!(Handshake::from_body(&zero).is_err());
        zero.push(0);
        assert!(Handshake::from_body(&zero).is_err());
    }
}
