//! Bodies of functions: scopes, registers, labels, instructions.

use std::collections::HashMap;

use super::{DEPTH_MAX, Parser, opcodes};
use crate::{
    error::{PtxError, Result},
    lex::{Interner, Kind, Sym},
    syntax::{Body, Call, Function, Inst, Linkage, LocalVar, Operand, Role, Stmt, VarDecl},
    types::{Space, Type},
};

/// `%r<100>`: a family of registers, made when they are used.
#[derive(Clone, Copy)]
struct Family {
    count: u64,
    ty: Type,
    width: u32,
}

/// Digits of the largest register number worth looking for.
const DIGITS_MAX: usize = 10;

#[derive(Default)]
struct Scope {
    parent: Option<usize>,
    registers: HashMap<Sym, (u32, u32)>,
    families: HashMap<Box<str>, Family>,
    variables: HashMap<Sym, u32>,
    labels: HashMap<Sym, u32>,
}

/// Names of a body while it is read.
pub(super) struct Scopes {
    scopes: Vec<Scope>,
    current: usize,
    body: Body,
}

impl Scopes {
    fn chain(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(from), |&scope| self.scopes[scope].parent)
    }

    fn new_registers(&mut self, ty: Type, width: u32) -> u32 {
        let first = self.body.regs.len() as u32;
        self.body.regs.extend((0..width).map(|_| ty));
        first
    }

    /// The register behind a name: its number, and how many a vector has.
    pub(super) fn register(&mut self, name: Sym, names: &Interner) -> Option<(u32, u32)> {
        let chain: Vec<usize> = self.chain(self.current).collect();
        for scope in chain {
            if let Some(&found) = self.scopes[scope].registers.get(&name) {
                return Some(found);
            }
            if self.scopes[scope].families.is_empty() {
                continue;
            }
            // `%r12` is number 12 of `%r<…>`, or number 2 of `%r1<…>`.
            let text = names.text(name);
            let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count().min(DIGITS_MAX);
            let member = (1..=digits).find_map(|count| {
                let (prefix, digits) = text.split_at(text.len() - count);
                let family = self.scopes[scope].families.get(prefix)?;
                let plain = count == 1 || !digits.starts_with('0');
                (plain && digits.parse::<u64>().is_ok_and(|index| index < family.count)).then_some(*family)
            });
            if let Some(family) = member {
                let (ty, width) = (family.ty, family.width);
                let first = self.new_registers(ty, width);
                self.scopes[scope].registers.insert(name, (first, width));
                return Some((first, width));
            }
        }
        None
    }

    /// The variable of the function behind a name.
    pub(super) fn variable(&self, name: Sym) -> Option<u32> {
        self.chain(self.current).find_map(|scope| self.scopes[scope].variables.get(&name).copied())
    }

    fn declare(&mut self, name: Sym, variable: LocalVar) {
        let index = self.body.vars.len() as u32;
        self.body.vars.push(variable);
        let current = self.current;
        self.scopes[current].variables.insert(name, index);
    }

    fn label(&self, name: Sym, from: usize) -> Option<u32> {
        self.chain(from).find_map(|scope| self.scopes[scope].labels.get(&name).copied())
    }

    fn define_label(&mut self, name: Sym) -> Option<u32> {
        let label = self.body.label_count;
        let current = self.current;
        if self.scopes[current].labels.insert(name, label).is_some() {
            return None;
        }
        self.body.label_count += 1;
        Some(label)
    }
}

/// A name that may turn out to be a label: where it is, and from which scope it was meant.
struct Pending {
    statement: usize,
    operand: usize,
    scope: usize,
}

impl Parser {
    /// A body, and the module-level variables declared inside it.
    pub(super) fn body(&mut self, function: &Function) -> Result<(Body, Vec<VarDecl>)> {
        let mut scopes = Scopes { scopes: vec![Scope::default()], current: 0, body: Body::default() };
        for (index, param) in function.params.iter().enumerate() {
            let role = Role::Param(index as u32);
            let size = u64::from(param.size);
            scopes.declare(param.name, LocalVar { space: Space::Param, size, align: param.align, role });
        }
        for (index, result) in function.results.iter().enumerate() {
            let role = Role::Result(index as u32);
            let size = u64::from(result.size);
            scopes.declare(result.name, LocalVar { space: Space::Param, size, align: result.align, role });
        }
        let mut promoted = Vec::new();
        let mut pending = Vec::new();
        let mut targets: Vec<(u32, Vec<Sym>, usize)> = Vec::new();
        self.expect(b'{')?;
        let mut depth = 1u32;
        let mut last_label = None;
        loop {
            match self.kind() {
                Kind::Punct(b'{') => {
                    self.at += 1;
                    depth += 1;
                    if depth > DEPTH_MAX {
                        return Err(self.error("scopes nested that deep"));
                    }
                    let parent = Some(scopes.current);
                    scopes.current = scopes.scopes.len();
                    scopes.scopes.push(Scope { parent, ..Scope::default() });
                }
                Kind::Punct(b'}') => {
                    self.at += 1;
                    depth -= 1;
                    match scopes.scopes[scopes.current].parent {
                        Some(parent) => scopes.current = parent,
                        None => break,
                    }
                }
                Kind::Punct(b';') => self.at += 1,
                Kind::Dot(sym) => {
                    let name = self.text(sym).to_owned();
                    match name.as_str() {
                        "reg" => self.registers(&mut scopes)?,
                        "local" | "shared" | "param" | "global" | "const" => {
                            self.local_variables(&mut scopes, &mut promoted, Linkage::Internal)?;
                        }
                        "extern" => {
                            self.at += 1;
                            self.local_variables(&mut scopes, &mut promoted, Linkage::Extern)?;
                        }
                        "loc" | "file" => self.skip_line(),
                        "branchtargets" => {
                            let line = self.line();
                            self.at += 1;
                            let mut list = vec![self.ident()?];
                            while self.accept(b',') {
                                list.push(self.ident()?);
                            }
                            self.expect(b';')?;
                            let label = last_label.ok_or_else(|| {
                                PtxError::new(line, ".branchtargets", "needs a label before it")
                            })?;
                            targets.push((label, list, scopes.current));
                        }
                        "pragma" | "callprototype" | "calltargets" => self.skip_statement(),
                        "section" => {
                            self.at += 1;
                            while !self.is(b'{') && self.kind() != Kind::End {
                                self.at += 1;
                            }
                            self.skip_braces()?;
                        }
                        _ => return Err(self.error("a directive that is not known in a body")),
                    }
                }
                Kind::Ident(name) if self.kind_after(1) == Kind::Punct(b':') => {
                    let label = scopes
                        .define_label(name)
                        .ok_or_else(|| self.error("this label exists already in this scope"))?;
                    self.at += 2;
                    last_label = Some(label);
                    scopes.body.code.push(Stmt::Label(label));
                }
                Kind::Ident(_) | Kind::Punct(b'@') => {
                    let statement = scopes.body.code.len();
                    let inst = self.instruction(&mut scopes)?;
                    for (operand, value) in inst.operands.iter().enumerate() {
                        if matches!(value, Operand::Symbol(..)) {
                            pending.push(Pending { statement, operand, scope: scopes.current });
                        }
                    }
                    scopes.body.code.push(Stmt::Inst(inst));
                }
                Kind::End => return Err(self.error("a body that is never closed")),
                _ => return Err(self.error("expected an instruction")),
            }
        }
        for place in pending {
            let Stmt::Inst(inst) = &scopes.body.code[place.statement] else { continue };
            let Operand::Symbol(name, _) = inst.operands[place.operand] else { continue };
            if let Some(label) = scopes.label(name, place.scope)
                && let Stmt::Inst(inst) = &mut scopes.body.code[place.statement]
            {
                inst.operands[place.operand] = Operand::Label(label);
            }
        }
        for (label, names, scope) in targets {
            let mut list = Vec::with_capacity(names.len());
            for name in names {
                let target = scopes.label(name, scope);
                list.push(
                    target.ok_or_else(|| PtxError::new(function.line, self.text(name), "no such label"))?,
                );
            }
            scopes.body.branch_targets.push((label, list));
        }
        Ok((scopes.body, promoted))
    }

    fn registers(&mut self, scopes: &mut Scopes) -> Result<()> {
        let head = self.declaration_head()?;
        loop {
            let name = self.ident()?;
            let current = scopes.current;
            if self.accept(b'<') {
                let count = self.int()?;
                self.expect(b'>')?;
                let prefix = self.text(name).into();
                scopes.scopes[current]
                    .families
                    .insert(prefix, Family { count, ty: head.ty, width: head.vector });
            } else {
                let first = scopes.new_registers(head.ty, head.vector);
                scopes.scopes[current].registers.insert(name, (first, head.vector));
            }
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    fn local_variables(
        &mut self,
        scopes: &mut Scopes,
        promoted: &mut Vec<VarDecl>,
        linkage: Linkage,
    ) -> Result<()> {
        for variable in self.variables(linkage)? {
            match variable.space {
                // It lives as long as the module; operands find it there by its name.
                Space::Global | Space::Const => promoted.push(variable),
                Space::Shared | Space::Local | Space::Param => {
                    let dynamic = variable.space == Space::Shared
                        && (linkage == Linkage::Extern || variable.unsized_array);
                    let role = if dynamic { Role::Dynamic } else { Role::Own };
                    scopes.declare(
                        variable.name,
                        LocalVar { space: variable.space, size: variable.size, align: variable.align, role },
                    );
                }
            }
        }
        Ok(())
    }

    fn instruction(&mut self, scopes: &mut Scopes) -> Result<Inst> {
        let line = self.line();
        let mut guard = None;
        if self.accept(b'@') {
            let negated = self.accept(b'!');
            let name = self.ident()?;
            let found = scopes.register(name, &self.out.names);
            let (reg, _) = found.ok_or_else(|| PtxError::new(line, self.text(name), "no such predicate"))?;
            guard = Some((reg, negated));
        }
        let mut opcode = self.ident().map(|name| self.text(name).to_owned())?;
        if !opcodes::exists(&opcode) {
            return Err(self.error("PTX has no such instruction"));
        }
        while let Kind::Dot(part) = self.kind() {
            self.at += 1;
            opcode.push('.');
            opcode.push_str(self.text(part));
        }
        let mut inst =
            Inst { line, guard, opcode: self.out.names.intern(&opcode), operands: Vec::new(), call: None };
        let start = self.at;
        let parsed = if opcode == "call" || opcode == "call.uni" {
            self.call(scopes).map(|call| inst.call = Some(Box::new(call)))
        } else {
            self.operands(scopes).map(|operands| inst.operands = operands)
        };
        if parsed.is_err() {
            // Only an unsupported instruction has operands of another shape. It refuses its own kernel, later.
            self.at = start;
            inst.operands = vec![Operand::Other];
            self.skip_statement();
        }
        Ok(inst)
    }

    fn operands(&mut self, scopes: &mut Scopes) -> Result<Vec<Operand>> {
        let mut operands = Vec::new();
        while !self.is(b';') {
            operands.push(self.operand(scopes, 0)?);
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')?;
        Ok(operands)
    }

    fn operand_list(&mut self, scopes: &mut Scopes) -> Result<Vec<Operand>> {
        self.expect(b'(')?;
        let mut operands = Vec::new();
        while !self.is(b')') {
            operands.push(self.operand(scopes, 0)?);
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b')')?;
        Ok(operands)
    }

    fn call(&mut self, scopes: &mut Scopes) -> Result<Call> {
        let mut results = Vec::new();
        if self.is(b'(') {
            results = self.operand_list(scopes)?;
            self.expect(b',')?;
        }
        let target = self.operand(scopes, 0)?;
        let mut arguments = Vec::new();
        if self.accept(b',') {
            if self.is(b'(') {
                arguments = self.operand_list(scopes)?;
                if self.accept(b',') {
                    // The prototype or list of targets: the callee's own signature says the same.
                    self.ident()?;
                }
            } else {
                self.ident()?;
            }
        }
        self.expect(b';')?;
        Ok(Call { results, target, arguments })
    }
}
