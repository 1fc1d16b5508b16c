//! Instructions in which the lanes of a warp talk to each other.

use super::{Lower, Opcode};
use crate::{
    code::{Op, ReduxKind, SINK, ShuffleKind, VoteKind},
    error::Result,
    syntax::{Inst, Operand},
    types::Type,
};

impl Lower<'_> {
    pub(super) fn warp(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let sync = op.has("sync");
        let ty = Type::B32;
        match op.base {
            "activemask" => {
                let d = self.dst(inst, op, 0)?;
                self.emit(inst, Op::ActiveMask { d });
            }
            "vote" => {
                let kind = match op {
                    _ if op.has("all") => VoteKind::All,
                    _ if op.has("any") => VoteKind::Any,
                    _ if op.has("uni") => VoteKind::Uni,
                    _ if op.has("ballot") => VoteKind::Ballot,
                    _ => return self.refuse(op, "no such vote"),
                };
                let to = self.at(inst, op, 0)?;
                let d = if kind == VoteKind::Ballot { self.row_of(to, op)? } else { self.pred_dst(to, op)? };
                let p = self.pred(self.at(inst, op, 1)?, op)?;
                let members = if sync { Some(self.src(inst, op, 2, ty)?) } else { None };
                self.emit(inst, Op::Vote { kind, d, p, members });
            }
            "shfl" => {
                let kind = match op {
                    _ if op.has("up") => ShuffleKind::Up,
                    _ if op.has("down") => ShuffleKind::Down,
                    _ if op.has("bfly") => ShuffleKind::Bfly,
                    _ if op.has("idx") => ShuffleKind::Idx,
                    _ => return self.refuse(op, "no such shuffle"),
                };
                let (d, p) = self.value_and_pred(inst, op)?;
                let (a, b, c) =
                    (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?, self.src(inst, op, 3, ty)?);
                let members = if sync { Some(self.src(inst, op, 4, ty)?) } else { None };
                self.emit(inst, Op::Shuffle { kind, d, p, a, b, c, members });
            }
            "match" => {
                let wide = op.ty() == Some(Type::B64);
                let (d, p) = self.value_and_pred(inst, op)?;
                let (a, members) = (self.src(inst, op, 1, Type::B64)?, self.src(inst, op, 2, ty)?);
                self.emit(inst, Op::Match { all: op.has("all"), wide, d, p, a, members });
            }
            "redux" => {
                let signed = op.ty() == Some(Type::S32);
                let (abs, nan) = (op.has("abs"), op.has("NaN"));
                let kind = match op {
                    _ if op.ty() == Some(Type::F32) => ReduxKind::Float { min: op.has("min"), abs, nan },
                    _ if op.has("add") => ReduxKind::Add,
                    _ if op.has("min") => {
                        if signed {
                            ReduxKind::MinS
                        } else {
                            ReduxKind::MinU
                        }
                    }
                    _ if op.has("max") => {
                        if signed {
                            ReduxKind::MaxS
                        } else {
                            ReduxKind::MaxU
                        }
                    }
                    _ if op.has("and") => ReduxKind::And,
                    _ if op.has("or") => ReduxKind::Or,
                    _ if op.has("xor") => ReduxKind::Xor,
                    _ => return self.refuse(op, "no such reduction"),
                };
                let d = self.dst(inst, op, 0)?;
                let (a, members) = (self.src(inst, op, 1, ty)?, self.src(inst, op, 2, ty)?);
                self.emit(inst, Op::Redux { kind, d, a, members });
            }
            _ => {
                let (d, p) = self.value_and_pred(inst, op)?;
                let members = self.src(inst, op, 1, ty)?;
                self.emit(inst, Op::Elect { d, p, members });
            }
        }
        Ok(())
    }

    /// `d|p`, or `d` alone.
    fn value_and_pred(&self, inst: &Inst, op: &Opcode<'_>) -> Result<(u32, u32)> {
        match self.at(inst, op, 0)? {
            Operand::Pair(pair) => Ok((self.row_of(&pair.0, op)?, self.pred_dst(&pair.1, op)?)),
            other => Ok((self.row_of(other, op)?, SINK)),
        }
    }
}
