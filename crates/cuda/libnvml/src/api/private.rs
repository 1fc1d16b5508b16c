//! The private table that nvidia-smi works with (nvmlInternalGetExportTable).
//!
//! NVIDIA's tools find parts of NVML not by name but in tables, handed out by a 16-byte id. A table is an array of words:
//! its size in bytes, then functions. Of the one table that nvidia-smi asks for, it calls the functions below, as a trace
//! on driver 580 shows (`tests/gpu/nvml-trace`); all other places answer that they are not supported, and the tool prints
//! N/A there. Every other id is refused.

#![allow(unsafe_code)]

use crate::{
    abi::NvmlError,
    border::{FromC, Many, Out, TextOut, enter, enter_before_init},
    state::{Device, current},
};
use std::{
    ffi::c_void,
    ptr::{from_ref, without_provenance},
};

/// The id; its first byte is the highest of the number.
const TABLE_ID: u128 = 0xc4fe3e6c_c98f_6c4e_a327_ee696e12f7c4;
/// Words of the table, the one with its size included.
const TABLE_WORDS: usize = 270;

/// Room that callers have for a bus id.
const BUS_ID_BYTES: u32 = 16;

/// `nvmlInternalGetExportTable`.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInternalGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) -> u32 {
    enter_before_init("nvmlInternalGetExportTable", || {
        // SAFETY: the caller promises a place for a pointer, or null.
        let table = unsafe { Out::from_c(table) }?;
        // SAFETY: the caller promises an id of 16 bytes, or null.
        let id = unsafe { id.as_ref() }.ok_or(NvmlError::InvalidArgument)?;
        match u128::from_be_bytes(*id) {
            TABLE_ID => table.set(from_ref(&TABLE).cast()),
            _ => Err(NvmlError::FunctionNotFound),
        }
    })
}

#[repr(C)]
struct Table([*const c_void; TABLE_WORDS]);

// SAFETY: the words are never written, and functions may be called from any thread.
unsafe impl Sync for Table {}

static TABLE: Table = {
    let mut words = [not_supported as *const c_void; TABLE_WORDS];
    words[0] = without_provenance(size_of::<Table>());
    words[26] = log as *const c_void;
    words[81] = bus_id_by_index as *const c_void;
    words[213] = processes as *const c_void;
    words[214] = processes as *const c_void;
    words[215] = processes as *const c_void;
    Table(words)
};

/// Every place whose purpose is not known. Whatever it is asked, it reads nothing; that is safe for any list of
/// arguments, since in C's convention the caller clears them away.
extern "C" fn not_supported() -> u32 {
    enter("a private function of NVML", || Err(NvmlError::NotSupported))
}

/// What the tool prints, for NVML's own log (a format and its arguments). There is no such log here.
extern "C" fn log() -> u32 {
    0
}

private! {
    /// The bus id of the device with this number, in its short form.
    fn bus_id_by_index(index: u32, bus_id: TextOut) {
        let device = current()?.device(index as usize)?;
        bus_id.set(BUS_ID_BYTES, &super::link::legacy_bus_id(device.identity()))
    }

    /// Processes that compute, that draw, and that share the device: how many, and what is known of each. None are
    /// shown; see [`super::processes`].
    fn processes(_device: Device, count: Out<u32>, _infos: Many<u8>) {
        count.set(0)
    }
}
