//! Modules: from an image to kernels with parameters and variables with addresses.

use crate::{
    context::Context,
    device_info::{SHARED_DEFAULT, SHARED_OPT_IN},
    line::Place,
    promises::Promise,
    retire::What,
    session::Session,
    soft_cubin,
    space::Cursor,
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_image::{Capability, EntryKind, Fatbin, ImageKind, Wants, kind_of, select_usable};
use cuda_wire::{
    AppendedPlaces, ContextId, ImageSource, JitOption, KernelInfo, ModuleId, ModuleInfo, ParameterInfo,
    VariableInfo,
};
use ptx::{Module, Program, PtxError, Space, Variable};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// The newest PTX language that is read. Later minor versions add instructions, which are refused where they are used.
const PTX_MAJOR_MAX: u32 = 9;

/// A kernel that can be launched, or why it cannot.
pub(crate) struct LoadedKernel {
    pub(crate) name: String,
    pub(crate) program: Arc<Program>,
    context: Arc<Context>,
    info: Result<ptx::KernelInfo, PtxError>,
    dynamic_shared_max: AtomicU32,
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedKernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A module in one context.
pub(crate) struct LoadedModule {
    pub(crate) context: Arc<Context>,
    pub(crate) kernels: Vec<Arc<LoadedKernel>>,
    /// Address and bytes of its variables in the driver's part of memory.
    variables: Option<(u64, u64)>,
    /// Where texture and surface references keep their handles.
    pub(crate) references: HashMap<String, u64>,
    /// Each variable, in the order of the image.
    pub(crate) named: Vec<VariableInfo>,
}

/// `CUfunction_attribute`s by number.
mod attribute {
    pub(super) const MAX_DYNAMIC_SHARED: u32 = 8;
    pub(super) const CARVEOUT: u32 = 9;
    pub(super) const NON_PORTABLE_CLUSTERS: u32 = 14;
    pub(super) const CLUSTER_POLICY: u32 = 15;
}

impl LoadedKernel {
    /// What is known of it; an error for one that uses something the engine does not execute.
    pub(crate) fn info(&self) -> CuResult<&ptx::KernelInfo> {
        self.info.as_ref().map_err(|error| {
            tracing::warn!(kernel = self.name, %error, "a kernel cannot run on this device");
            CudaError::NOT_SUPPORTED
        })
    }

    /// Why it cannot run.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.info.as_ref().err().map(|error| format!("kernel {} cannot run here: {error}", self.name))
    }

    /// A kernel runs in streams of its own context only.
    pub(crate) fn check_context(&self, context: &Context) -> CuResult<()> {
        if self.context.life == context.life { Ok(()) } else { Err(CudaError::INVALID_HANDLE) }
    }

    pub(crate) fn dynamic_shared_max(&self) -> u32 {
        self.dynamic_shared_max.load(Relaxed)
    }

    pub(crate) fn set_attribute(&self, attribute: u32, value: i32) -> CuResult<()> {
        self.context.check()?;
        let static_shared = self.info.as_ref().map_or(0, |info| info.static_shared);
        match (attribute, u32::try_from(value)) {
            (attribute::MAX_DYNAMIC_SHARED, Ok(bytes))
                if bytes <= SHARED_OPT_IN.saturating_sub(static_shared) =>
            {
                self.dynamic_shared_max.store(bytes, Relaxed);
                Ok(())
            }
            // How a device divides its cache is a wish; there is no cache here.
            (attribute::CARVEOUT, _) if (-1..=100).contains(&value) => Ok(()),
            (attribute::NON_PORTABLE_CLUSTERS, Ok(0..=1)) | (attribute::CLUSTER_POLICY, Ok(0..=2)) => Ok(()),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    fn describe(&self, ptx_architecture: u32, binary_architecture: u32, constant_bytes: u64) -> KernelInfo {
        let info = self.info.as_ref().ok();
        let parameter = |param: &ptx::Param| ParameterInfo { offset: param.offset, bytes: param.size };
        let number = |of: fn(&ptx::KernelInfo) -> u32| info.map_or(0, of) as i32;
        KernelInfo {
            name: self.name.clone(),
            parameters: info.map(|info| info.params.iter().map(parameter).collect()).unwrap_or_default(),
            attributes: vec![
                (0, info.map_or(1024, |info| info.max_threads) as i32),
                (1, number(|info| info.static_shared)),
                (2, i32::try_from(constant_bytes).unwrap_or(i32::MAX)),
                (3, number(|info| info.local_bytes)),
                (4, number(registers_of)),
                (5, ptx_architecture as i32),
                (6, binary_architecture as i32),
                (7, 0),
                (attribute::MAX_DYNAMIC_SHARED, self.dynamic_shared_max() as i32),
                (attribute::CARVEOUT, -1),
                (10, 0),
                (11, 0),
                (12, 0),
                (13, 0),
                (attribute::NON_PORTABLE_CLUSTERS, 0),
                (attribute::CLUSTER_POLICY, 0),
            ],
        }
    }
}

/// Registers that a compiler would give a thread: as many as are live at once, but never so many that the largest block
/// the kernel allows would not fit. A compiler spills instead, and so must the estimate: it may not refuse a launch.
fn registers_of(info: &ptx::KernelInfo) -> u32 {
    const REGISTERS_PER_BLOCK: u32 = 65536;
    const UNIT: u32 = 8;
    let fit = REGISTERS_PER_BLOCK / info.max_threads.max(1) / UNIT * UNIT;
    info.registers.clamp(1, 255).min(fit.clamp(UNIT, 255))
}

impl Session {
    pub(crate) fn load_module(
        &self,
        id: ModuleId,
        context: ContextId,
        _hash: [u8; 32],
        image: ImageSource<'_>,
        _options: &[JitOption],
    ) -> CuResult<ModuleInfo> {
        let ImageSource::Inline { bytes } = image else {
            // The worker keeps images and takes them out of the lanes; a driver is always handed the bytes.
            return Err(CudaError::NOT_FOUND);
        };
        let context = {
            let mut tables = lock(&self.tables);
            if tables.modules.contains_key(&id) {
                return Err(CudaError::INVALID_VALUE);
            }
            self.context(&mut tables, context)?
        };
        let texts =
            self.texts(bytes.0).inspect_err(|error| self.refuse_for_good(&context, bytes.0, *error))?;
        let modules = self.parse(&texts)?;
        let architecture = modules.iter().map(|module| architecture(module.target())).max().unwrap_or(0);
        let linked =
            ptx::link(modules).map_err(|error| self.refuse(CudaError::INVALID_PTX, error.to_string()))?;
        let (module, info) = self.place(id, context, linked, architecture)?;
        let mut tables = lock(&self.tables);
        for variable in info.variables.iter().filter(|variable| variable.bytes > 0) {
            // Copies may use them from now on, each within its own bounds. They overlap nothing: their addresses are
            // the driver's.
            let promise =
                Promise { bytes: variable.bytes, life: module.context.life, turn: 0, is_mapped: false };
            let _ = tables.promises.add(variable.address, promise);
        }
        tables.modules.insert(id, Arc::new(module));
        Ok(info)
    }

    /// Makes sure that no program can overlook that this device cannot execute the program's own code.
    ///
    /// The CUDA runtime loads the fatbins that a compiler put into a program when a kernel of theirs is first wanted, deep
    /// inside library calls, and some libraries drop the error (CuPy drops cub's): their results would be wrong without a
    /// word. A real GPU of that capability would have run them, so no program expects this error. Therefore the context
    /// fails for good. Cubins and texts are loaded by programs themselves, which look at what they get.
    fn refuse_for_good(&self, context: &Context, image: &[u8], error: CudaError) {
        if error == CudaError::NO_BINARY_FOR_GPU && kind_of(image) == Some(ImageKind::Fatbin) {
            self.fail(context, error);
        }
    }

    /// Keeps the words, returns the code.
    pub(crate) fn refuse(&self, error: CudaError, message: String) -> CudaError {
        tracing::warn!(%message, "an image was refused");
        self.say(message);
        error
    }

    pub(crate) fn capability(&self) -> Capability {
        let (major, minor) = self.config.compute_capability;
        Capability { major, minor }
    }

    /// The PTX texts of an image that this device uses.
    pub(crate) fn texts(&self, image: &[u8]) -> CuResult<Vec<Vec<u8>>> {
        let invalid =
            |error: cuda_image::ImageError| self.refuse(CudaError::INVALID_IMAGE, error.to_string());
        match kind_of(image).ok_or_else(|| invalid(cuda_image::ImageError::UnknownKind))? {
            ImageKind::Ptx => Ok(vec![until_nul(image).to_vec()]),
            ImageKind::Elf => {
                let texts = soft_cubin::texts(image).map_err(invalid)?;
                if texts.is_empty() {
                    let message = format!(
                        "the image holds only machine code of a GPU, and a soft GPU executes PTX; have the compiler \
                         write PTX: -arch=compute_{}, for CuPy CUPY_COMPILE_WITH_PTX=1 (`dxpu run` sets it)",
                        self.capability().architecture(),
                    );
                    return Err(self.refuse(CudaError::NO_BINARY_FOR_GPU, message));
                }
                Ok(texts)
            }
            ImageKind::Fatbin => {
                let wants = Wants { sass: false, ptx: true };
                let usable = select_usable(image, self.capability(), wants).map_err(invalid)?;
                let fatbin = Fatbin::parse(&usable).map_err(invalid)?;
                let Some(entry) = fatbin.entries.iter().find(|entry| entry.kind == EntryKind::Ptx) else {
                    let message = format!(
                        "the fatbin holds no PTX for compute capability {}.{} or lower, and a soft GPU executes nothing \
                         else; build it with -gencode arch=compute_{2},code=compute_{2}. From now on every call of the \
                         program fails with this error, so that it does not go on with what was never computed",
                        self.capability().major,
                        self.capability().minor,
                        self.capability().architecture(),
                    );
                    return Err(self.refuse(CudaError::NO_BINARY_FOR_GPU, message));
                };
                let text = entry.contents().map_err(invalid)?;
                Ok(vec![until_nul(&text).to_vec()])
            }
        }
    }

    pub(crate) fn parse(&self, texts: &[Vec<u8>]) -> CuResult<Vec<Module>> {
        let parse = |text: &Vec<u8>| {
            let module = Module::parse(text)
                .map_err(|error| self.refuse(CudaError::INVALID_PTX, error.to_string()))?;
            let major = module.version().split('.').next().and_then(|major| major.trim().parse::<u32>().ok());
            if major.is_some_and(|major| major > PTX_MAJOR_MAX) {
                let message = format!("PTX version {} is newer than this device reads", module.version());
                return Err(self.refuse(CudaError::UNSUPPORTED_PTX_VERSION, message));
            }
            if architecture(module.target()) > self.capability().architecture() {
                let message = format!(
                    "PTX for {} does not run on compute capability {}.{}",
                    module.target(),
                    self.capability().major,
                    self.capability().minor
                );
                return Err(self.refuse(CudaError::INVALID_PTX, message));
            }
            Ok(module)
        };
        texts.iter().map(parse).collect()
    }

    /// Gives variables their memory and describes everything.
    fn place(
        &self,
        id: ModuleId,
        context: Arc<Context>,
        linked: ptx::Linked,
        architecture: u32,
    ) -> CuResult<(LoadedModule, ModuleInfo)> {
        let (offsets, bytes) = layout(linked.variables()).ok_or(CudaError::OUT_OF_MEMORY)?;
        let variables = match bytes {
            0 => None,
            bytes => {
                let address = self.allocate_variables(&context, id, bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
                Some((address, bytes))
            }
        };
        let base = variables.map_or(0, |(address, _)| address);
        let mut next = offsets.iter();
        let program = Arc::new(Program::bind(linked, |_| base + next.next().copied().unwrap_or(0)));
        let placed = LoadedModule {
            context: context.clone(),
            kernels: Vec::new(),
            variables,
            references: HashMap::new(),
            named: Vec::new(),
        };
        if let Err(error) = self.initialise(&program) {
            self.retire_module(&placed, Vec::new());
            return Err(error);
        }
        let constant_bytes =
            program.variables().filter(|(v, _)| v.space == Space::Const).map(|(v, _)| v.size).sum();
        let names: Vec<String> = program.kernel_names().map(str::to_owned).collect();
        let mut kernels = Vec::with_capacity(names.len());
        let mut refusals = Vec::new();
        for name in names {
            let Some(info) = program.kernel(&name) else { continue };
            let info = info.cloned();
            let static_shared = info.as_ref().map_or(0, |info| info.static_shared);
            let kernel = LoadedKernel {
                name,
                program: program.clone(),
                context: context.clone(),
                info,
                dynamic_shared_max: AtomicU32::new(SHARED_DEFAULT.saturating_sub(static_shared)),
            };
            refusals.extend(kernel.refusal());
            kernels.push(Arc::new(kernel));
        }
        let binary = self.capability().architecture();
        let described = kernels.iter().map(|kernel| kernel.describe(architecture, binary, constant_bytes));
        let info = ModuleInfo {
            kernels: described.collect(),
            variables: variables_of(&program),
            info_log: refusals.join("\n"),
            managed: managed_of(&program),
        };
        let references = program.variables().filter(|(variable, _)| variable.is_reference);
        let references = references.map(|(variable, address)| (variable.name.clone(), address)).collect();
        Ok((LoadedModule { kernels, references, named: info.variables.clone(), ..placed }, info))
    }

    /// Fills variables with their first values; fresh memory may hold what an earlier module left.
    fn initialise(&self, program: &Program) -> CuResult<()> {
        let mut cursor = Cursor::new(&self.space);
        for (variable, address) in program.variables() {
            let mut bytes = program
                .initial_bytes(variable)
                .map_err(|error| self.refuse(CudaError::INVALID_PTX, error.to_string()))?;
            let size = usize::try_from(variable.size).map_err(|_| CudaError::OUT_OF_MEMORY)?;
            bytes.resize(size, 0);
            cursor.write(address, &bytes)?;
        }
        Ok(())
    }

    /// Unloads a module: its variables are gone for the program now, their memory when the work so far is done.
    pub(crate) fn unload_module(&self, id: ModuleId) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let module = tables.modules.remove(&id).ok_or(CudaError::INVALID_HANDLE)?;
        if let Some((address, bytes)) = module.variables {
            tables.promises.remove_in(address, bytes);
        }
        let after = tables.all_busy_ends();
        drop(tables);
        self.retire_module(&module, after);
        Ok(())
    }

    /// Lets a module's memory go after this work.
    pub(crate) fn retire_module(&self, module: &LoadedModule, after: Vec<Place>) {
        if let Some((address, bytes)) = module.variables {
            self.retire(What::Internal { address, bytes }, after);
        }
    }
}

/// The variables that the host may look up. Without `.visible` too: nvcc leaves it out where it sees the whole program, and the
/// host looks such variables up all the same.
fn variables_of(program: &Program) -> Vec<VariableInfo> {
    let variables = program.variables().filter(|(variable, _)| !variable.is_reference);
    let describe = |(variable, address): (&Variable, u64)| VariableInfo {
        name: variable.name.clone(),
        address,
        bytes: variable.size,
    };
    variables.map(describe).collect()
}

/// Which of them are `__managed__`. Here they are variables like others: the client sees to the host's side.
fn managed_of(program: &Program) -> AppendedPlaces {
    let variables = program.variables().filter(|(variable, _)| !variable.is_reference);
    let managed = variables.enumerate().filter(|(_, (variable, _))| variable.managed);
    AppendedPlaces(managed.map(|(place, _)| place as u32).collect())
}

/// Offsets of variables in one block, and the bytes of all.
fn layout(variables: &[Variable]) -> Option<(Vec<u64>, u64)> {
    /// What cuModuleGetGlobal's addresses are aligned to at least.
    const ALIGN: u64 = 256;
    let mut end = 0u64;
    let mut offsets = Vec::with_capacity(variables.len());
    for variable in variables {
        let offset = end.checked_next_multiple_of(ALIGN.max(variable.align.into()))?;
        offsets.push(offset);
        end = offset.checked_add(variable.size)?;
    }
    Some((offsets, end))
}

/// 90 of `sm_90a`.
fn architecture(target: &str) -> u32 {
    let digits = target.split('_').nth(1).unwrap_or_default();
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

fn until_nul(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}
