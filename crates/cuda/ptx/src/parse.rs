//! Tokens to a module: the top level.

mod body;
mod opcodes;
mod operand;
mod variable;

use std::collections::HashMap;

use crate::{
    error::{PtxError, Result},
    lex::{Interner, Kind, Sym, Token, tokens},
    syntax::{Function, Linkage, ParamDecl, VarDecl},
    types::{Space, Type},
};

/// The largest variable that may be declared: 1 TiB, more than any device has.
const SIZE_MAX: u64 = 1 << 40;
/// Nesting of braces and parentheses; real code has less than ten.
const DEPTH_MAX: u32 = 64;
/// The alignment PTX allows at most.
const ALIGN_MAX: u64 = 1 << 16;

/// Everything a module text declares.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) names: Interner,
    pub(crate) version: String,
    pub(crate) target: String,
    pub(crate) variables: Vec<VarDecl>,
    pub(crate) functions: Vec<Function>,
    /// `.alias`: name and what it stands for.
    pub(crate) aliases: Vec<(Sym, Sym)>,
}

pub(crate) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    pub(crate) out: Parsed,
    /// Variables of the module by name; the value is the index in `out.variables`.
    globals: HashMap<Sym, usize>,
}

/// Reads a whole module.
pub(crate) fn parse(text: &[u8]) -> Result<Parsed> {
    let mut names = Interner::default();
    let tokens = tokens(text, &mut names)?;
    let mut parser =
        Parser { tokens, at: 0, out: Parsed { names, ..Parsed::default() }, globals: HashMap::new() };
    parser.module()?;
    Ok(parser.out)
}

impl Parser {
    fn kind(&self) -> Kind {
        self.tokens.get(self.at).map_or(Kind::End, |token| token.kind)
    }

    fn kind_after(&self, ahead: usize) -> Kind {
        self.tokens.get(self.at + ahead).map_or(Kind::End, |token| token.kind)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.line)
    }

    fn next(&mut self) -> Kind {
        let kind = self.kind();
        if self.at < self.tokens.len() {
            self.at += 1;
        }
        kind
    }

    fn text(&self, sym: Sym) -> &str {
        self.out.names.text(sym)
    }

    /// The current token as text, for messages.
    fn shown(&self) -> String {
        match self.kind() {
            Kind::Ident(sym) => self.text(sym).to_owned(),
            Kind::Dot(sym) => format!(".{}", self.text(sym)),
            Kind::Int(value) => value.to_string(),
            Kind::F32(bits) => format!("0f{bits:08X}"),
            Kind::F64(bits) => format!("0d{bits:016X}"),
            Kind::Str => "a string".into(),
            Kind::Punct(byte) => char::from(byte).to_string(),
            Kind::End => "end of text".into(),
        }
    }

    fn error(&self, reason: impl Into<String>) -> PtxError {
        PtxError::new(self.line(), self.shown(), reason)
    }

    fn is(&self, byte: u8) -> bool {
        self.kind() == Kind::Punct(byte)
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.is(byte);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.accept(byte) {
            return Ok(());
        }
        Err(self.error(format!("expected `{}`", char::from(byte))))
    }

    fn ident(&mut self) -> Result<Sym> {
        if let Kind::Ident(sym) = self.kind() {
            self.at += 1;
            return Ok(sym);
        }
        Err(self.error("expected a name"))
    }

    fn int(&mut self) -> Result<u64> {
        if let Kind::Int(value) = self.kind() {
            self.at += 1;
            return Ok(value);
        }
        Err(self.error("expected an integer"))
    }

    /// Skips to the end of the current line.
    fn skip_line(&mut self) {
        let line = self.line();
        while self.line() == line && self.kind() != Kind::End {
            self.at += 1;
        }
    }

    /// Skips past the next `;`.
    fn skip_statement(&mut self) {
        while !matches!(self.next(), Kind::Punct(b';') | Kind::End) {}
    }

    /// Skips a `{ … }` with everything in it.
    fn skip_braces(&mut self) -> Result<()> {
        self.expect(b'{')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.next() {
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => depth -= 1,
                Kind::End => return Err(self.error("a `{` that is never closed")),
                _ => {}
            }
        }
        Ok(())
    }

    fn module(&mut self) -> Result<()> {
        let mut linkage = Linkage::Internal;
        loop {
            let line = self.line();
            match self.kind() {
                Kind::End => break,
                Kind::Dot(sym) => {
                    let name = self.text(sym).to_owned();
                    match name.as_str() {
                        "version" => {
                            self.at += 1;
                            self.out.version = match self.next() {
                                Kind::F64(bits) => format!("{}", f64::from_bits(bits)),
                                Kind::Int(value) => value.to_string(),
                                _ => return Err(PtxError::new(line, ".version", "expected a number")),
                            };
                        }
                        "target" => {
                            self.at += 1;
                            let target = self.ident()?;
                            self.out.target = self.text(target).to_owned();
                            while self.accept(b',') {
                                self.ident()?;
                            }
                        }
                        "address_size" => {
                            self.at += 1;
                            if self.int()? != 64 {
                                return Err(PtxError::new(line, ".address_size", "only 64-bit code runs"));
                            }
                        }
                        "visible" => linkage = self.link(Linkage::Visible),
                        "extern" => linkage = self.link(Linkage::Extern),
                        "weak" => linkage = self.link(Linkage::Weak),
                        "common" => linkage = self.link(Linkage::Common),
                        "entry" | "func" => {
                            self.at += 1;
                            self.function(
                                name == "entry",
                                std::mem::replace(&mut linkage, Linkage::Internal),
                            )?;
                        }
                        "global" | "const" | "shared" | "tex" => {
                            let linkage = std::mem::replace(&mut linkage, Linkage::Internal);
                            self.module_variables(linkage)?;
                        }
                        "file" | "loc" => self.skip_line(),
                        "section" => {
                            while !self.is(b'{') && self.kind() != Kind::End {
                                self.at += 1;
                            }
                            self.skip_braces()?;
                        }
                        "alias" => {
                            self.at += 1;
                            let name = self.ident()?;
                            self.expect(b',')?;
                            let of = self.ident()?;
                            self.expect(b';')?;
                            self.out.aliases.push((name, of));
                        }
                        "pragma" => self.skip_statement(),
                        _ => return Err(self.error("a directive that is not known at module level")),
                    }
                }
                Kind::Punct(b';') => self.at += 1,
                // `@@DWARF` lines of old compilers.
                Kind::Punct(b'@') => self.skip_line(),
                _ => return Err(self.error("expected a directive")),
            }
        }
        Ok(())
    }

    fn link(&mut self, linkage: Linkage) -> Linkage {
        self.at += 1;
        linkage
    }

    fn module_variables(&mut self, linkage: Linkage) -> Result<()> {
        for variable in self.variables(linkage)? {
            self.declare(variable);
        }
        Ok(())
    }

    /// Keeps a module variable; a definition replaces an earlier `.extern` declaration.
    fn declare(&mut self, variable: VarDecl) {
        match self.globals.get(&variable.name) {
            Some(&index) if self.out.variables[index].linkage == Linkage::Extern => {
                self.out.variables[index] = variable;
            }
            Some(_) if variable.linkage == Linkage::Extern => {}
            _ => {
                self.globals.insert(variable.name, self.out.variables.len());
                self.out.variables.push(variable);
            }
        }
    }

    fn function(&mut self, entry: bool, linkage: Linkage) -> Result<()> {
        let line = self.line();
        let mut function = Function {
            name: Sym(0),
            line,
            entry,
            linkage,
            params: Vec::new(),
            results: Vec::new(),
            max_threads: None,
            required_block: None,
            cluster: None,
            body: None,
            refusal: None,
        };
        while let Kind::Dot(_) = self.kind() {
            self.function_directive(&mut function)?;
        }
        if self.is(b'(') {
            function.results = self.parameters()?;
        }
        function.name = self.ident()?;
        if self.is(b'(') {
            function.params = self.parameters()?;
        }
        if function.params.iter().chain(&function.results).any(|param| param.in_register) {
            let reason = "parameters in registers are not supported";
            function.refusal = Some(PtxError::new(line, ".func", reason));
        }
        while let Kind::Dot(_) = self.kind() {
            self.function_directive(&mut function)?;
        }
        if self.is(b'{') {
            let (body, promoted) = self.body(&function)?;
            function.body = Some(body);
            for variable in promoted {
                self.declare(variable);
            }
        } else {
            self.expect(b';')?;
        }
        self.out.functions.push(function);
        Ok(())
    }

    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut out = [1u32; 3];
        for (index, place) in out.iter_mut().enumerate() {
            if index > 0 && !self.accept(b',') {
                break;
            }
            *place = u32::try_from(self.int()?).map_err(|_| self.error("too large"))?;
        }
        Ok(out)
    }

    fn function_directive(&mut self, function: &mut Function) -> Result<()> {
        let Kind::Dot(sym) = self.kind() else { return Ok(()) };
        let name = self.text(sym).to_owned();
        match name.as_str() {
            "maxntid" | "reqntid" => {
                self.at += 1;
                let dims = self.triple()?;
                let product = dims.iter().fold(1u32, |all, &dim| all.saturating_mul(dim));
                function.max_threads = Some(product);
                if name == "reqntid" {
                    function.required_block = Some(dims);
                }
            }
            "reqnctapercluster" => {
                self.at += 1;
                function.cluster = Some(self.triple()?);
            }
            "minnctapersm"
            | "maxnctapersm"
            | "maxnreg"
            | "maxclusterrank"
            | "abi_preserve"
            | "abi_preserve_control" => {
                self.at += 1;
                self.int()?;
            }
            "noreturn" | "explicitcluster" | "blocksareclusters" => self.at += 1,
            "pragma" => self.skip_statement(),
            "attribute" => {
                self.at += 1;
                self.skip_parentheses()?;
            }
            _ => return Err(self.error("a directive that is not known at a function")),
        }
        Ok(())
    }

    fn skip_parentheses(&mut self) -> Result<()> {
        self.expect(b'(')?;
        let mut depth = 1u32;
        while depth > 0 {
            match self.next() {
                Kind::Punct(b'(') => depth += 1,
                Kind::Punct(b')') => depth -= 1,
                Kind::End => return Err(self.error("a `(` that is never closed")),
                _ => {}
            }
        }
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<ParamDecl>> {
        self.expect(b'(')?;
        let mut out = Vec::new();
        while !self.is(b')') {
            out.push(self.parameter()?);
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b')')?;
        Ok(out)
    }

    fn parameter(&mut self) -> Result<ParamDecl> {
        let mut declared = self.declaration_head()?;
        let (name, size, _) = self.declarator(&mut declared)?;
        let size = u32::try_from(size).map_err(|_| self.error("a parameter that large"))?;
        Ok(ParamDecl { name, size, align: declared.align, in_register: declared.space.is_none() })
    }
}

/// What stands before the name in a declaration.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// `None` for `.reg`.
    pub(crate) space: Option<Space>,
    pub(crate) ty: Type,
    pub(crate) vector: u32,
    pub(crate) align: u32,
    pub(crate) opaque: bool,
    pub(crate) managed: bool,
}
