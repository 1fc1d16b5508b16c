//! What the parser makes of a module: functions with resolved registers, variables with initialisers.

use crate::{
    lex::Sym,
    types::{Space, Type},
};

/// How a symbol is seen from other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// Only this module knows it.
    Internal,
    /// Defined here, seen by all.
    Visible,
    /// Defined elsewhere.
    Extern,
    /// Defined here unless another module has a stronger definition.
    Weak,
    /// As weak, without initialiser.
    Common,
}

/// A place in an initialiser that becomes an address when the module is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    /// Where in the variable.
    pub(crate) offset: u64,
    /// Bytes to write there.
    pub(crate) width: u32,
    /// The variable or function meant.
    pub(crate) symbol: Sym,
    /// Added to its address.
    pub(crate) addend: i64,
    /// Which bits of the address are wanted: `0xFF00(symbol)`.
    pub(crate) mask: u64,
}

/// A variable of the module.
#[derive(Clone, Debug)]
pub(crate) struct VarDecl {
    pub(crate) name: Sym,
    pub(crate) space: Space,
    pub(crate) linkage: Linkage,
    pub(crate) align: u32,
    pub(crate) size: u64,
    /// `name[]`: its size is set elsewhere.
    pub(crate) unsized_array: bool,
    /// `.texref` and its kin.
    pub(crate) opaque: bool,
    /// `.attribute(.managed)`.
    pub(crate) managed: bool,
    /// Leading bytes; the rest is zero.
    pub(crate) init: Vec<u8>,
    pub(crate) relocations: Vec<Relocation>,
    pub(crate) line: u32,
}

/// A parameter of a function, or its result.
#[derive(Clone, Debug)]
pub(crate) struct ParamDecl {
    pub(crate) name: Sym,
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// A parameter in a register, as PTX before 2.0 had them.
    pub(crate) in_register: bool,
}

/// A variable of one function.
#[derive(Clone, Debug)]
pub(crate) struct LocalVar {
    pub(crate) space: Space,
    pub(crate) size: u64,
    pub(crate) align: u32,
    pub(crate) role: Role,
}

/// Which of a function's variables it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Declared in the body.
    Own,
    /// The n-th parameter.
    Param(u32),
    /// The n-th result.
    Result(u32),
    /// `.extern .shared name[]`: the dynamic shared memory.
    Dynamic,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Reg(u32),
    Var(u32),
    Symbol(Sym),
    Absolute,
}

/// One operand, its names resolved as far as the function alone allows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Reg(u32),
    NotReg(u32),
    Special(Sym),
    Int(u64),
    F32(u32),
    F64(u64),
    Var(u32, i64),
    Symbol(Sym, i64),
    Label(u32),
    Address(Base, i64),
    /// A texture or surface and coordinates: `[handle, {x, y}]`.
    Sampled(Box<(Base, Vec<Operand>)>),
    Vector(Vec<Operand>),
    Pair(Box<(Operand, Operand)>),
    Sink,
    /// Something only an unsupported instruction has.
    Other,
}

/// The parts of a `call`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) results: Vec<Operand>,
    pub(crate) target: Operand,
    pub(crate) arguments: Vec<Operand>,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) line: u32,
    /// Predicate register, and whether it is negated.
    pub(crate) guard: Option<(u32, bool)>,
    /// All of `ld.global.u32`.
    pub(crate) opcode: Sym,
    pub(crate) operands: Vec<Operand>,
    pub(crate) call: Option<Box<Call>>,
}

/// A line of a body.
#[derive(Clone, Debug)]
pub(crate) enum Stmt {
    Label(u32),
    Inst(Inst),
}

/// What a function does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    /// Declared type of each register.
    pub(crate) regs: Vec<Type>,
    pub(crate) vars: Vec<LocalVar>,
    pub(crate) code: Vec<Stmt>,
    pub(crate) label_count: u32,
    /// `.branchtargets` lists, by the label that names them.
    pub(crate) branch_targets: Vec<(u32, Vec<u32>)>,
}

/// An entry or a function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: Sym,
    pub(crate) line: u32,
    pub(crate) entry: bool,
    pub(crate) linkage: Linkage,
    pub(crate) params: Vec<ParamDecl>,
    pub(crate) results: Vec<ParamDecl>,
    /// `.maxntid` or `.reqntid`, as a product.
    pub(crate) max_threads: Option<u32>,
    /// `.reqntid`.
    pub(crate) required_block: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) body: Option<Body>,
    /// Why it cannot run although it parsed.
    pub(crate) refusal: Option<crate::PtxError>,
}
