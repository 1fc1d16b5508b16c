//! `atom` and `red`.

use super::{Lower, Opcode};
use crate::{
    code::{Atomic, AtomicKind, FnAtom, Op, SINK},
    error::Result,
    num::{
        convert::float,
        round::{Mode, fma_odd},
        small::{BF16, F16, Format},
    },
    syntax::{Inst, Operand},
    types::Type,
};

fn small(format: Format, a: u64, b: u64, f: impl Fn(f64, f64) -> f64) -> u64 {
    let (x, y) = (format.decode(a as u32 & 0xFFFF), format.decode(b as u32 & 0xFFFF));
    u64::from(format.encode(f(x, y), Mode::Near, false))
}

fn number_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b < a { b } else { a }
}

fn number_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b > a { b } else { a }
}

/// The new value of memory; both sides zero-extended.
pub(super) fn update(name: &str, ty: Type) -> Option<FnAtom> {
    let format = match ty {
        Type::F16 | Type::F16x2 => Some(F16),
        Type::Bf16 | Type::Bf16x2 => Some(BF16),
        _ => None,
    };
    if let Some(format) = format {
        let f: fn(f64, f64) -> f64 = match name {
            "add" => |a, b| fma_odd(a, 1.0, b),
            "min" => number_min,
            "max" => number_max,
            _ => return None,
        };
        return Some(if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            Box::new(move |old, b| small(format, old >> 16, b >> 16, f) << 16 | small(format, old, b, f))
        } else {
            Box::new(move |old, b| small(format, old, b, f))
        });
    }
    Some(match (name, ty) {
        ("add", Type::F32) => Box::new(|old, b| {
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            u64::from((x + y).to_bits())
        }),
        ("add", Type::F64) => Box::new(|old, b| (f64::from_bits(old) + f64::from_bits(b)).to_bits()),
        ("min", Type::F32) => Box::new(|old, b| {
            u64::from((number_min(float(old, Type::F32), float(b, Type::F32)) as f32).to_bits())
        }),
        ("max", Type::F32) => Box::new(|old, b| {
            u64::from((number_max(float(old, Type::F32), float(b, Type::F32)) as f32).to_bits())
        }),
        ("add", Type::U64 | Type::S64 | Type::B64) => Box::new(|old, b| old.wrapping_add(b)),
        ("add", Type::U32 | Type::S32 | Type::B32) => {
            Box::new(|old, b| u64::from((old as u32).wrapping_add(b as u32)))
        }
        ("min", Type::U32) => Box::new(|old, b| u64::from((old as u32).min(b as u32))),
        ("max", Type::U32) => Box::new(|old, b| u64::from((old as u32).max(b as u32))),
        ("min", Type::S32) => Box::new(|old, b| u64::from((old as i32).min(b as i32) as u32)),
        ("max", Type::S32) => Box::new(|old, b| u64::from((old as i32).max(b as i32) as u32)),
        ("min", Type::U64) => Box::new(|old, b| old.min(b)),
        ("max", Type::U64) => Box::new(|old, b| old.max(b)),
        ("min", Type::S64) => Box::new(|old, b| (old as i64).min(b as i64) as u64),
        ("max", Type::S64) => Box::new(|old, b| (old as i64).max(b as i64) as u64),
        ("and", _) => Box::new(|old, b| old & b),
        ("or", _) => Box::new(|old, b| old | b),
        ("xor", _) => Box::new(|old, b| old ^ b),
        ("exch", _) => Box::new(|_, b| b),
        ("inc", Type::U32) => Box::new(|old, b| if old as u32 >= b as u32 { 0 } else { old + 1 }),
        ("dec", Type::U32) => {
            Box::new(|old, b| if old == 0 || old as u32 > b as u32 { u64::from(b as u32) } else { old - 1 })
        }
        _ => return None,
    })
}

impl Lower<'_> {
    pub(super) fn atomic(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if op.has("async") || op.has("cluster::mbarrier") {
            return self.refuse(op, "asynchronous reductions are not supported");
        }
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let Some(name) = op.mods.iter().copied().find(|name| names.contains(name)) else {
            return self.refuse(op, "no operation named");
        };
        let width = ty.bytes();
        if !matches!(width, 2 | 4 | 8) {
            return self.refuse(op, "not for this type");
        }
        let first = usize::from(op.base == "atom");
        let address = self.address(inst, op, first)?;
        let list = |operand: &Operand| match operand {
            Operand::Vector(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        let operands = list(self.at(inst, op, first + 1)?);
        let mut b = Vec::new();
        for operand in &operands {
            b.push(self.src_of(operand, op, ty)?);
        }
        let mut d = vec![SINK; b.len()];
        if first == 1 {
            let targets = list(self.at(inst, op, 0)?);
            if targets.len() != b.len() && targets != [Operand::Sink] {
                return self.refuse(op, "vectors of different lengths");
            }
            for (place, target) in d.iter_mut().zip(&targets) {
                *place = self.row_of(target, op)?;
            }
        }
        let kind = if name == "cas" {
            // The operands are: what is expected, then what is written.
            let expected = b[0];
            b[0] = self.src(inst, op, first + 2, ty)?;
            AtomicKind::Compare(expected)
        } else if name == "add" && matches!(ty, Type::U32 | Type::S32) {
            AtomicKind::Add32
        } else {
            match update(name, ty) {
                Some(f) => AtomicKind::Update(f),
                None => return self.refuse(op, "not for this type"),
            }
        };
        self.emit(inst, Op::Atomic(Box::new(Atomic { address, width, d, b, kind })));
        Ok(())
    }
}
