//! Modules as their users see them, and linking.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use crate::{
    error::{PtxError, Result},
    parse::{self, Parsed},
    syntax::{Linkage, VarDecl},
    types::Space,
};

/// A parsed PTX text.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) parsed: Arc<Parsed>,
}

impl Module {
    /// Reads a PTX text. Instructions that the engine does not know are kept; they refuse the kernels that use
    /// them, when those are asked for, and leave the others alone.
    pub fn parse(text: &[u8]) -> Result<Self> {
        Ok(Self { parsed: Arc::new(parse::parse(text)?) })
    }

    /// `.version`, as written.
    pub fn version(&self) -> &str {
        &self.parsed.version
    }

    /// `.target`, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.parsed.target
    }

    /// Names of the kernels it defines, in order.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        let names = &self.parsed.names;
        self.parsed.functions.iter().filter(|f| f.entry && f.body.is_some()).map(|f| names.text(f.name))
    }
}

/// A global or constant variable that needs device memory.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name in the text.
    pub name: String,
    /// [`Space::Global`] or [`Space::Const`].
    pub space: Space,
    /// Bytes.
    pub size: u64,
    /// Alignment of its address.
    pub align: u32,
    /// Whether other modules and the host may look it up by name.
    pub visible: bool,
    /// `.attribute(.managed)`: the host sees the same memory.
    pub managed: bool,
    /// A texture or surface reference: what it holds is the handle of the object that the host binds to it.
    pub is_reference: bool,
    pub(crate) module: usize,
    pub(crate) index: usize,
}

/// Bytes of a texture or surface handle.
const HANDLE_BYTES: u64 = 8;

/// Modules whose names are resolved against each other.
#[derive(Clone, Debug)]
pub struct Linked {
    pub(crate) modules: Vec<Module>,
    pub(crate) variables: Vec<Variable>,
    /// Every function with a body: module and index.
    pub(crate) functions: Vec<(usize, usize)>,
    /// Names that all modules share.
    pub(crate) global: HashMap<String, Item>,
    /// Names of one module.
    pub(crate) local: Vec<HashMap<String, Item>>,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Index in [`Linked::variables`].
    Variable(usize),
    /// Module and index of a `.shared` variable.
    Shared(usize, usize),
    /// Index in [`Linked::functions`].
    Function(usize),
}

/// The functions of the device runtime, written in PTX themselves.
fn runtime() -> Result<&'static Module> {
    static RUNTIME: OnceLock<Result<Module>> = OnceLock::new();
    RUNTIME.get_or_init(|| Module::parse(include_bytes!("runtime.ptx"))).as_ref().map_err(Clone::clone)
}

/// Whether a module declares a function that only the device runtime has.
fn needs_runtime(module: &Module) -> bool {
    let Ok(runtime) = runtime() else { return false };
    let known = |name: &str| {
        let names = &runtime.parsed.names;
        runtime.parsed.functions.iter().any(|function| names.text(function.name) == name)
    };
    let names = &module.parsed.names;
    module.parsed.functions.iter().any(|function| function.body.is_none() && known(names.text(function.name)))
}

fn strength(linkage: Linkage) -> u8 {
    match linkage {
        Linkage::Visible => 3,
        Linkage::Weak => 2,
        Linkage::Common => 1,
        Linkage::Internal | Linkage::Extern => 0,
    }
}

/// Resolves the `.extern` names of some modules against the definitions of the others.
///
/// Two visible definitions of one name are an error; a visible one beats a weak one, the first weak one beats later
/// ones. A name without a definition is an error only for the kernels that use it.
pub fn link(mut modules: Vec<Module>) -> Result<Linked> {
    if modules.iter().any(needs_runtime) {
        modules.push(runtime()?.clone());
    }
    let mut linked = Linked {
        variables: Vec::new(),
        functions: Vec::new(),
        global: HashMap::new(),
        local: vec![HashMap::new(); modules.len()],
        modules: Vec::new(),
    };
    let mut best: HashMap<String, u8> = HashMap::new();
    for (number, module) in modules.iter().enumerate() {
        let parsed = &module.parsed;
        for (index, variable) in parsed.variables.iter().enumerate() {
            if variable.linkage == Linkage::Extern && !is_dynamic(variable) {
                continue;
            }
            let name = parsed.names.text(variable.name).to_owned();
            let line = variable.line;
            if !linked.wins(number, &mut best, &name, variable.linkage, line, is_dynamic(variable))? {
                continue;
            }
            let item = linked.variable_item(number, index, &name, variable);
            linked.define(number, name, variable.linkage, item);
        }
        for (index, function) in parsed.functions.iter().enumerate() {
            if function.body.is_none() {
                continue;
            }
            let name = parsed.names.text(function.name).to_owned();
            if !linked.wins(number, &mut best, &name, function.linkage, function.line, false)? {
                continue;
            }
            let item = Item::Function(linked.functions.len());
            linked.functions.push((number, index));
            linked.define(number, name, function.linkage, item);
        }
        for &(alias, of) in &parsed.aliases {
            let (alias, of) = (parsed.names.text(alias).to_owned(), parsed.names.text(of));
            let target = linked.local[number].get(of).or_else(|| linked.global.get(of)).copied();
            let Some(target) = target else {
                return Err(PtxError::new(0, ".alias", format!("`{of}` is not defined")));
            };
            linked.define(number, alias, Linkage::Visible, target);
        }
    }
    linked.modules = modules;
    Ok(linked)
}

/// `.extern .shared name[]` has no definition anywhere: the launch makes it.
fn is_dynamic(variable: &VarDecl) -> bool {
    variable.space == Space::Shared && (variable.linkage == Linkage::Extern || variable.unsized_array)
}

impl Linked {
    /// Whether a definition is the one that counts, so far.
    fn wins(
        &self,
        module: usize,
        best: &mut HashMap<String, u8>,
        name: &str,
        linkage: Linkage,
        line: u32,
        dynamic: bool,
    ) -> Result<bool> {
        let rank = strength(linkage);
        if rank == 0 {
            if !dynamic && self.local[module].contains_key(name) {
                return Err(PtxError::new(line, name, "defined twice in this module"));
            }
            return Ok(true);
        }
        match best.get(name) {
            Some(3) if rank == 3 => Err(PtxError::new(line, name, "defined in two modules")),
            Some(&before) if before >= rank => Ok(false),
            _ => {
                best.insert(name.to_owned(), rank);
                Ok(true)
            }
        }
    }

    fn variable_item(&mut self, module: usize, index: usize, name: &str, variable: &VarDecl) -> Item {
        if variable.space == Space::Shared && !variable.opaque {
            return Item::Shared(module, index);
        }
        self.variables.push(Variable {
            name: name.to_owned(),
            space: if variable.opaque { Space::Global } else { variable.space },
            size: if variable.opaque { HANDLE_BYTES } else { variable.size },
            align: if variable.opaque { HANDLE_BYTES as u32 } else { variable.align },
            visible: variable.linkage != Linkage::Internal,
            managed: variable.managed,
            is_reference: variable.opaque,
            module,
            index,
        });
        Item::Variable(self.variables.len() - 1)
    }

    fn define(&mut self, module: usize, name: String, linkage: Linkage, item: Item) {
        if matches!(linkage, Linkage::Internal | Linkage::Extern) {
            self.local[module].insert(name, item);
        } else {
            self.global.insert(name, item);
        }
    }

    pub(crate) fn find(&self, module: usize, name: &str) -> Option<Item> {
        self.local.get(module).and_then(|names| names.get(name)).or_else(|| self.global.get(name)).copied()
    }

    /// Variables that need device memory before the program can run.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }
}
