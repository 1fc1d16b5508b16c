//! Arithmetic of f32 and f64.

use super::{Lower, Opcode};
use crate::{
    code::{Fn1, Fn2, Fn3, Op},
    error::Result,
    num::round::{
        Mode, add32, add64, div32, div64, flush, fma32, fma32_mode, fma64, mul32, mul64, saturate32, sqrt32,
        sqrt64,
    },
    syntax::Inst,
    types::Type,
};

#[inline]
fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

#[inline]
fn b(value: f32) -> u64 {
    // Every NaN a GPU computes in f32 is this one.
    u64::from(if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits() })
}

#[inline]
fn g(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// A NaN a GPU computes in f64 has this payload, and inputs pass through; Rust's own quiet NaN is the same.
#[inline]
fn h(value: f64) -> u64 {
    value.to_bits()
}

fn min32(a: f32, b: f32, nan: bool) -> f32 {
    if nan && (a.is_nan() || b.is_nan()) {
        return f32::NAN;
    }
    if a.is_nan() || (b < a) || (b == a && b.is_sign_negative()) { b } else { a }
}

fn max32(a: f32, b: f32, nan: bool) -> f32 {
    if nan && (a.is_nan() || b.is_nan()) {
        return f32::NAN;
    }
    if a.is_nan() || (b > a) || (b == a && a.is_sign_negative()) { b } else { a }
}

fn min64(a: f64, b: f64) -> f64 {
    if a.is_nan() || (b < a) || (b == a && b.is_sign_negative()) { b } else { a }
}

fn max64(a: f64, b: f64) -> f64 {
    if a.is_nan() || (b > a) || (b == a && a.is_sign_negative()) { b } else { a }
}

/// Runs a scalar f32 function with `.ftz` and `.sat` around it.
macro_rules! wrap32 {
    ($op:expr, $macro:ident, |$($x:ident),+| $body:expr) => {{
        match ($op.has("ftz"), $op.has("sat")) {
            (false, false) => $macro!(|$($x),+| { $(let $x = f($x);)+ b($body) }),
            (true, false) => $macro!(|$($x),+| { $(let $x = flush(f($x));)+ b(flush($body)) }),
            (false, true) => $macro!(|$($x),+| { $(let $x = f($x);)+ b(saturate32($body)) }),
            (true, true) => $macro!(|$($x),+| { $(let $x = flush(f($x));)+ b(saturate32(flush($body))) }),
        }
    }};
}

impl Lower<'_> {
    pub(super) fn float(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        let wide = match ty {
            Type::F32 => false,
            Type::F64 => true,
            _ => return self.packed(inst, op),
        };
        let mode = Mode::of(&op.mods);
        match op.base {
            "neg" | "abs" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => {
                let f = if wide { unary64(op, mode) } else { unary32(op, mode) };
                let Some(f) = f else { return self.refuse(op, "not for this type") };
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
                self.emit(inst, Op::Map1 { f, d, a });
            }
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => {
                if inst.operands.len() == 4 && matches!(op.base, "min" | "max") {
                    return self.three_way(inst, op);
                }
                if op.types.len() > 1 {
                    return self.refuse(op, "mixed precision is not supported");
                }
                let f = if wide { binary64(op, mode) } else { binary32(op, mode) };
                let Some(f) = f else { return self.refuse(op, "not for this type") };
                let (d, a, b) =
                    (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                self.emit(inst, Op::Map2 { f, d, a, b });
            }
            "fma" | "mad" => {
                if op.types.len() > 1 {
                    return self.refuse(op, "mixed precision is not supported");
                }
                let f = if wide { fused64(mode) } else { fused32(op, mode) };
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
                let (b, c) = (self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                self.emit(inst, Op::Map3 { f, d, a, b, c });
            }
            _ => return self.refuse(op, "not for floating point"),
        }
        Ok(())
    }

    /// `min` and `max` of three.
    fn three_way(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let nan = op.has("NaN");
        let smallest = op.base == "min";
        if op.has("xorsign") || op.ty() != Some(Type::F32) {
            return self.refuse(op, "not for this type");
        }
        let f = wrap32!(op, map3, |x, y, z| if smallest {
            min32(min32(x, y, nan), z, nan)
        } else {
            max32(max32(x, y, nan), z, nan)
        });
        let ty = Type::F32;
        let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
        let (b, c) = (self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
        self.emit(inst, Op::Map3 { f, d, a, b, c });
        Ok(())
    }

    /// `.f32x2`: two values in one 64-bit register.
    fn packed(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let ty = Type::F32x2;
        let mode = Mode::of(&op.mods);
        let ftz = op.has("ftz");
        let clean = move |x: f32| if ftz { flush(x) } else { x };
        let pair = move |lo: f32, hi: f32| b(clean(hi)) << 32 | b(clean(lo));
        let (d, a, second) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
        let two: fn(f32, f32, Mode) -> f32 = match op.base {
            "add" => add32,
            "sub" => |x, y, mode| add32(x, -y, mode),
            "mul" => mul32,
            "fma" => {
                let c = self.src(inst, op, 3, ty)?;
                let f = slow3!(|x, y, z| pair(
                    fma32_mode(clean(f(x)), clean(f(y)), clean(f(z)), mode),
                    fma32_mode(clean(f(x >> 32)), clean(f(y >> 32)), clean(f(z >> 32)), mode)
                ));
                self.emit(inst, Op::Map3 { f, d, a, b: second, c });
                return Ok(());
            }
            _ => return self.refuse(op, "not for this type"),
        };
        let f = slow2!(|x, y| pair(
            two(clean(f(x)), clean(f(y)), mode),
            two(clean(f(x >> 32)), clean(f(y >> 32)), mode)
        ));
        self.emit(inst, Op::Map2 { f, d, a, b: second });
        Ok(())
    }
}

fn unary32(op: &Opcode<'_>, mode: Mode) -> Option<Fn1> {
    Some(match op.base {
        "neg" => wrap32!(op, map1, |x| -x),
        "abs" => wrap32!(op, map1, |x| x.abs()),
        "rcp" => wrap32!(op, slow1, |x| div32(1.0, x, mode)),
        "sqrt" => wrap32!(op, slow1, |x| sqrt32(x, mode)),
        "rsqrt" => wrap32!(op, slow1, |x| (1.0 / f64::from(x).sqrt()) as f32),
        "sin" => wrap32!(op, slow1, |x| f64::from(x).sin() as f32),
        "cos" => wrap32!(op, slow1, |x| f64::from(x).cos() as f32),
        "lg2" => wrap32!(op, slow1, |x| f64::from(x).log2() as f32),
        "ex2" => wrap32!(op, slow1, |x| f64::from(x).exp2() as f32),
        "tanh" => wrap32!(op, slow1, |x| f64::from(x).tanh() as f32),
        _ => return None,
    })
}

fn unary64(op: &Opcode<'_>, mode: Mode) -> Option<Fn1> {
    Some(match op.base {
        "neg" => map1!(|x| x ^ 1 << 63),
        "abs" => map1!(|x| x & !(1 << 63)),
        // `.approx.ftz.f64` promises only the upper half; the exact result is one of those it allows.
        "rcp" => slow1!(|x| h(div64(1.0, g(x), mode))),
        "sqrt" => slow1!(|x| h(sqrt64(g(x), mode))),
        "rsqrt" => slow1!(|x| h(1.0 / g(x).sqrt())),
        _ => return None,
    })
}

fn binary32(op: &Opcode<'_>, mode: Mode) -> Option<Fn2> {
    let near = mode == Mode::Near;
    let nan = op.has("NaN");
    let xorsign = op.has("xorsign");
    Some(match op.base {
        "add" if near => wrap32!(op, map2, |x, y| x + y),
        "sub" if near => wrap32!(op, map2, |x, y| x - y),
        "mul" if near => wrap32!(op, map2, |x, y| x * y),
        "add" => wrap32!(op, slow2, |x, y| add32(x, y, mode)),
        "sub" => wrap32!(op, slow2, |x, y| add32(x, -y, mode)),
        "mul" => wrap32!(op, slow2, |x, y| mul32(x, y, mode)),
        "div" if near => wrap32!(op, map2, |x, y| x / y),
        "div" => wrap32!(op, slow2, |x, y| div32(x, y, mode)),
        "min" | "max" if xorsign => {
            let smallest = op.base == "min";
            wrap32!(op, map2, |x, y| {
                let sign = (x.to_bits() ^ y.to_bits()) & 0x8000_0000;
                let (x, y) = (x.abs(), y.abs());
                let value = if smallest { min32(x, y, nan) } else { max32(x, y, nan) };
                f32::from_bits(value.to_bits() & 0x7FFF_FFFF | sign)
            })
        }
        "min" => wrap32!(op, map2, |x, y| min32(x, y, nan)),
        "max" => wrap32!(op, map2, |x, y| max32(x, y, nan)),
        // The sign comes from the first operand.
        "copysign" => map2!(|x, y| y & 0x7FFF_FFFF | x & 0x8000_0000),
        _ => return None,
    })
}

fn binary64(op: &Opcode<'_>, mode: Mode) -> Option<Fn2> {
    let near = mode == Mode::Near;
    Some(match op.base {
        "add" if near => map2!(|x, y| h(g(x) + g(y))),
        "sub" if near => map2!(|x, y| h(g(x) - g(y))),
        "mul" if near => map2!(|x, y| h(g(x) * g(y))),
        "div" if near => map2!(|x, y| h(g(x) / g(y))),
        "add" => slow2!(|x, y| h(add64(g(x), g(y), mode))),
        "sub" => slow2!(|x, y| h(if g(y).is_nan() { g(x) + g(y) } else { add64(g(x), -g(y), mode) })),
        "mul" => slow2!(|x, y| h(mul64(g(x), g(y), mode))),
        "div" => slow2!(|x, y| h(div64(g(x), g(y), mode))),
        "min" => map2!(|x, y| h(min64(g(x), g(y)))),
        "max" => map2!(|x, y| h(max64(g(x), g(y)))),
        "copysign" => map2!(|x, y| y & !(1 << 63) | x & (1 << 63)),
        _ => return None,
    })
}

fn fused32(op: &Opcode<'_>, mode: Mode) -> Fn3 {
    if op.has("relu") {
        return wrap32!(op, map3, |x, y, z| {
            let value = fma32(x, y, z);
            if value < 0.0 { 0.0 } else { value }
        });
    }
    if mode == Mode::Near {
        wrap32!(op, map3, |x, y, z| fma32(x, y, z))
    } else {
        wrap32!(op, slow3, |x, y, z| fma32_mode(x, y, z, mode))
    }
}

fn fused64(mode: Mode) -> Fn3 {
    if mode == Mode::Near {
        slow3!(|x, y, z| h(g(x).mul_add(g(y), g(z))))
    } else {
        slow3!(|x, y, z| h(fma64(g(x), g(y), g(z), mode)))
    }
}
