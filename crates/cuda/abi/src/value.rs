//! Values of C as bytes, without unsafe code: what a union holds is read by offset.

/// A number of C, or a structure or array of them. Every bit pattern is a value.
pub trait CValue: Copy {
    /// All bits zero.
    const ZERO: Self;

    /// The value that starts at the first byte. Bytes past the end count as zero.
    fn read(bytes: &[u8]) -> Self;

    /// Writes it from the first byte on, as far as there is room.
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl CValue for $ty {
            const ZERO: Self = 0 as $ty;

            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$ty>()];
                let length = own.len().min(bytes.len());
                own[..length].copy_from_slice(&bytes[..length]);
                Self::from_ne_bytes(own)
            }

            fn write(&self, bytes: &mut [u8]) {
                let own = self.to_ne_bytes();
                let length = own.len().min(bytes.len());
                bytes[..length].copy_from_slice(&own[..length]);
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 usize i32 i64 f32);

impl<T: CValue, const N: usize> CValue for [T; N] {
    const ZERO: Self = [T::ZERO; N];

    fn read(bytes: &[u8]) -> Self {
        core::array::from_fn(|index| T::read(bytes.get(index * size_of::<T>()..).unwrap_or_default()))
    }

    fn write(&self, bytes: &mut [u8]) {
        for (index, value) in self.iter().enumerate() {
            value.write(bytes.get_mut(index * size_of::<T>()..).unwrap_or_default());
        }
    }
}

/// Declares structures of C: `#[repr(C)]`, all fields public, zero by default, readable from the bytes of a union.
macro_rules! c_structs {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(non_camel_case_types, missing_docs)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $crate::CValue for $name {
            const ZERO: Self = Self { $($field: <$ty as $crate::CValue>::ZERO,)* };

            fn read(bytes: &[u8]) -> Self {
                Self {$(
                    $field: <$ty as $crate::CValue>::read(
                        bytes.get(core::mem::offset_of!(Self, $field)..).unwrap_or_default(),
                    ),
                )*}
            }

            fn write(&self, bytes: &mut [u8]) {
                $($crate::CValue::write(
                    &self.$field,
                    bytes.get_mut(core::mem::offset_of!(Self, $field)..).unwrap_or_default(),
                );)*
            }
        }

        impl Default for $name {
            fn default() -> Self {
                <Self as $crate::CValue>::ZERO
            }
        }
    )*};
}

pub(crate) use c_structs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut bytes = [0; 24];
        [1u64, 2, 3].write(&mut bytes);
        assert_eq!(<[u64; 3]>::read(&bytes), [1, 2, 3]);
        assert_eq!(u32::read(&bytes[8..]), 2);
    }

    #[test]
    fn short_bytes_count_as_zero() {
        assert_eq!(u64::read(&[7]), 7);
        assert_eq!(<[u32; 2]>::read(&[1, 0, 0, 0]), [1, 0]);
    }
}
