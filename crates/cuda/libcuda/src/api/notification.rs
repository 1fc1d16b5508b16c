//! Bodies: notifications that a process has less device memory than it had. The memory of a lease stays as it is, so functions are
//! kept and never called.

use crate::{
    border::*,
    state::{client, lock},
};
use cuda_abi::*;
use std::sync::Mutex;

/// The handle that was given last, and those that count, with their devices and functions.
static KEPT: Mutex<(u64, Vec<(u64, i32, u64)>)> = Mutex::new((0, Vec::new()));

/// cuDeviceRegisterAsyncNotification
pub(crate) fn register(
    device: i32,
    function: NotificationCallback,
    _user_data: u64,
    mut handle: Out<'_, u64>,
) -> CuResult<()> {
    client()?.device(device)?;
    let mut kept = lock(&KEPT);
    kept.0 += 1;
    let made = kept.0;
    kept.1.push((made, device, function.address()));
    handle.set(made);
    Ok(())
}

/// cuDeviceUnregisterAsyncNotification
pub(crate) fn unregister(device: i32, handle: u64) -> CuResult<()> {
    client()?.device(device)?;
    let mut kept = lock(&KEPT);
    let before = kept.1.len();
    kept.1.retain(|(known, of, _)| (*known, *of) != (handle, device));
    if kept.1.len() < before { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}
