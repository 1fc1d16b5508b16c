//! The functions of a module, one after the other, as cuFFT asks for them.
//!
//! The real driver hands out its own function objects, and cuFFT looks into them. So each function gets an object in
//! memory with the few fields that other shims of the driver found to be read; its address is one more handle of the
//! function.

#![allow(unsafe_code)]

use super::table::{Table, Word, unknown_places};
use crate::{
    border,
    state::{Module, add_function_alias, lock},
};
use cuda_abi::CuResult;
use std::{
    collections::HashMap,
    ffi::c_void,
    sync::{LazyLock, Mutex},
};

/// Calls back with each function of a module; returns how many there are.
const ITERATE: usize = 7;

pub(super) static TABLE: Table<32> = Table::sized({
    let mut words: [Word; 32] = unknown_places!(0x6e16_3fbe;
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    words[ITERATE] = iterate as Word;
    words
});

/// A function as the driver would show it: mostly zeros.
type Object = [u64; 0x500 / 8];

/// Objects by the handle of their function. Never freed: no call says when a library is done with one.
static OBJECTS: LazyLock<Mutex<HashMap<u64, &'static Object>>> = LazyLock::new(Mutex::default);

fn object_of(function: u64, owner: u64) -> u64 {
    let object = *lock(&OBJECTS).entry(function).or_insert_with(|| {
        let mut object: Object = [0; 0x500 / 8];
        object[0] = 0x1_0000_0001;
        object[1] = owner;
        object[2] = 0xc;
        object[3] = 1;
        object[5] = 0x80;
        object[0x370 / 8] = 2;
        Box::leak(Box::new(object))
    });
    let address = object.as_ptr().addr() as u64;
    add_function_alias(address, function);
    address
}

type Visit = unsafe extern "C" fn(*mut c_void, u64, u64);

/// # Safety
/// `visit` is a function that may be called with `argument`.
unsafe extern "C" fn iterate(
    _context: u64,
    module: u64,
    visit: Option<Visit>,
    argument: *mut c_void,
    _same_module: u64,
    _zero: u64,
) -> u64 {
    crate::log::debug(|| format!("the functions of module {module:#x} are asked for"));
    let mut objects = Vec::new();
    let code = border::enter("tools: the functions of a module", || {
        objects = functions_of(module)?;
        Ok(())
    });
    if let (0, Some(visit)) = (code, visit) {
        for &object in &objects {
            // SAFETY: our caller's promise.
            unsafe { visit(argument, object, module) };
        }
    }
    objects.len() as u64
}

fn functions_of(module: u64) -> CuResult<Vec<u64>> {
    let module = Module::find(module)?;
    let object = |index| Ok(object_of(module.function_at(index)?.handle, module.handle));
    (0..module.kernel_count() as u32).map(object).collect()
}
