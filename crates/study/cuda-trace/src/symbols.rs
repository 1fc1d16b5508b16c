//! A function for every symbol of a driver, made by build.rs.

#![allow(unsafe_code)]
#![allow(non_snake_case, clippy::too_many_arguments)]

use crate::counted::{self, Class};
use crate::real;
use std::ffi::CStr;

/// The address of a function of ours.
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of code, never written through.
unsafe impl Sync for Address {}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
