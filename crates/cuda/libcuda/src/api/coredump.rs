//! Bodies: settings of core dumps. They are kept and read back; a remote GPU writes no dump, so none can be switched on.

#![allow(unsafe_code)]

use crate::{
    border::*,
    host, process,
    state::{current_context, lock},
};
use cuda_abi::*;
use cuda_client::coredump::Coredump;
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// What contexts begin with.
static GLOBAL: Mutex<Option<Coredump>> = Mutex::new(None);

fn with_global<R>(use_it: impl FnOnce(&mut Coredump) -> R) -> R {
    use_it(lock(&GLOBAL).get_or_insert_with(|| Coredump::new(&process::host_name(), std::process::id())))
}

fn give(bytes: CuResult<Vec<u8>>, attribute: u32, value: u64, mut size: InOut<'_, usize>) -> CuResult<()> {
    let bytes = bytes?;
    if value == 0 {
        size.set(Coredump::size(attribute)?);
        return Ok(());
    }
    let bytes = Coredump::fitted(attribute, bytes, size.get())?;
    // SAFETY: the caller says that so many bytes may be written there.
    let place = unsafe { host::HostRegion::line(value, bytes.len() as u64) };
    place.write(0, &bytes);
    Ok(())
}

fn take(settings: &mut Coredump, attribute: u32, value: u64, mut size: InOut<'_, usize>) -> CuResult<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let room = Coredump::size(attribute)?;
    if value == 0 {
        size.set(room);
        return Ok(());
    }
    let mut bytes = vec![0; size.get().min(room)];
    // SAFETY: the caller says that so many bytes may be read there.
    unsafe { host::copy_out(value, &mut bytes) };
    let set = settings.set(attribute, &bytes);
    if set == Err(CudaError::NOT_PERMITTED) && !TOLD.swap(true, Ordering::Relaxed) {
        process::refused("switching on core dumps", "a dump of a remote GPU is not written");
    }
    set
}

fn check_is_of_contexts(attribute: u32) -> CuResult<()> {
    if Coredump::is_of_contexts(attribute) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

/// cuCoredumpGetAttribute
pub(crate) fn get(attribute: u32, value: u64, size: InOut<'_, usize>) -> CuResult<()> {
    let context = current_context()?;
    check_is_of_contexts(attribute)?;
    let own = lock(&context.coredump).as_ref().map(|settings| settings.get(attribute));
    give(own.unwrap_or_else(|| with_global(|settings| settings.get(attribute))), attribute, value, size)
}

/// cuCoredumpGetAttributeGlobal
pub(crate) fn get_global(attribute: u32, value: u64, size: InOut<'_, usize>) -> CuResult<()> {
    give(with_global(|settings| settings.get(attribute)), attribute, value, size)
}

/// cuCoredumpSetAttribute
pub(crate) fn set(attribute: u32, value: u64, size: InOut<'_, usize>) -> CuResult<()> {
    let context = current_context()?;
    check_is_of_contexts(attribute)?;
    let first = with_global(|settings| settings.clone());
    take(lock(&context.coredump).get_or_insert(first), attribute, value, size)
}

/// cuCoredumpSetAttributeGlobal
pub(crate) fn set_global(attribute: u32, value: u64, size: InOut<'_, usize>) -> CuResult<()> {
    with_global(|settings| take(settings, attribute, value, size))
}
