//! `cvt`.

use super::{Lower, Opcode};
use crate::{
    code::{Fn1, Fn2, Op},
    error::Result,
    num::{
        convert::{Cvt, float, integer},
        round::Mode,
        small::{BF16, E4M3, E5M2, F16, Format, tf32},
    },
    syntax::Inst,
    types::Type,
};

/// The format of each half of a packed type.
fn element(ty: Type) -> Option<Format> {
    Some(match ty {
        Type::F16x2 => F16,
        Type::Bf16x2 => BF16,
        Type::E4m3x2 => E4M3,
        Type::E5m2x2 => E5M2,
        _ => return None,
    })
}

fn element_bits(format: Format) -> u32 {
    1 + format.exponent + format.fraction
}

impl Lower<'_> {
    pub(super) fn convert(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        if op.has("pack") {
            return self.pack(inst, op);
        }
        let [to, from] = op.types[..] else { return self.refuse(op, "no such conversion") };
        if op.has("rs") {
            return self.refuse(op, "stochastic rounding is not supported");
        }
        let mode = Mode::of(&op.mods);
        let (relu, finite) = (op.has("relu"), op.has("satfinite"));
        if to == Type::Tf32 {
            let (even, cut) = (op.has("rn"), op.has("rz"));
            let f = map1!(|a| {
                let bits = if relu && a as u32 >> 31 == 1 && !f32::from_bits(a as u32).is_nan() {
                    0
                } else {
                    a as u32
                };
                u64::from(tf32(bits, even, cut))
            });
            let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, from)?);
            self.emit(inst, Op::Map1 { f, d, a });
            return Ok(());
        }
        if let Some(format) = element(to) {
            return self.convert_to_pair(inst, op, from, format, mode, relu, finite);
        }
        let ftz = op.has("ftz");
        let integral = op.mods.iter().any(|name| matches!(*name, "rni" | "rzi" | "rmi" | "rpi"));
        let scalar =
            |ty: Type| ty.is_integer() || matches!(ty, Type::F16 | Type::Bf16 | Type::F32 | Type::F64);
        if !scalar(to) || !scalar(from) {
            return self.refuse(op, "no such conversion");
        }
        let cvt = Cvt { from, to, mode, integral, sat: op.has("sat"), ftz, relu, finite };
        let f = fast(cvt).unwrap_or_else(|| slow1!(|a| cvt.apply(a)));
        let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, from)?);
        self.emit(inst, Op::Map1 { f, d, a });
        // A signed result in a wider register carries its sign on.
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn convert_to_pair(
        &mut self,
        inst: &Inst,
        op: &Opcode<'_>,
        from: Type,
        format: Format,
        mode: Mode,
        relu: bool,
        finite: bool,
    ) -> Result<()> {
        let bits = element_bits(format);
        let clean = move |value: f64| if relu && value <= 0.0 { 0.0 } else { value };
        let encode = move |value: f64| u64::from(format.encode(clean(value), mode, finite));
        let d = self.dst(inst, op, 0)?;
        if from == Type::F32 {
            let (a, b) = (self.src(inst, op, 1, from)?, self.src(inst, op, 2, from)?);
            let f: Fn2 = slow2!(|a, b| encode(float(a, Type::F32)) << bits | encode(float(b, Type::F32)));
            self.emit(inst, Op::Map2 { f, d, a, b });
            return Ok(());
        }
        let Some(source) = element(from) else { return self.refuse(op, "no such conversion") };
        let width = element_bits(source);
        let part =
            move |a: u64, index: u32| source.decode((a >> (index * width)) as u32 & ((1 << width) - 1));
        let a = self.src(inst, op, 1, from)?;
        let f: Fn1 = slow1!(|a| encode(part(a, 1)) << bits | encode(part(a, 0)));
        self.emit(inst, Op::Map1 { f, d, a });
        Ok(())
    }

    /// `cvt.pack.sat`: narrow two integers, above what another register holds.
    fn pack(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let (Some(&to), Some(&from)) = (op.types.first(), op.types.get(1)) else {
            return self.refuse(op, "no such conversion");
        };
        let bits = to.bits();
        if !to.is_integer() || bits > 16 || from != Type::S32 {
            return self.refuse(op, "no such conversion");
        }
        let (low, high): (i128, i128) =
            if to.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let narrow = move |a: u64| integer(a, Type::S32).clamp(low, high) as u64 & ((1u64 << bits) - 1);
        let (d, a, b) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, from)?, self.src(inst, op, 2, from)?);
        let c = if inst.operands.len() > 3 { self.src(inst, op, 3, Type::B32)? } else { self.value(0) };
        let f = map3!(|a, b, c| (c << (2 * bits) | narrow(a) << bits | narrow(b)) & 0xFFFF_FFFF);
        self.emit(inst, Op::Map3 { f, d, a, b, c });
        Ok(())
    }
}

/// The conversions that every address computation uses.
fn fast(cvt: Cvt) -> Option<Fn1> {
    if cvt.sat || cvt.relu || cvt.ftz || cvt.integral {
        return match (cvt.from, cvt.to, cvt.mode) {
            (Type::F32, Type::S32, Mode::Zero) if !cvt.ftz && !cvt.sat => {
                Some(map1!(|a| u64::from(f32::from_bits(a as u32) as i32 as u32)))
            }
            _ => None,
        };
    }
    Some(match (cvt.from, cvt.to) {
        (Type::S32, Type::S64 | Type::U64 | Type::B64) => map1!(|a| a as i32 as i64 as u64),
        (Type::U32 | Type::B32, Type::S64 | Type::U64 | Type::B64) => map1!(|a| a & 0xFFFF_FFFF),
        (Type::U64 | Type::S64 | Type::B64 | Type::U32 | Type::S32, Type::U32 | Type::S32 | Type::B32) => {
            map1!(|a| a & 0xFFFF_FFFF)
        }
        (_, Type::U16) if cvt.from.is_integer() && cvt.from.bytes() >= 2 => map1!(|a| a & 0xFFFF),
        (Type::U16, Type::U32 | Type::S32 | Type::U64 | Type::S64) => map1!(|a| a & 0xFFFF),
        (Type::S16, Type::S32 | Type::U32) => map1!(|a| u64::from(a as i16 as i32 as u32)),
        (Type::U8, Type::U16 | Type::U32 | Type::S32 | Type::S16) => map1!(|a| a & 0xFF),
        (Type::S32, Type::F32) if cvt.mode == Mode::Near => {
            map1!(|a| u64::from((a as i32 as f32).to_bits()))
        }
        (Type::U32, Type::F32) if cvt.mode == Mode::Near => {
            map1!(|a| u64::from((a as u32 as f32).to_bits()))
        }
        (Type::S32, Type::F64) => map1!(|a| f64::from(a as i32).to_bits()),
        (Type::U32, Type::F64) => map1!(|a| f64::from(a as u32).to_bits()),
        (Type::F32, Type::F64) => map1!(|a| f64::from(f32::from_bits(a as u32)).to_bits()),
        _ => return None,
    })
}
