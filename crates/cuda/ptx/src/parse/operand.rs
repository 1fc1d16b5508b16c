//! Operands of instructions.

use super::{DEPTH_MAX, Parser, body::Scopes};
use crate::{
    error::Result,
    lex::Kind,
    syntax::{Base, Operand},
};

impl Parser {
    /// One operand, with `a|b` pairs.
    pub(super) fn operand(&mut self, scopes: &mut Scopes, depth: u32) -> Result<Operand> {
        let first = self.single_operand(scopes, depth)?;
        if self.accept(b'|') {
            let second = self.single_operand(scopes, depth)?;
            return Ok(Operand::Pair(Box::new((first, second))));
        }
        Ok(first)
    }

    fn single_operand(&mut self, scopes: &mut Scopes, depth: u32) -> Result<Operand> {
        if depth > DEPTH_MAX {
            return Err(self.error("operands nested that deep"));
        }
        match self.kind() {
            Kind::Punct(b'{') => {
                self.at += 1;
                let mut elements = Vec::new();
                while !self.is(b'}') {
                    elements.push(self.operand(scopes, depth + 1)?);
                    if !self.accept(b',') {
                        break;
                    }
                }
                self.expect(b'}')?;
                Ok(Operand::Vector(elements))
            }
            Kind::Punct(b'[') => self.address(scopes, depth),
            Kind::Punct(b'!') => {
                self.at += 1;
                match self.single_operand(scopes, depth + 1)? {
                    Operand::Reg(reg) => Ok(Operand::NotReg(reg)),
                    _ => Err(self.error("`!` is only for predicates")),
                }
            }
            Kind::F32(bits) => {
                self.at += 1;
                Ok(Operand::F32(bits))
            }
            Kind::F64(bits) => {
                self.at += 1;
                Ok(Operand::F64(bits))
            }
            Kind::Punct(b'-') if matches!(self.kind_after(1), Kind::F32(_) | Kind::F64(_)) => {
                self.at += 1;
                match self.next() {
                    Kind::F32(bits) => Ok(Operand::F32(bits ^ 0x8000_0000)),
                    Kind::F64(bits) => Ok(Operand::F64(bits ^ (1 << 63))),
                    _ => Err(self.error("expected a number")),
                }
            }
            Kind::Int(_) | Kind::Punct(b'-' | b'~' | b'(') => {
                Ok(Operand::Int(self.constant_expression(depth)?))
            }
            Kind::Ident(_) => self.named(scopes),
            _ => Err(self.error("expected an operand")),
        }
    }

    fn named(&mut self, scopes: &mut Scopes) -> Result<Operand> {
        let name = self.ident()?;
        if self.text(name) == "_" {
            return Ok(Operand::Sink);
        }
        if self.text(name) == "WARP_SZ" {
            return Ok(Operand::Int(32));
        }
        if let Some((reg, width)) = scopes.register(name, &self.out.names) {
            if width == 1 {
                return Ok(Operand::Reg(reg));
            }
            if let Kind::Dot(element) = self.kind() {
                let index = match self.text(element) {
                    "x" | "r" => 0,
                    "y" | "g" => 1,
                    "z" | "b" => 2,
                    "w" | "a" => 3,
                    _ => return Err(self.error("no such element of a vector")),
                };
                if index >= width {
                    return Err(self.error("no such element of a vector"));
                }
                self.at += 1;
                return Ok(Operand::Reg(reg + index));
            }
            return Ok(Operand::Vector((reg..reg + width).map(Operand::Reg).collect()));
        }
        if self.text(name).starts_with('%') && scopes.variable(name).is_none() {
            let mut full = self.text(name).to_owned();
            if let Kind::Dot(element) = self.kind() {
                self.at += 1;
                full = format!("{full}.{}", self.text(element));
            }
            return Ok(Operand::Special(self.out.names.intern(&full)));
        }
        let offset = self.offset()?;
        Ok(match scopes.variable(name) {
            Some(variable) => Operand::Var(variable, offset),
            None => Operand::Symbol(name, offset),
        })
    }

    /// `+4`, `+-4`, `-4`, or nothing.
    fn offset(&mut self) -> Result<i64> {
        let mut offset = 0i64;
        loop {
            let negative = if self.accept(b'+') {
                false
            } else if self.is(b'-') {
                self.at += 1;
                true
            } else {
                return Ok(offset);
            };
            let value = match self.kind() {
                Kind::Int(value) => {
                    self.at += 1;
                    value as i64
                }
                Kind::Punct(b'-') => {
                    self.at += 1;
                    (self.int()? as i64).wrapping_neg()
                }
                _ => self.constant_expression(0)? as i64,
            };
            offset = offset.wrapping_add(if negative { value.wrapping_neg() } else { value });
        }
    }

    fn address(&mut self, scopes: &mut Scopes, depth: u32) -> Result<Operand> {
        self.expect(b'[')?;
        let base = match self.kind() {
            Kind::Ident(_) => match self.named(scopes)? {
                Operand::Reg(reg) => (Base::Reg(reg), 0),
                Operand::Var(variable, offset) => (Base::Var(variable), offset),
                Operand::Symbol(name, offset) => (Base::Symbol(name), offset),
                _ => return Err(self.error("not an address")),
            },
            _ => (Base::Absolute, self.constant_expression(0)? as i64),
        };
        if self.accept(b',') {
            // A texture or surface and coordinates. A sampler in between is an instruction of another mode.
            let places = match self.operand(scopes, depth + 1)? {
                Operand::Vector(places) => places,
                single => vec![single],
            };
            self.expect(b']')?;
            return Ok(Operand::Sampled(Box::new((base.0, places))));
        }
        let offset = base.1.wrapping_add(self.offset()?);
        self.expect(b']')?;
        Ok(Operand::Address(base.0, offset))
    }
}
