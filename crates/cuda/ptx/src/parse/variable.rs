//! Declarations of variables and their initialisers.

use super::{ALIGN_MAX, DEPTH_MAX, Head, Parser, SIZE_MAX};
use crate::{
    error::Result,
    lex::{Kind, Sym},
    syntax::{Linkage, Relocation, VarDecl},
    types::{Space, Type},
};

/// A value in an initialiser.
enum Value {
    Number(u64),
    Float(f64),
    Address { symbol: Sym, addend: i64, mask: u64 },
}

impl Parser {
    /// Everything before the name: `.global .align 4 .b8`, in any order the compilers use.
    pub(super) fn declaration_head(&mut self) -> Result<Head> {
        let mut head = Head {
            space: Some(Space::Param),
            ty: Type::B32,
            vector: 1,
            align: 0,
            opaque: false,
            managed: false,
        };
        // `.ptr .global` in a parameter says where it points, not where it lives.
        let mut after_ptr = false;
        while let Kind::Dot(sym) = self.kind() {
            let name = self.text(sym).to_owned();
            if let Some(ty) = Type::from_name(&name) {
                head.ty = ty;
            } else {
                match name.as_str() {
                    "ptr" => after_ptr = true,
                    "global" | "const" | "shared" | "local" | "param" | "generic" | "tex" if after_ptr => {}
                    "global" => head.space = Some(Space::Global),
                    "const" => head.space = Some(Space::Const),
                    "shared" | "shared::cta" => head.space = Some(Space::Shared),
                    "local" => head.space = Some(Space::Local),
                    "param" => head.space = Some(Space::Param),
                    "reg" => head.space = None,
                    "v2" => head.vector = 2,
                    "v4" => head.vector = 4,
                    "v8" => head.vector = 8,
                    "texref" | "samplerref" | "surfref" | "tex" => {
                        head.opaque = true;
                        head.ty = Type::B64;
                    }
                    "align" => {
                        self.at += 1;
                        let align = self.int()?;
                        if !align.is_power_of_two() || align > ALIGN_MAX {
                            return Err(self.error("an alignment that is no power of two"));
                        }
                        // The alignment after `.ptr` is of what it points to.
                        if !after_ptr {
                            head.align = align as u32;
                        }
                        continue;
                    }
                    "attribute" => {
                        self.at += 1;
                        let start = self.at;
                        self.skip_parentheses()?;
                        head.managed = self.tokens[start..self.at]
                            .iter()
                            .any(|token| matches!(token.kind, Kind::Dot(sym) if self.text(sym) == "managed"));
                        continue;
                    }
                    "volatile" => {}
                    _ => return Err(self.error("not known in a declaration")),
                }
            }
            self.at += 1;
        }
        let natural = (head.ty.bytes() * head.vector).max(1);
        if head.align == 0 {
            head.align = natural;
        }
        Ok(head)
    }

    /// The name with its dimensions: name, size in bytes, and the dimensions (0 for `[]`).
    pub(super) fn declarator(&mut self, head: &mut Head) -> Result<(Sym, u64, Vec<u64>)> {
        let name = self.ident()?;
        let mut dims = Vec::new();
        let mut count = 1u64;
        while self.accept(b'[') {
            if self.accept(b']') {
                dims.push(0);
                count = 0;
                continue;
            }
            let dim = self.constant_expression(0)?;
            self.expect(b']')?;
            dims.push(dim);
            count = count
                .checked_mul(dim)
                .filter(|&count| count <= SIZE_MAX)
                .ok_or_else(|| self.error("an array that large"))?;
        }
        let size = count * u64::from(head.ty.bytes() * head.vector);
        if size > SIZE_MAX {
            return Err(self.error("an array that large"));
        }
        Ok((name, size, dims))
    }

    /// `.global .align 4 .b8 a[4] = {1, 2}, b;`
    pub(super) fn variables(&mut self, linkage: Linkage) -> Result<Vec<VarDecl>> {
        let mut head = self.declaration_head()?;
        let mut out = Vec::new();
        loop {
            let line = self.line();
            let (name, size, mut dims) = self.declarator(&mut head)?;
            let mut variable = VarDecl {
                name,
                space: head.space.unwrap_or(Space::Local),
                linkage,
                align: head.align,
                size,
                unsized_array: dims.first() == Some(&0),
                opaque: head.opaque,
                managed: head.managed,
                init: Vec::new(),
                relocations: Vec::new(),
                line,
            };
            if self.accept(b'=') {
                if head.opaque {
                    self.skip_braces()?;
                } else {
                    if head.vector > 1 {
                        dims.push(u64::from(head.vector));
                    }
                    let limit = if variable.unsized_array { SIZE_MAX } else { size };
                    let end = self.initialiser(&mut variable, head.ty, &dims, 0, limit, 0)?;
                    if variable.unsized_array {
                        variable.size = end;
                        variable.unsized_array = false;
                    }
                }
            }
            out.push(variable);
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')?;
        Ok(out)
    }

    /// Reads one (nested) initialiser that starts at byte `start`; returns where it ended.
    fn initialiser(
        &mut self,
        variable: &mut VarDecl,
        ty: Type,
        dims: &[u64],
        start: u64,
        limit: u64,
        depth: u32,
    ) -> Result<u64> {
        if depth > DEPTH_MAX {
            return Err(self.error("an initialiser nested that deep"));
        }
        if !self.accept(b'{') {
            let value = self.value(ty)?;
            return self.place(variable, ty, start, limit, &value);
        }
        let inner = dims.get(1..).unwrap_or(&[]);
        let stride = inner.iter().try_fold(u64::from(ty.bytes()), |all, &dim| all.checked_mul(dim));
        let stride = stride.ok_or_else(|| self.error("an array that large"))?;
        let mut at = start;
        while !self.is(b'}') {
            if self.is(b'{') {
                self.initialiser(variable, ty, inner, at, limit, depth + 1)?;
                at += stride;
            } else {
                let value = self.value(ty)?;
                at = self.place(variable, ty, at, limit, &value)?;
            }
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b'}')?;
        Ok(at)
    }

    fn place(&self, variable: &mut VarDecl, ty: Type, at: u64, limit: u64, value: &Value) -> Result<u64> {
        let width = ty.bytes();
        let end = at + u64::from(width);
        if width == 0 || end > limit {
            return Err(self.error("more values than the variable holds"));
        }
        // The values stand in the text one by one, except where nested braces leave gaps; those are bounded by
        // the stride, so cap what a few braces can make us allocate.
        if end > self.tokens.len() as u64 * 64 + (1 << 24) {
            return Err(self.error("an initialiser with gaps that large"));
        }
        if variable.init.len() < end as usize {
            variable.init.resize(end as usize, 0);
        }
        let bits = match *value {
            Value::Number(bits) => match ty {
                Type::F32 => (bits as i64 as f32).to_bits().into(),
                Type::F64 => (bits as i64 as f64).to_bits(),
                _ => bits,
            },
            Value::Float(number) => match ty {
                Type::F32 => u64::from((number as f32).to_bits()),
                _ => number.to_bits(),
            },
            Value::Address { symbol, addend, mask } => {
                variable.relocations.push(Relocation { offset: at, width, symbol, addend, mask });
                0
            }
        };
        let bytes = bits.to_le_bytes();
        for index in 0..width as usize {
            variable.init[at as usize + index] = bytes.get(index).copied().unwrap_or(0);
        }
        Ok(end)
    }

    fn value(&mut self, ty: Type) -> Result<Value> {
        match self.kind() {
            Kind::F32(bits) => {
                self.at += 1;
                Ok(if ty == Type::F32 || ty == Type::F64 {
                    Value::Float(f64::from(f32::from_bits(bits)))
                } else {
                    Value::Number(u64::from(bits))
                })
            }
            Kind::F64(bits) => {
                self.at += 1;
                Ok(Value::Float(f64::from_bits(bits)))
            }
            Kind::Punct(b'-') if matches!(self.kind_after(1), Kind::F32(_) | Kind::F64(_)) => {
                self.at += 1;
                match self.value(ty)? {
                    Value::Float(number) => Ok(Value::Float(-number)),
                    other => Ok(other),
                }
            }
            Kind::Int(mask) if self.kind_after(1) == Kind::Punct(b'(') => {
                self.at += 2;
                let (symbol, addend) = self.address_value()?;
                self.expect(b')')?;
                Ok(Value::Address { symbol, addend, mask })
            }
            Kind::Ident(_) => {
                let (symbol, addend) = self.address_value()?;
                Ok(Value::Address { symbol, addend, mask: u64::MAX })
            }
            _ => Ok(Value::Number(self.constant_expression(0)?)),
        }
    }

    /// `name`, `name+4`, `generic(name)+4`.
    fn address_value(&mut self) -> Result<(Sym, i64)> {
        let mut symbol = self.ident()?;
        if self.text(symbol) == "generic" && self.accept(b'(') {
            symbol = self.ident()?;
            self.expect(b')')?;
        }
        let mut addend = 0i64;
        loop {
            let negative = if self.accept(b'+') {
                false
            } else if self.accept(b'-') {
                true
            } else {
                return Ok((symbol, addend));
            };
            let value = self.constant_expression(0)? as i64;
            addend = addend.wrapping_add(if negative { value.wrapping_neg() } else { value });
        }
    }

    /// A constant expression of integers. Operators have C's precedence, by levels.
    pub(super) fn constant_expression(&mut self, depth: u32) -> Result<u64> {
        self.binary_expression(0, depth)
    }

    fn binary_expression(&mut self, level: u8, depth: u32) -> Result<u64> {
        if depth > DEPTH_MAX {
            return Err(self.error("an expression nested that deep"));
        }
        let mut left = self.unary_expression(depth + 1)?;
        while let Some((operator, precedence, tokens)) = self.operator()
            && precedence >= level
        {
            self.at += tokens;
            let right = self.binary_expression(precedence + 1, depth + 1)?;
            left = match operator {
                b'+' => left.wrapping_add(right),
                b'-' => left.wrapping_sub(right),
                b'*' => left.wrapping_mul(right),
                b'/' | b'%' if right == 0 => return Err(self.error("a division by zero")),
                b'/' => (left as i64).wrapping_div(right as i64) as u64,
                b'%' => (left as i64).wrapping_rem(right as i64) as u64,
                b'&' => left & right,
                b'|' => left | right,
                b'^' => left ^ right,
                b'<' => left.checked_shl(right as u32).unwrap_or(0),
                _ => left.checked_shr(right as u32).unwrap_or(0),
            };
        }
        Ok(left)
    }

    fn operator(&self) -> Option<(u8, u8, usize)> {
        let Kind::Punct(byte) = self.kind() else { return None };
        let doubled = self.kind_after(1) == Kind::Punct(byte);
        Some(match byte {
            b'|' if !doubled => (byte, 1, 1),
            b'^' => (byte, 2, 1),
            b'&' if !doubled => (byte, 3, 1),
            b'<' | b'>' if doubled => (byte, 4, 2),
            b'+' | b'-' => (byte, 5, 1),
            b'*' | b'/' | b'%' => (byte, 6, 1),
            _ => return None,
        })
    }

    fn unary_expression(&mut self, depth: u32) -> Result<u64> {
        if depth > DEPTH_MAX {
            return Err(self.error("an expression nested that deep"));
        }
        match self.kind() {
            Kind::Int(value) => {
                self.at += 1;
                Ok(value)
            }
            Kind::Punct(b'-') => {
                self.at += 1;
                Ok(self.unary_expression(depth + 1)?.wrapping_neg())
            }
            Kind::Punct(b'~') => {
                self.at += 1;
                Ok(!self.unary_expression(depth + 1)?)
            }
            Kind::Punct(b'+') => {
                self.at += 1;
                self.unary_expression(depth + 1)
            }
            Kind::Punct(b'(') => {
                self.at += 1;
                let value = self.binary_expression(0, depth + 1)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => Err(self.error("expected a constant")),
        }
    }
}
