//! Between C and the bodies: every pointer of a caller is checked and wrapped here, and no panic gets out.
//!
//! The order is NVML's: is the library initialised, then bad handles and null pointers from left to right, then whatever
//! the body checks. A thunk hands over a caller's pointers on the promise of the C API that a pointer is null or good
//! for its type and length; the types here carry that promise into safe code.

#![allow(unsafe_code)]

use crate::{
    abi::{NvmlError, NvmlResult, version_word},
    state::{self, Device},
};
use std::{
    ffi::{CStr, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
};
use worker_link::log;

/// Runs a body once the library is initialised.
pub(crate) fn enter(symbol: &'static str, body: impl FnOnce() -> NvmlResult<()>) -> u32 {
    enter_before_init(symbol, || {
        state::current()?;
        body()
    })
}

/// Runs a body that may be called before nvmlInit.
pub(crate) fn enter_before_init(symbol: &'static str, body: impl FnOnce() -> NvmlResult<()>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error as u32,
        Err(payload) => {
            // Dropping the payload runs foreign code that may panic again.
            std::mem::forget(payload);
            log::error(&format!("{symbol} failed inside dxpu's NVML library; please report this"));
            NvmlError::Unknown as u32
        }
    }
}

/// An argument of a C function, made into something safe.
pub(crate) trait FromC: Sized {
    /// What C hands over.
    type C;

    /// Checks and wraps it.
    ///
    /// # Safety
    ///
    /// A pointer is null, or good until the call returns for what NVML's documentation says of that argument.
    unsafe fn from_c(raw: Self::C) -> NvmlResult<Self>;
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl FromC for $ty {
            type C = $ty;

            unsafe fn from_c(raw: $ty) -> NvmlResult<Self> {
                Ok(raw)
            }
        }
    )*};
}

numbers!(u32 i32 u64);

impl FromC for Device {
    type C = crate::abi::DeviceHandle;

    unsafe fn from_c(raw: Self::C) -> NvmlResult<Self> {
        // The handle is a number: nothing behind it is read.
        state::current()?.device_of(raw as usize)
    }
}

/// A place that the caller wants an answer in.
pub(crate) struct Out<T> {
    target: NonNull<T>,
}

impl<T> FromC for Out<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> NvmlResult<Self> {
        NonNull::new(raw).map(|target| Self { target }).ok_or(NvmlError::InvalidArgument)
    }
}

impl<T> Out<T> {
    /// Answers.
    pub(crate) fn set(self, value: T) -> NvmlResult<()> {
        // SAFETY: the maker of this value promised a place for one T. Callers may give one that is not aligned (packed
        // structures of scripting languages); the old bytes are neither read nor dropped.
        unsafe { self.target.write_unaligned(value) };
        Ok(())
    }

    /// Answers what a device has, or that it has it not.
    pub(crate) fn give(self, value: Option<T>) -> NvmlResult<()> {
        self.set(value.ok_or(NvmlError::NotSupported)?)
    }
}

/// A place that the caller has written something in and wants an answer in.
pub(crate) struct InOut<T> {
    target: NonNull<T>,
}

impl<T: Copy> FromC for InOut<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> NvmlResult<Self> {
        NonNull::new(raw).map(|target| Self { target }).ok_or(NvmlError::InvalidArgument)
    }
}

impl<T: Copy> InOut<T> {
    /// What the caller wrote.
    pub(crate) fn get(&self) -> T {
        // SAFETY: the maker of this value promised a T that can be read; a T is any bits (numbers and arrays of them).
        unsafe { self.target.read_unaligned() }
    }

    /// Answers.
    pub(crate) fn set(self, value: T) -> NvmlResult<()> {
        // SAFETY: as in `get`, and that it can be written.
        unsafe { self.target.write_unaligned(value) };
        Ok(())
    }

    /// Checks the first word of a structure with a version before anything else of it is believed: an older or newer
    /// structure may be shorter than ours.
    pub(crate) fn check_version(&self, version: u32) -> NvmlResult<()> {
        // SAFETY: every structure with a version begins with that word, so at least as much can be read.
        let word = unsafe { self.target.cast::<u32>().read_unaligned() };
        if word == version_word::<T>(version) { Ok(()) } else { Err(NvmlError::ArgumentVersionMismatch) }
    }
}

/// As many elements as another argument says; may be null where that is none.
pub(crate) struct Many<T> {
    first: *mut T,
}

impl<T: Copy> FromC for Many<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> NvmlResult<Self> {
        Ok(Self { first: raw })
    }
}

impl<T: Copy> Many<T> {
    /// The place of element `index`, which is below the count that the caller gave.
    pub(crate) fn at(&self, index: usize) -> NvmlResult<InOut<T>> {
        let first = NonNull::new(self.first).ok_or(NvmlError::InvalidArgument)?;
        // SAFETY: the maker of this value promised as many elements as the caller's count says, in one piece of memory.
        Ok(InOut { target: unsafe { first.add(index) } })
    }
}

/// A place for text; its length is the argument after it.
pub(crate) struct TextOut {
    target: NonNull<c_char>,
}

impl FromC for TextOut {
    type C = *mut c_char;

    unsafe fn from_c(raw: *mut c_char) -> NvmlResult<Self> {
        NonNull::new(raw).map(|target| Self { target }).ok_or(NvmlError::InvalidArgument)
    }
}

impl TextOut {
    /// Answers with text and the zero after it, if `length` holds both.
    pub(crate) fn set(self, length: u32, text: &str) -> NvmlResult<()> {
        if (length as usize) <= text.len() {
            return Err(NvmlError::InsufficientSize);
        }
        // SAFETY: the maker of this value promised `length` bytes, which are more than the text has; a text of ours
        // does not lie in the caller's buffer.
        unsafe { self.target.copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast(), text.len()) };
        // SAFETY: the byte after the text is still within `length`.
        unsafe { self.target.add(text.len()).write(0) };
        Ok(())
    }

    /// The same for text that a device may not have.
    pub(crate) fn give(self, length: u32, text: Option<&str>) -> NvmlResult<()> {
        self.set(length, text.ok_or(NvmlError::NotSupported)?)
    }
}

/// Text from the caller.
pub(crate) struct TextIn {
    text: String,
}

impl FromC for TextIn {
    type C = *const c_char;

    unsafe fn from_c(raw: *const c_char) -> NvmlResult<Self> {
        if raw.is_null() {
            return Err(NvmlError::InvalidArgument);
        }
        // SAFETY: the caller promised text that ends with a zero.
        let text = unsafe { CStr::from_ptr(raw) };
        Ok(Self { text: text.to_string_lossy().into_owned() })
    }
}

impl TextIn {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Text in a field of a structure, filled up with zeros; what does not fit is cut.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (target, byte) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *target = byte as c_char;
    }
    field
}

/// Functions that C calls, with their bodies. Several names may share one body.
macro_rules! exports {
    ($(fn [$($name:ident)+] $arguments:tt $body:block)*) => {
        $($(exports!(@one $name $arguments $body);)+)*
    };
    (@one $name:ident ($($argument:ident: $ty:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "C calls it; the body is held to safe code below")]
        unsafe extern "C" fn $name($($argument: <$ty as $crate::border::FromC>::C),*) -> u32 {
            $crate::border::enter(stringify!($name), || {
                $(
                    // SAFETY: the caller of a C function promises its arguments as NVML documents them.
                    let $argument = unsafe { <$ty as $crate::border::FromC>::from_c($argument) }?;
                )*
                #[deny(unsafe_code)]
                let body = || $body;
                body()
            })
        }
    };
}

/// Functions that C calls and finds by other means than their name.
macro_rules! private {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, reason = "C calls it; the body is held to safe code below")]
        unsafe extern "C" fn $name($($argument: <$ty as $crate::border::FromC>::C),*) -> u32 {
            $crate::border::enter(stringify!($name), || {
                $(
                    // SAFETY: the caller promises arguments such as it hands to the real function.
                    let $argument = unsafe { <$ty as $crate::border::FromC>::from_c($argument) }?;
                )*
                #[deny(unsafe_code)]
                let body = || $body;
                body()
            })
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MemoryV2;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(enter_before_init("nvmlTest", || panic!("a body fails")), 999);
        assert_eq!(enter_before_init("nvmlTest", || Err(NvmlError::NotFound)), 6);
    }

    #[test]
    fn text_needs_room_for_its_zero() {
        let mut buffer = [7 as c_char; 8];
        // SAFETY: the buffer has 8 bytes.
        let out = |buffer: &mut [c_char; 8]| unsafe { TextOut::from_c(buffer.as_mut_ptr()) }.unwrap();
        assert_eq!(out(&mut buffer).set(4, "four"), Err(NvmlError::InsufficientSize));
        assert_eq!(buffer, [7; 8], "nothing is written that does not fit");
        out(&mut buffer).set(5, "four").unwrap();
        assert_eq!(buffer, [b'f', b'o', b'u', b'r', 0, 7, 7, 7].map(|byte| byte as c_char));
        assert_eq!(out(&mut buffer).give(8, None), Err(NvmlError::NotSupported));
    }

    #[test]
    fn null_is_an_invalid_argument() {
        // SAFETY: null is allowed.
        let out = unsafe { Out::<u32>::from_c(std::ptr::null_mut()) };
        assert_eq!(out.err(), Some(NvmlError::InvalidArgument));
        // SAFETY: null is allowed.
        let text = unsafe { TextIn::from_c(std::ptr::null()) };
        assert_eq!(text.err(), Some(NvmlError::InvalidArgument));
    }

    #[test]
    fn a_structure_of_another_version_is_not_touched() {
        let mut memory = MemoryV2 { version: 0x0100_0028, total: 1, reserved: 2, free: 3, used: 4 };
        // SAFETY: it is a good structure.
        let inout = unsafe { InOut::from_c(&raw mut memory) }.unwrap();
        assert_eq!(inout.check_version(2), Err(NvmlError::ArgumentVersionMismatch));
        memory.version = 0x0200_0028;
        // SAFETY: it is a good structure.
        let inout = unsafe { InOut::from_c(&raw mut memory) }.unwrap();
        assert_eq!(inout.check_version(2), Ok(()));
        inout.set(MemoryV2 { total: 9, ..memory }).unwrap();
        assert_eq!(memory.total, 9);
    }

    #[test]
    fn text_in_a_field_ends_with_a_zero() {
        assert_eq!(field::<4>("abcdef"), [b'a', b'b', b'c', 0].map(|byte| byte as c_char));
        assert_eq!(field::<4>(""), [0; 4]);
    }
}
