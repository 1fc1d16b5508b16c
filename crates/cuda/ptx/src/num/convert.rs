//! One `cvt`: any number to any number.

use super::{
    round::{Mode, narrow},
    small::{BF16, F16},
};
use crate::types::Type;

/// What a conversion does besides changing the type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cvt {
    pub(crate) from: Type,
    pub(crate) to: Type,
    pub(crate) mode: Mode,
    /// Rounds to an integral value (`.rni` and its kin).
    pub(crate) integral: bool,
    pub(crate) sat: bool,
    pub(crate) ftz: bool,
    pub(crate) relu: bool,
    pub(crate) finite: bool,
}

/// The integer in the low bits of a lane.
pub(crate) fn integer(bits: u64, ty: Type) -> i128 {
    match ty {
        Type::S8 => i128::from(bits as i8),
        Type::U8 | Type::B8 => i128::from(bits as u8),
        Type::S16 => i128::from(bits as i16),
        Type::U16 | Type::B16 => i128::from(bits as u16),
        Type::S32 => i128::from(bits as i32),
        Type::U32 | Type::B32 => i128::from(bits as u32),
        Type::S64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn range(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn is_float(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
}

/// An integer as an f64 rounded to odd, so that a later rounding to fewer bits is the only one.
fn odd_from_integer(value: i128) -> f64 {
    let near = value as f64;
    let error = value - near as i128;
    if error == 0 || near.to_bits() & 1 == 1 {
        return near;
    }
    if error > 0 { near.next_up() } else { near.next_down() }
}

fn round_integral(value: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Near => value.round_ties_even(),
        Mode::Zero => value.trunc(),
        Mode::Minus => value.floor(),
        Mode::Plus => value.ceil(),
    }
}

/// The float in the low bits of a lane, exactly.
pub(crate) fn float(bits: u64, ty: Type) -> f64 {
    match ty {
        Type::F16 => F16.decode(bits as u32 & 0xFFFF),
        Type::Bf16 => BF16.decode(bits as u32 & 0xFFFF),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

impl Cvt {
    /// Converts one value.
    pub(crate) fn apply(&self, bits: u64) -> u64 {
        match (is_float(self.from), is_float(self.to)) {
            (false, false) => {
                let mut value = integer(bits, self.from);
                if self.sat {
                    let (low, high) = range(self.to);
                    value = value.clamp(low, high);
                }
                self.cut(value)
            }
            (false, true) => {
                let value = integer(bits, self.from);
                match self.to {
                    Type::F64 if self.mode == Mode::Near => (value as f64).to_bits(),
                    Type::F64 => self.integer_to_double(value),
                    _ => self.store(odd_from_integer(value)),
                }
            }
            (true, false) => self.integer_of(self.load(bits)),
            (true, true) => {
                if let Some(nan) = self.nan(bits) {
                    return nan;
                }
                let mut value = self.load(bits);
                if self.integral {
                    value = round_integral(value, self.mode);
                }
                self.store(value)
            }
        }
    }

    /// NaNs whose payload survives: those that go from or to f64, and from bf16 to f32.
    fn nan(&self, bits: u64) -> Option<u64> {
        if !float(bits, self.from).is_nan() || self.sat || self.from == self.to {
            return None;
        }
        // The sign, and the payload with the quiet bit, moved to the other width.
        let (sign, payload) =
            (bits >> (self.from.bits() - 1) & 1, |fraction: u32| bits & ((1u64 << fraction) - 1));
        Some(match (self.from, self.to) {
            (Type::F64, Type::F32) => sign << 31 | 0x7FC0_0000 | payload(52) >> 29,
            (Type::F64, Type::F16) => sign << 15 | 0x7E00 | payload(52) >> 42,
            (Type::F16, Type::F64) => sign << 63 | 0x7FF8 << 48 | payload(10) << 42,
            (Type::F32, Type::F64) => sign << 63 | 0x7FF8 << 48 | payload(23) << 29,
            (Type::Bf16, Type::F32) => bits << 16 & 0xFFFF_FFFF,
            _ => return None,
        })
    }

    fn cut(&self, value: i128) -> u64 {
        let bits = value as u64;
        match self.to.bytes() {
            // A signed narrow result fills a wider register with its sign.
            1 if self.to.is_signed() => bits as i8 as i64 as u64,
            2 if self.to.is_signed() => bits as i16 as i64 as u64,
            4 if self.to.is_signed() => u64::from(bits as u32),
            1 => u64::from(bits as u8),
            2 => u64::from(bits as u16),
            4 => u64::from(bits as u32),
            _ => bits,
        }
    }

    fn load(&self, bits: u64) -> f64 {
        let value = float(bits, self.from);
        if self.ftz && self.from == Type::F32 && (value as f32).is_subnormal() {
            return if value < 0.0 { -0.0 } else { 0.0 };
        }
        value
    }

    fn integer_to_double(&self, value: i128) -> u64 {
        let near = value as f64;
        let error = value - near as i128;
        let moved = match self.mode {
            Mode::Zero if value > 0 && error < 0 => near.next_down(),
            Mode::Zero if value < 0 && error > 0 => near.next_up(),
            Mode::Minus if error < 0 => near.next_down(),
            Mode::Plus if error > 0 => near.next_up(),
            _ => near,
        };
        moved.to_bits()
    }

    fn integer_of(&self, value: f64) -> u64 {
        let bits = self.to.bits();
        if value.is_nan() {
            // The rule of the ISA: zero, except where 64 bits are involved.
            let wide = self.from == Type::F64 || bits == 64;
            return if wide { self.cut(1 << (bits - 1)) } else { 0 };
        }
        let (low, high) = range(self.to);
        let rounded = round_integral(value, self.mode);
        self.cut((rounded as i128).clamp(low, high))
    }

    fn store(&self, mut value: f64) -> u64 {
        if self.relu && (value < 0.0 || value == 0.0 && value.is_sign_negative()) {
            value = 0.0;
        }
        if self.sat {
            value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
        }
        let mode = if self.integral { Mode::Near } else { self.mode };
        match self.to {
            Type::F16 => u64::from(F16.encode(value, mode, self.finite)),
            Type::Bf16 => u64::from(BF16.encode(value, mode, self.finite)),
            Type::F32 => {
                let out = narrow(value, mode);
                if out.is_nan() {
                    return 0x7FFF_FFFF;
                }
                let out = if self.ftz { super::round::flush(out) } else { out };
                u64::from(out.to_bits())
            }
            _ => value.to_bits(),
        }
    }
}
