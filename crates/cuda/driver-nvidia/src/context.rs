//! Contexts.

#![allow(unsafe_code)]

use crate::{
    current, first_variable,
    sys::{Api, Context, ContextCreate, Module},
};
use cuda_abi::CuResult;
use std::sync::atomic::{AtomicBool, Ordering};

/// A context of the driver.
pub(crate) struct LiveContext {
    api: Api,
    raw: Context,
    pub(crate) id: u32,
    pub(crate) device: u32,
    is_primary: bool,
    /// Whether code in it may print: then waits look for text.
    prints: AtomicBool,
    first_variable: Option<Module>,
}

impl LiveContext {
    /// The primary context of a device.
    pub(crate) fn primary(api: &Api, device: u32) -> CuResult<Self> {
        let mut raw = Context::default();
        // SAFETY: `raw` is valid for the call.
        unsafe { api.primary_retain(&mut raw, device as i32)? };
        Self::filled(api, raw, device, device, true)
    }

    /// A context of its own.
    pub(crate) fn create(api: &Api, id: u32, device: u32, flags: u32) -> CuResult<Self> {
        let mut raw = Context::default();
        let mut params =
            ContextCreate { affinity: std::ptr::null_mut(), affinity_count: 0, cig: std::ptr::null_mut() };
        current::forget();
        // SAFETY: both pointers are valid for the call.
        unsafe { api.context_create(&mut raw, &mut params, flags, device as i32)? };
        Self::filled(api, raw, id, device, false)
    }

    fn filled(api: &Api, raw: Context, id: u32, device: u32, is_primary: bool) -> CuResult<Self> {
        let prints = AtomicBool::new(false);
        let mut made = Self { api: *api, raw, id, device, is_primary, prints, first_variable: None };
        made.enter()?;
        made.first_variable = first_variable::load(api)?;
        Ok(made)
    }

    pub(crate) fn raw(&self) -> Context {
        self.raw
    }

    /// Makes it the calling thread's.
    #[inline]
    pub(crate) fn enter(&self) -> CuResult<()> {
        current::enter(&self.api, self.raw)
    }

    pub(crate) fn note_printing(&self) {
        self.prints.store(true, Ordering::Relaxed);
    }

    pub(crate) fn may_print(&self) -> bool {
        self.prints.load(Ordering::Relaxed)
    }
}

impl Drop for LiveContext {
    fn drop(&mut self) {
        if !self.is_primary {
            if let Some(module) = self.first_variable.filter(|_| self.enter().is_ok()) {
                // SAFETY: no code is in it.
                let _ = unsafe { self.api.module_unload(module) };
            }
            current::forget();
            // SAFETY: the last `Arc` of it is gone, so nothing uses it. A primary context ends with the process.
            let _ = unsafe { self.api.context_destroy(self.raw) };
        }
    }
}
