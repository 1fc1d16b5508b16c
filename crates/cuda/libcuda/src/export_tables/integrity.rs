//! The check by which libcudart recognises a driver; see [`cuda_client::integrity`].

#![allow(unsafe_code)]

use super::{
    runtime,
    table::{NO_OPERATION, NOTHING, Table, Word},
};
use crate::{api, border, state::client};
use cuda_abi::CuResult;
use cuda_client::integrity::{DeviceIdentity, Witness, answer};

const CHECK: usize = 1;

/// The last function takes a switch that changes nothing here.
pub(super) static TABLE: Table<3> = Table::sized([NOTHING, check as Word, NO_OPERATION]);

/// Attributes of a device: PCI domain, bus and device.
const PCI: [u32; 3] = [50, 33, 34];

/// Writes the 16 bytes of the digest.
///
/// # Safety
/// `result` is null or a place for two words.
unsafe extern "C" fn check(version: u32, unix_seconds: u64, result: *mut [u64; 2]) -> u32 {
    border::enter("cudart: integrity check", || {
        // SAFETY: our caller's promise.
        let mut place = unsafe { border::out(result.cast::<u64>()) }?;
        // SAFETY: our caller's promise; the first word is not null, so neither is the second.
        let mut next = unsafe { border::out(result.cast::<u64>().wrapping_add(1)) }?;
        let digest = u128::from_le_bytes(digest(version, unix_seconds)?);
        place.set(digest as u64);
        next.set((digest >> 64) as u64);
        Ok(())
    })
}

fn digest(version: u32, unix_seconds: u64) -> CuResult<[u8; 16]> {
    let devices: Vec<DeviceIdentity> = client()?
        .devices
        .iter()
        .map(|device| DeviceIdentity {
            uuid: device.info.uuid,
            // As cuDeviceGetAttribute answers them, which is what the runtime compares with.
            pci: PCI.map(|attribute| device.attribute(attribute).unwrap_or(0)),
        })
        .collect();
    let witness = Witness {
        driver_version: driver_version()?,
        pid: std::process::id(),
        thread: this_thread(),
        runtime_table: runtime::TABLE.address(),
        integrity_table: TABLE.address(),
        check_function: TABLE.word(CHECK).addr() as u64,
        unix_seconds,
        devices: &devices,
    };
    Ok(answer(version, &witness))
}

/// What cuDriverGetVersion answers.
fn driver_version() -> CuResult<u32> {
    let mut version = 0;
    // SAFETY: a place of ours for one number, which outlives the call.
    let place = unsafe { border::out(&raw mut version) }?;
    api::init::driver_version(place)?;
    Ok(version as u32)
}

/// The low half of the thread's name in C.
fn this_thread() -> u32 {
    // SAFETY: has no conditions.
    unsafe { libc::pthread_self() as u32 }
}
