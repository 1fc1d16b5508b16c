//! Comparisons.

use half::{bf16, f16};

use super::{Lower, Opcode};
use crate::{
    code::{Combine, FnCmp, Op, Pred, SINK},
    error::Result,
    num::round::flush,
    syntax::{Inst, Operand},
    types::Type,
};

/// A comparison of numbers, with what unordered operands give.
macro_rules! ordered {
    ($name:expr, $a:ident, $b:ident, $x:expr, $y:expr, $nan:expr) => {
        match $name {
            "eq" => Some(compare!(|$a, $b| $x == $y)),
            "ne" => Some(compare!(|$a, $b| $x != $y && !$nan)),
            "lt" => Some(compare!(|$a, $b| $x < $y)),
            "le" => Some(compare!(|$a, $b| $x <= $y)),
            "gt" => Some(compare!(|$a, $b| $x > $y)),
            "ge" => Some(compare!(|$a, $b| $x >= $y)),
            "equ" => Some(compare!(|$a, $b| $x == $y || $nan)),
            "neu" => Some(compare!(|$a, $b| $x != $y)),
            "ltu" => Some(compare!(|$a, $b| $x < $y || $nan)),
            "leu" => Some(compare!(|$a, $b| $x <= $y || $nan)),
            "gtu" => Some(compare!(|$a, $b| $x > $y || $nan)),
            "geu" => Some(compare!(|$a, $b| $x >= $y || $nan)),
            "num" => Some(compare!(|$a, $b| !$nan)),
            "nan" => Some(compare!(|$a, $b| $nan)),
            _ => None,
        }
    };
}

macro_rules! integers {
    ($name:expr, $t:ty, $u:ty) => {
        match $name {
            "eq" => Some(compare!(|a, b| a as $t == b as $t)),
            "ne" => Some(compare!(|a, b| a as $t != b as $t)),
            "lt" => Some(compare!(|a, b| (a as $t) < b as $t)),
            "le" => Some(compare!(|a, b| a as $t <= b as $t)),
            "gt" => Some(compare!(|a, b| a as $t > b as $t)),
            "ge" => Some(compare!(|a, b| a as $t >= b as $t)),
            "lo" => Some(compare!(|a, b| (a as $u) < b as $u)),
            "ls" => Some(compare!(|a, b| a as $u <= b as $u)),
            "hi" => Some(compare!(|a, b| a as $u > b as $u)),
            "hs" => Some(compare!(|a, b| a as $u >= b as $u)),
            _ => None,
        }
    };
}

fn single(bits: u64, ftz: bool) -> f32 {
    let value = f32::from_bits(bits as u32);
    if ftz { flush(value) } else { value }
}

fn small(bits: u64, brain: bool, ftz: bool) -> f32 {
    let bits = bits as u16;
    if brain {
        return bf16::from_bits(bits).to_f32();
    }
    let bits = if ftz && bits & 0x7C00 == 0 { bits & 0x8000 } else { bits };
    f16::from_bits(bits).to_f32()
}

/// The comparison `name` of values of type `ty`.
pub(super) fn comparison(name: &str, ty: Type, ftz: bool, shift: u32) -> Option<FnCmp> {
    match ty {
        Type::B16 | Type::U16 => integers!(name, u16, u16),
        Type::S16 => integers!(name, i16, u16),
        Type::B32 | Type::U32 => integers!(name, u32, u32),
        Type::S32 => integers!(name, i32, u32),
        Type::B64 | Type::U64 => integers!(name, u64, u64),
        Type::S64 => integers!(name, i64, u64),
        Type::F32 => ordered!(
            name,
            a,
            b,
            single(a, ftz),
            single(b, ftz),
            (single(a, ftz).is_nan() || single(b, ftz).is_nan())
        ),
        Type::F64 => ordered!(
            name,
            a,
            b,
            f64::from_bits(a),
            f64::from_bits(b),
            (f64::from_bits(a).is_nan() || f64::from_bits(b).is_nan())
        ),
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => {
            let brain = matches!(ty, Type::Bf16 | Type::Bf16x2);
            ordered!(
                name,
                a,
                b,
                small(a >> shift, brain, ftz),
                small(b >> shift, brain, ftz),
                (small(a >> shift, brain, ftz).is_nan() || small(b >> shift, brain, ftz).is_nan())
            )
        }
        _ => None,
    }
}

impl Lower<'_> {
    pub(super) fn compare(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        if op.base == "testp" {
            return self.test(inst, op);
        }
        let Some(name) = op.mods.first().copied() else { return self.refuse(op, "no comparison named") };
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        let combine = if op.has("and") {
            Combine::And
        } else if op.has("or") {
            Combine::Or
        } else if op.has("xor") {
            Combine::Xor
        } else {
            Combine::None
        };
        let packed = matches!(ty, Type::F16x2 | Type::Bf16x2);
        let ftz = op.has("ftz");
        let Some(f) = comparison(name, ty, ftz, 0) else { return self.refuse(op, "no such comparison") };
        let (a, b) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
        let c = if combine == Combine::None { Pred::TRUE } else { self.pred(self.at(inst, op, 3)?, op)? };
        if op.base == "set" {
            let d = self.dst(inst, op, 0)?;
            let to = op.types[0];
            if packed {
                return self.packed_set(inst, op, a, b);
            }
            let yes = match to {
                Type::F32 => u64::from(1f32.to_bits()),
                Type::F16 => 0x3C00,
                Type::Bf16 => 0x3F80,
                Type::U16 | Type::S16 => 0xFFFF,
                _ => 0xFFFF_FFFF,
            };
            self.emit(inst, Op::Set { f, a, b, d, combine, c, yes });
            return Ok(());
        }
        let (p, q) = match self.at(inst, op, 0)? {
            Operand::Pair(pair) => (self.pred_dst(&pair.0, op)?, self.pred_dst(&pair.1, op)?),
            other => (self.pred_dst(other, op)?, SINK),
        };
        if packed {
            let Some(hi) = comparison(name, ty, ftz, 16) else {
                return self.refuse(op, "no such comparison");
            };
            self.emit(inst, Op::Compare2 { lo: f, hi, a, b, p, q, combine, c });
        } else {
            self.emit(inst, Op::Compare { f, a, b, p, q, combine, c });
        }
        Ok(())
    }

    /// `set` on a pair: each half of the result is true or false.
    fn packed_set(
        &mut self,
        inst: &Inst,
        op: &Opcode<'_>,
        a: crate::code::Src,
        b: crate::code::Src,
    ) -> Result<()> {
        let (to, ty, ftz) = (op.types[0], op.types[1], op.has("ftz"));
        let one: u64 = match to {
            Type::F16x2 => 0x3C00,
            Type::Bf16x2 => 0x3F80,
            _ => 0xFFFF,
        };
        if op.has("and") || op.has("or") || op.has("xor") {
            return self.refuse(op, "a combined comparison of pairs is not supported");
        }
        let name = op.mods[0];
        let halves = (comparison(name, ty, ftz, 0), comparison(name, ty, ftz, 16));
        let (Some(lo), Some(hi)) = halves else { return self.refuse(op, "no such comparison") };
        let d = self.dst(inst, op, 0)?;
        let f =
            Box::new(move |d: &mut crate::code::Row, a: &crate::code::Row, b: &crate::code::Row, _: u32| {
                let (lo, hi) = (lo(a, b), hi(a, b));
                for (lane, value) in d.iter_mut().enumerate() {
                    let half = |mask: u32| if mask >> lane & 1 == 1 { one } else { 0 };
                    *value = half(lo) | half(hi) << 16;
                }
            });
        self.emit(inst, Op::Map2 { f, d, a, b });
        Ok(())
    }

    fn test(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty @ (Type::F32 | Type::F64)) = op.ty() else { return self.refuse(op, "not for this type") };
        let wide = ty == Type::F64;
        let kind: fn(f64, bool) -> bool = match op.mods.first().copied() {
            Some("finite") => |x, _| x.is_finite(),
            Some("infinite") => |x, _| x.is_infinite(),
            Some("number") => |x, _| !x.is_nan(),
            Some("notanumber") => |x, _| x.is_nan(),
            Some("normal") => |x, wide| if wide { x.is_normal() } else { (x as f32).is_normal() },
            Some("subnormal") => |x, wide| if wide { x.is_subnormal() } else { (x as f32).is_subnormal() },
            _ => return self.refuse(op, "no such test"),
        };
        let a = self.src(inst, op, 1, ty)?;
        let p = self.pred_dst(self.at(inst, op, 0)?, op)?;
        let f = Box::new(move |a: &crate::code::Row| {
            let mut mask = 0;
            for (lane, &bits) in a.iter().enumerate() {
                let value = if wide { f64::from_bits(bits) } else { f64::from(f32::from_bits(bits as u32)) };
                mask |= u32::from(kind(value, wide)) << lane;
            }
            mask
        });
        self.emit(inst, Op::Test { f, a, p });
        Ok(())
    }
}
