//! The one way a value becomes bytes and back.

use thiserror::Error;

/// Why bytes are not the value they claim to be. The session that sent them is closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The value goes on after the end of its frame.
    #[error("a {what} needs {need} bytes, {have} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// Bytes are left after the value, so sender and receiver disagree about its shape.
    #[error("{left} bytes are left after the {what}")]
    Trailing {
        /// What was read.
        what: &'static str,
        /// Bytes left.
        left: usize,
    },
    /// A count or length over its bound.
    #[error("a {what} of {value} is over the bound of {bound}")]
    OverBound {
        /// What was counted.
        what: &'static str,
        /// The value received.
        value: u64,
        /// The bound.
        bound: u64,
    },
    /// A discriminant that no variant has.
    #[error("{value:#x} is no {what}")]
    Unknown {
        /// The kind of thing.
        what: &'static str,
        /// The value received.
        value: u64,
    },
    /// Text that is not UTF-8.
    #[error("a {what} is not UTF-8")]
    NotText {
        /// What was read.
        what: &'static str,
    },
}

/// The most elements of any list. Lists are short (graph nodes are the longest); bytes have bounds of their own.
pub(crate) const LIST_MAX: u32 = 1 << 20;

/// A cursor over one frame.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if count > self.rest.len() {
            return Err(DecodeError::Truncated { what, need: count, have: self.rest.len() });
        }
        let (head, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(head)
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Fails if anything is left.
    pub fn finish(self, what: &'static str) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { what, left }),
        }
    }
}

/// A value with a fixed form in bytes.
pub trait Wire<'a>: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value from the front.
    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// The value as bytes of its own.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// The value that fills `bytes` exactly.
    fn from_bytes(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::take(&mut reader)?;
        reader.finish("value")?;
        Ok(value)
    }
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Wire<'_> for $ty {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let bytes = reader.take(size_of::<Self>(), stringify!($ty))?;
                Ok(Self::from_le_bytes(bytes.try_into().expect("took exactly as many bytes")))
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i32 i64 f32);

impl Wire<'_> for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::take(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Unknown { what: "bool", value: value.into() }),
        }
    }
}

impl Wire<'_> for () {
    fn put(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<'a, A: Wire<'a>, B: Wire<'a>> Wire<'a> for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((A::take(reader)?, B::take(reader)?))
    }
}

impl<'a, T: Wire<'a> + Copy + Default, const N: usize> Wire<'a> for [T; N] {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        for element in self {
            element.put(out);
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut array = [T::default(); N];
        for element in &mut array {
            *element = T::take(reader)?;
        }
        Ok(array)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for element in self {
            element.put(out);
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = u32::take(reader)?;
        // Elements are at least a byte each, except (), of which no list is sent: so memory stays within a small factor
        // of what the peer really sent.
        if count > LIST_MAX || count as usize > reader.left() {
            let bound = u64::from(LIST_MAX).min(reader.left() as u64);
            return Err(DecodeError::OverBound { what: "list", value: count.into(), bound });
        }
        (0..count).map(|_| T::take(reader)).collect()
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(if bool::take(reader)? { Some(T::take(reader)?) } else { None })
    }
}

impl Wire<'_> for String {
    fn put(&self, out: &mut Vec<u8>) {
        Bytes(self.as_bytes()).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = Bytes::take(reader)?;
        let text = core::str::from_utf8(bytes.0).map_err(|_| DecodeError::NotText { what: "text" })?;
        Ok(text.to_owned())
    }
}

/// Raw bytes, borrowed from the frame they came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Wire<'a> for Bytes<'a> {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend_from_slice(self.0);
    }

    #[inline]
    fn take(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = u32::take(reader)?;
        Ok(Self(reader.take(count as usize, "bytes")?))
    }
}

/// Raw bytes that outlive their frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl Wire<'_> for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        Bytes(&self.0).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(Bytes::take(reader)?.0.to_vec()))
    }
}

/// A structure on the wire: its fields, in order.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        wire_struct!(@impl $name $(<$life>)? { $($field: $ty,)* });
    };
    (@impl $name:ident { $($field:ident: $ty:ty,)* }) => {
        impl<'wire> $crate::codec::Wire<'wire> for $name {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, out);)*
            }

            #[inline]
            fn take(reader: &mut $crate::codec::Reader<'wire>) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: <$ty as $crate::codec::Wire<'wire>>::take(reader)?,)* })
            }
        }
    };
    (@impl $name:ident<$life:lifetime> { $($field:ident: $ty:ty,)* }) => {
        impl<$life> $crate::codec::Wire<$life> for $name<$life> {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, out);)*
            }

            #[inline]
            fn take(reader: &mut $crate::codec::Reader<$life>) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: <$ty as $crate::codec::Wire<$life>>::take(reader)?,)* })
            }
        }
    };
}

/// One of several structures on the wire: a tag (u8), then the fields of that variant. Tags are never reused.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident<$life:lifetime> {
        $($(#[$variant_meta:meta])* $tag:literal $variant:ident {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty,)*
        })*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name<$life> {
            $($(#[$variant_meta])* #[allow(missing_docs)] $variant { $($(#[$field_meta])* $field: $ty,)* },)*
        }

        impl<$life> $crate::codec::Wire<$life> for $name<$life> {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        out.push($tag);
                        $($crate::codec::Wire::put($field, out);)*
                    })*
                }
            }

            #[inline]
            fn take(reader: &mut $crate::codec::Reader<$life>) -> Result<Self, $crate::codec::DecodeError> {
                let tag = <u8 as $crate::codec::Wire>::take(reader)?;
                match tag {
                    $($tag => Ok(Self::$variant {
                        $($field: <$ty as $crate::codec::Wire<$life>>::take(reader)?,)*
                    }),)*
                    value => {
                        Err($crate::codec::DecodeError::Unknown { what: stringify!($name), value: value.into() })
                    }
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_cannot_claim_more_than_its_frame_holds() {
        let mut bytes = Vec::new();
        1_000_000u32.put(&mut bytes);
        assert!(matches!(Vec::<u8>::from_bytes(&bytes), Err(DecodeError::OverBound { .. })));
    }

    #[test]
    fn what_is_left_over_is_an_error() {
        assert_eq!(u8::from_bytes(&[1, 2]), Err(DecodeError::Trailing { what: "value", left: 1 }));
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        assert!(bool::from_bytes(&[2]).is_err());
    }
}
