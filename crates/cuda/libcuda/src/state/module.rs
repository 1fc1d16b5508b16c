//! Modules (code in one context) and libraries (code in every context that uses it).

#![allow(unsafe_code)]

use super::{
    AllocationKind, Client, Context, Function, Kernel, KernelSheet, client, forget_attributes, lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{
    Bytes, Command, INLINE_BYTES_MAX, ImageSource, JitOption, KernelRef, ModuleId, ModuleInfo, VariableInfo,
};
use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::{Arc, Mutex, OnceLock, Weak},
};

/// An image as it is sent: only what the device can use, known by its hash.
pub(crate) struct Image {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// blake3 of the bytes.
    pub(crate) hash: [u8; 32],
}

impl Image {
    /// An image of these bytes.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let hash = *blake3::hash(&bytes).as_bytes();
        Self { bytes, hash }
    }
}

/// A `CUmodule`.
pub(crate) struct Module {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) id: ModuleId,
    /// The context it is in.
    pub(crate) context: Arc<Context>,
    /// Its variables by name.
    pub(crate) variables: HashMap<String, VariableInfo>,
    /// Addresses of those that were declared `__managed__`.
    managed: Vec<Range<u64>>,
    /// The compiler's information log.
    pub(crate) info_log: String,
    by_name: HashMap<String, u32>,
    sheets: Vec<Arc<KernelSheet>>,
    functions: Mutex<HashMap<u32, Arc<Function>>>,
    me: OnceLock<Weak<Module>>,
}

/// Images this process already showed to a worker: they travel as their hash alone.
static SHOWN: Mutex<Option<HashSet<[u8; 32]>>> = Mutex::new(None);

fn was_shown(hash: &[u8; 32]) -> bool {
    lock(&SHOWN).get_or_insert_default().contains(hash)
}

impl Module {
    /// Loads an image into a context.
    pub(crate) fn load(context: &Arc<Context>, image: &Image, options: &[JitOption]) -> CuResult<Arc<Self>> {
        Self::load_as(context, image, options, None)
    }

    /// Loads an image; kernels share `sheets` if another module of the same library has them already.
    fn load_as(
        context: &Arc<Context>,
        image: &Image,
        options: &[JitOption],
        sheets: Option<&[Arc<KernelSheet>]>,
    ) -> CuResult<Arc<Self>> {
        let client = client()?;
        let id = ModuleId(client.next_id());
        let answer = ask_load(context, id, image, options);
        // A library may be looked at in a primary context that the program has not retained yet.
        let info = if context.check_alive().is_ok() { context.settle(answer) } else { answer }?;
        lock(&SHOWN).get_or_insert_default().insert(image.hash);
        let sheets = match sheets {
            Some(sheets) => sheets.to_vec(),
            None => {
                let device = context.device()?;
                let sheet = |kernel| KernelSheet::new(kernel, device).map(Arc::new);
                info.kernels.iter().map(sheet).collect::<CuResult<_>>()?
            }
        };
        let by_name =
            info.kernels.iter().enumerate().map(|(at, kernel)| (kernel.name.clone(), at as u32)).collect();
        let variables =
            info.variables.iter().map(|variable| (variable.name.clone(), variable.clone())).collect();
        let managed = info.managed.0.iter().filter_map(|place| info.variables.get(*place as usize));
        let managed = managed
            .map(|variable| variable.address..variable.address.saturating_add(variable.bytes))
            .collect();
        let mut made = None;
        client.modules.insert_with(|handle| {
            let module = Arc::new(Self {
                handle,
                id,
                context: Arc::clone(context),
                variables,
                managed,
                info_log: info.info_log,
                by_name,
                sheets,
                functions: Mutex::default(),
                me: OnceLock::new(),
            });
            let _ = module.me.set(Arc::downgrade(&module));
            made = Some(Arc::clone(&module));
            module
        })?;
        let module = made.ok_or(CudaError::UNKNOWN)?;
        let memory = &context.device()?.memory;
        for variable in module.variables.values() {
            let is_managed = module.managed.iter().any(|range| range.start == variable.address);
            let kind = if is_managed { AllocationKind::ManagedVariable } else { AllocationKind::Variable };
            memory.note_variable(variable.address, variable.bytes, kind, context)?;
        }
        super::managed::add_variables(context, &module.managed)?;
        Ok(module)
    }

    /// The module behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.modules.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// The kernel of a name.
    pub(crate) fn function(&self, name: &str) -> CuResult<Arc<Function>> {
        let index = self.by_name.get(name).ok_or(CudaError::NOT_FOUND)?;
        self.function_at(*index)
    }

    /// How many kernels it has.
    pub(crate) fn kernel_count(&self) -> usize {
        self.sheets.len()
    }

    /// The kernel at a place; the same handle each time.
    pub(crate) fn function_at(&self, index: u32) -> CuResult<Arc<Function>> {
        let sheet = self.sheets.get(index as usize).ok_or(CudaError::NOT_FOUND)?;
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(&index) {
            return Ok(Arc::clone(function));
        }
        let mut made = None;
        client()?.functions.insert_with(|handle| {
            let function = Arc::new(Function {
                handle,
                kernel: KernelRef { module: self.id, index },
                context: Arc::clone(&self.context),
                sheet: Arc::clone(sheet),
                module: self.me.get().cloned().unwrap_or_default(),
                old_launch: Mutex::default(),
            });
            made = Some(Arc::clone(&function));
            function
        })?;
        let function = made.ok_or(CudaError::UNKNOWN)?;
        functions.insert(index, Arc::clone(&function));
        Ok(function)
    }

    /// Unloads it.
    pub(crate) fn unload(&self) -> CuResult<()> {
        let client = client()?;
        client.modules.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        self.forget_handles(client)?;
        self.context.post(&Command::ModuleUnload { module: self.id })
    }

    fn forget_handles(&self, client: &Client) -> CuResult<()> {
        super::forget_references(self);
        for function in lock(&self.functions).values() {
            client.functions.remove(function.handle);
            forget_attributes(function.handle);
        }
        super::managed::remove_variables(&self.managed);
        let memory = &self.context.device()?.memory;
        self.variables.values().for_each(|variable| memory.forget_variable(variable.address));
        Ok(())
    }
}

/// Sends an image only if the worker does not have it.
fn ask_load(context: &Context, id: ModuleId, image: &Image, options: &[JitOption]) -> CuResult<ModuleInfo> {
    let ask = |source| {
        let command = Command::ModuleLoad {
            module: id,
            context: context.id,
            hash: image.hash,
            image: source,
            options: options.to_vec(),
        };
        context.link.ask::<ModuleInfo>(&command).inspect(|info| context.link.loaded(id, info))
    };
    context.link.keep_image(image.hash, &image.bytes);
    // A small image costs less than a second round trip.
    let small = image.bytes.len() <= INLINE_BYTES_MAX;
    if !small || was_shown(&image.hash) {
        match ask(ImageSource::Known {}) {
            Err(CudaError::NOT_FOUND) => {}
            answer => return answer,
        }
    }
    if image.bytes.len() <= cuda_wire::COMMAND_BYTES_MAX as usize / 2 {
        return ask(ImageSource::Inline { bytes: Bytes(&image.bytes) });
    }
    // SAFETY: the bytes are ours and stay until this function returns; the answer comes after they were read.
    let region =
        unsafe { crate::host::HostRegion::line(image.bytes.as_ptr() as u64, image.bytes.len() as u64) };
    let (link, bytes) = (&context.link, region.bytes());
    if let Some(transfer) = link.announce_push_soon(bytes) {
        link.push(transfer, &region)?;
        return ask(ImageSource::Pushed { transfer, bytes });
    }
    // More than the window holds: the worker asks for it.
    let transfer = link.offer(&region, true);
    let answer = ask(ImageSource::Pushed { transfer, bytes });
    link.withdraw_and_wait(transfer);
    answer
}

/// A `CUlibrary`.
pub(crate) struct Library {
    /// Its handle.
    pub(crate) handle: u64,
    image: Image,
    options: Vec<JitOption>,
    sheets: Vec<Arc<KernelSheet>>,
    names: HashMap<String, u32>,
    modules: Mutex<Vec<Arc<Module>>>,
    kernels: Mutex<HashMap<u32, Arc<Kernel>>>,
    me: OnceLock<Weak<Library>>,
}

impl Library {
    /// Loads an image. `context` is where it is looked at first: the current one, or the first device's.
    pub(crate) fn load(context: &Arc<Context>, image: Image, options: Vec<JitOption>) -> CuResult<Arc<Self>> {
        let client = client()?;
        let module = Module::load(context, &image, &options)?;
        let mut made = None;
        client.libraries.insert_with(|handle| {
            let library = Arc::new(Self {
                handle,
                image,
                options,
                sheets: module.sheets.clone(),
                names: module.by_name.clone(),
                modules: Mutex::new(vec![module]),
                kernels: Mutex::default(),
                me: OnceLock::new(),
            });
            let _ = library.me.set(Arc::downgrade(&library));
            made = Some(Arc::clone(&library));
            library
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// The library behind a handle.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.libraries.get(handle).ok_or(CudaError::INVALID_HANDLE)
    }

    /// The managed variable of a name.
    pub(crate) fn managed_variable(&self, name: &str) -> CuResult<VariableInfo> {
        let modules = lock(&self.modules);
        let found = modules.iter().find_map(|module| {
            let variable = module.variables.get(name)?;
            module.managed.iter().any(|range| range.start == variable.address).then(|| variable.clone())
        });
        found.ok_or(CudaError::NOT_FOUND)
    }

    /// Its module in a context, loaded there if need be.
    pub(crate) fn module_in(&self, context: &Arc<Context>) -> CuResult<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.iter().find(|module| Arc::ptr_eq(&module.context, context)) {
            return Ok(Arc::clone(module));
        }
        if modules.iter().any(|module| !module.managed.is_empty()) {
            crate::log::error(
                "a library with __managed__ variables is used in a second context: the variables would have another copy \
                 there, so this is refused; use memory of cudaMallocManaged instead",
            );
            return Err(CudaError::NOT_SUPPORTED);
        }
        let module = Module::load_as(context, &self.image, &self.options, Some(&self.sheets))?;
        modules.push(Arc::clone(&module));
        Ok(module)
    }

    /// Its log.
    pub(crate) fn info_log(&self) -> String {
        lock(&self.modules).first().map(|module| module.info_log.clone()).unwrap_or_default()
    }

    /// The kernel of a name.
    pub(crate) fn kernel(&self, name: &str) -> CuResult<Arc<Kernel>> {
        let index = self.names.get(name).ok_or(CudaError::NOT_FOUND)?;
        self.kernel_at(*index)
    }

    /// How many kernels it has.
    pub(crate) fn kernel_count(&self) -> usize {
        self.sheets.len()
    }

    /// The kernel at a place; the same handle each time.
    pub(crate) fn kernel_at(&self, index: u32) -> CuResult<Arc<Kernel>> {
        let sheet = self.sheets.get(index as usize).ok_or(CudaError::NOT_FOUND)?;
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(&index) {
            return Ok(Arc::clone(kernel));
        }
        let mut made = None;
        client()?.kernels.insert_with(|handle| {
            let kernel = Arc::new(Kernel {
                handle,
                index,
                sheet: Arc::clone(sheet),
                library: self.me.get().cloned().unwrap_or_default(),
                functions: Default::default(),
                set: Default::default(),
            });
            made = Some(Arc::clone(&kernel));
            kernel
        })?;
        let kernel = made.ok_or(CudaError::UNKNOWN)?;
        kernels.insert(index, Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Unloads it everywhere.
    pub(crate) fn unload(&self) -> CuResult<()> {
        let client = client()?;
        client.libraries.remove(self.handle).ok_or(CudaError::INVALID_HANDLE)?;
        for kernel in lock(&self.kernels).values() {
            client.kernels.remove(kernel.handle);
            forget_attributes(kernel.handle);
        }
        for module in lock(&self.modules).drain(..) {
            module.unload()?;
        }
        Ok(())
    }

    fn forget(&self, context: &Context) {
        lock(&self.modules).retain(|module| !std::ptr::eq(Arc::as_ptr(&module.context), context));
        lock(&self.kernels).values().for_each(|kernel| kernel.forget(context));
    }
}

/// Forgets all code in a context that ended. The worker forgets it by itself.
pub(super) fn forget_modules_of(client: &Client, context: &Context) {
    for (_, library) in client.libraries.snapshot() {
        library.forget(context);
    }
    for (handle, module) in client.modules.snapshot() {
        if std::ptr::eq(Arc::as_ptr(&module.context), context) {
            client.modules.remove(handle);
            let _ = module.forget_handles(client);
        }
    }
}
