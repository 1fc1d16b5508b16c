//! The symbols that are more than handed on. Each line `symbol @ flavour => body(arguments)` makes one; build.rs reads the lines
//! too, to leave these symbols to us.

#![allow(unsafe_code)]
#![allow(non_snake_case, clippy::too_many_arguments)]

/// Makes the C functions: each hands its arguments, and a way to call the real function with them, to a body.
macro_rules! hooks {
    ($($name:ident @ $flavour:ident => $body:ident($($argument:ident: $ty:ty),* $(,)?);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the CUDA driver API.")]
        ///
        /// # Safety
        ///
        /// As the CUDA documentation says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $ty),*) -> u32 {
            // SAFETY: the symbol has this signature, and its arguments are handed on as they came.
            let real = || unsafe {
                core::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) -> u32>(
                    crate::real::address(crate::symbols::at::$name)
                )($($argument),*)
            };
            $body(real, crate::streams::Flavour::$flavour, $($argument),*)
        }
    )*};
}

mod copies;
mod graphs;
mod launches;
mod life;
mod memsets;
mod naming;
mod waits;

pub(crate) use copies::*;
pub(crate) use graphs::*;
pub(crate) use launches::*;
pub(crate) use life::*;
pub(crate) use memsets::*;
pub(crate) use naming::*;
pub(crate) use waits::*;
