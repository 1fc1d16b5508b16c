//! Loads, stores, address conversions, asynchronous copies.

use super::{Lower, Opcode, Place};
use crate::{
    address::{LOCAL, PARAM, SHARED, in_window, is_device},
    code::{Address, Mem, Op, Row, SINK, Src},
    error::Result,
    syntax::{Base, Inst, Operand},
    types::Type,
};

impl Lower<'_> {
    pub(super) fn memory(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        match op.base {
            "ld" | "ldu" => self.load(inst, op),
            "st" if op.has("async") || op.has("bulk") => {
                self.refuse(op, "asynchronous stores are not supported")
            }
            "st" => self.store(inst, op),
            "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                self.emit(inst, Op::Nop);
                Ok(())
            }
            "cp" => self.copy(inst, op),
            "cvta" => self.convert_address(inst, op),
            "isspacep" => self.in_space(inst, op),
            "mapa" => {
                // A cluster is one block, so every rank is this block.
                let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, Type::B64)?);
                self.emit(inst, Op::Mov { d, a });
                Ok(())
            }
            "getctarank" | "createpolicy" => {
                let (d, a) = (self.dst(inst, op, 0)?, self.value(0));
                self.emit(inst, Op::Mov { d, a });
                Ok(())
            }
            "ldmatrix" | "stmatrix" => self.matrix(inst, op),
            _ => self.refuse(op, "this instruction is not supported"),
        }
    }

    /// The space an opcode names; generic where it names none.
    fn space(&self, op: &Opcode<'_>) -> Option<&'static str> {
        op.mods.iter().find_map(|name| match *name {
            "global" => Some("global"),
            "const" => Some("const"),
            "shared" | "shared::cta" | "shared::cluster" => Some("shared"),
            "local" => Some("local"),
            "param" | "param::entry" | "param::func" => Some("param"),
            _ => None,
        })
    }

    /// Where operand `index` points.
    pub(super) fn address(&mut self, inst: &Inst, op: &Opcode<'_>, index: usize) -> Result<Address> {
        let Operand::Address(base, offset) = *self.at(inst, op, index)? else {
            return self.refuse(op, "not an address");
        };
        let space = self.space(op);
        self.address_in(op, base, offset, space)
    }

    pub(super) fn address_in(
        &mut self,
        op: &Opcode<'_>,
        base: Base,
        offset: i64,
        space: Option<&str>,
    ) -> Result<Address> {
        if let Some(Place::Frame(place)) = self.place_of(base) {
            let offset = offset.wrapping_add(place as i64);
            let base = self.value(0);
            return Ok(Address { space: Mem::Frame, base, offset });
        }
        let kernel_param = matches!(self.place_of(base), Some(Place::KernelParam(_)));
        let own_shared = matches!(self.place_of(base), Some(Place::Shared(_) | Place::Dynamic));
        let base = match base {
            Base::Reg(reg) => self.src_of(&Operand::Reg(reg), op, Type::B64)?,
            Base::Var(var) => self.src_of(&Operand::Var(var, 0), op, Type::B64)?,
            Base::Symbol(name) => self.symbol_address(name, 0, op)?,
            Base::Absolute => self.value(0),
        };
        let space = match space {
            Some("shared") => Mem::Shared,
            Some("local") => Mem::Local,
            Some("param") if kernel_param || self.function.entry => Mem::Param,
            Some("param") => Mem::Local,
            None if own_shared => Mem::Shared,
            _ => Mem::Generic,
        };
        Ok(Address { space, base, offset })
    }

    /// The elements a load or store moves.
    fn elements(&self, op: &Opcode<'_>, operand: &Operand) -> Result<Vec<Operand>> {
        let count = if op.has("v2") {
            2
        } else if op.has("v4") {
            4
        } else if op.has("v8") {
            8
        } else {
            1
        };
        match operand {
            Operand::Vector(parts) if parts.len() == count => Ok(parts.clone()),
            other if count == 1 => Ok(vec![other.clone()]),
            _ => self.refuse(op, "a vector of another length"),
        }
    }

    fn load(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if ty == Type::B128 || ty == Type::Pred {
            return self.refuse(op, "128-bit registers are not supported");
        }
        let at = self.address(inst, op, 1)?;
        let elements = self.elements(op, self.at(inst, op, 0)?)?;
        let (width, signed) = (ty.bytes(), ty.is_signed());
        let spin = op.has("volatile") || op.has("relaxed") || op.has("acquire");
        if let [single] = &elements[..] {
            let d = self.row_of(single, op)?;
            self.emit(inst, Op::Load { at, d, width, signed, spin });
        } else {
            let mut d = Vec::new();
            for element in &elements {
                d.push(self.row_of(element, op)?);
            }
            self.emit(inst, Op::LoadVector { at, d, width, signed, strong: spin });
        }
        Ok(())
    }

    fn store(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        if ty == Type::B128 || ty == Type::Pred {
            return self.refuse(op, "128-bit registers are not supported");
        }
        let at = self.address(inst, op, 0)?;
        if at.space == Mem::Param {
            return self.refuse(op, "a kernel's parameters cannot be written");
        }
        let elements = self.elements(op, self.at(inst, op, 1)?)?;
        let mut s = Vec::new();
        for element in &elements {
            s.push(self.src_of(element, op, ty)?);
        }
        let width = ty.bytes();
        if let [s] = s[..] {
            self.emit(inst, Op::Store { at, s, width });
        } else {
            let strong = op.has("volatile") || op.has("relaxed") || op.has("release");
            self.emit(inst, Op::StoreVector { at, s, width, strong });
        }
        Ok(())
    }

    fn copy(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        if op.mods.first() != Some(&"async") || op.has("bulk") || op.has("mbarrier") {
            return self.refuse(op, "this copy is not supported");
        }
        if op.has("commit_group") || op.has("wait_group") || op.has("wait_all") {
            // Copies are complete when they are issued.
            self.emit(inst, Op::Nop);
            return Ok(());
        }
        let to = self.address(inst, op, 0)?;
        let Operand::Address(base, offset) = *self.at(inst, op, 1)? else {
            return self.refuse(op, "not an address");
        };
        let from = self.address_in(op, base, offset, Some("global"))?;
        let Operand::Int(size @ (4 | 8 | 16)) = *self.at(inst, op, 2)? else {
            return self.refuse(op, "a size other than 4, 8 or 16");
        };
        let extra = inst.operands.len().saturating_sub(3 + usize::from(op.has("L2::cache_hint")));
        let source_size = match inst.operands.get(3) {
            Some(operand) if extra > 0 && self.is_pred(operand) => {
                // A true predicate means: ignore the source.
                let p = self.pred(operand, op)?;
                let d = self.temp();
                let (none, all) = (self.value(0), self.value(size));
                self.emit(inst, Op::Select { d, a: none, b: all, p });
                Some(Src(d))
            }
            Some(operand) if extra > 0 => Some(self.src_of(&operand.clone(), op, Type::U32)?),
            _ => None,
        };
        self.emit(inst, Op::Copy { to, from, size: size as u32, source_size });
        Ok(())
    }

    fn convert_address(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let bias = match self.space(op) {
            Some("shared") => SHARED,
            Some("local") => LOCAL,
            // A device function's parameters lie in local memory.
            Some("param") if self.function.entry => PARAM,
            Some("param") => LOCAL,
            _ => 0,
        };
        let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, Type::B64)?);
        if bias == 0 {
            self.emit(inst, Op::Mov { d, a });
        } else if op.has("to") {
            self.emit(inst, Op::Map1 { f: map1!(|a| a.wrapping_sub(bias)), d, a });
        } else {
            self.emit(inst, Op::Map1 { f: map1!(|a| a.wrapping_add(bias)), d, a });
        }
        Ok(())
    }

    fn in_space(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let base = match self.space(op) {
            Some("shared") => Some(SHARED),
            Some("local") => Some(LOCAL),
            Some("param") => Some(PARAM),
            Some("const") => Some(u64::MAX),
            _ => None,
        };
        let p = self.pred_dst(self.at(inst, op, 0)?, op)?;
        let a = self.src(inst, op, 1, Type::B64)?;
        let f = Box::new(move |a: &Row| {
            let mut mask = 0;
            for (lane, &address) in a.iter().enumerate() {
                let inside = match base {
                    Some(u64::MAX) => false,
                    Some(base) => in_window(address, base),
                    None => is_device(address),
                };
                mask |= u32::from(inside) << lane;
            }
            mask
        });
        debug_assert_ne!(p, SINK);
        self.emit(inst, Op::Test { f, a, p });
        Ok(())
    }
}
