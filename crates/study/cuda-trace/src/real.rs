//! The machine's own libcuda.so.1: found once, when this library is loaded, by the path that `dxpu` passes on.

#![allow(unsafe_code)]

use crate::symbols::{self, COUNT, NAMES, at};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The file of the real library.
pub(crate) const DRIVER_VARIABLE: &str = "DXPU_TRACE_DRIVER";

/// CUDA_ERROR_NOT_FOUND: what a symbol answers that the real library lacks.
const NOT_FOUND: u32 = 500;
/// CUDA_ERROR_NO_DEVICE: what every call answers where there is no real library.
const NO_DEVICE: u32 = 100;

/// Addresses of the real functions, in the order of the symbols. Jumps read it without asking.
pub(crate) static TABLE: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

extern "C" fn missing() -> u32 {
    NOT_FOUND
}

extern "C" fn no_driver() -> u32 {
    NO_DEVICE
}

/// The real function of a symbol.
#[inline]
pub(crate) fn address(index: usize) -> usize {
    TABLE[index].load(Ordering::Relaxed)
}

/// Whether the real library has a symbol.
pub(crate) fn has(index: usize) -> bool {
    ![missing as *const () as usize, no_driver as *const () as usize, 0].contains(&address(index))
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = load;

/// Runs when the loader maps this library, before anything can call it.
extern "C" fn load() {
    let place = std::env::var_os(DRIVER_VARIABLE).unwrap_or_default();
    let library = CString::new(place.clone().into_vec()).ok().and_then(|path| open(&path));
    let Some(library) = library else {
        eprintln!(
            "dxpu: the machine's libcuda.so.1 cannot be loaded ({DRIVER_VARIABLE} is `{}`); \
             start programs with `dxpu trace` or `dxpu inject`",
            place.to_string_lossy()
        );
        TABLE.iter().for_each(|slot| slot.store(no_driver as *const () as usize, Ordering::Relaxed));
        return;
    };
    for (slot, name) in TABLE.iter().zip(NAMES) {
        // SAFETY: the handle is open, for good, and the name ends with a zero.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) } as usize;
        slot.store(if found == 0 { missing as *const () as usize } else { found }, Ordering::Relaxed);
    }
}

/// Opens the real library by its absolute path, which the loader never takes for a name that is already loaded.
fn open(path: &CStr) -> Option<*mut c_void> {
    if !path.to_bytes().starts_with(b"/") {
        return None;
    }
    // SAFETY: the driver's initialisers are made to run in any program.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: as in `load`.
    let init = unsafe { libc::dlsym(library, NAMES[at::cuInit].as_ptr()) };
    // Handing calls on to ourselves would never end.
    (!ptr::eq(init, crate::hooks::cuInit as *const c_void)).then_some(library)
}

/// Our function for a real one, if we do more than hand it on.
pub(crate) fn ours(real: usize) -> Option<usize> {
    static OURS: OnceLock<HashMap<usize, usize>> = OnceLock::new();
    let ours = OURS.get_or_init(|| {
        // A driver may have one function under several names; the first of our functions then stands for all of them.
        let mut ours = HashMap::new();
        for (index, address) in symbols::OURS.iter().filter(|(index, _)| has(*index)) {
            ours.entry(self::address(*index)).or_insert(address.0 as usize);
        }
        ours
    });
    ours.get(&real).copied()
}
