//! Elements of an image as the four values that a texture instruction gives, and back.

use crate::num::{round::Mode, small::F16};

/// What the bits of a channel mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// An unsigned integer.
    Unsigned,
    /// A signed integer.
    Signed,
    /// A float of 16 or 32 bits.
    Float,
    /// A fraction from 0 to 1.
    Unorm,
    /// A fraction from -1 to 1.
    Snorm,
}

/// The channels of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// What they are.
    pub kind: ChannelKind,
    /// Bytes of one: 1, 2 or 4.
    pub bytes: u8,
    /// How many: 1, 2 or 4.
    pub count: u8,
}

impl Channel {
    /// The bits that an instruction gives for the bits of one channel in memory: an integer of 32 bits, or those of an `f32`.
    pub(crate) fn decode(self, bits: u32, reads_integers: bool) -> u32 {
        let signed = match self.bytes {
            1 => i32::from(bits as i8),
            2 => i32::from(bits as i16),
            _ => bits as i32,
        };
        match self.kind {
            ChannelKind::Float if self.bytes == 2 => (F16.decode(bits & 0xffff) as f32).to_bits(),
            ChannelKind::Float => bits,
            ChannelKind::Unsigned if reads_integers || self.bytes == 4 => bits,
            ChannelKind::Signed if reads_integers || self.bytes == 4 => signed as u32,
            ChannelKind::Unsigned | ChannelKind::Unorm => ((f64::from(bits) / self.most()) as f32).to_bits(),
            ChannelKind::Signed | ChannelKind::Snorm => {
                ((f64::from(signed) / self.most_signed()).max(-1.0) as f32).to_bits()
            }
        }
    }

    /// The bits in memory for a value that a formatted store gives.
    pub(crate) fn encode(self, value: u32) -> u32 {
        let float = f64::from(f32::from_bits(value));
        match self.kind {
            ChannelKind::Float if self.bytes == 2 => F16.encode(float, Mode::Near, false),
            ChannelKind::Float => value,
            ChannelKind::Unsigned => match self.bytes {
                1 => value.min(0xff),
                2 => value.min(0xffff),
                _ => value,
            },
            ChannelKind::Signed => match self.bytes {
                1 => (value as i32).clamp(-0x80, 0x7f) as u32 & 0xff,
                2 => (value as i32).clamp(-0x8000, 0x7fff) as u32 & 0xffff,
                _ => value,
            },
            ChannelKind::Unorm => (float.clamp(0.0, 1.0) * self.most()).round_ties_even() as u32,
            ChannelKind::Snorm => {
                let value = (float.clamp(-1.0, 1.0) * self.most_signed()).round_ties_even() as i32;
                value as u32 & self.mask()
            }
        }
    }

    /// What a channel gives that the element does not have: nothing, but for the fourth one.
    pub(crate) fn missing(place: usize, is_float: bool) -> u32 {
        match (place, is_float) {
            (3, true) => 1f32.to_bits(),
            (3, false) => 1,
            _ => 0,
        }
    }

    fn mask(self) -> u32 {
        if self.bytes >= 4 { u32::MAX } else { (1 << (8 * self.bytes)) - 1 }
    }

    fn most(self) -> f64 {
        f64::from(self.mask())
    }

    fn most_signed(self) -> f64 {
        f64::from(self.mask() >> 1)
    }
}

/// The linear value of an sRGB fraction.
pub(crate) fn linear_of_srgb(value: f32) -> f32 {
    let value = f64::from(value);
    let linear = if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
    round_as_the_table_does(linear) as f32
}

/// An H200 has a table of 8 significant bits, and none finer than 2^-15 (its answers to 24 values).
fn round_as_the_table_does(value: f64) -> f64 {
    const BITS: i32 = 8;
    const FINEST: i32 = -15;
    if value <= 0.0 {
        return 0.0;
    }
    let exponent = value.log2().floor() as i32 + 1;
    let step = f64::from((exponent - BITS).max(FINEST)).exp2();
    (value / step).round() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(kind: ChannelKind, bytes: u8) -> Channel {
        Channel { kind, bytes, count: 1 }
    }

    fn float(channel: Channel, bits: u32) -> f32 {
        f32::from_bits(channel.decode(bits, false))
    }

    #[test]
    fn integers_are_extended_and_fractions_reach_their_ends() {
        let (unsigned, signed) = (channel(ChannelKind::Unsigned, 1), channel(ChannelKind::Signed, 2));
        assert_eq!(unsigned.decode(0xff, true), 0xff);
        assert_eq!(signed.decode(0xfffe, true) as i32, -2);
        assert_eq!(float(unsigned, 0xff), 1.0);
        assert_eq!(float(unsigned, 51), 0.2);
        assert_eq!(float(signed, 0x8000), -1.0, "both lowest values are -1");
        assert_eq!(float(signed, 0x8001), -1.0);
        assert_eq!(float(signed, 0x7fff), 1.0);
        assert_eq!(channel(ChannelKind::Unsigned, 4).decode(7, false), 7, "32 bits are never a fraction");
        assert_eq!(float(channel(ChannelKind::Float, 2), 0x3c00), 1.0);
    }

    #[test]
    fn what_is_stored_is_read_again() {
        for (kind, bytes) in [(ChannelKind::Unorm, 1), (ChannelKind::Unorm, 2), (ChannelKind::Snorm, 1)] {
            let channel = channel(kind, bytes);
            for bits in (0..=channel.mask()).filter(|bits| bytes == 1 || bits % 97 == 0) {
                let is_lowest = kind == ChannelKind::Snorm && bits == 0x80;
                assert_eq!(channel.encode(channel.decode(bits, false)), if is_lowest { 0x81 } else { bits });
            }
        }
        assert_eq!(channel(ChannelKind::Signed, 1).encode(-300i32 as u32), 0x80);
        assert_eq!(channel(ChannelKind::Unsigned, 2).encode(70_000), 0xffff);
    }

    #[test]
    fn srgb_has_its_two_parts() {
        assert_eq!(linear_of_srgb(0.0), 0.0);
        assert_eq!(linear_of_srgb(1.0), 1.0);
        assert!((linear_of_srgb(0.5) - 0.21404114).abs() < 0.214 / 256.0);
        assert!((linear_of_srgb(0.04) - 0.003095975).abs() < 1.0 / f32::from(1u16 << 15));
        // As an H200 answered for bytes 5, 13, 21, 37 and 77.
        let of_byte = |byte: u8| linear_of_srgb(f32::from(byte) / 255.0).to_bits();
        let told = [5, 13, 21, 37, 77].map(of_byte);
        assert_eq!(told, [0x3ac8_0000, 0x3b84_0000, 0x3bf6_0000, 0x3c98_0000, 0x3d98_0000]);
    }
}
