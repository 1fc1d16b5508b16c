//! Modules, functions and the linker: PTX texts of which only names are read.
//!
//! ```text
//!   .visible .entry store(.param .u64 a, .param .u64 b)      a kernel with two parameters of 8 bytes
//!   .visible .global .align 8 .b8 table[64];                 a variable of 64 bytes
//!   BROKEN                                                   the compiler refuses the text and writes a log
//! ```

use super::{
    Fake, State, handle, put,
    work::{Launched, Work},
};
use crate::sys::{DeviceAddress, Function, LaunchAttribute, LaunchConfig, LinkState, Module};
use cuda_abi::{CuResult, CudaError};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// What the compiler says of a text that it refuses.
pub(crate) const COMPLAINT: &str = "line 1: BROKEN is no instruction";
/// What it says of one that it takes.
pub(crate) const REMARK: &str = "compiled";
/// A function whose name begins so is loaded by `cuFuncLoad` alone.
const LAZY: &str = "lazy_";
/// Function attributes from 0 to this are known; one of them is the limit of dynamic shared memory.
const ATTRIBUTES: c_uint = 9;
const SHARED_LIMIT: c_uint = 8;
const SHARED_BYTES: c_int = 48 << 10;

#[derive(Debug, Default)]
pub(super) struct ModulesState {
    pub(super) modules: HashMap<Module, ModuleState>,
    pub(super) functions: HashMap<Function, FunctionState>,
    pub(super) links: HashMap<LinkState, Linking>,
}

#[derive(Debug)]
pub(super) struct ModuleState {
    functions: Vec<Function>,
    variables: BTreeMap<String, (u64, usize)>,
}

#[derive(Debug)]
pub(super) struct FunctionState {
    pub(super) name: CString,
    parameters: usize,
    is_loaded: bool,
    shared_limit: c_int,
}

#[derive(Debug)]
pub(super) struct Linking {
    text: Vec<u8>,
    /// Where the error log goes.
    error_log: usize,
}

impl FunctionState {
    /// The real driver says so of functions that nobody has loaded or launched.
    pub(super) fn loaded(&self) -> CuResult<&Self> {
        if self.is_loaded { Ok(self) } else { Err(CudaError::FUNCTION_NOT_LOADED) }
    }

    /// Whether a launch with this much dynamic shared memory is within its limit.
    pub(super) fn takes(&self, shared_bytes: u32) -> CuResult<()> {
        if i64::from(shared_bytes) <= self.shared_limit.into() {
            Ok(())
        } else {
            Err(CudaError::INVALID_VALUE)
        }
    }
}

/// The word that begins after `mark`, for every time it occurs, with the text behind it.
fn after<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    text.split(mark).skip(1).map(|rest| {
        let is_inside = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = rest.find(|letter| !is_inside(letter)).unwrap_or(rest.len());
        (rest[..end].to_owned(), &rest[end..])
    })
}

/// Writes a log into the buffer that the options name, by `CUjit_option` 3 and 5.
fn log_buffer(count: c_uint, options: *mut c_uint, values: *mut *mut c_void, wanted: c_uint) -> usize {
    // SAFETY: the caller promises `count` options and values.
    let found = (0..count as usize).find(|&at| unsafe { options.add(at).read() } == wanted);
    // SAFETY: as above.
    found.map_or(0, |at| unsafe { values.add(at).read() }.expose_provenance())
}

fn write_log(buffer: usize, text: &str) {
    if buffer != 0 {
        let target: *mut u8 = std::ptr::with_exposed_provenance_mut(buffer);
        let text = CString::new(text).unwrap();
        // SAFETY: the buffers of this crate hold far more, and live until the call or the link is over.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, text.as_bytes_with_nul().len())
        };
    }
}

impl State {
    pub(super) fn function(&self, function: Function) -> CuResult<&FunctionState> {
        self.modules.functions.get(&function).ok_or(CudaError::INVALID_HANDLE)
    }

    /// A launch as it will be recorded, from the driver's form of its parameters.
    pub(super) fn launched(
        &self,
        function: Function,
        grid: [c_uint; 3],
        attributes: &[LaunchAttribute],
        extra: *mut *mut c_void,
    ) -> CuResult<Launched> {
        let name = self.function(function)?.name.to_string_lossy().into_owned();
        // SAFETY: the caller gives the pointer and the size of a parameter block, in this order.
        let parameters = unsafe {
            let (start, bytes) = (extra.add(1).read(), extra.add(3).read());
            std::slice::from_raw_parts(start.cast::<u8>(), bytes.cast::<usize>().read()).to_vec()
        };
        let attributes = attributes.iter().map(|attribute| attribute.id).collect();
        Ok(Launched { name, grid, parameters, attributes })
    }
}

impl Fake {
    pub(crate) fn module_load(
        &self,
        out: *mut Module,
        image: *const c_void,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let context = state.current()?;
        // SAFETY: a PTX text ends with a zero, as the caller promises.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
        if text.contains("BROKEN") {
            write_log(log_buffer(count, options, values, 5), COMPLAINT);
            return Err(CudaError::INVALID_PTX);
        }
        write_log(log_buffer(count, options, values, 3), REMARK);
        let mut functions = Vec::new();
        for (name, rest) in after(&text, ".entry ") {
            let parameters = rest.split('{').next().unwrap_or("").matches(".param").count();
            let is_loaded = !name.starts_with(LAZY);
            let name = CString::new(name).unwrap();
            let function = Function(handle());
            let made = FunctionState { name, parameters, is_loaded, shared_limit: SHARED_BYTES };
            state.modules.functions.insert(function, made);
            functions.push(function);
        }
        let mut variables = BTreeMap::new();
        for (name, rest) in after(&text, ".b8 ") {
            let bytes = rest[1..].split(']').next().and_then(|digits| digits.parse().ok()).unwrap_or(8);
            variables.insert(name, (state.memory.add_variable(context, bytes), bytes));
        }
        let module = Module(handle());
        state.modules.modules.insert(module, ModuleState { functions, variables });
        put(out, module);
        Ok(())
    }

    pub(crate) fn module_unload(&self, module: Module) -> CuResult<()> {
        let mut state = self.lock();
        let Some(gone) = state.modules.modules.remove(&module) else {
            state.violation("cuModuleUnload of a module that is not there");
            return Err(CudaError::INVALID_HANDLE);
        };
        gone.functions.iter().for_each(|function| drop(state.modules.functions.remove(function)));
        gone.variables.values().for_each(|&(address, _)| state.memory.remove_variable(address));
        Ok(())
    }

    pub(crate) fn module_function_count(&self, count: *mut c_uint, module: Module) -> CuResult<()> {
        let state = self.lock();
        let module = state.modules.modules.get(&module).ok_or(CudaError::INVALID_HANDLE)?;
        put(count, module.functions.len() as c_uint);
        Ok(())
    }

    pub(crate) fn module_functions(&self, out: *mut Function, count: c_uint, module: Module) -> CuResult<()> {
        let state = self.lock();
        let module = state.modules.modules.get(&module).ok_or(CudaError::INVALID_HANDLE)?;
        for (at, &function) in module.functions.iter().take(count as usize).enumerate() {
            put(out.wrapping_add(at), function);
        }
        Ok(())
    }

    pub(crate) fn module_variable(
        &self,
        address: *mut DeviceAddress,
        bytes: *mut usize,
        module: Module,
        name: *const c_char,
    ) -> CuResult<()> {
        let state = self.lock();
        let module = state.modules.modules.get(&module).ok_or(CudaError::INVALID_HANDLE)?;
        // SAFETY: the caller gives a string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let &(at, count) = module.variables.get(name.as_ref()).ok_or(CudaError::NOT_FOUND)?;
        put(address, at);
        put(bytes, count);
        Ok(())
    }

    /// Whether memory is managed, and nothing else: of variables, those with this in their names are.
    pub(crate) fn pointer_attribute(
        &self,
        value: *mut c_void,
        attribute: c_uint,
        address: DeviceAddress,
    ) -> CuResult<()> {
        assert_eq!(attribute, 8, "CU_POINTER_ATTRIBUTE_IS_MANAGED");
        let state = self.lock();
        let mut variables = state.modules.modules.values().flat_map(|module| &module.variables);
        let (name, _) = variables.find(|(_, (at, _))| *at == address).ok_or(CudaError::INVALID_VALUE)?;
        put(value.cast(), u32::from(name.contains("managed")));
        Ok(())
    }

    /// The name lives as long as the module.
    pub(crate) fn function_name(&self, name: *mut *const c_char, function: Function) -> CuResult<()> {
        put(name, self.lock().function(function)?.name.as_ptr());
        Ok(())
    }

    pub(crate) fn function_parameter(
        &self,
        function: Function,
        index: usize,
        offset: *mut usize,
        bytes: *mut usize,
    ) -> CuResult<()> {
        if index >= self.lock().function(function)?.parameters {
            return Err(CudaError::INVALID_VALUE);
        }
        put(offset, index * 8);
        put(bytes, 8);
        Ok(())
    }

    pub(crate) fn function_attribute(
        &self,
        value: *mut c_int,
        attribute: c_uint,
        function: Function,
    ) -> CuResult<()> {
        let state = self.lock();
        let function = state.function(function)?;
        match attribute {
            _ if !function.is_loaded => Err(CudaError::FUNCTION_NOT_LOADED),
            SHARED_LIMIT => {
                put(value, function.shared_limit);
                Ok(())
            }
            0..=ATTRIBUTES => {
                put(value, 1024);
                Ok(())
            }
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    pub(crate) fn function_load(&self, function: Function) -> CuResult<()> {
        let mut state = self.lock();
        let found = state.modules.functions.get_mut(&function).ok_or(CudaError::INVALID_HANDLE)?;
        found.is_loaded = true;
        Ok(())
    }

    pub(crate) fn function_set_attribute(
        &self,
        function: Function,
        attribute: c_uint,
        value: c_int,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let found = state.modules.functions.get_mut(&function).ok_or(CudaError::INVALID_HANDLE)?;
        if !found.is_loaded {
            return Err(CudaError::FUNCTION_NOT_LOADED);
        }
        if attribute != SHARED_LIMIT {
            return Err(CudaError::INVALID_VALUE);
        }
        found.shared_limit = value;
        Ok(())
    }

    /// The limit of dynamic shared memory of the function with this name.
    pub(crate) fn shared_limit(&self, name: &str) -> c_int {
        let state = self.lock();
        let mut functions = state.modules.functions.values();
        functions.find(|function| function.name.to_str() == Ok(name)).unwrap().shared_limit
    }

    pub(crate) fn active_clusters(
        &self,
        count: *mut c_int,
        function: Function,
        _config: *const LaunchConfig,
    ) -> CuResult<()> {
        self.lock().function(function)?.loaded()?;
        put(count, 4);
        Ok(())
    }

    pub(crate) fn largest_cluster(
        &self,
        blocks: *mut c_int,
        function: Function,
        _config: *const LaunchConfig,
    ) -> CuResult<()> {
        self.lock().function(function)?.loaded()?;
        put(blocks, 8);
        Ok(())
    }

    pub(crate) fn launch(
        &self,
        config: *const LaunchConfig,
        function: Function,
        _parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CuResult<()> {
        // SAFETY: valid for the call, as the caller promises, and so are its attributes.
        let (config, attributes) = unsafe {
            let config = config.read();
            let count = config.attribute_count as usize;
            (config, std::slice::from_raw_parts(config.attributes.cast_const(), count))
        };
        let state = self.lock();
        state.function(function)?.takes(config.shared_bytes)?;
        let launch = state.launched(function, config.grid, attributes, extra)?;
        self.enqueue(state, config.stream, Work::Launch(launch))
    }

    pub(crate) fn link_create(
        &self,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
        out: *mut LinkState,
    ) -> CuResult<()> {
        let mut state = self.lock();
        state.current()?;
        let link = LinkState(handle());
        let error_log = log_buffer(count, options, values, 5);
        state.modules.links.insert(link, Linking { text: Vec::new(), error_log });
        put(out, link);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn link_add(
        &self,
        link: LinkState,
        _kind: c_uint,
        data: *mut c_void,
        bytes: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *mut c_uint,
        _values: *mut *mut c_void,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let linking = state.modules.links.get_mut(&link).ok_or(CudaError::INVALID_HANDLE)?;
        // SAFETY: the caller promises that many bytes.
        linking.text.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast(), bytes) });
        if linking.text.windows(6).any(|word| word == b"BROKEN") {
            write_log(linking.error_log, COMPLAINT);
            return Err(CudaError::INVALID_PTX);
        }
        Ok(())
    }

    /// The image lives until the link is destroyed.
    pub(crate) fn link_complete(
        &self,
        link: LinkState,
        cubin: *mut *mut c_void,
        bytes: *mut usize,
    ) -> CuResult<()> {
        let mut state = self.lock();
        let linking = state.modules.links.get_mut(&link).ok_or(CudaError::INVALID_HANDLE)?;
        put(cubin, linking.text.as_mut_ptr().cast());
        put(bytes, linking.text.len());
        Ok(())
    }

    pub(crate) fn link_destroy(&self, link: LinkState) -> CuResult<()> {
        let mut state = self.lock();
        if let Some(mut gone) = state.modules.links.remove(&link) {
            // A later read of the image finds these bytes.
            gone.text.fill(0xdd);
            return Ok(());
        }
        state.violation("cuLinkDestroy of a link that is not there");
        Err(CudaError::INVALID_HANDLE)
    }
}
