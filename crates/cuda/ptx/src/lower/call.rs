//! Branches, calls, and the ends of threads.

use super::{Lower, Opcode, Place};
use crate::{
    code::{Argument, CallSite, Op, Target},
    error::Result,
    program::Resolved,
    syntax::{Call, Inst, Operand},
    types::Type,
};

impl Lower<'_> {
    pub(super) fn control(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        match op.base {
            "bra" => {
                let Operand::Label(target) = *self.at(inst, op, 0)? else {
                    return self.refuse(op, "no such label");
                };
                self.fixups.push(self.builder.code.len());
                self.emit(inst, Op::Bra { target });
                // Lanes that do not take the branch may have to wait here for others.
                if inst.guard.is_some() {
                    self.push(Op::Join);
                }
            }
            "brx" => {
                let index = self.src(inst, op, 0, Type::U32)?;
                let Operand::Label(list) = *self.at(inst, op, 1)? else {
                    return self.refuse(op, "no such list of targets");
                };
                let found = self.body.branch_targets.iter().find(|(label, _)| *label == list);
                let Some((_, targets)) = found else { return self.refuse(op, "no such list of targets") };
                let targets = targets.clone();
                self.fixups.push(self.builder.code.len());
                self.emit(inst, Op::BraTable { index, targets });
                if inst.guard.is_some() {
                    self.push(Op::Join);
                }
            }
            "call" => {
                let Some(call) = &inst.call else { return self.refuse(op, "a call of this shape") };
                self.call(inst, op, call)?;
            }
            "ret" => self.emit(inst, Op::Ret),
            "exit" => self.emit(inst, Op::Exit),
            "trap" => self.emit(inst, Op::Trap),
            "brkpt" | "pmevent" | "setmaxnreg" | "nop" => self.emit(inst, Op::Nop),
            "nanosleep" => self.emit(inst, Op::Yield),
            _ => return self.refuse(op, "this instruction is not supported"),
        }
        Ok(())
    }

    fn frame_place(&self, operand: &Operand) -> Option<(u32, u32)> {
        let Operand::Var(var, 0) = *operand else { return None };
        let Place::Frame(place) = self.vars[var as usize] else { return None };
        let size = self.body.vars[var as usize].size;
        Some((place as u32, size as u32))
    }

    fn call(&mut self, inst: &Inst, op: &Opcode<'_>, call: &Call) -> Result<()> {
        let target = match &call.target {
            Operand::Symbol(name, 0) => match self.program.resolve(self.module, *name) {
                Some(Resolved::Function(function)) => Target::Direct(self.builder.reach(function)),
                Some(Resolved::Builtin(builtin)) => Target::Builtin(builtin),
                _ => {
                    let text = self.names.text(*name).to_owned();
                    return self.refuse(op, format!("function `{text}` is not defined"));
                }
            },
            operand @ Operand::Reg(_) => {
                self.builder.indirect = true;
                Target::Indirect(self.src_of(operand, op, Type::B64)?)
            }
            _ => return self.refuse(op, "a target of this shape"),
        };
        let mut arguments = Vec::new();
        for operand in &call.arguments {
            arguments.push(match self.frame_place(operand) {
                Some((offset, size)) => Argument::Frame { offset, size },
                None => Argument::Value(self.src_of(operand, op, Type::B64)?),
            });
        }
        let mut results = Vec::new();
        for operand in &call.results {
            match self.frame_place(operand) {
                Some(place) => results.push(place),
                None => return self.refuse(op, "a result in a register is not supported"),
            }
        }
        self.emit(inst, Op::Call(Box::new(CallSite { target, arguments, results })));
        self.push(Op::Join);
        Ok(())
    }
}
