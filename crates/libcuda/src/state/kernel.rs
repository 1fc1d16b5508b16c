//! Kernels as the program asks about them: one fact sheet per kernel, shared by every handle to it.

use super::{Context, Library, Module, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Command, KernelInfo, KernelRef, ParameterInfo};
use std::{
    ffi::CString,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicI32, Ordering},
    },
};

/// `CUfunction_attribute` numbers are below this.
const ATTRIBUTES: usize = 24;

/// What a load said about a kernel, and what the program set since.
pub(crate) struct KernelSheet {
    /// Its name, ready for C.
    pub(crate) name: CString,
    /// Its parameters.
    pub(crate) parameters: Vec<ParameterInfo>,
    /// Bytes of its parameter block.
    pub(crate) parameter_bytes: usize,
    attributes: [AtomicI32; ATTRIBUTES],
}

impl KernelSheet {
    /// From a load's answer.
    pub(crate) fn new(info: &KernelInfo) -> Self {
        let attributes = [const { AtomicI32::new(i32::MIN) }; ATTRIBUTES];
        for (number, value) in &info.attributes {
            if let Some(place) = attributes.get(*number as usize) {
                place.store(*value, Ordering::Relaxed);
            }
        }
        let end = info.parameters.iter().map(|parameter| parameter.offset as usize + parameter.bytes as usize).max();
        Self {
            name: CString::new(info.name.replace('\0', "")).unwrap_or_default(),
            parameters: info.parameters.clone(),
            parameter_bytes: end.unwrap_or(0),
            attributes,
        }
    }

    /// An attribute's value.
    #[inline]
    pub(crate) fn attribute(&self, number: u32) -> CuResult<i32> {
        match self.attributes.get(number as usize).map(|value| value.load(Ordering::Relaxed)) {
            None | Some(i32::MIN) => Err(CudaError::INVALID_VALUE),
            Some(value) => Ok(value),
        }
    }

    fn set_attribute(&self, number: u32, value: i32) {
        if let Some(place) = self.attributes.get(number as usize) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Offset and size of a parameter.
    pub(crate) fn parameter(&self, index: usize) -> CuResult<ParameterInfo> {
        self.parameters.get(index).copied().ok_or(CudaError::INVALID_VALUE)
    }
}

/// A `CUfunction`: a kernel in one context.
pub(crate) struct Function {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) kernel: KernelRef,
    /// The context it runs in.
    pub(crate) context: Arc<Context>,
    /// Its facts.
    pub(crate) sheet: Arc<KernelSheet>,
    /// The module it is in.
    pub(crate) module: Weak<Module>,
}

impl Function {
    /// Sets an attribute here and on the worker.
    pub(crate) fn set_attribute(&self, number: u32, value: i32) -> CuResult<()> {
        self.sheet.attribute(number)?;
        self.sheet.set_attribute(number, value);
        self.context.post(&Command::KernelSetAttribute { kernel: self.kernel, attribute: number, value })
    }
}

/// A `CUkernel`: a kernel of a library, in whatever context is current.
pub(crate) struct Kernel {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its place in the library.
    pub(crate) index: u32,
    /// Its facts.
    pub(crate) sheet: Arc<KernelSheet>,
    /// The library it is in.
    pub(crate) library: Weak<Library>,
    /// Its function in the first context that used it: almost always the only one.
    pub(crate) first: OnceLock<Arc<Function>>,
    /// Its functions in further contexts.
    pub(crate) others: Mutex<Vec<Arc<Function>>>,
    /// Attributes the program set, for contexts to come.
    pub(crate) set: Mutex<Vec<(u32, i32)>>,
}

impl Kernel {
    /// Its function in `context`, loading the library there if need be.
    pub(crate) fn function(&self, context: &Arc<Context>) -> CuResult<Arc<Function>> {
        if let Some(function) = self.first.get()
            && Arc::ptr_eq(&function.context, context)
        {
            return Ok(Arc::clone(function));
        }
        self.function_slow(context)
    }

    #[cold]
    fn function_slow(&self, context: &Arc<Context>) -> CuResult<Arc<Function>> {
        let mut others = lock(&self.others);
        if let Some(function) = others.iter().find(|function| Arc::ptr_eq(&function.context, context)) {
            return Ok(Arc::clone(function));
        }
        let library = self.library.upgrade().ok_or(CudaError::INVALID_HANDLE)?;
        let module = library.module_in(context)?;
        let function = module.function_at(self.index)?;
        for (number, value) in lock(&self.set).iter() {
            function.set_attribute(*number, *value)?;
        }
        if self.first.set(Arc::clone(&function)).is_err() {
            others.push(Arc::clone(&function));
        }
        Ok(function)
    }

    /// Sets an attribute in every context.
    pub(crate) fn set_attribute(&self, number: u32, value: i32) -> CuResult<()> {
        self.sheet.attribute(number)?;
        self.sheet.set_attribute(number, value);
        lock(&self.set).push((number, value));
        for function in self.first.get().into_iter().chain(lock(&self.others).iter()) {
            function.set_attribute(number, value)?;
        }
        Ok(())
    }
}
