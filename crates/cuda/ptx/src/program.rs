//! A linked program with its variables placed in device memory.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    address::{FUNCTION, FUNCTION_STRIDE},
    code::{Builtin, Kernel, Op, Target},
    error::{PtxError, Result},
    lex::{Interner, Sym},
    lower,
    module::{Item, Linked, Variable},
    syntax::{Function, Operand, ParamDecl, Stmt},
};

/// Where a kernel expects one of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Byte offset in the parameter block.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// Alignment.
    pub align: u32,
}

/// What can be said of a kernel before it is launched.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<Param>,
    /// Bytes of the parameter block.
    pub param_bytes: u32,
    /// Shared memory it uses whatever the launch asks for.
    pub static_shared: u32,
    /// Local memory of one thread in the deepest chain of calls that is not recursive.
    pub local_bytes: u32,
    /// `.maxntid` or `.reqntid`, or 1024.
    pub max_threads: u32,
    /// `.reqntid`.
    pub required_block: Option<[u32; 3]>,
    /// Registers a thread would need: the most that are live at once, in 32-bit units.
    pub registers: u32,
}

/// What a name of a module means in the bound program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Its address.
    Variable(u64),
    Shared {
        module: usize,
        name: Sym,
        size: u64,
        align: u32,
        dynamic: bool,
    },
    Function(usize),
    Builtin(Builtin),
}

struct Slot {
    function: usize,
    decoded: OnceLock<Result<(Arc<Kernel>, KernelInfo)>>,
}

/// Modules, linked and bound to addresses. Kernels are decoded when first asked for.
pub struct Program {
    linked: Linked,
    addresses: Vec<u64>,
    kernels: Vec<Slot>,
    by_name: HashMap<String, usize>,
    addressed: OnceLock<Vec<usize>>,
    /// What all kernels together may cost and have cost, in decoded instructions.
    cost_max: u64,
    cost: AtomicU64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

/// Every kernel has its own copy of the functions it calls, so kernels times functions decides what a text costs. Real
/// texts stay far below these: copies for each statement, copies that any text may have, copies that none may exceed.
const COPIES_EACH: u64 = 64;
const COPIES_ALWAYS: u64 = 1 << 18;
const COPIES_MAX: u64 = 1 << 24;
/// What a function costs beside its instructions, in instructions.
const FUNCTION_COST: u64 = 4;

/// The most bytes of all parameters of a kernel, as on devices of today.
const PARAMETER_BYTES_MAX: u32 = 32_764;

/// Offsets of parameters, and the bytes of all.
pub(crate) fn param_layout(params: &[ParamDecl]) -> (Vec<Param>, u32) {
    let mut end = 0u32;
    let mut out = Vec::with_capacity(params.len());
    for param in params {
        let align = param.align.max(1);
        let offset = end.checked_next_multiple_of(align).unwrap_or(end);
        end = offset.saturating_add(param.size);
        out.push(Param { offset, size: param.size, align });
    }
    (out, end)
}

impl Program {
    /// Binds every variable to the address that `place` gives it.
    pub fn bind(linked: Linked, mut place: impl FnMut(&Variable) -> u64) -> Self {
        let addresses = linked.variables.iter().map(&mut place).collect();
        let mut kernels = Vec::new();
        let mut by_name = HashMap::new();
        for (number, &(module, index)) in linked.functions.iter().enumerate() {
            let parsed = &linked.modules[module].parsed;
            let function = &parsed.functions[index];
            if function.entry {
                by_name.insert(parsed.names.text(function.name).to_owned(), kernels.len());
                kernels.push(Slot { function: number, decoded: OnceLock::new() });
            }
        }
        let bodies = linked.modules.iter().flat_map(|module| &module.parsed.functions).map(|f| &f.body);
        let statements: u64 = bodies.flatten().map(|body| body.code.len() as u64 + FUNCTION_COST).sum();
        let cost_max = statements + (statements * COPIES_EACH + COPIES_ALWAYS).min(COPIES_MAX);
        let (addressed, cost) = (OnceLock::new(), AtomicU64::new(0));
        Self { linked, addresses, kernels, by_name, addressed, cost_max, cost }
    }

    /// Variables and their addresses.
    pub fn variables(&self) -> impl Iterator<Item = (&Variable, u64)> {
        self.linked.variables.iter().zip(self.addresses.iter().copied())
    }

    /// What the memory of a variable holds at first: leading bytes; whatever follows them is zero.
    pub fn initial_bytes(&self, variable: &Variable) -> Result<Vec<u8>> {
        let parsed = &self.linked.modules[variable.module].parsed;
        let declared = &parsed.variables[variable.index];
        let mut bytes = declared.init.clone();
        for relocation in &declared.relocations {
            let name = parsed.names.text(relocation.symbol);
            let address = match self.resolve(variable.module, relocation.symbol) {
                Some(Resolved::Variable(address)) => address,
                Some(Resolved::Function(function)) => FUNCTION + function as u64 * FUNCTION_STRIDE,
                _ => {
                    let reason = format!("its initialiser needs the address of `{name}`, which has none");
                    return Err(PtxError::new(declared.line, &variable.name, reason));
                }
            };
            let address = address.wrapping_add(relocation.addend as u64);
            let shift = if relocation.mask == 0 { 0 } else { relocation.mask.trailing_zeros() };
            let value = (address & relocation.mask) >> shift;
            let at = relocation.offset as usize;
            let width = relocation.width.min(8) as usize;
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Ok(bytes)
    }

    /// Names of all kernels.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|slot| {
            let (module, function) = self.function(slot.function);
            self.names(module).text(function.name)
        })
    }

    /// Facts about a kernel, or why it cannot run. `None` if there is none of that name.
    pub fn kernel(&self, name: &str) -> Option<Result<&KernelInfo>> {
        Some(self.decoded(name)?.map(|(_, info)| info))
    }

    /// Decodes a kernel the first time it is asked for.
    pub(crate) fn decoded(&self, name: &str) -> Option<Result<&(Arc<Kernel>, KernelInfo)>> {
        let slot = &self.kernels[*self.by_name.get(name)?];
        let decoded = slot.decoded.get_or_init(|| {
            let (module, function) = self.function(slot.function);
            let (params, param_bytes) = param_layout(&function.params);
            if param_bytes > PARAMETER_BYTES_MAX {
                let reason = format!("parameters of more than {PARAMETER_BYTES_MAX} bytes");
                return Err(PtxError::new(function.line, ".entry", reason));
            }
            if function.cluster.is_some_and(|dims| dims != [1, 1, 1]) {
                let reason = "clusters of several blocks are not supported";
                return Err(PtxError::new(function.line, ".reqnctapercluster", reason));
            }
            if self.cost.load(Ordering::Relaxed) > self.cost_max {
                let reason = "the kernels of this module share too many functions: each needs a copy of them";
                return Err(PtxError::new(function.line, ".entry", reason));
            }
            let kernel = lower::lower(self, slot.function)?;
            let cost = kernel.code.len() as u64 + kernel.functions.len() as u64 * FUNCTION_COST;
            self.cost.fetch_add(cost, Ordering::Relaxed);
            let info = KernelInfo {
                name: self.names(module).text(function.name).to_owned(),
                params,
                param_bytes,
                static_shared: kernel.static_shared,
                local_bytes: stack_bytes(&kernel),
                max_threads: function.max_threads.unwrap_or(1024).min(1024),
                required_block: function.required_block,
                registers: kernel.registers,
            };
            Ok((Arc::new(kernel), info))
        });
        Some(decoded.as_ref().map_err(Clone::clone))
    }

    pub(crate) fn function(&self, number: usize) -> (usize, &Function) {
        let (module, index) = self.linked.functions[number];
        (module, &self.linked.modules[module].parsed.functions[index])
    }

    pub(crate) fn names(&self, module: usize) -> &Interner {
        &self.linked.modules[module].parsed.names
    }

    pub(crate) fn resolve(&self, module: usize, name: Sym) -> Option<Resolved> {
        let text = self.names(module).text(name);
        match self.linked.find(module, text) {
            Some(Item::Variable(index)) => Some(Resolved::Variable(self.addresses[index])),
            Some(Item::Function(function)) => Some(Resolved::Function(function)),
            Some(Item::Shared(module, index)) => {
                let variable = &self.linked.modules[module].parsed.variables[index];
                Some(Resolved::Shared {
                    module,
                    name: variable.name,
                    size: variable.size,
                    align: variable.align,
                    dynamic: variable.linkage == crate::syntax::Linkage::Extern || variable.unsized_array,
                })
            }
            None => match text {
                "vprintf" => Some(Resolved::Builtin(Builtin::Printf)),
                "malloc" => Some(Resolved::Builtin(Builtin::Malloc)),
                "free" => Some(Resolved::Builtin(Builtin::Free)),
                "cudaGraphSetConditional" => Some(Resolved::Builtin(Builtin::SetCondition)),
                "__assertfail" => Some(Resolved::Builtin(Builtin::AssertFail)),
                _ => None,
            },
        }
    }

    /// Functions (not kernels) whose address is taken, in code or in an initialiser.
    pub(crate) fn addressed_functions(&self) -> impl Iterator<Item = usize> + '_ {
        self.addressed.get_or_init(|| {
            let mut found = Vec::new();
            let mut seen = HashSet::new();
            let mut note = |module: usize, name: Sym| {
                if let Some(Item::Function(function)) =
                    self.linked.find(module, self.names(module).text(name))
                    && !self.function(function).1.entry
                    && seen.insert(function)
                {
                    found.push(function);
                }
            };
            for (number, module) in self.linked.modules.iter().enumerate() {
                for variable in &module.parsed.variables {
                    variable.relocations.iter().for_each(|relocation| note(number, relocation.symbol));
                }
                for function in &module.parsed.functions {
                    for statement in function.body.iter().flat_map(|body| &body.code) {
                        let Stmt::Inst(inst) = statement else { continue };
                        for operand in &inst.operands {
                            if let Operand::Symbol(name, _) = operand {
                                note(number, *name);
                            }
                        }
                    }
                }
            }
            found
        });
        self.addressed.get().into_iter().flatten().copied()
    }
}

/// Frames of the longest chain of direct calls, each function counted once.
fn stack_bytes(kernel: &Kernel) -> u32 {
    let count = kernel.functions.len();
    let mut calls: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut starts: Vec<(u32, usize)> =
        kernel.functions.iter().enumerate().map(|(index, f)| (f.entry, index)).collect();
    starts.sort_unstable();
    for (at, inst) in kernel.code.iter().enumerate() {
        if let Op::Call(site) = &inst.op
            && let Target::Direct(callee) = site.target
        {
            let owner = starts.partition_point(|&(entry, _)| entry as usize <= at) - 1;
            calls[starts[owner].1].push(callee);
        }
    }
    // Depth-first without recursion: (function, next call to look at, bytes so far).
    let mut deepest = 0;
    let mut on_path = vec![false; count];
    let mut stack = vec![(0usize, 0usize, kernel.functions[0].frame)];
    let mut steps = 0u32;
    on_path[0] = true;
    while let Some((function, next, bytes)) = stack.pop() {
        deepest = deepest.max(bytes);
        steps += 1;
        if let Some(&callee) = calls[function].get(next)
            && steps < 100_000
        {
            stack.push((function, next + 1, bytes));
            if !on_path[callee] {
                on_path[callee] = true;
                stack.push((callee, 0, bytes.saturating_add(kernel.functions[callee].frame)));
            }
        } else {
            on_path[function] = false;
        }
    }
    deepest
}
