//! Arithmetic of f16 and bf16, alone and in pairs.

use super::{Lower, Opcode};
use crate::{
    code::Op,
    error::Result,
    num::{
        round::{Mode, fma_odd},
        small::{BF16, F16, Format},
    },
    syntax::Inst,
    types::Type,
};

/// How results are finished.
#[derive(Clone, Copy)]
struct Finish {
    format: Format,
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Finish {
    fn load(self, bits: u64) -> f64 {
        let bits = bits as u32 & 0xFFFF;
        let subnormal = bits & !(1 << 15) < 1 << self.format.fraction;
        if self.ftz && subnormal { self.format.decode(bits & 0x8000) } else { self.format.decode(bits) }
    }

    fn store(self, value: f64) -> u64 {
        let mut value = value;
        if self.relu && !value.is_nan() && value <= 0.0 {
            value = 0.0;
        }
        if self.sat {
            value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
        }
        let bits = self.format.encode(value, Mode::Near, false);
        let subnormal = bits & !(1 << 15) < 1 << self.format.fraction;
        u64::from(if self.ftz && subnormal { bits & 0x8000 } else { bits })
    }
}

fn smallest(a: f64, b: f64, nan: bool) -> f64 {
    if nan && (a.is_nan() || b.is_nan()) {
        return f64::NAN;
    }
    if a.is_nan() || b < a || (b == a && b.is_sign_negative()) { b } else { a }
}

fn largest(a: f64, b: f64, nan: bool) -> f64 {
    if nan && (a.is_nan() || b.is_nan()) {
        return f64::NAN;
    }
    if a.is_nan() || b > a || (b == a && a.is_sign_negative()) { b } else { a }
}

impl Lower<'_> {
    pub(super) fn half(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if op.types.len() > 1 {
            return self.refuse(op, "mixed precision is not supported");
        }
        let pair = matches!(ty, Type::F16x2 | Type::Bf16x2);
        let format = if matches!(ty, Type::F16 | Type::F16x2) { F16 } else { BF16 };
        let finish = Finish { format, ftz: op.has("ftz"), sat: op.has("sat"), relu: op.has("relu") };
        let (nan, xorsign) = (op.has("NaN"), op.has("xorsign"));
        let d = self.dst(inst, op, 0)?;
        match op.base {
            "neg" | "abs" => {
                let a = self.src(inst, op, 1, ty)?;
                // A NaN comes out as the one NaN that GPUs make.
                let negate = op.base == "neg";
                let infinity = ((1u64 << format.exponent) - 1) << format.fraction;
                let one = move |a: u64| {
                    let bits = a & 0xFFFF;
                    if bits & 0x7FFF > infinity {
                        return 0x7FFF;
                    }
                    if negate { bits ^ 0x8000 } else { bits & 0x7FFF }
                };
                let f = if pair { map1!(|a| one(a >> 16) << 16 | one(a)) } else { map1!(|a| one(a)) };
                self.emit(inst, Op::Map1 { f, d, a });
            }
            "ex2" | "tanh" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" => {
                let g: fn(f64) -> f64 = match op.base {
                    "ex2" => f64::exp2,
                    "tanh" => f64::tanh,
                    _ => return self.refuse(op, "not for this type"),
                };
                let one = move |a: u64| finish.store(g(finish.load(a)));
                let a = self.src(inst, op, 1, ty)?;
                let f = if pair { slow1!(|a| one(a >> 16) << 16 | one(a)) } else { slow1!(|a| one(a)) };
                self.emit(inst, Op::Map1 { f, d, a });
            }
            "add" | "sub" | "mul" | "min" | "max" => {
                let g: fn(f64, f64, bool) -> f64 = match op.base {
                    "add" => |a, b, _| fma_odd(a, 1.0, b),
                    "sub" => |a, b, _| fma_odd(a, 1.0, -b),
                    "mul" => |a, b, _| a * b,
                    "min" => smallest,
                    _ => largest,
                };
                let one = move |a: u64, b: u64| {
                    if xorsign {
                        let sign = (a ^ b) & 0x8000;
                        return finish.store(g(finish.load(a & 0x7FFF), finish.load(b & 0x7FFF), nan))
                            & 0x7FFF
                            | sign;
                    }
                    finish.store(g(finish.load(a), finish.load(b), nan))
                };
                let (a, b) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                let f = if pair {
                    slow2!(|a, b| one(a >> 16, b >> 16) << 16 | one(a, b))
                } else {
                    slow2!(|a, b| one(a, b))
                };
                self.emit(inst, Op::Map2 { f, d, a, b });
            }
            "fma" => {
                let oob = op.has("oob");
                let one = move |a: u64, b: u64, c: u64| {
                    if oob && (a & 0x7FFF == 0x7FFF || b & 0x7FFF == 0x7FFF) {
                        return 0;
                    }
                    finish.store(fma_odd(finish.load(a), finish.load(b), finish.load(c)))
                };
                let (a, b, c) =
                    (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                let f = if pair {
                    slow3!(|a, b, c| one(a >> 16, b >> 16, c >> 16) << 16 | one(a, b, c))
                } else {
                    slow3!(|a, b, c| one(a, b, c))
                };
                self.emit(inst, Op::Map3 { f, d, a, b, c });
            }
            _ => return self.refuse(op, "not for this type"),
        }
        Ok(())
    }
}
