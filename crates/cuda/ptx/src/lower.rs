//! Syntax to decoded code: one kernel with every function it can reach.

#[macro_use]
mod macros;
mod atomic;
mod barrier;
mod call;
mod compare;
mod convert;
mod float;
mod half;
mod integer;
mod logic;
mod matrix;
mod memory;
mod movement;
mod texture;
mod video;
mod warp;

use std::{cell::Cell, collections::HashMap, sync::Arc};

use crate::{
    address::{FUNCTION, FUNCTION_STRIDE},
    code::{FunctionCode, Inst as Code, Kernel, LANES, Op, Pred, Row, SINK, Src},
    error::{PtxError, Result},
    lex::{Interner, Sym},
    program::{Program, Resolved},
    syntax::{Base, Body, Function, Inst, Operand, Role, Stmt},
    types::{Space, Type},
};

/// Parts of an opcode: `ld.global.u32` is `ld` with `global` and `u32`.
pub(super) struct Opcode<'t> {
    pub(super) text: &'t str,
    pub(super) base: &'t str,
    pub(super) mods: Vec<&'t str>,
    pub(super) types: Vec<Type>,
}

impl<'t> Opcode<'t> {
    fn new(text: &'t str) -> Self {
        let mut parts = text.split('.');
        let base = parts.next().unwrap_or("");
        let mods: Vec<&str> = parts.collect();
        let types = mods.iter().filter_map(|name| Type::from_name(name)).collect();
        Self { text, base, mods, types }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.mods.contains(&name)
    }

    /// The last type suffix, which is the instruction's type where it has only one.
    pub(super) fn ty(&self) -> Option<Type> {
        self.types.last().copied()
    }
}

/// A constant of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Constant {
    Value(u64),
    /// Offset into dynamic shared memory, which begins where static shared memory ends.
    Dynamic(u64),
}

/// What all functions of one kernel share while it is decoded.
struct Builder {
    code: Vec<Code>,
    constants: Vec<Constant>,
    constant_index: HashMap<Constant, usize>,
    functions: Vec<FunctionCode>,
    /// Functions of the program that this kernel reaches, in order of discovery.
    reached: HashMap<usize, usize>,
    queue: Vec<usize>,
    shared: HashMap<(usize, Sym), u64>,
    static_shared: u64,
    dynamic_align: u64,
    indirect: bool,
    registers: u32,
}

impl Builder {
    fn constant(&mut self, constant: Constant) -> Src {
        let next = self.constants.len();
        let index = *self.constant_index.entry(constant).or_insert(next);
        if index == next {
            self.constants.push(constant);
        }
        Src::constant(index)
    }

    /// The number of a function in this kernel; queues it the first time.
    fn reach(&mut self, function: usize) -> usize {
        let next = self.reached.len();
        let index = *self.reached.entry(function).or_insert(next);
        if index == next {
            self.queue.push(function);
        }
        index
    }

    fn place_shared(&mut self, size: u64, align: u64) -> u64 {
        let offset = self.static_shared.next_multiple_of(align.max(1));
        self.static_shared = offset + size;
        offset
    }
}

/// Decodes the kernel `entry` (a function number of the program).
pub(crate) fn lower(program: &Program, entry: usize) -> Result<Kernel> {
    let mut builder = Builder {
        code: Vec::new(),
        constants: Vec::new(),
        constant_index: HashMap::new(),
        functions: Vec::new(),
        reached: HashMap::new(),
        queue: Vec::new(),
        shared: HashMap::new(),
        static_shared: 0,
        dynamic_align: 16,
        indirect: false,
        registers: 0,
    };
    builder.reach(entry);
    let mut next = 0;
    let mut addressed = false;
    loop {
        while next < builder.queue.len() {
            let function = builder.queue[next];
            next += 1;
            lower_function(program, &mut builder, function)?;
        }
        if !builder.indirect || addressed {
            break;
        }
        // A pointer may mean any function whose address is taken.
        addressed = true;
        for function in program.addressed_functions() {
            builder.reach(function);
        }
    }
    // Functions were numbered when first called and decoded in that order, so numbers and places agree.
    if builder.static_shared > u64::from(u32::MAX) {
        return Err(PtxError::new(0, ".shared", "more shared memory than an address can reach"));
    }
    let dynamic = builder.static_shared.next_multiple_of(builder.dynamic_align);
    let uses_dynamic = builder.constants.iter().any(|constant| matches!(constant, Constant::Dynamic(_)));
    let static_shared = if uses_dynamic { dynamic } else { builder.static_shared };
    let constants = builder
        .constants
        .iter()
        .map(|constant| match *constant {
            Constant::Value(value) => [value; LANES],
            Constant::Dynamic(offset) => [dynamic.wrapping_add(offset); LANES],
        })
        .collect::<Vec<Row>>();
    // Only what this kernel reaches: a text of many kernels would else cost the square of their number.
    let mut by_address = Vec::new();
    if builder.indirect {
        by_address.extend(builder.reached.iter().map(|(&function, &index)| (function as u64, index as u32)));
        by_address.sort_unstable();
    }
    Ok(Kernel {
        name: builder.functions[0].name.clone(),
        code: builder.code,
        constants,
        functions: builder.functions,
        by_address,
        static_shared: static_shared as u32,
        registers: builder.registers,
    })
}

fn lower_function(program: &Program, builder: &mut Builder, number: usize) -> Result<()> {
    let (module, function) = program.function(number);
    let names = program.names(module);
    let name: Arc<str> = names.text(function.name).into();
    if let Some(refusal) = &function.refusal {
        return Err(refusal.clone());
    }
    let Some(body) = &function.body else {
        return Err(PtxError::new(function.line, &*name, "a function that is declared but nowhere defined"));
    };
    let mut lower = Lower {
        program,
        builder,
        module,
        names,
        body,
        function,
        regs: Vec::with_capacity(body.regs.len()),
        vars: Vec::with_capacity(body.vars.len()),
        rows: 0,
        preds: 0,
        frame: 0,
        labels: vec![u32::MAX; body.label_count as usize],
        fixups: Vec::new(),
        touched: vec![Cell::new((u32::MAX, 0)); body.regs.len()],
        line: function.line,
    };
    lower.place_registers();
    let (params, results) = lower.place_variables()?;
    let entry = lower.builder.code.len() as u32;
    lower.statements()?;
    let registers = lower.live_registers(entry);
    lower.builder.registers = lower.builder.registers.max(registers);
    let (rows, preds, frame) = (lower.rows, lower.preds, lower.frame);
    let frame = u32::try_from(frame).ok().filter(|&bytes| bytes <= FRAME_MAX);
    let frame = frame.ok_or_else(|| PtxError::new(function.line, &*name, "a stack frame that large"))?;
    let frame = frame.next_multiple_of(16);
    builder.functions.push(FunctionCode { name, entry, rows, preds, frame, params, results });
    Ok(())
}

/// Local memory of one function: what a GPU allows a thread.
const FRAME_MAX: u32 = 512 << 10;

/// Loops looked at for one register's life, so that the estimate stays linear.
const LOOPS_MAX: usize = 64;

/// Where a variable of the function is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Offset in the frame.
    Frame(u64),
    /// Offset in shared memory.
    Shared(u64),
    /// Dynamic shared memory.
    Dynamic,
    /// Offset in the kernel's parameters.
    KernelParam(u64),
}

/// Where a register is.
#[derive(Clone, Copy, Debug)]
enum Reg {
    Row(u32),
    Pred(u32),
}

/// Decodes one function.
pub(super) struct Lower<'p> {
    program: &'p Program,
    builder: &'p mut Builder,
    module: usize,
    names: &'p Interner,
    body: &'p Body,
    function: &'p Function,
    regs: Vec<Reg>,
    vars: Vec<Place>,
    rows: u32,
    preds: u32,
    frame: u64,
    labels: Vec<u32>,
    /// Code positions whose targets are still label numbers.
    fixups: Vec<usize>,
    /// First and last place that names each register.
    touched: Vec<Cell<(u32, u32)>>,
    line: u32,
}

impl<'p> Lower<'p> {
    fn place_registers(&mut self) {
        for &ty in &self.body.regs {
            let counter = if ty == Type::Pred { &mut self.preds } else { &mut self.rows };
            let index = *counter;
            *counter += 1;
            self.regs.push(if ty == Type::Pred { Reg::Pred(index) } else { Reg::Row(index) });
        }
    }

    #[allow(clippy::type_complexity)]
    fn place_variables(&mut self) -> Result<(Vec<(u32, u32)>, Vec<(u32, u32)>)> {
        let mut params = Vec::new();
        let mut results = Vec::new();
        let mut kernel_param = 0u64;
        for var in &self.body.vars {
            let align = u64::from(var.align.max(1));
            let place = match (var.space, var.role) {
                (Space::Param, Role::Param(_)) if self.function.entry => {
                    let offset = kernel_param.next_multiple_of(align);
                    kernel_param = offset + var.size;
                    Place::KernelParam(offset)
                }
                (Space::Shared, Role::Dynamic) => {
                    self.builder.dynamic_align = self.builder.dynamic_align.max(align);
                    Place::Dynamic
                }
                (Space::Shared, _) => Place::Shared(self.builder.place_shared(var.size, align)),
                (_, role) => {
                    let offset = self.frame.next_multiple_of(align);
                    self.frame = offset + var.size;
                    if self.frame > u64::from(FRAME_MAX) {
                        let reason = "more local memory than a thread may have";
                        return Err(PtxError::new(self.line, ".local", reason));
                    }
                    match role {
                        Role::Param(_) => params.push((offset as u32, var.size as u32)),
                        Role::Result(_) => results.push((offset as u32, var.size as u32)),
                        _ => {}
                    }
                    Place::Frame(offset)
                }
            };
            self.vars.push(place);
        }
        Ok((params, results))
    }

    fn statements(&mut self) -> Result<()> {
        let body = self.body;
        for statement in &body.code {
            match statement {
                Stmt::Label(label) => {
                    self.labels[*label as usize] = self.builder.code.len() as u32;
                    self.push(Op::Join);
                }
                Stmt::Inst(inst) => {
                    self.line = inst.line;
                    let text = self.names.text(inst.opcode);
                    self.instruction(inst, &Opcode::new(text))?;
                }
            }
        }
        // A body without `ret` at its end falls out of it.
        self.push(Op::Ret);
        for at in std::mem::take(&mut self.fixups) {
            let labels = &self.labels;
            let resolve = |target: &mut u32| match labels.get(*target as usize) {
                Some(&place) if place != u32::MAX => *target = place,
                _ => *target = u32::MAX,
            };
            match &mut self.builder.code[at].op {
                Op::Bra { target } => resolve(target),
                Op::BraTable { targets, .. } => targets.iter_mut().for_each(resolve),
                _ => {}
            }
        }
        Ok(())
    }

    /// An error about the instruction at hand.
    pub(super) fn refuse<T>(&self, op: &Opcode<'_>, reason: impl Into<String>) -> Result<T> {
        Err(PtxError::new(self.line, op.text, reason))
    }

    fn push(&mut self, op: Op) {
        let line = self.line;
        self.builder.code.push(Code { op, guard: Pred::TRUE, line });
    }

    /// Adds an instruction that runs where the guard holds.
    pub(super) fn emit(&mut self, inst: &Inst, op: Op) {
        let guard = self.guard(inst);
        let line = self.line;
        self.builder.code.push(Code { op, guard, line });
    }

    pub(super) fn guard(&self, inst: &Inst) -> Pred {
        match inst.guard {
            None => Pred::TRUE,
            Some((reg, negated)) => match self.regs.get(reg as usize) {
                Some(&Reg::Pred(index)) => Pred::new(index, negated),
                _ => Pred::FALSE,
            },
        }
    }

    pub(super) fn value(&mut self, value: u64) -> Src {
        self.builder.constant(Constant::Value(value))
    }

    /// A register that no other instruction knows.
    pub(super) fn temp(&mut self) -> u32 {
        let row = self.rows;
        self.rows += 1;
        row
    }

    /// Where a register is; notes that it is used here.
    fn reg(&self, reg: u32) -> Reg {
        let here = self.builder.code.len() as u32;
        let place = &self.touched[reg as usize];
        let (first, last) = place.get();
        place.set((first.min(here), last.max(here)));
        self.regs[reg as usize]
    }

    /// Registers that are in use at once, at the worst place, in 32-bit units.
    ///
    /// A register counts from the first place that names it to the last, and to the end of a loop that begins in
    /// between. That is what a compiler with one pass would need; ptxas finds a little less.
    fn live_registers(&self, entry: u32) -> u32 {
        let end = self.builder.code.len() as u32;
        let mut loops = Vec::new();
        for at in entry..end {
            if let Op::Bra { target } = self.builder.code[at as usize].op
                && target <= at
            {
                loops.push((target, at));
            }
        }
        loops.sort_unstable();
        let mut changes = vec![0i64; (end - entry) as usize + 2];
        for (reg, place) in self.touched.iter().enumerate() {
            let (first, mut last) = place.get();
            let units = match self.body.regs[reg].bytes() {
                0 => continue,
                bytes => i64::from(bytes.div_ceil(4)),
            };
            if first > last {
                continue;
            }
            // Loops inside are done before those around them would be looked at again; one pass is near enough.
            for &(from, to) in
                loops.iter().skip(loops.partition_point(|&(from, _)| from <= first)).take(LOOPS_MAX)
            {
                if from > last {
                    break;
                }
                last = last.max(to);
            }
            changes[(first - entry) as usize] += units;
            changes[(last - entry) as usize + 1] -= units;
        }
        let (mut now, mut most) = (0, 0);
        for change in changes {
            now += change;
            most = most.max(now);
        }
        // A few that no program names: the stack pointer and what the ABI keeps.
        (most as u32 + 4).min(255)
    }

    pub(super) fn is_pred(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Reg(reg) | Operand::NotReg(reg) => {
                matches!(self.regs.get(*reg as usize), Some(Reg::Pred(_)))
            }
            _ => false,
        }
    }

    pub(super) fn at<'i>(&self, inst: &'i Inst, op: &Opcode<'_>, index: usize) -> Result<&'i Operand> {
        inst.operands.get(index).map_or_else(|| self.refuse(op, "too few operands"), Ok)
    }

    /// The row an instruction writes.
    pub(super) fn dst(&self, inst: &Inst, op: &Opcode<'_>, index: usize) -> Result<u32> {
        self.row_of(self.at(inst, op, index)?, op)
    }

    pub(super) fn row_of(&self, operand: &Operand, op: &Opcode<'_>) -> Result<u32> {
        match operand {
            Operand::Reg(reg) => match self.reg(*reg) {
                Reg::Row(row) => Ok(row),
                Reg::Pred(_) => self.refuse(op, "a predicate where a value is written"),
            },
            Operand::Sink => Ok(SINK),
            _ => self.refuse(op, "not a register"),
        }
    }

    /// The predicate an instruction writes.
    pub(super) fn pred_dst(&self, operand: &Operand, op: &Opcode<'_>) -> Result<u32> {
        match operand {
            Operand::Reg(reg) => match self.regs[*reg as usize] {
                Reg::Pred(index) => Ok(index),
                Reg::Row(_) => self.refuse(op, "a value where a predicate is written"),
            },
            Operand::Sink => Ok(SINK),
            _ => self.refuse(op, "not a predicate"),
        }
    }

    /// A predicate that is read.
    pub(super) fn pred(&self, operand: &Operand, op: &Opcode<'_>) -> Result<Pred> {
        match *operand {
            Operand::Reg(reg) | Operand::NotReg(reg) => match self.regs[reg as usize] {
                Reg::Pred(index) => Ok(Pred::new(index, matches!(operand, Operand::NotReg(_)))),
                Reg::Row(_) => self.refuse(op, "a value where a predicate is read"),
            },
            Operand::Int(value) => Ok(if value != 0 { Pred::TRUE } else { Pred::FALSE }),
            _ => self.refuse(op, "not a predicate"),
        }
    }

    /// A value that is read as `ty`.
    pub(super) fn src(&mut self, inst: &Inst, op: &Opcode<'_>, index: usize, ty: Type) -> Result<Src> {
        let operand = self.at(inst, op, index)?.clone();
        self.src_of(&operand, op, ty)
    }

    pub(super) fn src_of(&mut self, operand: &Operand, op: &Opcode<'_>, ty: Type) -> Result<Src> {
        match *operand {
            Operand::Reg(reg) => match self.reg(reg) {
                Reg::Row(row) => Ok(Src(row)),
                Reg::Pred(_) => self.refuse(op, "a predicate where a value is read"),
            },
            Operand::Int(value) => Ok(match ty {
                Type::F32 => self.value(u64::from((value as i64 as f32).to_bits())),
                Type::F64 => self.value((value as i64 as f64).to_bits()),
                _ => self.value(value),
            }),
            Operand::F32(bits) => Ok(match ty {
                Type::F64 => self.value(f64::from(f32::from_bits(bits)).to_bits()),
                _ => self.value(u64::from(bits)),
            }),
            Operand::F64(bits) => Ok(match ty {
                Type::F32 => self.value(u64::from((f64::from_bits(bits) as f32).to_bits())),
                _ => self.value(bits),
            }),
            Operand::Special(name) => {
                let d = self.temp();
                self.special(name, d, op)?;
                Ok(Src(d))
            }
            Operand::Var(var, offset) => match self.vars[var as usize] {
                Place::Frame(place) => {
                    let d = self.temp();
                    let offset = (place as i64).wrapping_add(offset) as u32;
                    self.push(Op::FrameAddress { d, offset });
                    Ok(Src(d))
                }
                Place::Shared(place) | Place::KernelParam(place) => {
                    Ok(self.value((place as i64).wrapping_add(offset) as u64))
                }
                Place::Dynamic => Ok(self.builder.constant(Constant::Dynamic(offset as u64))),
            },
            Operand::Symbol(name, offset) => self.symbol_address(name, offset, op),
            Operand::Sink => Ok(self.value(0)),
            _ => self.refuse(op, "an operand of this shape"),
        }
    }

    /// The address of a module's variable or function, in its own space.
    pub(super) fn symbol_address(&mut self, name: Sym, offset: i64, op: &Opcode<'_>) -> Result<Src> {
        match self.program.resolve(self.module, name) {
            Some(Resolved::Variable(address)) => Ok(self.value(address.wrapping_add(offset as u64))),
            Some(Resolved::Shared { module, name, size, align, dynamic }) => {
                if dynamic {
                    self.builder.dynamic_align = self.builder.dynamic_align.max(u64::from(align));
                    return Ok(self.builder.constant(Constant::Dynamic(offset as u64)));
                }
                let place = match self.builder.shared.get(&(module, name)) {
                    Some(&place) => place,
                    None => {
                        let place = self.builder.place_shared(size, u64::from(align));
                        self.builder.shared.insert((module, name), place);
                        place
                    }
                };
                Ok(self.value(place.wrapping_add(offset as u64)))
            }
            Some(Resolved::Function(function)) => {
                self.builder.reach(function);
                Ok(self.value(FUNCTION + function as u64 * FUNCTION_STRIDE))
            }
            Some(Resolved::Builtin(_)) | None => {
                self.refuse(op, format!("`{}` is not defined", self.names.text(name)))
            }
        }
    }

    /// The space of a base, where the base itself tells.
    pub(super) fn place_of(&self, base: Base) -> Option<Place> {
        match base {
            Base::Var(var) => self.vars.get(var as usize).copied(),
            _ => None,
        }
    }

    fn instruction(&mut self, inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        if inst.operands.first() == Some(&Operand::Other) {
            return self.refuse(op, "this instruction is not supported");
        }
        match op.base {
            "ld" | "ldu" | "st" | "prefetch" | "prefetchu" | "discard" | "applypriority" | "cp" | "cvta"
            | "isspacep" | "mapa" | "getctarank" | "createpolicy" | "ldmatrix" | "stmatrix" | "alloca"
            | "stacksave" | "stackrestore" => self.memory(inst, op),
            "atom" | "red" => self.atomic(inst, op),
            "membar" | "fence" | "griddepcontrol" => {
                self.emit(inst, Op::Fence);
                Ok(())
            }
            "mov" | "selp" | "slct" | "prmt" | "movmatrix" => self.movement(inst, op),
            "cvt" => self.convert(inst, op),
            "setp" | "set" | "testp" => self.compare(inst, op),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "bfe" | "bfi"
            | "bmsk" | "szext" | "brev" | "popc" | "clz" | "bfind" | "fns" => self.logic(inst, op),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent"
            | "setmaxnreg" | "nop" => self.control(inst, op),
            "bar" | "barrier" | "mbarrier" => self.barrier(inst, op),
            "vote" | "shfl" | "match" | "redux" | "elect" | "activemask" => self.warp(inst, op),
            "mma" | "wmma" => self.matrix(inst, op),
            "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vshl" | "vshr" | "vmad" | "vset" | "vadd2"
            | "vsub2" | "vavrg2" | "vabsdiff2" | "vmin2" | "vmax2" | "vset2" | "vadd4" | "vsub4"
            | "vavrg4" | "vabsdiff4" | "vmin4" | "vmax4" | "vset4" => self.video(inst, op),
            "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" => self.texture(inst, op),
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad"
            | "mul24" | "mad24" | "dp4a" | "dp2a" | "addc" | "subc" | "madc" | "rcp" | "sqrt" | "rsqrt"
            | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" => match op.ty() {
                Some(Type::F32 | Type::F64 | Type::F32x2) => self.float(inst, op),
                Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => self.half(inst, op),
                Some(_) => self.integer(inst, op),
                None => self.refuse(op, "an instruction without a type"),
            },
            _ => self.refuse(op, "this instruction is not supported"),
        }
    }
}
