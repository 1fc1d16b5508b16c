//! Modules: loading, and everything a program may ask about them.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    known::{Described, Place},
    sys::{Api, DeviceAddress, Function, Module},
};
use cuda_abi::{CuResult, CudaError};
use cuda_image::Symbols;
use cuda_wire::{AppendedPlaces, JitOption, KernelInfo, ModuleInfo, ParameterInfo, VariableInfo};
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::time::Instant;

/// `CUfunction_attribute` numbers.
const FUNCTION_ATTRIBUTES: std::ops::Range<u32> = 0..16;
/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`
const MAX_THREADS: u32 = 0;
/// No kernel has more parameters than fit 32764 bytes of them.
const PARAMETERS_MAX: usize = 32764;
/// `CU_JIT_INFO_LOG_BUFFER` and its companions.
const INFO_LOG: u32 = 3;
const INFO_LOG_BYTES: u32 = 4;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;
const LOG_BYTES: usize = 16 << 10;

/// A module in a context.
pub(crate) struct LoadedModule {
    api: Api,
    raw: Module,
    pub(crate) context: Arc<LiveContext>,
    /// In the order of their names, so that a kernel has the same index wherever the module is loaded.
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<VariableInfo>,
    /// Whether its kernels may allocate from the device's heap.
    pub(crate) allocates: bool,
}

impl LoadedModule {
    pub(crate) fn raw(&self) -> Module {
        self.raw
    }
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: only this object has the handle.
            let _ = unsafe { self.api.module_unload(self.raw) };
        }
    }
}

/// Compiler options with room for the compiler's logs.
pub(crate) struct Options {
    names: Vec<u32>,
    values: Vec<*mut c_void>,
    info: Vec<u8>,
    error: Vec<u8>,
}

impl Options {
    pub(crate) fn new(given: &[JitOption]) -> Self {
        let mut options = Self {
            names: Vec::new(),
            values: Vec::new(),
            info: vec![0; LOG_BYTES],
            error: vec![0; LOG_BYTES],
        };
        let scalar = |value: u64| std::ptr::without_provenance_mut(value as usize);
        for option in given {
            // Buffers are the client's own.
            if !(INFO_LOG..=ERROR_LOG_BYTES).contains(&option.option) {
                options.names.push(option.option);
                options.values.push(scalar(option.value));
            }
        }
        options.names.extend([INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES]);
        let (info, error) = (options.info.as_mut_ptr().cast(), options.error.as_mut_ptr().cast());
        options.values.extend([info, scalar(LOG_BYTES as u64), error, scalar(LOG_BYTES as u64)]);
        options
    }

    /// Count, names and values, valid as long as `self` is.
    pub(crate) fn parts(&mut self) -> (u32, *mut u32, *mut *mut c_void) {
        (self.names.len() as u32, self.names.as_mut_ptr(), self.values.as_mut_ptr())
    }

    pub(crate) fn info_log(&self) -> String {
        text(&self.info)
    }

    pub(crate) fn error_log(&self) -> String {
        text(&self.error)
    }
}

fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// Loads an image. On failure the second value is what the compiler said. `place`: where its description is kept.
pub(crate) fn load(
    api: &Api,
    context: &Arc<LiveContext>,
    image: &[u8],
    options: &[JitOption],
    place: Option<Place<'_>>,
) -> Result<(LoadedModule, ModuleInfo), (CudaError, String)> {
    let silent = |error| (error, String::new());
    context.enter().map_err(silent)?;
    let mut options = Options::new(options);
    // PTX ends with a zero; a longer copy does no harm to the other kinds.
    let mut terminated = Vec::with_capacity(image.len() + 1);
    terminated.extend_from_slice(image);
    terminated.push(0);
    let (count, names, values) = options.parts();
    let began = Instant::now();
    let mut raw = Module::default();
    // SAFETY: the image is whole and ends with a zero, the option arrays are valid for the call.
    unsafe { api.module_load(&mut raw, terminated.as_ptr().cast(), count, names, values) }
        .map_err(|error| (error, options.error_log()))?;
    let (loaded, began) = (began.elapsed(), Instant::now());
    let mut module = LoadedModule {
        api: *api,
        raw,
        context: Arc::clone(context),
        functions: Vec::new(),
        variables: Vec::new(),
        allocates: false,
    };
    let mut info = describe(api, &mut module, image, place).map_err(silent)?;
    info.info_log = options.info_log();
    let (kernels, bytes) = (info.kernels.len(), image.len());
    tracing::debug!(kernels, bytes, ?loaded, described = ?began.elapsed(), "a module is loaded");
    Ok((module, info))
}

fn describe(
    api: &Api,
    module: &mut LoadedModule,
    image: &[u8],
    place: Option<Place<'_>>,
) -> CuResult<ModuleInfo> {
    let mut count = 0;
    // SAFETY: `count` is valid for the call.
    unsafe { api.module_function_count(&mut count, module.raw)? };
    let mut functions = vec![Function::default(); count as usize];
    // SAFETY: there is room for `count` handles.
    unsafe { api.module_functions(functions.as_mut_ptr(), count, module.raw)? };
    let named = |function| Ok((name(api, function)?, function));
    let mut named = functions.into_iter().map(named).collect::<CuResult<Vec<_>>>()?;
    // The driver lists them in an order of its own, and another worker's driver in another.
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    module.functions = named.iter().map(|&(_, function)| function).collect();
    let known = place.as_ref().and_then(|place| place.described(named.iter().map(|(name, _)| name.as_str())));
    let Described { kernels, symbols } = match known {
        Some(described) => described,
        None => {
            let kernel = |(name, function)| kernel(api, name, function);
            let kernels = named.into_iter().map(kernel).collect::<CuResult<Vec<_>>>()?;
            let described = Described { kernels, symbols: Symbols::of(image) };
            place.inspect(|place| place.keep(&described));
            described
        }
    };
    module.allocates = symbols.allocates;
    if symbols.prints {
        module.context.note_printing();
    }
    let variables: Vec<VariableInfo> =
        symbols.variables.into_iter().filter_map(|name| variable(api, module.raw, name)).collect();
    module.variables.clone_from(&variables);
    let mut managed = AppendedPlaces::default();
    for (place, variable) in (0..).zip(&variables) {
        if is_managed(api, variable.address)? {
            managed.0.push(place);
        }
    }
    Ok(ModuleInfo { kernels, variables, info_log: String::new(), managed })
}

/// Whether a variable was declared `__managed__`: the driver puts those into managed memory.
fn is_managed(api: &Api, address: DeviceAddress) -> CuResult<bool> {
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
    const IS_MANAGED: u32 = 8;
    let mut value: u32 = 0;
    let to = (&raw mut value).cast();
    // SAFETY: the driver writes one word of 32 bits, which is valid for the call.
    unsafe { api.pointer_attribute(to, IS_MANAGED, address)? };
    Ok(value != 0)
}

fn name(api: &Api, function: Function) -> CuResult<String> {
    let mut name = std::ptr::null();
    // SAFETY: `name` is valid for the call.
    unsafe { api.function_name(&mut name, function)? };
    // SAFETY: the driver gives a string that lives as long as the module.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

fn kernel(api: &Api, name: String, function: Function) -> CuResult<KernelInfo> {
    let parameter = |index| {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: both pointers are valid for the call; past the last parameter the driver refuses.
        unsafe { api.function_parameter(function, index, &mut offset, &mut bytes) }.ok()?;
        Some(ParameterInfo { offset: offset as u32, bytes: bytes as u32 })
    };
    let attribute = |number| {
        let mut value = 0;
        // SAFETY: `value` is valid for the call.
        unsafe { api.function_attribute(&mut value, number, function) }.ok()?;
        Some((number, value))
    };
    if attribute(MAX_THREADS).is_none() {
        // Some attributes are known only of code that is on the device.
        // SAFETY: the function lives as long as its module.
        unsafe { api.function_load(function)? };
    }
    Ok(KernelInfo {
        name,
        parameters: (0..PARAMETERS_MAX).map_while(parameter).collect(),
        attributes: FUNCTION_ATTRIBUTES.filter_map(attribute).collect(),
    })
}

/// What the driver says of a function that it may not have loaded: a kernel of a known module is loaded when it is first used,
/// and only a launch does that by itself.
pub(crate) fn of_loaded<T>(
    api: &Api,
    function: Function,
    mut ask: impl FnMut() -> CuResult<T>,
) -> CuResult<T> {
    match ask() {
        Err(CudaError::FUNCTION_NOT_LOADED) => {
            // SAFETY: the function lives as long as its module.
            unsafe { api.function_load(function)? };
            ask()
        }
        answer => answer,
    }
}

fn variable(api: &Api, module: Module, name: String) -> Option<VariableInfo> {
    let symbol = CString::new(name.as_bytes()).ok()?;
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: every pointer is valid for the call.
    unsafe { api.module_variable(&mut address, &mut bytes, module, symbol.as_ptr()) }.ok()?;
    (bytes != 0).then_some(VariableInfo { name, address, bytes: bytes as u64 })
}
