//! Beginning and end.

#![allow(unsafe_code)]

use crate::{border::enter_before_init, state};

/// `nvmlInit`.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    enter_before_init("nvmlInit", state::initialise)
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    enter_before_init("nvmlInit_v2", state::initialise)
}

/// `nvmlInitWithFlags`: the flags say what may be missing on a machine (GPUs, attached ones); here nothing is.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    enter_before_init("nvmlInitWithFlags", state::initialise)
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    enter_before_init("nvmlShutdown", state::shut_down)
}
