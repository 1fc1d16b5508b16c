//! Byte enables: which bytes of the first and the last DW a request means.
//!
//! Requests count in DW. Four bits say which bytes of the first DW are meant, four more which of the last one; all
//! bytes between are meant. A request of one DW has first enables only.

use crate::error::Malformed;

/// The two sets of enables; bit 0 is the byte with the lowest address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByteEnables {
    /// Of the first DW.
    pub first: u8,
    /// Of the last DW; zero when the first is the last.
    pub last: u8,
}

/// A run of bytes as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of the first DW, a multiple of 4.
    pub address: u64,
    /// In `1..=1024`.
    pub length_dw: u16,
    /// Which bytes of the outer DWs.
    pub enables: ByteEnables,
}

impl Span {
    /// The request for `bytes` bytes from `address` on. Zero bytes give the flush read: one DW, nothing enabled.
    ///
    /// None when that is more than 1024 DW or runs past the end of the address space.
    pub const fn of_bytes(address: u64, bytes: u32) -> Option<Self> {
        if bytes == 0 {
            let enables = ByteEnables { first: 0, last: 0 };
            return Some(Self { address: address & !3, length_dw: 1, enables });
        }
        let Some(last_byte) = address.checked_add(bytes as u64 - 1) else { return None };
        let length_dw = (last_byte >> 2) - (address >> 2) + 1;
        if length_dw > 1024 {
            return None;
        }
        let first = 0xf << (address & 3) & 0xf;
        let last = 0xf >> (3 - (last_byte & 3));
        let enables = if length_dw == 1 {
            ByteEnables { first: first & last, last: 0 }
        } else {
            ByteEnables { first, last }
        };
        Some(Self { address: address & !3, length_dw: length_dw as u16, enables })
    }

    /// Address of the lowest enabled byte; the aligned address when none is.
    pub const fn first_byte(&self) -> u64 {
        self.address + self.enables.skipped() as u64
    }

    /// Bytes from the lowest enabled to the highest enabled one, both included: the byte count of the completion.
    /// A flush read counts as one.
    pub const fn byte_count(&self) -> u16 {
        self.enables.byte_count(self.length_dw)
    }
}

impl ByteEnables {
    /// Everything.
    pub const fn all(length_dw: u16) -> Self {
        Self { first: 0xf, last: if length_dw > 1 { 0xf } else { 0 } }
    }

    /// Of byte 7.
    pub const fn from_byte(byte: u8) -> Self {
        Self { first: byte & 0xf, last: byte >> 4 }
    }

    /// Byte 7.
    pub const fn to_byte(self) -> u8 {
        self.last << 4 | self.first
    }

    /// Bytes of the first DW below the lowest enabled one; zero when none is enabled.
    pub const fn skipped(self) -> u8 {
        if self.first == 0 { 0 } else { self.first.trailing_zeros() as u8 }
    }

    /// Bytes from the lowest to the highest enabled one; one for a flush read.
    pub const fn byte_count(self, length_dw: u16) -> u16 {
        let last = if length_dw > 1 { self.last } else { self.first };
        if last == 0 {
            return 1;
        }
        let missing_at_end = last.leading_zeros() as u16 - 4;
        length_dw * 4 - self.skipped() as u16 - missing_at_end
    }

    /// The rules for a request of `length_dw` from `address`.
    ///
    /// Gaps are allowed in one DW, and in two that form an aligned QW; elsewhere the enabled bytes are contiguous.
    pub(crate) const fn check(self, address: u64, length_dw: u16) -> Result<(), Malformed> {
        if length_dw == 1 {
            return if self.last == 0 {
                Ok(())
            } else {
                Err(Malformed::LastEnableOfOneDw { last: self.last })
            };
        }
        if self.first == 0 {
            return Err(Malformed::NoFirstEnable);
        }
        if self.last == 0 {
            return Err(Malformed::NoLastEnable);
        }
        let may_have_gaps = length_dw == 2 && address & 4 == 0;
        let has_gaps =
            !matches!(self.first, 0xf | 0xe | 0xc | 0x8) || !matches!(self.last, 0xf | 0x7 | 0x3 | 0x1);
        if has_gaps && !may_have_gaps {
            return Err(Malformed::GapsInEnables { first: self.first, last: self.last });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: u64, bytes: u32, expected: (u64, u16, u8, u8)) {
        let span = Span::of_bytes(address, bytes).unwrap();
        assert_eq!((span.address, span.length_dw, span.enables.first, span.enables.last), expected);
        if bytes > 0 {
            assert_eq!((span.first_byte(), u32::from(span.byte_count())), (address, bytes));
        }
        assert_eq!(span.enables.check(span.address, span.length_dw), Ok(()));
    }

    #[test]
    fn bytes_become_double_words_and_enables() {
        check(0x1000, 4, (0x1000, 1, 0xf, 0));
        check(0x1001, 1, (0x1000, 1, 0x2, 0));
        check(0x1001, 2, (0x1000, 1, 0x6, 0));
        check(0x1003, 2, (0x1000, 2, 0x8, 0x1));
        check(0x1002, 10, (0x1000, 3, 0xc, 0xf));
        check(0x1000, 4096, (0x1000, 1024, 0xf, 0xf));
        check(0x1007, 0, (0x1004, 1, 0, 0));
        assert_eq!(Span::of_bytes(0x1001, 4096), None);
        assert_eq!(Span::of_bytes(u64::MAX, 2), None);
    }

    #[test]
    fn a_flush_read_counts_as_one_byte() {
        assert_eq!(Span::of_bytes(0x1000, 0).unwrap().byte_count(), 1);
    }

    #[test]
    fn gaps_are_for_one_double_word_or_an_aligned_pair() {
        let gaps = ByteEnables { first: 0x5, last: 0xa };
        assert_eq!(gaps.check(0x1000, 2), Ok(()));
        assert_eq!(gaps.check(0x1004, 2), Err(Malformed::GapsInEnables { first: 0x5, last: 0xa }));
        assert_eq!(gaps.check(0x1000, 3), Err(Malformed::GapsInEnables { first: 0x5, last: 0xa }));
        assert_eq!(ByteEnables { first: 0x9, last: 0 }.check(0x1000, 1), Ok(()));
        assert_eq!(gaps.check(0x1000, 1), Err(Malformed::LastEnableOfOneDw { last: 0xa }));
        assert_eq!(ByteEnables { first: 0, last: 1 }.check(0, 2), Err(Malformed::NoFirstEnable));
        assert_eq!(ByteEnables { first: 8, last: 0 }.check(0, 2), Err(Malformed::NoLastEnable));
    }
}
