//! Textures and surfaces.

use super::{Lower, Opcode};
use crate::{
    code::{
        Address, Atomic, AtomicKind, Geometry, Mem, Op, SINK, Src, SurfaceOp, SurfaceWork, TextureLod,
        TextureOp,
    },
    error::Result,
    lower::atomic::update,
    syntax::{Base, Inst, Operand},
    texture::Outside,
    types::Type,
};

impl Geometry {
    fn of(op: &Opcode<'_>) -> Option<Self> {
        op.mods.iter().find_map(|name| {
            Some(match *name {
                "1d" => Self { dimensions: 1, is_layered: false, is_cube: false },
                "2d" => Self { dimensions: 2, is_layered: false, is_cube: false },
                "3d" => Self { dimensions: 3, is_layered: false, is_cube: false },
                "a1d" => Self { dimensions: 1, is_layered: true, is_cube: false },
                "a2d" => Self { dimensions: 2, is_layered: true, is_cube: false },
                "cube" => Self { dimensions: 3, is_layered: false, is_cube: true },
                "acube" => Self { dimensions: 3, is_layered: true, is_cube: true },
                _ => return None,
            })
        })
    }
}

/// A handle and where to look: `[handle, {x, y}]`.
struct Sampled {
    handle: Src,
    layer: Option<Src>,
    at: Vec<Src>,
}

impl Lower<'_> {
    pub(super) fn texture(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        match op.base {
            "tex" => self.tex(inst, op),
            "tld4" => self.gather_four(inst, op),
            "txq" | "suq" => self.query(inst, op),
            "suld" | "sust" | "sured" => self.surface(inst, op),
            _ => self.refuse(op, "this instruction is not supported"),
        }
    }

    fn geometry(&self, op: &Opcode<'_>) -> Result<Geometry> {
        match Geometry::of(op) {
            Some(geometry) => Ok(geometry),
            None => self.refuse(op, "textures of several samples are not supported"),
        }
    }

    /// A handle in a register, or what the host bound to a reference of the module.
    fn handle(&mut self, inst: &Inst, base: Base, op: &Opcode<'_>) -> Result<Src> {
        match base {
            Base::Reg(reg) => self.src_of(&Operand::Reg(reg), op, Type::B64),
            Base::Symbol(name) => {
                let at = Address { space: Mem::Generic, base: self.symbol_address(name, 0, op)?, offset: 0 };
                let d = self.temp();
                self.emit(inst, Op::Load { at, d, width: 8, signed: false, spin: false });
                Ok(Src(d))
            }
            _ => self.refuse(op, "not a handle"),
        }
    }

    fn sampled(
        &mut self,
        inst: &Inst,
        op: &Opcode<'_>,
        index: usize,
        geometry: Geometry,
        ty: Type,
    ) -> Result<Sampled> {
        let Operand::Sampled(sampled) = self.at(inst, op, index)?.clone() else {
            return self.refuse(op, "no texture and coordinates");
        };
        let (base, places) = *sampled;
        let handle = self.handle(inst, base, op)?;
        let mut places = places.as_slice();
        let mut layer = None;
        if geometry.is_layered {
            let Some((first, rest)) = places.split_first() else {
                return self.refuse(op, "too few coordinates");
            };
            (layer, places) = (Some(self.src_of(first, op, Type::U32)?), rest);
        }
        let Some(places) = places.get(..geometry.dimensions) else {
            return self.refuse(op, "too few coordinates");
        };
        let mut at = Vec::new();
        for place in places {
            at.push(self.src_of(place, op, ty)?);
        }
        Ok(Sampled { handle, layer, at })
    }

    /// The rows that an instruction writes, of a vector or of one register.
    fn rows_of(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<Vec<u32>> {
        let parts = match self.at(inst, op, 0)? {
            Operand::Vector(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if parts.len() > 4 {
            return self.refuse(op, "a vector of another length");
        }
        parts.iter().map(|part| self.row_of(part, op)).collect()
    }

    fn vector(&mut self, inst: &Inst, op: &Opcode<'_>, index: usize, dimensions: usize) -> Result<Vec<Src>> {
        let parts = match self.at(inst, op, index)?.clone() {
            Operand::Vector(parts) => parts,
            other => vec![other],
        };
        let Some(parts) = parts.get(..dimensions) else { return self.refuse(op, "too few coordinates") };
        let mut all = Vec::new();
        for part in parts {
            all.push(self.src_of(part, op, Type::F32)?);
        }
        Ok(all)
    }

    fn tex(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let geometry = self.geometry(op)?;
        let [result, ty] = op.types[..] else { return self.refuse(op, "an instruction without two types") };
        if result.bytes() != 4 || result == Type::F16x2 || !matches!(ty, Type::F32 | Type::S32) {
            return self.refuse(op, "not for these types");
        }
        let d = self.rows_of(inst, op)?;
        let sampled = self.sampled(inst, op, 1, geometry, ty)?;
        let (lod, operands) = if op.has("level") {
            (TextureLod::Level(self.src(inst, op, 2, ty)?), 3)
        } else if op.has("grad") {
            let dx = self.vector(inst, op, 2, geometry.dimensions)?;
            (TextureLod::Gradients(dx, self.vector(inst, op, 3, geometry.dimensions)?), 4)
        } else {
            (TextureLod::Base, 2)
        };
        if inst.operands.len() > operands {
            return self.refuse(op, "offsets and depth comparisons are not supported");
        }
        let Sampled { handle, layer, at } = sampled;
        let is_integer = ty == Type::S32;
        let op = TextureOp { d, handle, geometry, layer, at, is_integer, lod, gather: None };
        self.emit(inst, Op::Texture(Box::new(op)));
        Ok(())
    }

    fn gather_four(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let geometry = self.geometry(op)?;
        let component =
            op.mods.iter().find_map(|name| ["r", "g", "b", "a"].iter().position(|one| one == name));
        let Some(component) = component else { return self.refuse(op, "no component named") };
        if inst.operands.len() > 2 || op.types.last() != Some(&Type::F32) {
            return self.refuse(op, "offsets and depth comparisons are not supported");
        }
        let d = self.rows_of(inst, op)?;
        let Sampled { handle, layer, at } = self.sampled(inst, op, 1, geometry, Type::F32)?;
        let (lod, gather) = (TextureLod::Base, Some(component));
        let op = TextureOp { d, handle, geometry, layer, at, is_integer: false, lod, gather };
        self.emit(inst, Op::Texture(Box::new(op)));
        Ok(())
    }

    fn query(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        use crate::code::SamplerQuestion as Q;
        let question = op.mods.iter().find_map(|name| {
            Some(match *name {
                "width" => Q::Width,
                "height" => Q::Height,
                "depth" => Q::Depth,
                "array_size" => Q::Layers,
                "num_mipmap_levels" => Q::Levels,
                "normalized_coords" => Q::IsNormalized,
                "channel_data_type" => Q::ChannelType,
                "channel_order" => Q::ChannelOrder,
                _ => return None,
            })
        });
        let Some(question) = question else { return self.refuse(op, "this question is not supported") };
        let d = self.dst(inst, op, 0)?;
        let Operand::Address(base, 0) = *self.at(inst, op, 1)? else {
            return self.refuse(op, "not a handle");
        };
        let handle = self.handle(inst, base, op)?;
        let level = if op.has("level") { Some(self.src(inst, op, 2, Type::U32)?) } else { None };
        self.emit(inst, Op::SamplerQuery { d, handle, level, question });
        Ok(())
    }

    fn surface(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let geometry = self.geometry(op)?;
        let Some(ty) = op.ty() else { return self.refuse(op, "an instruction without a type") };
        let outside = match op {
            _ if op.has("clamp") => Outside::Clamp,
            _ if op.has("zero") => Outside::Zero,
            _ => Outside::Trap,
        };
        let is_formatted = op.has("p");
        let (index, work) = match op.base {
            "suld" if is_formatted => return self.refuse(op, "formatted loads do not exist any more"),
            "suld" => (1, SurfaceWork::Load { d: self.rows_of(inst, op)? }),
            "sust" => {
                let parts = match self.at(inst, op, 1)?.clone() {
                    Operand::Vector(parts) => parts,
                    other => vec![other],
                };
                let mut values = Vec::new();
                for part in &parts {
                    values.push(self.src_of(part, op, ty)?);
                }
                (0, SurfaceWork::Store { values, is_formatted })
            }
            _ => (0, self.reduction(inst, op, ty)?),
        };
        if matches!(work, SurfaceWork::Load { .. } | SurfaceWork::Store { .. })
            && !matches!(ty.bytes(), 1 | 2 | 4 | 8)
        {
            return self.refuse(op, "not for this type");
        }
        let Sampled { handle, layer, at } = self.sampled(inst, op, index, geometry, Type::S32)?;
        let counts_elements = is_formatted;
        let width = ty.bytes();
        let op = SurfaceOp { handle, layer, at, width, outside, counts_elements, work };
        self.emit(inst, Op::Surface(Box::new(op)));
        Ok(())
    }

    fn reduction(&mut self, inst: &Inst, op: &Opcode<'_>, ty: Type) -> Result<SurfaceWork> {
        let names = ["add", "min", "max", "and", "or"];
        let name = op.mods.iter().copied().find(|name| names.contains(name));
        let Some(f) = name.and_then(|name| update(name, ty)) else {
            return self.refuse(op, "not for this operation and type");
        };
        let b = vec![self.src(inst, op, 1, ty)?];
        let address = Address { space: Mem::Generic, base: self.value(0), offset: 0 };
        let kind = AtomicKind::Update(f);
        Ok(SurfaceWork::Reduce(Atomic { address, width: ty.bytes(), d: vec![SINK], b, kind }))
    }
}
