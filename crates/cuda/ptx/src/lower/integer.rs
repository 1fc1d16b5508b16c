//! Integer arithmetic.

// One expression serves eight types; in some of them a cast or a comparison with 0 says nothing.
#![allow(clippy::unnecessary_cast, clippy::absurd_extreme_comparisons)]

use super::{Lower, Opcode};
use crate::{
    code::{Carry, CarryKind, Fn1, Fn2, Fn3, Op},
    error::Result,
    syntax::Inst,
    types::Type,
};

/// One function for each integer type; `$t` is the Rust type inside the expression.
macro_rules! typed {
    ($ty:expr, $t:ident => $make:expr) => {
        match $ty {
            Type::U8 | Type::B8 => {
                #[allow(dead_code)]
                type $t = u8;
                Some($make)
            }
            Type::S8 => {
                #[allow(dead_code)]
                type $t = i8;
                Some($make)
            }
            Type::U16 | Type::B16 => {
                #[allow(dead_code)]
                type $t = u16;
                Some($make)
            }
            Type::S16 => {
                #[allow(dead_code)]
                type $t = i16;
                Some($make)
            }
            Type::U32 | Type::B32 => {
                #[allow(dead_code)]
                type $t = u32;
                Some($make)
            }
            Type::S32 => {
                #[allow(dead_code)]
                type $t = i32;
                Some($make)
            }
            Type::U64 | Type::B64 => {
                #[allow(dead_code)]
                type $t = u64;
                Some($make)
            }
            Type::S64 => {
                #[allow(dead_code)]
                type $t = i64;
                Some($make)
            }
            _ => None,
        }
    };
}

/// Keeps the low `bytes` of a value: the narrow types live zero-extended.
#[inline]
fn cut(value: u64, bytes: usize) -> u64 {
    match bytes {
        1 => value & 0xFF,
        2 => value & 0xFFFF,
        4 => value & 0xFFFF_FFFF,
        _ => value,
    }
}

/// Applies `f` to both halves of a packed pair.
#[inline]
fn halves(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    let lo = f(a as u16, b as u16);
    let hi = f((a >> 16) as u16, (b >> 16) as u16);
    u64::from(hi) << 16 | u64::from(lo)
}

impl Lower<'_> {
    pub(super) fn integer(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if op.has("cc") || matches!(op.base, "addc" | "subc" | "madc") {
            return self.carry(inst, op, ty);
        }
        match op.base {
            "abs" | "neg" => {
                let f = self.unary(op, ty)?;
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
                self.emit(inst, Op::Map1 { f, d, a });
            }
            "add" | "sub" | "div" | "rem" | "min" | "max" | "mul" | "mul24" => {
                let f = self.binary(op, ty)?;
                let (d, a, b) =
                    (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                self.emit(inst, Op::Map2 { f, d, a, b });
            }
            "mad" | "mad24" | "sad" | "dp4a" | "dp2a" => {
                let f = self.ternary(op, ty)?;
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
                let (b, c) = (self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                self.emit(inst, Op::Map3 { f, d, a, b, c });
            }
            _ => return self.refuse(op, "not an integer instruction"),
        }
        Ok(())
    }

    fn unary(&self, op: &Opcode<'_>, ty: Type) -> Result<Fn1> {
        let f = match op.base {
            "abs" => typed!(ty, T => map1!(|a| {
                let value = a as T;
                #[allow(unused_comparisons)]
                let value = if value < 0 { (0 as T).wrapping_sub(value) } else { value };
                cut(value as u64, size_of::<T>())
            })),
            _ => typed!(ty, T => map1!(|a| cut((0 as T).wrapping_sub(a as T) as u64, size_of::<T>()))),
        };
        f.map_or_else(|| self.refuse(op, "not for this type"), Ok)
    }

    fn binary(&self, op: &Opcode<'_>, ty: Type) -> Result<Fn2> {
        if let Type::U16x2 | Type::S16x2 = ty {
            let signed = ty == Type::S16x2;
            return Ok(match (op.base, signed) {
                ("add", _) => map2!(|a, b| halves(a, b, u16::wrapping_add)),
                ("sub", _) => map2!(|a, b| halves(a, b, u16::wrapping_sub)),
                ("min", false) => map2!(|a, b| halves(a, b, u16::min)),
                ("max", false) => map2!(|a, b| halves(a, b, u16::max)),
                ("min", true) if op.has("relu") => {
                    map2!(|a, b| halves(a, b, |x, y| (x as i16).min(y as i16).max(0) as u16))
                }
                ("max", true) if op.has("relu") => {
                    map2!(|a, b| halves(a, b, |x, y| (x as i16).max(y as i16).max(0) as u16))
                }
                ("min", true) => map2!(|a, b| halves(a, b, |x, y| (x as i16).min(y as i16) as u16)),
                ("max", true) => map2!(|a, b| halves(a, b, |x, y| (x as i16).max(y as i16) as u16)),
                _ => return self.refuse(op, "not for this type"),
            });
        }
        if op.has("relu") && ty == Type::S32 {
            return match op.base {
                "min" => Ok(map2!(|a, b| u64::from((a as i32).min(b as i32).max(0) as u32))),
                "max" => Ok(map2!(|a, b| u64::from((a as i32).max(b as i32).max(0) as u32))),
                _ => self.refuse(op, "no such modifier"),
            };
        }
        if op.has("sat") && ty == Type::S32 {
            return match op.base {
                "add" => Ok(map2!(|a, b| u64::from((a as i32).saturating_add(b as i32) as u32))),
                "sub" => Ok(map2!(|a, b| u64::from((a as i32).saturating_sub(b as i32) as u32))),
                _ => self.refuse(op, "no such modifier"),
            };
        }
        let f = match op.base {
            "add" => typed!(ty, T => map2!(|a, b| cut((a as T).wrapping_add(b as T) as u64, size_of::<T>()))),
            "sub" => typed!(ty, T => map2!(|a, b| cut((a as T).wrapping_sub(b as T) as u64, size_of::<T>()))),
            "min" => typed!(ty, T => map2!(|a, b| cut((a as T).min(b as T) as u64, size_of::<T>()))),
            "max" => typed!(ty, T => map2!(|a, b| cut((a as T).max(b as T) as u64, size_of::<T>()))),
            // A division by zero gives what GPUs give: all ones, for the remainder too.
            "div" => typed!(ty, T => slow2!(|a, b| {
                let (x, y) = (a as T, b as T);
                cut(if y == 0 { !0 } else { x.wrapping_div(y) as u64 }, size_of::<T>())
            })),
            "rem" => typed!(ty, T => slow2!(|a, b| {
                let (x, y) = (a as T, b as T);
                cut(if y == 0 { !0 } else { x.wrapping_rem(y) as u64 }, size_of::<T>())
            })),
            "mul" if op.has("wide") => match ty {
                Type::U16 => Some(map2!(|a, b| u64::from(a as u16 as u32 * b as u16 as u32))),
                Type::S16 => Some(map2!(|a, b| u64::from((a as i16 as i32 * b as i16 as i32) as u32))),
                Type::U32 => Some(map2!(|a, b| (a as u32 as u64) * (b as u32 as u64))),
                Type::S32 => Some(map2!(|a, b| ((a as i32 as i64) * (b as i32 as i64)) as u64)),
                _ => None,
            },
            "mul" if op.has("hi") => match ty {
                Type::U16 => Some(map2!(|a, b| u64::from((a as u16 as u32 * b as u16 as u32) >> 16))),
                Type::S16 => {
                    Some(map2!(|a, b| u64::from(((a as i16 as i32 * b as i16 as i32) >> 16) as u16)))
                }
                Type::U32 => Some(map2!(|a, b| ((a as u32 as u64) * (b as u32 as u64)) >> 32)),
                Type::S32 => {
                    Some(map2!(|a, b| u64::from((((a as i32 as i64) * (b as i32 as i64)) >> 32) as u32)))
                }
                Type::U64 => Some(map2!(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64)),
                Type::S64 => Some(map2!(|a, b| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64)),
                _ => None,
            },
            "mul" => typed!(ty, T => map2!(|a, b| cut((a as T).wrapping_mul(b as T) as u64, size_of::<T>()))),
            "mul24" => {
                let (signed, hi) = (ty == Type::S32, op.has("hi"));
                Some(map2!(|a, b| mul24(a, b, signed, hi)))
            }
            _ => None,
        };
        f.map_or_else(|| self.refuse(op, "not for this type"), Ok)
    }

    fn ternary(&self, op: &Opcode<'_>, ty: Type) -> Result<Fn3> {
        let f = match op.base {
            "mad" if op.has("wide") => match ty {
                Type::U16 => Some(map3!(|a, b, c| {
                    u64::from((a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32))
                })),
                Type::S16 => Some(map3!(|a, b, c| {
                    u64::from((a as i16 as i32 * b as i16 as i32).wrapping_add(c as i32) as u32)
                })),
                Type::U32 => Some(map3!(|a, b, c| ((a as u32 as u64) * (b as u32 as u64)).wrapping_add(c))),
                Type::S32 => Some(map3!(
                    |a, b, c| ((a as i32 as i64) * (b as i32 as i64)).wrapping_add(c as i64) as u64
                )),
                _ => None,
            },
            "mad" if op.has("hi") => match ty {
                Type::U16 => Some(map3!(|a, b, c| {
                    u64::from((((a as u16 as u32 * b as u16 as u32) >> 16) as u16).wrapping_add(c as u16))
                })),
                Type::S16 => Some(map3!(|a, b, c| {
                    u64::from((((a as i16 as i32 * b as i16 as i32) >> 16) as u16).wrapping_add(c as u16))
                })),
                Type::U32 => Some(map3!(|a, b, c| {
                    u64::from(((((a as u32 as u64) * (b as u32 as u64)) >> 32) as u32).wrapping_add(c as u32))
                })),
                Type::S32 if op.has("sat") => Some(map3!(|a, b, c| {
                    let hi = (((a as i32 as i64) * (b as i32 as i64)) >> 32) as i32;
                    u64::from(hi.saturating_add(c as i32) as u32)
                })),
                Type::S32 => Some(map3!(|a, b, c| {
                    u64::from(((((a as i32 as i64) * (b as i32 as i64)) >> 32) as u32).wrapping_add(c as u32))
                })),
                Type::U64 => {
                    Some(map3!(|a, b, c| (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)))
                }
                Type::S64 => Some(map3!(|a, b, c| {
                    (((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64).wrapping_add(c)
                })),
                _ => None,
            },
            "mad" => typed!(ty, T => map3!(|a, b, c| {
                cut((a as T).wrapping_mul(b as T).wrapping_add(c as T) as u64, size_of::<T>())
            })),
            "mad24" => {
                let (signed, hi, sat) = (ty == Type::S32, op.has("hi"), op.has("sat"));
                Some(map3!(|a, b, c| {
                    let product = mul24(a, b, signed, hi) as u32;
                    u64::from(if sat {
                        (product as i32).saturating_add(c as i32) as u32
                    } else {
                        product.wrapping_add(c as u32)
                    })
                }))
            }
            "sad" => typed!(ty, T => map3!(|a, b, c| {
                cut((c as T).wrapping_add((a as T).abs_diff(b as T) as T) as u64, size_of::<T>())
            })),
            "dp4a" | "dp2a" => {
                let [at, bt] = op.types[..] else { return self.refuse(op, "needs two types") };
                let (a_signed, b_signed) = (at == Type::S32, bt == Type::S32);
                let hi = op.has("hi");
                Some(if op.base == "dp4a" {
                    map3!(|a, b, c| {
                        let mut sum = c as u32;
                        for byte in 0..4 {
                            let (x, y) = ((a >> (byte * 8)) as u8, (b >> (byte * 8)) as u8);
                            let x = if a_signed { x as i8 as i32 } else { x as i32 };
                            let y = if b_signed { y as i8 as i32 } else { y as i32 };
                            sum = sum.wrapping_add((x * y) as u32);
                        }
                        u64::from(sum)
                    })
                } else {
                    map3!(|a, b, c| {
                        let mut sum = c as u32;
                        for part in 0..2 {
                            let (x, y) = (
                                (a >> (part * 16)) as u16,
                                (b >> (part * 8 + if hi { 16 } else { 0 })) as u8,
                            );
                            let x = if a_signed { x as i16 as i32 } else { x as i32 };
                            let y = if b_signed { y as i8 as i32 } else { y as i32 };
                            sum = sum.wrapping_add((x * y) as u32);
                        }
                        u64::from(sum)
                    })
                })
            }
            _ => None,
        };
        f.map_or_else(|| self.refuse(op, "not for this type"), Ok)
    }

    fn carry(&mut self, inst: &Inst, op: &Opcode<'_>, ty: Type) -> Result<()> {
        let kind = match op.base {
            "add" | "addc" => CarryKind::Add,
            "sub" | "subc" => CarryKind::Sub,
            "mad" | "madc" if op.has("hi") => CarryKind::MadHi,
            "mad" | "madc" => CarryKind::MadLo,
            _ => return self.refuse(op, "no carry here"),
        };
        let wide = match ty.bytes() {
            4 => false,
            8 => true,
            _ => return self.refuse(op, "not for this type"),
        };
        let d = self.dst(inst, op, 0)?;
        let (a, b) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
        let c = if inst.operands.len() > 3 { self.src(inst, op, 3, ty)? } else { self.value(0) };
        let carry = Carry {
            kind,
            wide,
            signed: ty.is_signed(),
            carry_in: op.base.ends_with('c'),
            carry_out: op.has("cc"),
            d,
            a,
            b,
            c,
        };
        self.emit(inst, Op::Carry(Box::new(carry)));
        Ok(())
    }
}

/// The low or high 32 of the 48 bits that two 24-bit numbers make.
#[inline]
fn mul24(a: u64, b: u64, signed: bool, hi: bool) -> u64 {
    let product = if signed {
        let extend = |value: u64| i64::from(((value as u32) << 8) as i32 >> 8);
        extend(a) * extend(b)
    } else {
        ((a & 0xFF_FFFF) * (b & 0xFF_FFFF)) as i64
    };
    u64::from((if hi { product >> 16 } else { product }) as u32)
}
