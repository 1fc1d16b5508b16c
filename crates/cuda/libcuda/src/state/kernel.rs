//! Kernels as the program asks about them: one fact sheet per kernel, shared by every handle to it.

use super::{Context, Device, Library, Module, forget_attributes, lock};
use cuda_abi::{CuResult, CudaError};
use cuda_client::{launch::ParameterLayout, limits::KernelLimits, old_launch::OldLaunch};
use cuda_wire::{Command, KernelInfo, KernelRef, ParameterInfo};
use std::{
    collections::BTreeMap,
    ffi::CString,
    sync::{
        Arc, Mutex, RwLock, Weak,
        atomic::{AtomicI32, Ordering},
    },
};

/// `CUfunction_attribute` numbers are below this.
pub(crate) const KERNEL_ATTRIBUTES: usize = 16;

/// What a load said about a kernel, and what the program set since.
pub(crate) struct KernelSheet {
    /// Its name, ready for C.
    pub(crate) name: CString,
    /// Its parameters.
    pub(crate) layout: ParameterLayout,
    /// What launches of it must keep to.
    limits: RwLock<KernelLimits>,
    attributes: [AtomicI32; KERNEL_ATTRIBUTES],
}

impl KernelSheet {
    /// From a load's answer, for a device.
    pub(crate) fn new(info: &KernelInfo, device: &Device) -> CuResult<Self> {
        let attributes = [const { AtomicI32::new(i32::MIN) }; KERNEL_ATTRIBUTES];
        for (number, value) in &info.attributes {
            if let Some(place) = attributes.get(*number as usize) {
                place.store(*value, Ordering::Relaxed);
            }
        }
        Ok(Self {
            name: CString::new(info.name.replace('\0', "")).unwrap_or_default(),
            layout: ParameterLayout::new(&info.parameters)?,
            limits: RwLock::new(KernelLimits::new(&info.attributes, &device.limits)),
            attributes,
        })
    }

    /// An attribute's value.
    #[inline]
    pub(crate) fn attribute(&self, number: u32) -> CuResult<i32> {
        match self.attributes.get(number as usize).map(|value| value.load(Ordering::Relaxed)) {
            None | Some(i32::MIN) => Err(CudaError::INVALID_VALUE),
            Some(value) => Ok(value),
        }
    }

    /// What launches of it must keep to.
    #[inline]
    pub(crate) fn limits(&self) -> KernelLimits {
        *locks::read(&self.limits)
    }

    fn set_attribute(&self, number: u32, value: i32, device: &Device) -> CuResult<()> {
        locks::write(&self.limits).set(number, value, &device.limits)?;
        if let Some(place) = self.attributes.get(number as usize) {
            place.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Offset and size of a parameter.
    pub(crate) fn parameter(&self, index: usize) -> CuResult<ParameterInfo> {
        self.layout.parameters().get(index).copied().ok_or(CudaError::INVALID_VALUE)
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
    /// What a program of CUDA 3 has set for its next launches.
    pub(crate) old_launch: Mutex<OldLaunch>,
}

impl Function {
    /// Sets an attribute here and on the worker.
    pub(crate) fn set_attribute(&self, number: u32, value: i32) -> CuResult<()> {
        self.sheet.set_attribute(number, value, self.context.device()?)?;
        forget_attributes(self.handle);
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
    /// Its functions in the contexts that used it: almost always one.
    pub(crate) functions: RwLock<Vec<Arc<Function>>>,
    /// Attributes the program set, for contexts to come.
    pub(crate) set: Mutex<BTreeMap<u32, i32>>,
}

impl Kernel {
    /// Its function in `context`, loading the library there if need be.
    #[inline]
    pub(crate) fn function(&self, context: &Context) -> CuResult<Arc<Function>> {
        let known = locks::read(&self.functions);
        match known.iter().find(|function| std::ptr::eq(Arc::as_ptr(&function.context), context)) {
            Some(function) => Ok(Arc::clone(function)),
            None => {
                drop(known);
                self.load_function(context)
            }
        }
    }

    #[cold]
    fn load_function(&self, context: &Context) -> CuResult<Arc<Function>> {
        let library = self.library.upgrade().ok_or(CudaError::INVALID_HANDLE)?;
        let function = library.module_in(&context.shared()?)?.function_at(self.index)?;
        for (number, value) in lock(&self.set).iter() {
            function.set_attribute(*number, *value)?;
        }
        let mut known = locks::write(&self.functions);
        if !known.iter().any(|other| Arc::ptr_eq(other, &function)) {
            known.push(Arc::clone(&function));
        }
        Ok(function)
    }

    /// Sets an attribute in every context.
    pub(crate) fn set_attribute(&self, number: u32, value: i32) -> CuResult<()> {
        // Libraries set the same value before every launch; the worker has it already.
        if self.sheet.attribute(number) == Ok(value) {
            return Ok(());
        }
        let device = super::client()?.devices.first().ok_or(CudaError::INVALID_DEVICE)?;
        self.sheet.set_attribute(number, value, device)?;
        forget_attributes(self.handle);
        lock(&self.set).insert(number, value);
        let known = locks::read(&self.functions);
        known.iter().try_for_each(|function| function.set_attribute(number, value))
    }

    /// Forgets its function in a context that ended.
    pub(crate) fn forget(&self, context: &Context) {
        let mut known = locks::write(&self.functions);
        known.retain(|function| !std::ptr::eq(Arc::as_ptr(&function.context), context));
    }
}

/// Addresses that libraries were given for functions, see the private table of functions.
static ALIASES: RwLock<BTreeMap<u64, u64>> = RwLock::new(BTreeMap::new());

/// Makes an address one more handle of a function.
pub(crate) fn add_function_alias(address: u64, function: u64) {
    locks::write(&ALIASES).insert(address, function);
}

/// The handle of the function at such an address.
#[cold]
pub(crate) fn function_behind(address: u64) -> Option<u64> {
    locks::read(&ALIASES).get(&address).copied()
}
