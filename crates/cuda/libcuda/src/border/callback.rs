//! Functions of the program that the driver calls back.

#![allow(unsafe_code)]

use super::StreamHandle;
use core::ffi::{c_char, c_void};
use cuda_abi::{CuResult, CudaError};

macro_rules! callbacks {
    ($($(#[$meta:meta])* $name:ident = $ty:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(pub(crate) $ty);

        impl Callback for $name {
            type C = $ty;

            fn new(function: $ty) -> Self {
                Self(function)
            }
        }
    )*};
}

/// A callback and its type in C.
pub(crate) trait Callback: Sized {
    /// The function pointer of C.
    type C;

    /// Wraps it.
    fn new(function: Self::C) -> Self;
}

callbacks! {
    /// `CUhostFn`: takes the user data.
    HostFn = unsafe extern "C" fn(*mut c_void);
    /// `CUstreamCallback`: takes stream, status and user data.
    StreamCallback = unsafe extern "C" fn(StreamHandle, u32, *mut c_void);
    /// `CUoccupancyB2DSize`: bytes of dynamic shared memory for a block size.
    BlockSizeToSharedMemory = unsafe extern "C" fn(i32) -> usize;
    /// `CUasyncCallback`: takes what happened, user data and its own handle. Nothing ever happens.
    NotificationCallback = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);
    /// `CUlogsCallback`: takes user data, level, message and its length.
    LogsCallback = unsafe extern "C" fn(*mut c_void, u32, *mut c_char, usize);
}

/// A callback that must be there.
#[inline]
pub(crate) fn callback<T: Callback>(function: Option<T::C>) -> CuResult<T> {
    function.map(T::new).ok_or(CudaError::INVALID_VALUE)
}

/// A callback that may be missing.
#[inline]
pub(crate) fn callback_optional<T: Callback>(function: Option<T::C>) -> Option<T> {
    function.map(T::new)
}

#[allow(dead_code)]
impl HostFn {
    /// The function as a number, for tables and comparisons.
    pub(crate) fn address(self) -> u64 {
        self.0 as usize as u64
    }

    /// The function at an address that a structure of the caller holds.
    ///
    /// # Safety
    /// `address` is zero or that of a `CUhostFn`.
    pub(crate) unsafe fn from_address(address: u64) -> Option<Self> {
        let pointer = address as usize as *const c_void;
        // SAFETY: an optional function pointer is null or a function, which the caller promises.
        unsafe { core::mem::transmute::<*const c_void, Option<unsafe extern "C" fn(*mut c_void)>>(pointer) }
            .map(Self)
    }

    /// Runs it.
    pub(crate) fn call(self, user_data: u64) {
        // SAFETY: the program gave function and argument together for this call.
        unsafe { (self.0)(user_data as usize as *mut c_void) }
    }
}

#[allow(dead_code)]
impl StreamCallback {
    /// Runs it.
    pub(crate) fn call(self, stream: StreamHandle, status: u32, user_data: u64) {
        // SAFETY: the program gave function and argument together for this call.
        unsafe { (self.0)(stream, status, user_data as usize as *mut c_void) }
    }
}

#[allow(dead_code)]
impl BlockSizeToSharedMemory {
    /// Asks it.
    pub(crate) fn call(self, block_size: i32) -> usize {
        // SAFETY: the program gave the function for exactly this question.
        unsafe { (self.0)(block_size) }
    }
}

impl NotificationCallback {
    /// The function as a number.
    pub(crate) fn address(self) -> u64 {
        self.0 as usize as u64
    }
}

impl LogsCallback {
    /// Tells it a message, which it may not keep.
    pub(crate) fn call(self, user_data: u64, level: u32, message: &std::ffi::CStr) {
        let length = message.to_bytes().len();
        // SAFETY: the program gave function and argument together for this call; C has no word for a text that is only read.
        unsafe { (self.0)(user_data as usize as *mut c_void, level, message.as_ptr().cast_mut(), length) }
    }
}
