//! The machine's libnvidia-ml, loaded once.

#![allow(unsafe_code)]

use crate::sys::LoadError;
use cuda_abi::CudaError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use std::{
    ffi::{CStr, CString, OsStr, c_char},
    sync::Arc,
};

/// Why nothing can be said of the devices.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// NVML is not there.
    #[error("cannot load NVML: {0}")]
    Nvml(String),
    /// NVML refused.
    #[error("{what}: NVML says {code}")]
    Refused {
        /// What it was asked.
        what: &'static str,
        /// `nvmlReturn_t`.
        code: u32,
    },
    /// CUDA is not there.
    #[error(transparent)]
    Load(LoadError),
    /// CUDA refused.
    #[error("{what}: {error}")]
    Cuda {
        /// What it was asked.
        what: &'static str,
        /// What it said.
        error: CudaError,
    },
}

/// NVML, initialised as long as this value lives.
pub(super) struct Nvml {
    library: NvmlLib,
}

/// A device of it.
pub(super) struct NvmlDevice {
    nvml: Arc<Nvml>,
    pub(super) handle: nvmlDevice_t,
}

// SAFETY: NVML may be called from any thread, and its handles are names that only it looks behind.
unsafe impl Send for NvmlDevice {}
// SAFETY: as above; the name itself is never changed.
unsafe impl Sync for NvmlDevice {}

impl Nvml {
    /// Loads and initialises it.
    pub(super) fn load(library: &OsStr) -> Result<Arc<Self>, StatusError> {
        // SAFETY: loading NVIDIA's library runs its constructors, which expect nothing of us.
        let library =
            unsafe { NvmlLib::new(library) }.map_err(|error| StatusError::Nvml(error.to_string()))?;
        let init = library.nvmlInit_v2.as_ref().map_err(|error| StatusError::Nvml(error.to_string()))?;
        // SAFETY: it takes nothing.
        match unsafe { init() } {
            0 => Ok(Arc::new(Self { library })),
            code => Err(StatusError::Refused { what: "nvmlInit", code }),
        }
    }

    /// The device with this UUID.
    pub(super) fn device(self: &Arc<Self>, uuid: &str) -> Result<NvmlDevice, StatusError> {
        let find = self.library.nvmlDeviceGetHandleByUUID.as_ref();
        let find = find.map_err(|error| StatusError::Nvml(error.to_string()))?;
        let uuid = CString::new(uuid).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and the place is valid for the call.
        match unsafe { find(uuid.as_ptr(), &mut handle) } {
            0 => Ok(NvmlDevice { nvml: self.clone(), handle }),
            code => Err(StatusError::Refused { what: "nvmlDeviceGetHandleByUUID", code }),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(shut_down) = &self.library.nvmlShutdown {
            // SAFETY: it takes nothing; no device is left, for each of them holds this.
            unsafe { shut_down() };
        }
    }
}

impl NvmlDevice {
    /// Its functions.
    pub(super) fn library(&self) -> &NvmlLib {
        &self.nvml.library
    }
}

/// Text that NVML writes into a buffer, if it has any. No text of it is longer.
pub(super) fn text(call: impl FnOnce(*mut c_char, u32) -> u32) -> Option<String> {
    let mut buffer = [0u8; 256];
    if call(buffer.as_mut_ptr().cast(), buffer.len() as u32 - 1) != 0 {
        return None;
    }
    CStr::from_bytes_until_nul(&buffer).ok().map(|text| text.to_string_lossy().into_owned())
}

/// Calls a function of a device with places for its answers; `None` when it is not there or refuses.
macro_rules! ask {
    ($device:expr, $name:ident($($argument:expr),*): $($ty:ty),+) => {{
        let device: &$crate::status::nvml::NvmlDevice = $device;
        device.library().$name.as_ref().ok().and_then(|function| {
            ask!(@call function, device.handle, ($($argument),*), ($($ty),+))
        })
    }};
    (@call $function:ident, $handle:expr, ($($argument:expr),*), ($a:ty)) => {{
        let mut a = std::mem::MaybeUninit::<$a>::zeroed();
        // SAFETY: the type of the function says what it takes; the place is valid for the call.
        let code = unsafe { $function($handle $(, $argument)*, a.as_mut_ptr()) };
        // SAFETY: zeroed at first and then written; all of them are numbers.
        (code == 0).then(|| unsafe { a.assume_init() })
    }};
    (@call $function:ident, $handle:expr, ($($argument:expr),*), ($a:ty, $b:ty)) => {{
        let (mut a, mut b) = (<$a>::default(), <$b>::default());
        // SAFETY: as above, with two places.
        let code = unsafe { $function($handle $(, $argument)*, &mut a, &mut b) };
        (code == 0).then_some((a, b))
    }};
}
pub(super) use ask;
