//! Matrix instructions of a warp: `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! Each becomes instructions that the engine has already: pieces of the matrices are gathered from the registers of all
//! lanes, multiplied in f64 (every product is exact), and rounded once on the way back.

use super::{Lower, Opcode};
use crate::{
    code::{Address, Op, Row, Src},
    error::Result,
    num::{convert::float, round::Mode, small::F16},
    syntax::{Inst, Operand},
    types::Type,
};

/// Where an element of an operand is: lane, register, and which part of it.
type Place = (usize, usize, usize);

/// Shape of one multiplication.
#[derive(Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    /// Elements of A and B in one register.
    packed: usize,
    /// Type of A, and of B.
    input: [Type; 2],
    /// Type of C and D.
    sum: Type,
}

impl Shape {
    /// Where A(row, col) is. Registers alternate between the upper and lower half of the rows, then go on in columns.
    fn a(self, row: usize, col: usize) -> Place {
        let run = 4 * self.packed;
        let lane = row % 8 * 4 + col % run / self.packed;
        (lane, col / run * (self.m / 8) + row / 8, col % self.packed)
    }

    fn b(self, row: usize, col: usize) -> Place {
        let run = 4 * self.packed;
        (col * 4 + row % run / self.packed, row / run, row % self.packed)
    }

    /// Where C(row, col) is, as one value a place; f16 packs two of them.
    fn c(self, row: usize, col: usize) -> Place {
        let lane = row % 8 * 4 + col / 2;
        if self.sum == Type::F16 { (lane, row / 8, col % 2) } else { (lane, row / 8 * 2 + col % 2, 0) }
    }

    fn registers(self) -> [usize; 3] {
        let a = self.m * self.k / 32 / self.packed;
        let b = self.n * self.k / 32 / self.packed;
        let c = self.m * self.n / 32 / if self.sum == Type::F16 { 2 } else { 1 };
        [a.max(1), b.max(1), c.max(1)]
    }
}

fn element(rows: &[&Row], (lane, register, part): Place, ty: Type) -> f64 {
    let bits = rows[register][lane] >> (part as u32 * ty.bits());
    match ty {
        Type::S8 => f64::from(bits as i8),
        Type::U8 => f64::from(bits as u8),
        Type::S32 => f64::from(bits as i32),
        // The hardware looks at the upper bits only.
        Type::Tf32 => float(bits & 0xFFFF_E000, Type::F32),
        other => float(bits, other),
    }
}

fn multiply(shape: Shape, d: &mut [Row], s: &[&Row], saturate: bool) {
    let [a_count, b_count, _] = shape.registers();
    let (a, rest) = s.split_at(a_count);
    let (b, c) = rest.split_at(b_count);
    d.iter_mut().for_each(|row| *row = [0; 32]);
    for row in 0..shape.m {
        for col in 0..shape.n {
            let place = shape.c(row, col);
            let mut sum = element(c, place, shape.sum);
            for k in 0..shape.k {
                sum +=
                    element(a, shape.a(row, k), shape.input[0]) * element(b, shape.b(k, col), shape.input[1]);
            }
            let bits = match shape.sum {
                Type::F16 => u64::from(F16.encode(sum, Mode::Near, false)) << (place.2 * 16),
                Type::F32 => u64::from((sum as f32).to_bits()),
                Type::S32 if saturate => {
                    u64::from(sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32)
                }
                Type::S32 => u64::from(sum as i64 as u32),
                _ => sum.to_bits(),
            };
            d[place.1][place.0] |= bits;
        }
    }
}

impl Lower<'_> {
    pub(super) fn matrix(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        match op.base {
            "mma" => self.mma(inst, op),
            "ldmatrix" => self.move_matrices(inst, op, true),
            "stmatrix" => self.move_matrices(inst, op, false),
            _ => self.refuse(op, "this matrix instruction is not supported"),
        }
    }

    fn all_lanes(&mut self, inst: &Inst) {
        let members = self.value(0xFFFF_FFFF);
        self.emit(inst, Op::WarpSync { members });
    }

    fn mma(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let odd = op
            .mods
            .iter()
            .any(|name| name.starts_with("sp") || name.starts_with("kind") || *name == "block_scale");
        let (Some([sum, a, b, last]), true) =
            (op.types.get(..4).and_then(|t| <[Type; 4]>::try_from(t).ok()), !odd)
        else {
            return self.refuse(op, "this matrix instruction is not supported");
        };
        let dims = op.mods.iter().find_map(|name| match *name {
            "m16n8k4" => Some((16, 8, 4)),
            "m16n8k8" => Some((16, 8, 8)),
            "m16n8k16" => Some((16, 8, 16)),
            "m16n8k32" => Some((16, 8, 32)),
            "m8n8k4" => Some((8, 8, 4)),
            "m8n8k16" => Some((8, 8, 16)),
            _ => None,
        });
        let bytes = |ty: Type| matches!(ty, Type::S8 | Type::U8);
        let good = match (dims, a, sum) {
            (Some((16, 8, 8 | 16)), Type::F16, Type::F16 | Type::F32) => a == b,
            (Some((16, 8, 8 | 16)), Type::Bf16, Type::F32) => a == b,
            (Some((16, 8, 4 | 8)), Type::Tf32, Type::F32) => a == b,
            (Some((16, 8, 16 | 32) | (8, 8, 16)), Type::S8 | Type::U8, Type::S32) => bytes(b),
            (Some((8, 8, 4)), Type::F64, Type::F64) => a == b,
            _ => false,
        };
        let (Some((m, n, k)), true) = (dims, good && sum == last) else {
            return self.refuse(op, "this shape or type of matrix is not supported");
        };
        let packed = (4 / a.bytes()).max(1) as usize;
        let shape = Shape { m, n, k, packed, input: [a, b], sum };
        let list = |operand: &Operand| match operand {
            Operand::Vector(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        let mut d = Vec::new();
        for part in list(self.at(inst, op, 0)?) {
            d.push(self.row_of(&part, op)?);
        }
        let mut s = Vec::new();
        let [na, nb, nc] = shape.registers();
        for (index, (count, ty)) in [(na, a), (nb, b), (nc, sum)].into_iter().enumerate() {
            let parts = list(self.at(inst, op, index + 1)?);
            if parts.len() != count || d.len() != nc {
                return self.refuse(op, "a fragment of another size");
            }
            for part in parts {
                s.push(self.src_of(&part, op, ty)?);
            }
        }
        let saturate = op.has("satfinite");
        self.all_lanes(inst);
        let f = Box::new(move |d: &mut [Row], s: &[&Row], _: u32| multiply(shape, d, s, saturate));
        self.emit(inst, Op::MapN { f, d, s });
        Ok(())
    }

    /// `ldmatrix` and `stmatrix`: eight lanes name the rows of each 8x8 matrix, all lanes get (give) pieces of it.
    fn move_matrices(&mut self, inst: &Inst, op: &Opcode<'_>, load: bool) -> Result<()> {
        let count = if op.has("x4") {
            4
        } else if op.has("x2") {
            2
        } else {
            1
        };
        if !op.has("m8n8") || op.ty() != Some(Type::B16) {
            return self.refuse(op, "this shape or type of matrix is not supported");
        }
        let (list, place) = if load { (0, 1) } else { (1, 0) };
        let parts = match self.at(inst, op, list)? {
            Operand::Vector(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        if parts.len() != count {
            return self.refuse(op, "a fragment of another size");
        }
        let at = self.address(inst, op, place)?;
        let trans = op.has("trans");
        // One place for a pair of elements, or one for each where the pair stands in a column.
        let pieces = if trans { 2 } else { 1 };
        let places: Vec<u32> = (0..count * pieces).map(|_| self.temp()).collect();
        self.all_lanes(inst);
        let f = Box::new(move |d: &mut [Row], s: &[&Row], _: u32| {
            for (index, out) in d.iter_mut().enumerate() {
                let (matrix, piece) = (index / pieces, index % pieces);
                for (lane, value) in out.iter_mut().enumerate() {
                    let (row, offset) =
                        if trans { (lane % 4 * 2 + piece, lane / 4 * 2) } else { (lane / 4, lane % 4 * 4) };
                    *value = s[0][matrix * 8 + row].wrapping_add(offset as u64);
                }
            }
        });
        self.emit(inst, Op::MapN { f, d: places.clone(), s: vec![at.base] });
        for (index, part) in parts.iter().enumerate() {
            let here = |piece: usize| Address { base: Src(places[index * pieces + piece]), ..at };
            match (load, trans) {
                (true, false) => {
                    let d = self.row_of(part, op)?;
                    self.emit(inst, Op::Load { at: here(0), d, width: 4, signed: false, spin: false });
                }
                (true, true) => {
                    let (d, lo, hi) = (self.row_of(part, op)?, self.temp(), self.temp());
                    self.emit(inst, Op::Load { at: here(0), d: lo, width: 2, signed: false, spin: false });
                    self.emit(inst, Op::Load { at: here(1), d: hi, width: 2, signed: false, spin: false });
                    let f = map2!(|a, b| a & 0xFFFF | (b & 0xFFFF) << 16);
                    self.emit(inst, Op::Map2 { f, d, a: Src(lo), b: Src(hi) });
                }
                (false, false) => {
                    let s = self.src_of(part, op, Type::B32)?;
                    self.emit(inst, Op::Store { at: here(0), s, width: 4 });
                }
                (false, true) => {
                    let (a, hi) = (self.src_of(part, op, Type::B32)?, self.temp());
                    self.emit(inst, Op::Map1 { f: map1!(|a| a >> 16), d: hi, a });
                    self.emit(inst, Op::Store { at: here(0), s: a, width: 2 });
                    self.emit(inst, Op::Store { at: here(1), s: Src(hi), width: 2 });
                }
            }
        }
        Ok(())
    }

    /// `movmatrix`: an 8x8 matrix of b16 in registers, transposed.
    pub(super) fn transpose(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        let (d, a) = (self.dst(inst, op, 0)?, self.src(inst, op, 1, Type::B32)?);
        self.all_lanes(inst);
        let f = Box::new(|d: &mut [Row], s: &[&Row], _: u32| {
            let element = |row: usize, col: usize| s[0][row * 4 + col / 2] >> (col % 2 * 16) & 0xFFFF;
            for (lane, value) in d[0].iter_mut().enumerate() {
                let (row, col) = (lane / 4, lane % 4 * 2);
                *value = element(col, row) | element(col + 1, row) << 16;
            }
        });
        self.emit(inst, Op::MapN { f, d: vec![d], s: vec![a] });
        Ok(())
    }
}
