//! Where the windows of generic addressing lie.
//!
//! Global and constant memory have generic addresses equal to their own. The other spaces lie in windows that no
//! device allocation reaches, because no processor's user address space does. The low 32 bits of every base are 0,
//! so that an address cut to 32 bits is an offset.

/// Shared memory of the block that uses the address.
pub(crate) const SHARED: u64 = 0xFF01_0000_0000_0000;
/// Local memory of the thread that uses the address.
pub(crate) const LOCAL: u64 = 0xFF02_0000_0000_0000;
/// Parameters of the kernel.
pub(crate) const PARAM: u64 = 0xFF03_0000_0000_0000;
/// Functions, one every [`FUNCTION_STRIDE`] bytes; they can be called, not read.
pub(crate) const FUNCTION: u64 = 0xFF04_0000_0000_0000;
/// Distance of function addresses; the low bits of a function pointer are 0, as on a GPU.
pub(crate) const FUNCTION_STRIDE: u64 = 16;
/// Bytes of a window.
pub(crate) const WINDOW: u64 = 1 << 32;

/// Whether `address` is in the window at `base`.
pub(crate) fn in_window(address: u64, base: u64) -> bool {
    address.wrapping_sub(base) < WINDOW
}

/// Whether `address` is none of the windows, hence device memory.
pub(crate) fn is_device(address: u64) -> bool {
    address < SHARED
}
