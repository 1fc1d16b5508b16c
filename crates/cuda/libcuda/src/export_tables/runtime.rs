//! What libcudart alone needs of the driver: modules from its own registrations, and primary contexts by name.

#![allow(unsafe_code)]

use super::table::{NO_OPERATION, NOTHING, Table, UNKNOWN, Word};
use crate::{api, border, state::client};
use cuda_abi::CudaError;

/// Nothing is known of places 3, 4, 5, 9 and 11; 10 is empty on the real driver.
pub(super) static TABLE: Table<13> = Table::sized([
    NOTHING,
    load_wrapper as Word,
    primary_context as Word,
    UNKNOWN,
    UNKNOWN,
    UNKNOWN,
    load_wrapper_with_options as Word,
    module_unregistered as Word,
    load_fatbin as Word,
    UNKNOWN,
    NOTHING,
    UNKNOWN,
    // "Load the compilers": ours are on the worker and need no loading.
    NO_OPERATION,
]);

/// Loads the fatbin behind a wrapper into the current context.
///
/// # Safety
/// `module` is null or a place for a handle; `wrapper` is null or a fatbin wrapper.
unsafe extern "C" fn load_wrapper(module: *mut u64, wrapper: *const u8) -> u32 {
    // SAFETY: our caller's promise; there are no options.
    unsafe { load("cudart: load module", module, wrapper, std::ptr::null(), std::ptr::null_mut(), 0) }
}

/// The same with JIT options.
///
/// # Safety
/// As [`load_wrapper`]; `options` and `values` have `count` elements each.
unsafe extern "C" fn load_wrapper_with_options(
    module: *mut u64,
    wrapper: *const u8,
    options: *const u32,
    values: *mut u64,
    count: u32,
) -> u32 {
    // SAFETY: our caller's promise.
    unsafe { load("cudart: load cubin", module, wrapper, options, values, count) }
}

/// The same from a fatbin without wrapper.
///
/// # Safety
/// As [`load_wrapper_with_options`], with a fatbin.
unsafe extern "C" fn load_fatbin(
    fatbin: *const u8,
    module: *mut u64,
    options: *const u32,
    values: *mut u64,
    count: u32,
) -> u32 {
    // SAFETY: our caller's promise.
    unsafe { load("cudart: load fatbin", module, fatbin, options, values, count) }
}

/// # Safety
/// `module` is null or a place for a handle, `image` is null or an image as cuModuleLoadData takes it, and `options`
/// and `values` have `count` elements each.
unsafe fn load(
    symbol: &'static str,
    module: *mut u64,
    image: *const u8,
    options: *const u32,
    values: *mut u64,
    count: u32,
) -> u32 {
    border::enter(symbol, || {
        // SAFETY: our caller's promise.
        let mut module = unsafe { border::out(module) }?;
        let image = border::image(image)?;
        let loaded = if count == 0 {
            api::module::load_at(image, &[], None)?
        } else {
            // SAFETY: our caller's promise.
            let options = unsafe { border::slice(options, count) }?;
            // SAFETY: our caller's promise.
            let values = unsafe { border::in_out_slice(values, count) }?;
            api::module::load_at(image, options, Some(values))?
        };
        module.set(loaded);
        Ok(())
    })
}

/// The handle of a device's primary context, which stays as inactive as it is.
///
/// # Safety
/// `context` is null or a place for a handle.
unsafe extern "C" fn primary_context(context: *mut u64, device: i32) -> u32 {
    border::enter("cudart: primary context", || {
        // SAFETY: our caller's promise.
        let mut context = unsafe { border::out(context) }?;
        let device = client()?.device(device).map_err(|_| CudaError::INVALID_DEVICE)?;
        context.set(device.primary.handle);
        Ok(())
    })
}

/// The runtime is done with a module's registration. It unloads the module by the public function.
extern "C" fn module_unregistered(_module: usize) {}
