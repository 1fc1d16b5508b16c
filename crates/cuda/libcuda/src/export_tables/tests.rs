#![allow(unsafe_code)]

use super::*;
use std::{ffi::c_void, ptr};

const RUNTIME: u128 = 0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9;
const HOOKS: u128 = 0xa094798c_2e74_2e74_93f2_0800200c0a66;
const THREAD: u128 = 0x42d85a81_23f6_cb47_8298_f6e78a3aecdc;
const STORAGE: u128 = 0xc693336e_1121_df11_a8c3_68f355d89593;
const CHECKS: u128 = 0x263e8860_7cd2_6143_92f6_bbd5006dfa7e;
const INTEGRITY: u128 = 0xd4082055_bde6_704b_8d34_ba123c66e1f2;
const COMPILE_CACHE: u128 = 0xda9151d3_3ae6_cc41_a5c0_4f26d533e328;
const IDENTITY: u128 = 0x21318c60_9714_3248_8ca6_41ff7324c8f2;

/// The words of a table that begins with its size.
fn words(id: u128) -> Vec<usize> {
    let table = find(&id.to_be_bytes()).unwrap() as *const usize;
    // SAFETY: every table has a first word.
    let bytes = unsafe { table.read() };
    // SAFETY: the first word of these tables is their size.
    unsafe { std::slice::from_raw_parts(table, bytes / 8) }.to_vec()
}

fn empty_places(words: &[usize]) -> Vec<usize> {
    (0..words.len()).filter(|&place| words[place] == 0).collect()
}

/// Sizes and empty places as driver 580 has them.
#[test]
fn tables_have_the_shape_of_the_real_ones() {
    for (id, length, empty) in [
        (RUNTIME, 13, &[10][..]),
        (HOOKS, 7, &[]),
        (THREAD, 3, &[]),
        (CHECKS, 15, &[]),
        (INTEGRITY, 3, &[]),
        (IDENTITY, 93, &[91]),
        (COMPILE_CACHE, 7, &[]),
    ] {
        let words = words(id);
        assert_eq!((words[0], words.len()), (length * 8, length), "{id:x}");
        assert_eq!(empty_places(&words), empty, "{id:x}");
    }
    let table = find(&STORAGE.to_be_bytes()).unwrap() as *const usize;
    // SAFETY: this table has four words.
    let words = unsafe { std::slice::from_raw_parts(table, 4) };
    assert_eq!(empty_places(words), [3]);
    assert!(words[0] > 0x10000, "no size in front");
}

#[test]
fn a_table_stays_where_it_is() {
    assert_eq!(find(&RUNTIME.to_be_bytes()), find(&RUNTIME.to_be_bytes()));
}

#[test]
fn ids_that_are_not_served_are_refused() {
    for id in [0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9, 0x69a28e9f_2449_8b47_b030_c5da330ea4e9, 0, 1] {
        assert_eq!(find(&u128::to_be_bytes(id)), None, "{id:x}");
    }
}

#[test]
fn unknown_functions_can_be_called_with_anything() {
    type Anything = unsafe extern "C" fn(u64, u64, *mut c_void, *mut c_void, u64, u64, u64, u64) -> u32;
    for (id, place) in [(RUNTIME, 9), (CHECKS, 14), (IDENTITY, 92), (HOOKS, 3)] {
        let word = words(id)[place];
        // SAFETY: an unknown function takes no arguments, and C allows it to be called with some.
        let function = unsafe { std::mem::transmute::<usize, Anything>(word) };
        // SAFETY: it touches none of its arguments.
        let code = unsafe { function(1, 2, ptr::null_mut(), ptr::null_mut(), 3, 4, 5, 6) };
        assert_eq!(code, 801);
    }
}

#[test]
fn no_hook_is_switched_on() {
    type Switches = unsafe extern "C" fn(*mut *const u32, *mut usize);
    for (place, count) in [(2, 1024), (6, 14)] {
        // SAFETY: these two places hold functions of this type.
        let function = unsafe { std::mem::transmute::<usize, Switches>(words(HOOKS)[place]) };
        let (mut switches, mut length) = (ptr::null(), 0);
        // SAFETY: both are places of ours.
        unsafe { function(&mut switches, &mut length) };
        assert_eq!(length, count);
        // SAFETY: there are at least as many switches of eight bytes.
        assert!(unsafe { std::slice::from_raw_parts(switches, 2 * count) }.iter().all(|&switch| switch == 0));
        // SAFETY: null is allowed.
        unsafe { function(ptr::null_mut(), ptr::null_mut()) };
    }
}

#[test]
fn no_context_is_wrapped() {
    type IsWrapped = unsafe extern "C" fn(u64, *mut u32, *mut u64) -> u32;
    // SAFETY: this place holds a function of this type.
    let function = unsafe { std::mem::transmute::<usize, IsWrapped>(words(CHECKS)[2]) };
    let (mut wrapped, mut inner) = (9, 8);
    // SAFETY: both are places of ours.
    assert_eq!(unsafe { function(1, &mut wrapped, &mut inner) }, 0);
    assert_eq!((wrapped, inner), (0, 8), "as driver 580 leaves them");
}

/// Without cuInit there is no device to be the witness: the check fails and writes no result.
#[test]
fn the_check_needs_an_initialised_driver() {
    type Check = unsafe extern "C" fn(u32, u64, *mut u64) -> u32;
    // SAFETY: this place holds a function of this type.
    let function = unsafe { std::mem::transmute::<usize, Check>(words(INTEGRITY)[1]) };
    let mut result = [7; 2];
    // SAFETY: a place for two words.
    assert_eq!(unsafe { function(13002, 0, result.as_mut_ptr()) }, 3);
    assert_eq!(result, [7; 2]);
}

/// CUPTI must not get a table: it would go on to measure a GPU that this machine does not have.
#[test]
fn a_profiler_gets_no_table() {
    let id = 0x7cb63f9b_9ca4_8e42_a484_beb66e6aed7f_u128.to_be_bytes();
    assert!(is_profilers(&id));
    assert_eq!(find(&id), None);
    assert!(!is_profilers(&[0; 16]));
}
