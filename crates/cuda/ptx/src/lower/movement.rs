//! Moves, selections, packing.

use super::{Lower, Opcode};
use crate::{
    code::{Combine, Fn3, Op, Pred, Row, Special, Src},
    error::Result,
    lex::Sym,
    syntax::{Inst, Operand},
    types::Type,
};

fn permute(a: u64, b: u64, c: u64, mode: Option<&str>) -> u64 {
    let bytes = (u64::from(b as u32) << 32 | u64::from(a as u32)).to_le_bytes();
    let mut out = [0u8; 4];
    let select = c as usize & 3;
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = match mode {
            None => {
                let nibble = (c >> (index * 4)) as usize & 0xF;
                let value = bytes[nibble & 7];
                if nibble & 8 != 0 { ((value as i8) >> 7) as u8 } else { value }
            }
            Some("f4e") => bytes[(select + index) & 7],
            Some("b4e") => bytes[(select + 8 - index) & 7],
            Some("rc8") => bytes[select],
            Some("ecl") => bytes[index.max(select)],
            Some("ecr") => bytes[index.min(select)],
            _ => bytes[(select & 1) * 2 + (index & 1)],
        };
    }
    u64::from(u32::from_le_bytes(out))
}

impl Lower<'_> {
    pub(super) fn movement(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        match op.base {
            "mov" => self.mov(inst, op, ty),
            "selp" => {
                let (d, a, b) =
                    (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                let p = self.pred(self.at(inst, op, 3)?, op)?;
                self.emit(inst, Op::Select { d, a, b, p });
                Ok(())
            }
            "slct" => {
                let test = ty;
                let value = op.types[0];
                let ftz = op.has("ftz");
                let f: Fn3 = if test == Type::F32 {
                    map3!(|a, b, c| {
                        let x = f32::from_bits(c as u32);
                        let x = if ftz { crate::num::round::flush(x) } else { x };
                        if x >= 0.0 { a } else { b }
                    })
                } else {
                    map3!(|a, b, c| if c as i32 >= 0 { a } else { b })
                };
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, value)?);
                let (b, c) = (self.src(inst, op, 2, value)?, self.src(inst, op, 3, test)?);
                self.emit(inst, Op::Map3 { f, d, a, b, c });
                Ok(())
            }
            "prmt" => {
                let mode = op.mods.iter().copied().find(|name| *name != "b32");
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, ty)?);
                let (b, c) = (self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                let f: Fn3 = match mode {
                    None => map3!(|a, b, c| permute(a, b, c, None)),
                    Some(mode @ ("f4e" | "b4e" | "rc8" | "ecl" | "ecr" | "rc16")) => {
                        let mode = mode.to_owned();
                        slow3!(|a, b, c| permute(a, b, c, Some(&mode)))
                    }
                    Some(_) => return self.refuse(op, "no such mode"),
                };
                self.emit(inst, Op::Map3 { f, d, a, b, c });
                Ok(())
            }
            "movmatrix" => self.transpose(inst, op),
            _ => self.refuse(op, "this instruction is not supported"),
        }
    }

    fn mov(&mut self, inst: &Inst, op: &Opcode<'_>, ty: Type) -> Result<()> {
        let to = self.at(inst, op, 0)?;
        let from = self.at(inst, op, 1)?;
        if ty == Type::Pred {
            let p = self.pred_dst(to, op)?;
            let a = self.pred(from, op)?;
            self.emit(inst, Op::PredLogic { combine: Combine::None, p, a, b: Pred::FALSE });
            return Ok(());
        }
        match (to, from) {
            (Operand::Vector(parts), Operand::Vector(sources)) if parts.len() == sources.len() => {
                // Through places of their own, since the two may name the same registers.
                let mut moved = Vec::new();
                for source in sources {
                    let a = self.src_of(source, op, ty)?;
                    let d = self.temp();
                    self.emit(inst, Op::Mov { d, a });
                    moved.push(d);
                }
                for (part, temp) in parts.iter().zip(moved) {
                    let d = self.row_of(part, op)?;
                    self.emit(inst, Op::Mov { d, a: Src(temp) });
                }
            }
            (Operand::Vector(parts), from) => self.unpack(inst, op, ty, parts, from)?,
            (to, Operand::Vector(parts)) => self.pack_vector(inst, op, ty, to, parts)?,
            (to, Operand::Special(name)) => {
                let d = self.row_of(to, op)?;
                let temp = self.temp();
                self.special(*name, temp, op)?;
                self.emit(inst, Op::Mov { d, a: Src(temp) });
            }
            (to, from) => {
                let d = self.row_of(to, op)?;
                if ty == Type::B128 {
                    return self.refuse(op, "128-bit registers are not supported");
                }
                let from = from.clone();
                let a = self.src_of(&from, op, ty)?;
                self.emit(inst, Op::Mov { d, a });
            }
        }
        Ok(())
    }

    fn unpack(
        &mut self,
        inst: &Inst,
        op: &Opcode<'_>,
        ty: Type,
        parts: &[Operand],
        from: &Operand,
    ) -> Result<()> {
        let count = parts.len() as u32;
        if count == 0 || !ty.bits().is_multiple_of(count) || ty == Type::B128 {
            return self.refuse(op, "a vector that does not fit");
        }
        let width = ty.bits() / count;
        let a = self.src_of(from, op, ty)?;
        let mut d = Vec::new();
        for part in parts {
            d.push(self.row_of(part, op)?);
        }
        let mask = if width >= 64 { !0 } else { (1u64 << width) - 1 };
        let f = Box::new(move |d: &mut [Row], s: &[&Row], _: u32| {
            for (index, row) in d.iter_mut().enumerate() {
                let shift = index as u32 * width;
                for (lane, value) in row.iter_mut().enumerate() {
                    *value = s[0][lane] >> shift & mask;
                }
            }
        });
        self.emit(inst, Op::MapN { f, d, s: vec![a] });
        Ok(())
    }

    fn pack_vector(
        &mut self,
        inst: &Inst,
        op: &Opcode<'_>,
        ty: Type,
        to: &Operand,
        parts: &[Operand],
    ) -> Result<()> {
        let count = parts.len() as u32;
        if count == 0 || !ty.bits().is_multiple_of(count) || ty == Type::B128 {
            return self.refuse(op, "a vector that does not fit");
        }
        let width = ty.bits() / count;
        let d = self.row_of(to, op)?;
        let part_type = match width {
            8 => Type::B8,
            16 => Type::B16,
            32 => Type::B32,
            _ => Type::B64,
        };
        let mut s = Vec::new();
        for part in parts {
            s.push(self.src_of(part, op, part_type)?);
        }
        let mask = if width >= 64 { !0 } else { (1u64 << width) - 1 };
        if let [a, b] = s[..] {
            let f = map2!(|a, b| a & mask | (b & mask) << width);
            self.emit(inst, Op::Map2 { f, d, a, b });
            return Ok(());
        }
        let f = Box::new(move |d: &mut [Row], s: &[&Row], _: u32| {
            d[0] = [0; 32];
            for (index, row) in s.iter().enumerate() {
                for (lane, value) in d[0].iter_mut().enumerate() {
                    *value |= (row[lane] & mask) << (index as u32 * width);
                }
            }
        });
        self.emit(inst, Op::MapN { f, d: vec![d], s });
        Ok(())
    }

    /// Reads a special register into the row `d`.
    pub(super) fn special(&mut self, name: Sym, d: u32, op: &Opcode<'_>) -> Result<()> {
        let text = self.names.text(name);
        let axis = match text.rsplit_once('.') {
            Some((_, "y")) => 1,
            Some((_, "z")) => 2,
            Some((_, "w")) => 3,
            _ => 0,
        };
        let base = text.split('.').next().unwrap_or("");
        let kind = match base {
            "%tid" if axis < 3 => Special::Tid(axis),
            "%ntid" if axis < 3 => Special::Ntid(axis),
            "%ctaid" | "%clusterid" if axis < 3 => Special::Ctaid(axis),
            "%nctaid" | "%nclusterid" if axis < 3 => Special::Nctaid(axis),
            "%tid" | "%ctaid" | "%clusterid" | "%cluster_ctaid" => Special::Zero,
            "%ntid" | "%nctaid" | "%nclusterid" | "%cluster_nctaid" => Special::One,
            "%cluster_ctarank" | "%is_explicit_cluster" => Special::Zero,
            "%cluster_nctarank" => Special::One,
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NWarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NSmId,
            "%gridid" => Special::GridId,
            "%lanemask_eq" => Special::LaneMaskEq,
            "%lanemask_le" => Special::LaneMaskLe,
            "%lanemask_lt" => Special::LaneMaskLt,
            "%lanemask_ge" => Special::LaneMaskGe,
            "%lanemask_gt" => Special::LaneMaskGt,
            "%clock" | "%clock64" => Special::Clock,
            "%clock_hi" => Special::ClockHi,
            "%globaltimer" | "%globaltimer_lo" => Special::GlobalTimer,
            "%globaltimer_hi" => Special::GlobalTimerHi,
            "%dynamic_smem_size" => Special::DynamicSmem,
            "%total_smem_size" | "%aggr_smem_size" => Special::TotalSmem,
            "%reserved_smem_offset_begin" | "%reserved_smem_offset_end" | "%reserved_smem_offset_cap" => {
                Special::Zero
            }
            _ => {
                if let Some(index) = base.strip_prefix("%envreg").and_then(|text| text.parse().ok())
                    && index < 32u8
                {
                    Special::EnvReg(index)
                } else if base.starts_with("%pm") {
                    Special::Zero
                } else {
                    return self.refuse(op, format!("`{text}` is not known"));
                }
            }
        };
        self.push(Op::Special { d, kind });
        Ok(())
    }
}
