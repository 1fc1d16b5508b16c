//! Barriers of the block, and mbarrier objects.

use super::{Lower, Opcode};
use crate::{
    code::{Barrier, BarrierKind, Mbarrier, MbarrierKind, Op, Pred, SINK},
    error::Result,
    syntax::{Inst, Operand},
    types::Type,
};

impl Lower<'_> {
    pub(super) fn barrier(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        if op.base == "mbarrier" {
            return self.mbarrier(inst, op);
        }
        if op.has("cluster") {
            // A cluster is one block: all its threads meet at the block's own barrier.
            if op.has("arrive") {
                self.emit(inst, Op::Fence);
                return Ok(());
            }
            let id = self.value(CLUSTER_BARRIER);
            let barrier = Barrier { kind: BarrierKind::Sync, id, count: None, pred: Pred::TRUE, d: SINK };
            self.emit(inst, Op::Barrier(Box::new(barrier)));
            return Ok(());
        }
        if op.has("warp") {
            let members = self.src(inst, op, 0, Type::B32)?;
            self.emit(inst, Op::WarpSync { members });
            return Ok(());
        }
        let ty = Type::U32;
        let (kind, d, first) = if op.has("red") {
            let kind = match op {
                _ if op.has("popc") => BarrierKind::RedPopc,
                _ if op.has("and") => BarrierKind::RedAnd,
                _ if op.has("or") => BarrierKind::RedOr,
                _ => return self.refuse(op, "no such reduction"),
            };
            let to = self.at(inst, op, 0)?;
            let d = if kind == BarrierKind::RedPopc { self.row_of(to, op)? } else { self.pred_dst(to, op)? };
            (kind, d, 1)
        } else if op.has("arrive") {
            (BarrierKind::Arrive, SINK, 0)
        } else {
            (BarrierKind::Sync, SINK, 0)
        };
        let id = if inst.operands.len() > first { self.src(inst, op, first, ty)? } else { self.value(0) };
        let mut rest: &[Operand] = inst.operands.get(first + 1..).unwrap_or(&[]);
        let mut pred = Pred::TRUE;
        if kind != BarrierKind::Sync && kind != BarrierKind::Arrive {
            let Some((last, others)) = rest.split_last() else { return self.refuse(op, "too few operands") };
            pred = self.pred(last, op)?;
            rest = others;
        }
        let count = match rest.first() {
            Some(operand) => Some(self.src_of(operand, op, ty)?),
            None => None,
        };
        self.emit(inst, Op::Barrier(Box::new(Barrier { kind, id, count, pred, d })));
        Ok(())
    }

    fn mbarrier(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let kind = match op.mods.first().copied() {
            Some("init") => MbarrierKind::Init,
            Some("inval") => MbarrierKind::Inval,
            Some("arrive") => MbarrierKind::Arrive { drop: false, expect: op.has("expect_tx") },
            Some("arrive_drop") => MbarrierKind::Arrive { drop: true, expect: op.has("expect_tx") },
            Some("test_wait" | "try_wait") => MbarrierKind::Test { parity: op.has("parity") },
            Some("expect_tx") => MbarrierKind::ExpectTx,
            Some("complete_tx") => MbarrierKind::CompleteTx,
            Some("pending_count") => MbarrierKind::PendingCount,
            _ => return self.refuse(op, "no such operation"),
        };
        // The object is in shared memory, named as such or by a generic address.
        let at = |lower: &mut Self, index: usize| lower.address(inst, op, index);
        let made = match kind {
            MbarrierKind::Init | MbarrierKind::ExpectTx | MbarrierKind::CompleteTx => {
                let at = at(self, 0)?;
                Mbarrier { kind, at, d: SINK, a: Some(self.src(inst, op, 1, Type::U32)?) }
            }
            MbarrierKind::Inval => Mbarrier { kind, at: at(self, 0)?, d: SINK, a: None },
            MbarrierKind::Arrive { .. } => {
                let to = self.at(inst, op, 0)?;
                let (d, first) =
                    if matches!(to, Operand::Address(..)) { (SINK, 0) } else { (self.row_of(to, op)?, 1) };
                let at = at(self, first)?;
                let a = match inst.operands.get(first + 1) {
                    Some(operand) => Some(self.src_of(&operand.clone(), op, Type::U32)?),
                    None => None,
                };
                Mbarrier { kind, at, d, a }
            }
            MbarrierKind::Test { .. } => {
                let d = self.pred_dst(self.at(inst, op, 0)?, op)?;
                let at = at(self, 1)?;
                Mbarrier { kind, at, d, a: Some(self.src(inst, op, 2, Type::B64)?) }
            }
            MbarrierKind::PendingCount => {
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, Type::B64)?);
                let f = map1!(|a| a >> 1 & 0xF_FFFF);
                self.emit(inst, Op::Map1 { f, d, a });
                return Ok(());
            }
        };
        self.emit(inst, Op::Mbarrier(Box::new(made)));
        Ok(())
    }
}

/// A barrier number that no program can name.
const CLUSTER_BARRIER: u64 = 16;
