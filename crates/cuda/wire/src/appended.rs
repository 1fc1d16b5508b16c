//! A byte behind a message, which peers of the same protocol that do not know it neither send nor miss.

use crate::codec::{DecodeError, Reader, Wire};

/// The class of the client's program, by number; 0 is `dedicated`. It is the last part of its message, and 0 takes no
/// bytes: a message of a client without a class is the same as before there were classes. A worker that knows none refuses
/// the message of a client that has one, and says that bytes are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendedClass(pub u8);

impl Wire<'_> for AppendedClass {
    fn put(&self, out: &mut Vec<u8>) {
        if self.0 != 0 {
            out.push(self.0);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.left() == 0 {
            return Ok(Self(0));
        }
        match u8::take(reader)? {
            // Two encodings must not mean the same.
            0 => Err(DecodeError::Unknown { what: "class", value: 0 }),
            class => Ok(Self(class)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handshake, Hello, PROTOCOL_VERSION};

    fn hello(class: u8) -> Handshake {
        Handshake::Hello(Hello {
            protocol: PROTOCOL_VERSION,
            token: "t".into(),
            program: "p".into(),
            pid: 1,
            va_candidates: Vec::new(),
            lanes: 1,
            class: AppendedClass(class),
        })
    }

    #[test]
    fn a_client_without_a_class_says_what_it_always_said() {
        let without = hello(0).to_frame();
        let with = hello(2).to_frame();
        assert_eq!(with.len(), without.len() + 1);
        assert_eq!(with[4..with.len() - 1], without[4..], "the class is appended");
        for frame in [&without, &with] {
            assert_eq!(&Handshake::from_body(&frame[4..]).unwrap().to_frame(), frame);
        }
        let mut zero = without[4..].to_vec();
        zero.push(0);
        assert!(Handshake::from_body(&zero).is_err());
        zero.push(0);
        assert!(Handshake::from_body(&zero).is_err());
    }
}
