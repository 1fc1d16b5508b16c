//! Formats with fewer bits than f32, and f32 itself, out of an f64 that holds the exact (or to-odd) value.

use super::round::Mode;

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Stored bits of the fraction.
    pub(crate) fraction: u32,
    /// Bits of the exponent.
    pub(crate) exponent: u32,
    /// Whether the top exponent holds infinities (e4m3 has none: only one NaN).
    pub(crate) infinite: bool,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5, infinite: true };
pub(crate) const BF16: Format = Format { fraction: 7, exponent: 8, infinite: true };
pub(crate) const E4M3: Format = Format { fraction: 3, exponent: 4, infinite: false };
pub(crate) const E5M2: Format = Format { fraction: 2, exponent: 5, infinite: true };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn sign(self) -> u32 {
        1 << (self.fraction + self.exponent)
    }

    /// The NaN that GPUs write.
    pub(crate) fn nan(self) -> u32 {
        self.sign() - 1
    }

    fn largest(self) -> u32 {
        if self.infinite { (((1 << self.exponent) - 1) << self.fraction) - 1 } else { self.sign() - 2 }
    }

    /// The value of some bits.
    pub(crate) fn decode(self, bits: u32) -> f64 {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        let exponent = (magnitude >> self.fraction) as i32;
        let fraction = magnitude & ((1 << self.fraction) - 1);
        let top = (1 << self.exponent) - 1;
        let value = if self.infinite && exponent == top {
            if fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else if !self.infinite && magnitude == self.nan() {
            f64::NAN
        } else if exponent == 0 {
            f64::from(fraction) * power(1 - self.bias() - self.fraction as i32)
        } else {
            f64::from(fraction | 1 << self.fraction) * power(exponent - self.bias() - self.fraction as i32)
        };
        if negative { -value } else { value }
    }

    /// The bits nearest to `value` in the given mode. `finite` replaces infinities by the largest number.
    pub(crate) fn encode(self, value: f64, mode: Mode, finite: bool) -> u32 {
        if value.is_nan() {
            return self.nan();
        }
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        let bits = value.to_bits() & !(1 << 63);
        let infinity = if self.infinite { self.largest() + 1 } else { self.nan() };
        if value.is_infinite() {
            return sign | if finite { self.largest() } else { infinity };
        }
        if bits == 0 {
            return sign;
        }
        let exponent = (bits >> 52) as i32 - 1023;
        let mantissa = if bits >> 52 == 0 { bits } else { bits & ((1 << 52) - 1) | 1 << 52 };
        let lowest = 1 - self.bias();
        // How many low bits of the 53-bit mantissa fall off; more for a subnormal result.
        let drop = (52 - self.fraction as i32 + (lowest - exponent).max(0)).min(60) as u32;
        let (kept, rest, half) = (mantissa >> drop, mantissa & ((1 << drop) - 1), 1u64 << (drop - 1));
        let negative = sign != 0;
        let up = match mode {
            Mode::Near => rest > half || rest == half && kept & 1 == 1,
            Mode::Zero => false,
            Mode::Minus => negative && rest != 0,
            Mode::Plus => !negative && rest != 0,
        };
        let kept = kept + u64::from(up);
        let biased = (exponent.max(lowest) + self.bias() - 1).max(0) as u64;
        // The hidden bit adds one to the exponent by itself; so does a carry out of the fraction.
        let magnitude = (biased << self.fraction) + kept;
        let largest = u64::from(self.largest());
        if magnitude > largest {
            let to_largest = match mode {
                Mode::Near => finite,
                Mode::Zero => true,
                Mode::Minus => !negative,
                Mode::Plus => negative,
            };
            return sign | if to_largest || finite { largest as u32 } else { infinity };
        }
        sign | magnitude as u32
    }
}

fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// f32 to tf32: the low 13 bits of the fraction are rounded away (ties away from zero, or to even, or cut).
pub(crate) fn tf32(bits: u32, ties_even: bool, cut: bool) -> u32 {
    if bits & 0x7F80_0000 == 0x7F80_0000 {
        return bits & !0x1FFF;
    }
    let rounded = if cut {
        bits
    } else if ties_even {
        bits.wrapping_add(0xFFF + (bits >> 13 & 1))
    } else {
        bits.wrapping_add(0x1000)
    };
    rounded & !0x1FFF
}
