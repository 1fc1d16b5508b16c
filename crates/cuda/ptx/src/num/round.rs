//! Directed rounding and single-rounded fma.
//!
//! f32: the exact result is brought into an f64 that is *rounded to odd*, which keeps enough of it for one more,
//! correct rounding in any mode. f64: the nearest result and the sign of its exact error decide.

/// Rounding of a floating-point result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To nearest, ties to even.
    Near,
    /// Towards zero.
    Zero,
    /// Down.
    Minus,
    /// Up.
    Plus,
}

impl Mode {
    /// From the modifiers of an opcode.
    pub(crate) fn of(mods: &[&str]) -> Self {
        mods.iter()
            .find_map(|name| match *name {
                "rz" | "rzi" => Some(Self::Zero),
                "rm" | "rmi" => Some(Self::Minus),
                "rp" | "rpi" => Some(Self::Plus),
                _ => None,
            })
            .unwrap_or(Self::Near)
    }
}

/// `sum` rounded to odd, given the exact error `exact - sum`.
#[inline]
fn to_odd(sum: f64, error: f64) -> f64 {
    let bits = sum.to_bits();
    let grow = (error > 0.0) == (sum > 0.0);
    let adjusted = if grow { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let keep = error == 0.0 || bits & 1 == 1 || !sum.is_finite();
    f64::from_bits(if keep { bits } else { adjusted })
}

/// The sum and its exact error (Knuth's two-sum).
#[inline]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let back = sum - a;
    (sum, (a - (sum - back)) + (b - back))
}

/// An exact or to-odd value as f32.
#[inline]
pub(crate) fn narrow(value: f64, mode: Mode) -> f32 {
    let near = value as f32;
    if mode == Mode::Near || value.is_nan() {
        return near;
    }
    // Infinity itself stays; a finite value that the nearest rounding made infinite comes back here.
    let back = f64::from(near);
    match mode {
        Mode::Zero if value > 0.0 && back > value => near.next_down(),
        Mode::Zero if value < 0.0 && back < value => near.next_up(),
        Mode::Minus if back > value => near.next_down(),
        Mode::Plus if back < value => near.next_up(),
        _ => near,
    }
}

/// `a * b + c`, rounded once.
#[inline]
pub(crate) fn fma32(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let (sum, error) = two_sum(product, f64::from(c));
    to_odd(sum, error) as f32
}

/// The sign of a sum that is exactly zero depends on the mode alone.
#[inline]
fn zero_sum(a_negative: bool, b_negative: bool, mode: Mode) -> f64 {
    if a_negative == b_negative {
        if a_negative { -0.0 } else { 0.0 }
    } else if mode == Mode::Minus {
        -0.0
    } else {
        0.0
    }
}

/// `a * b + c` in any mode.
pub(crate) fn fma32_mode(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let (sum, error) = two_sum(product, f64::from(c));
    if sum == 0.0 && error == 0.0 {
        return zero_sum(product.is_sign_negative(), c.is_sign_negative(), mode) as f32;
    }
    narrow(to_odd(sum, error), mode)
}

pub(crate) fn add32(a: f32, b: f32, mode: Mode) -> f32 {
    fma32_mode(a, 1.0, b, mode)
}

pub(crate) fn mul32(a: f32, b: f32, mode: Mode) -> f32 {
    narrow(f64::from(a) * f64::from(b), mode)
}

pub(crate) fn div32(a: f32, b: f32, mode: Mode) -> f32 {
    let quotient = f64::from(a) / f64::from(b);
    if mode == Mode::Near || !quotient.is_finite() || b == 0.0 || b.is_infinite() {
        return a / b;
    }
    // a - q*b is exact in an fma; its sign over b is the sign of the quotient's error.
    let rest = (-quotient).mul_add(f64::from(b), f64::from(a));
    let error = if b < 0.0 { -rest } else { rest };
    narrow(to_odd(quotient, error), mode)
}

pub(crate) fn sqrt32(a: f32, mode: Mode) -> f32 {
    let root = f64::from(a).sqrt();
    if mode == Mode::Near || !root.is_finite() || root == 0.0 {
        return a.sqrt();
    }
    let rest = (-root).mul_add(root, f64::from(a));
    narrow(to_odd(root, rest), mode)
}

/// The nearest result moved as `mode` asks, given the sign of the exact error `exact - near`.
fn directed(near: f64, error: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Zero if near > 0.0 && error < 0.0 => near.next_down(),
        Mode::Zero if near < 0.0 && error > 0.0 => near.next_up(),
        Mode::Minus if error < 0.0 => near.next_down(),
        Mode::Plus if error > 0.0 => near.next_up(),
        _ => near,
    }
}

/// An overflow of finite operands: infinity only where the mode points that way.
fn overflow(infinite: f64, mode: Mode) -> f64 {
    match (mode, infinite > 0.0) {
        (Mode::Zero | Mode::Minus, true) => f64::MAX,
        (Mode::Zero | Mode::Plus, false) => f64::MIN,
        _ => infinite,
    }
}

pub(crate) fn add64(a: f64, b: f64, mode: Mode) -> f64 {
    if mode == Mode::Near {
        return a + b;
    }
    let sum = a + b;
    if !sum.is_finite() {
        return if a.is_finite() && b.is_finite() { overflow(sum, mode) } else { sum };
    }
    if sum == 0.0 {
        return zero_sum(a.is_sign_negative(), b.is_sign_negative(), mode);
    }
    // Scaled down, the partial sums cannot overflow; near the top of the range nothing is lost by it.
    let scale = if sum.abs() > 1e300 { 0.25 } else { 1.0 };
    let (_, error) = two_sum(a * scale, b * scale);
    directed(sum, error, mode)
}

pub(crate) fn mul64(a: f64, b: f64, mode: Mode) -> f64 {
    let product = a * b;
    if mode == Mode::Near || a == 0.0 || b == 0.0 || a.is_nan() || b.is_nan() {
        return product;
    }
    if !product.is_finite() {
        return if a.is_finite() && b.is_finite() { overflow(product, mode) } else { product };
    }
    directed(product, product_error(a, b, 0.0, product), mode)
}

pub(crate) fn fma64(a: f64, b: f64, c: f64, mode: Mode) -> f64 {
    let near = a.mul_add(b, c);
    if mode == Mode::Near || near.is_nan() {
        return near;
    }
    if !near.is_finite() {
        let finite = a.is_finite() && b.is_finite() && c.is_finite();
        return if finite { overflow(near, mode) } else { near };
    }
    let error = product_error(a, b, c, near);
    if near == 0.0 && error == 0.0 {
        let product_negative = a.is_sign_negative() != b.is_sign_negative();
        return zero_sum(product_negative, c.is_sign_negative(), mode);
    }
    directed(near, error, mode)
}

/// The sign of `a*b + c - near`, exactly, by comparing big integers where doubles could lose it.
fn product_error(a: f64, b: f64, c: f64, near: f64) -> f64 {
    let sum = Exact::product(a, b).plus(Exact::from(c)).plus(Exact::from(-near));
    f64::from(sum.signum())
}

/// A sum of doubles and products of doubles, exact: a fixed-point number wide enough for any of them.
#[derive(Clone)]
struct Exact {
    /// Two's complement, little-endian; the unit is 2^-2200.
    words: [u64; Self::WORDS],
}

impl Exact {
    const WORDS: usize = 68;
    const BIAS: i32 = 2200;

    fn from(value: f64) -> Self {
        Self::product(value, 1.0)
    }

    fn product(a: f64, b: f64) -> Self {
        let (ma, ea) = parts(a);
        let (mb, eb) = parts(b);
        let product = u128::from(ma) * u128::from(mb);
        let mut out = Self { words: [0; Self::WORDS] };
        let shift = (ea + eb + Self::BIAS).max(0) as usize;
        let (word, bit) = (shift / 64, shift % 64);
        for (index, part) in [product as u64, (product >> 64) as u64].into_iter().enumerate() {
            let wide = u128::from(part) << bit;
            out.words[word + index] |= wide as u64;
            out.words[word + index + 1] |= (wide >> 64) as u64;
        }
        if a.is_sign_negative() != b.is_sign_negative() {
            out.negate();
        }
        out
    }

    fn negate(&mut self) {
        let mut carry = true;
        for word in &mut self.words {
            let (value, over) = (!*word).overflowing_add(u64::from(carry));
            *word = value;
            carry = over;
        }
    }

    fn plus(mut self, other: Self) -> Self {
        let mut carry = false;
        for (word, add) in self.words.iter_mut().zip(other.words) {
            let (value, first) = word.overflowing_add(add);
            let (value, second) = value.overflowing_add(u64::from(carry));
            *word = value;
            carry = first || second;
        }
        self
    }

    fn signum(&self) -> i32 {
        if self.words[Self::WORDS - 1] >> 63 == 1 {
            -1
        } else {
            i32::from(self.words.iter().any(|&word| word != 0))
        }
    }
}

/// Mantissa and exponent: the absolute value is `mantissa * 2^exponent`.
fn parts(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7FF) as i32;
    let mantissa = bits & ((1 << 52) - 1);
    if exponent == 0 { (mantissa, -1074) } else { (mantissa | 1 << 52, exponent - 1075) }
}

pub(crate) fn div64(a: f64, b: f64, mode: Mode) -> f64 {
    let quotient = a / b;
    if mode == Mode::Near || quotient.is_nan() || a == 0.0 || b == 0.0 || b.is_infinite() {
        return quotient;
    }
    if quotient.is_infinite() {
        return if a.is_finite() { overflow(quotient, mode) } else { quotient };
    }
    // a - q*b, over the sign of b.
    let rest = product_error(-quotient, b, a, 0.0);
    directed(quotient, if b < 0.0 { -rest } else { rest }, mode)
}

pub(crate) fn sqrt64(a: f64, mode: Mode) -> f64 {
    let root = a.sqrt();
    if mode == Mode::Near || !root.is_finite() || root == 0.0 {
        return root;
    }
    directed(root, product_error(-root, root, a, 0.0), mode)
}

/// Subnormal to zero of the same sign.
#[inline]
pub(crate) fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7F80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// `.sat`: into [0, 1]; NaN becomes 0.
#[inline]
pub(crate) fn saturate32(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 }
}

/// `a * b + c` rounded to odd, for operands whose product an f64 holds exactly.
#[inline]
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    let (sum, error) = two_sum(a * b, c);
    to_odd(sum, error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    proptest! {
        #[test]
        fn fma_rounds_once(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
            let (a, b, c) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            prop_assert!(same(fma32(a, b, c), a.mul_add(b, c)), "{a} {b} {c}");
            // Operands of like size, where the sum cancels.
            let near = -(a * b);
            prop_assert!(same(fma32(a, b, near), a.mul_add(b, near)), "{a} {b} {near}");
        }

        #[test]
        fn directed_results_enclose_the_nearest(a in any::<f64>(), b in any::<f64>()) {
            for op in [add64, mul64, div64] {
                let near = op(a, b, Mode::Near);
                let (down, up, zero) = (op(a, b, Mode::Minus), op(a, b, Mode::Plus), op(a, b, Mode::Zero));
                if near.is_nan() {
                    prop_assert!(down.is_nan() && up.is_nan() && zero.is_nan());
                    continue;
                }
                prop_assert!(down <= near && near <= up);
                prop_assert!(down == up || down.next_up() == up, "{down} and {up} are not neighbours");
                let inward = if near < 0.0 { up } else { down };
                prop_assert!(zero == inward || near == 0.0);
            }
        }

        #[test]
        fn directed_fma_is_exact_where_integers_are(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000, c in any::<i32>()) {
            let exact = (a * b + i64::from(c)) as f64;
            for mode in [Mode::Zero, Mode::Minus, Mode::Plus] {
                prop_assert_eq!(fma64(a as f64, b as f64, f64::from(c), mode), exact);
            }
        }
    }
}
