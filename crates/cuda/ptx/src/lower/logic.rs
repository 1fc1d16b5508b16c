//! Bits: logic, shifts, fields.

use super::{Lower, Opcode};
use crate::{
    code::{Combine, Op, Pred, Row},
    error::Result,
    syntax::Inst,
    types::Type,
};

fn field(value: u64, position: u64, length: u64, ty: Type) -> u64 {
    let width = u64::from(ty.bits());
    let (position, length) = (position & 0xFF, length & 0xFF);
    let sign = if !ty.is_signed() || length == 0 {
        0
    } else {
        let bit = (position + length - 1).min(width - 1);
        value >> bit & 1
    };
    let mut out = 0;
    let available = width.saturating_sub(position).min(length);
    if available > 0 {
        let mask = if available >= 64 { !0 } else { (1 << available) - 1 };
        out = value >> position & mask;
    }
    if sign == 1 && available < width {
        out |= !0u64 << available;
    }
    if width == 32 { out & 0xFFFF_FFFF } else { out }
}

fn insert(a: u64, b: u64, position: u64, length: u64, width: u64) -> u64 {
    let (position, length) = (position & 0xFF, length & 0xFF);
    if position >= width || length == 0 {
        return b;
    }
    let length = length.min(width - position);
    let mask = if length >= 64 { !0 } else { (1 << length) - 1 };
    b & !(mask << position) | (a & mask) << position
}

fn find_highest(value: u64, ty: Type, shift_amount: bool) -> u64 {
    let width = ty.bits();
    let value = match ty {
        Type::U32 => value & 0xFFFF_FFFF,
        Type::S32 => u64::from((value as i32 ^ ((value as i32) >> 31)) as u32),
        Type::S64 => (value as i64 ^ ((value as i64) >> 63)) as u64,
        _ => value,
    };
    if value == 0 {
        return 0xFFFF_FFFF;
    }
    let bit = 63 - value.leading_zeros();
    u64::from(if shift_amount { width - 1 - bit } else { bit })
}

/// `fns`: the n-th set bit from a base, upwards or downwards.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return 0xFFFF_FFFF;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { 0xFFFF_FFFF };
    }
    let mut left = offset.unsigned_abs();
    let mut position = base as i32;
    while (0..32).contains(&position) {
        if mask >> position & 1 == 1 {
            left -= 1;
            if left == 0 {
                return position as u32;
            }
        }
        position += offset.signum();
    }
    0xFFFF_FFFF
}

impl Lower<'_> {
    pub(super) fn logic(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if ty == Type::Pred {
            return self.predicate_logic(inst, op);
        }
        let keep: u64 = match ty.bytes() {
            1 => 0xFF,
            2 => 0xFFFF,
            4 => 0xFFFF_FFFF,
            8 => !0,
            _ => return self.refuse(op, "not for this type"),
        };
        let d = if op.base == "lop3" && matches!(inst.operands.first(), Some(crate::syntax::Operand::Pair(_)))
        {
            0
        } else {
            self.dst(inst, op, 0)?
        };
        match op.base {
            "not" | "cnot" | "brev" | "popc" | "clz" | "bfind" => {
                let a = self.src(inst, op, 1, ty)?;
                let narrow = ty.bytes() == 4;
                let f = match op.base {
                    "not" => map1!(|a| !a & keep),
                    "cnot" => map1!(|a| u64::from(a & keep == 0)),
                    "brev" if narrow => map1!(|a| u64::from((a as u32).reverse_bits())),
                    "brev" => map1!(|a| a.reverse_bits()),
                    "popc" => map1!(|a| u64::from((a & keep).count_ones())),
                    "clz" if narrow => map1!(|a| u64::from((a as u32).leading_zeros())),
                    "clz" => map1!(|a| u64::from(a.leading_zeros())),
                    _ => {
                        let shift_amount = op.has("shiftamt");
                        map1!(|a| find_highest(a, ty, shift_amount))
                    }
                };
                self.emit(inst, Op::Map1 { f, d, a });
            }
            "and" | "or" | "xor" | "shl" | "shr" | "bmsk" | "szext" => {
                let (a, b) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                let width = u64::from(ty.bits());
                let clamp = op.has("clamp");
                let f = match op.base {
                    "and" => map2!(|a, b| a & b & keep),
                    "or" => map2!(|a, b| (a | b) & keep),
                    "xor" => map2!(|a, b| (a ^ b) & keep),
                    "shl" => map2!(|a, b| {
                        let by = b & 0xFFFF_FFFF;
                        if by >= width { 0 } else { (a << by) & keep }
                    }),
                    "shr" if ty.is_signed() => {
                        let unused = 64 - width;
                        map2!(|a, b| {
                            let by = (b & 0xFFFF_FFFF).min(width - 1);
                            ((((a << unused) as i64) >> unused) >> by) as u64 & keep
                        })
                    }
                    "shr" => map2!(|a, b| {
                        let by = b & 0xFFFF_FFFF;
                        if by >= width { 0 } else { (a & keep) >> by }
                    }),
                    "bmsk" => map2!(|a, b| {
                        let (start, length) = if clamp {
                            ((a as u32).min(32), (b as u32).min(32))
                        } else {
                            (a as u32 & 31, b as u32 & 31)
                        };
                        let ones = (1u64 << length) - 1;
                        (ones << start) & 0xFFFF_FFFF
                    }),
                    _ => {
                        let signed = ty.is_signed();
                        map2!(|a, b| {
                            let n = if clamp { (b as u32).min(32) } else { b as u32 & 31 };
                            let a = a as u32;
                            u64::from(if n == 0 {
                                0
                            } else if n >= 32 {
                                a
                            } else if signed {
                                ((a << (32 - n)) as i32 >> (32 - n)) as u32
                            } else {
                                a & ((1 << n) - 1)
                            })
                        })
                    }
                };
                self.emit(inst, Op::Map2 { f, d, a, b });
            }
            "bfe" | "shf" | "fns" => {
                let (a, b, c) =
                    (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                let (left, wrap) = (op.has("l"), op.has("wrap"));
                let f = match op.base {
                    "bfe" => map3!(|a, b, c| field(a, b, c, ty)),
                    "shf" => map3!(|a, b, c| {
                        let by = if wrap { c as u32 & 31 } else { (c as u32).min(32) };
                        let both = (b & 0xFFFF_FFFF) << 32 | (a & 0xFFFF_FFFF);
                        if left {
                            ((u128::from(both) << by) >> 32) as u64 & 0xFFFF_FFFF
                        } else {
                            (both >> by) & 0xFFFF_FFFF
                        }
                    }),
                    _ => slow3!(|a, b, c| u64::from(nth_set(a as u32, b as u32, c as i32))),
                };
                self.emit(inst, Op::Map3 { f, d, a, b, c });
            }
            "bfi" => {
                let width = u64::from(ty.bits());
                let mut s = [self.value(0); 4];
                for (index, place) in s.iter_mut().enumerate() {
                    *place = self.src(inst, op, index + 1, ty)?;
                }
                let f = Box::new(move |d: &mut Row, s: [&Row; 4], _: u32| {
                    for i in 0..d.len() {
                        d[i] = insert(s[0][i], s[1][i], s[2][i], s[3][i], width) & keep;
                    }
                });
                self.emit(inst, Op::Map4 { f, d, s });
            }
            "lop3" => self.lop3(inst, op)?,
            _ => return self.refuse(op, "not a logic instruction"),
        }
        Ok(())
    }

    fn lop3(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        use crate::syntax::Operand;
        let (d, p) = match self.at(inst, op, 0)? {
            Operand::Pair(pair) => (self.row_of(&pair.0, op)?, Some(self.pred_dst(&pair.1, op)?)),
            other => (self.row_of(other, op)?, None),
        };
        let ty = Type::B32;
        let (a, b, c) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
        let Operand::Int(table) = *self.at(inst, op, 4)? else {
            return self.refuse(op, "the table must be a constant");
        };
        // Common tables get code of their own; the rest is a sum of products.
        let f = match table as u8 {
            0x96 => map3!(|a, b, c| (a ^ b ^ c) & 0xFFFF_FFFF),
            0xE8 => map3!(|a, b, c| (a & b | a & c | b & c) & 0xFFFF_FFFF),
            0x80 => map3!(|a, b, c| a & b & c & 0xFFFF_FFFF),
            0xFE => map3!(|a, b, c| (a | b | c) & 0xFFFF_FFFF),
            0xCA => map3!(|a, b, c| (a & b | !a & c) & 0xFFFF_FFFF),
            table => map3!(|a, b, c| {
                let (mut out, x, y, z) = (0u32, a as u32, b as u32, c as u32);
                for term in 0..8 {
                    if table >> term & 1 == 1 {
                        let pick = |value: u32, bit: u32| if term >> bit & 1 == 1 { value } else { !value };
                        out |= pick(x, 2) & pick(y, 1) & pick(z, 0);
                    }
                }
                u64::from(out)
            }),
        };
        match p {
            None => self.emit(inst, Op::Map3 { f, d, a, b, c }),
            Some(p) => {
                // The result may be written nowhere, so it goes to a place of its own first.
                let row = self.temp();
                self.emit(inst, Op::Map3 { f, d: row, a, b, c });
                let q = self.pred(self.at(inst, op, 5)?, op)?;
                let combine = if op.has("and") { Combine::And } else { Combine::Or };
                let zero = self.value(0);
                let different = compare!(|a, b| a as u32 != b as u32);
                let row = crate::code::Src(row);
                let sink = crate::code::SINK;
                self.emit(inst, Op::Compare { f: different, a: row, b: zero, p, q: sink, combine, c: q });
                if d != sink {
                    self.emit(inst, Op::Mov { d, a: row });
                }
            }
        }
        Ok(())
    }

    fn predicate_logic(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let p = self.pred_dst(self.at(inst, op, 0)?, op)?;
        let a = self.pred(self.at(inst, op, 1)?, op)?;
        let (combine, a, b) = match op.base {
            "not" => (Combine::None, Pred(a.0 ^ (1 << 31)), Pred::FALSE),
            "and" => (Combine::And, a, self.pred(self.at(inst, op, 2)?, op)?),
            "or" => (Combine::Or, a, self.pred(self.at(inst, op, 2)?, op)?),
            "xor" => (Combine::Xor, a, self.pred(self.at(inst, op, 2)?, op)?),
            _ => return self.refuse(op, "not for predicates"),
        };
        self.emit(inst, Op::PredLogic { combine, p, a, b });
        Ok(())
    }
}
