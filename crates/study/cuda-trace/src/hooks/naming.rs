//! Where handles of kernels come from: only those whose kind is known are asked for their names.

#![allow(unsafe_code)]

use crate::counted::{self, Class};
use crate::names::{self, Handle};
use crate::state;
use crate::streams::Flavour;

hooks! {
    cuModuleGetFunction @ Legacy => function(out: *mut usize, module: usize, name: usize);
    cuKernelGetFunction @ Legacy => function_of_kernel(out: *mut usize, kernel: usize);
    cuModuleEnumerateFunctions @ Legacy => functions(out: *mut usize, count: u32, module: usize);
    cuLibraryGetKernel @ Legacy => kernel(out: *mut usize, library: usize, name: usize);
    cuLibraryEnumerateKernels @ Legacy => kernels(out: *mut usize, count: u32, library: usize);
}

/// Calls, and remembers the handles that came back. Calls for state they are, too.
fn remember(real: impl FnOnce() -> u32, out: *mut usize, count: usize, kind: Handle) -> u32 {
    if !state::mode().traces() || state::is_inside() {
        return real();
    }
    let answer = counted::call(Class::Local, real);
    if answer == 0 && !out.is_null() {
        for index in 0..count {
            // SAFETY: the call succeeded, so the place holds so many handles.
            names::handle(unsafe { *out.add(index) }, kind);
        }
    }
    answer
}

fn function(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    out: *mut usize,
    _module: usize,
    _name: usize,
) -> u32 {
    remember(real, out, 1, Handle::Function)
}

fn function_of_kernel(real: impl FnOnce() -> u32, _flavour: Flavour, out: *mut usize, _kernel: usize) -> u32 {
    remember(real, out, 1, Handle::Function)
}

fn functions(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    out: *mut usize,
    count: u32,
    _module: usize,
) -> u32 {
    remember(real, out, count as usize, Handle::Function)
}

fn kernel(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    out: *mut usize,
    _library: usize,
    _name: usize,
) -> u32 {
    remember(real, out, 1, Handle::Kernel)
}

fn kernels(
    real: impl FnOnce() -> u32,
    _flavour: Flavour,
    out: *mut usize,
    count: u32,
    _library: usize,
) -> u32 {
    remember(real, out, count as usize, Handle::Kernel)
}
