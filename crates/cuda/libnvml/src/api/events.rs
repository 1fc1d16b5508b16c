//! Events: sets of them can be made and waited for, but no device here reports any.
//!
//! A program that watches for faults hears from `nvmlDeviceRegisterEvents` that a device has no such events and then
//! looks for itself, as it does on GPUs that are too old for them.

#![allow(unsafe_code)]

use crate::{
    abi::{EventData, NvmlError, NvmlResult},
    border::Out,
    state::{Device, current},
};
use std::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// `nvmlEventSet_t`: a number, like a device's handle.
type EventSet = *mut c_void;

const SET_BASE: usize = 0x6478_7076_0000;
/// Waits look this often whether NVML was shut down meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);

static SETS_MADE: AtomicUsize = AtomicUsize::new(0);

exports! {
    fn [nvmlDeviceGetSupportedEventTypes](_device: Device, types: Out<u64>) {
        types.set(0)
    }

    fn [nvmlDeviceRegisterEvents](_device: Device, types: u64, set: Handle) {
        set.check()?;
        // Nothing registers; asking for nothing is no fault.
        if types == 0 { Ok(()) } else { Err(NvmlError::NotSupported) }
    }

    fn [nvmlEventSetCreate](set: Out<EventSet>) {
        let number = SETS_MADE.fetch_add(1, Ordering::Relaxed);
        set.set((SET_BASE + number) as EventSet)
    }

    fn [nvmlEventSetFree](set: Handle) {
        set.check()
    }

    fn [nvmlEventSetWait nvmlEventSetWait_v2](set: Handle, _data: Out<EventData>, timeout_ms: u32) {
        set.check()?;
        let end = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NvmlError::Timeout);
            }
            std::thread::sleep(left.min(LOOK_EVERY));
            current()?;
        }
    }
}

/// A set from the caller.
struct Handle(usize);

impl crate::border::FromC for Handle {
    type C = EventSet;

    unsafe fn from_c(raw: EventSet) -> NvmlResult<Self> {
        Ok(Self(raw as usize))
    }
}

impl Handle {
    fn check(&self) -> NvmlResult<()> {
        let number = self.0.checked_sub(SET_BASE).ok_or(NvmlError::InvalidArgument)?;
        if number < SETS_MADE.load(Ordering::Relaxed) { Ok(()) } else { Err(NvmlError::InvalidArgument) }
    }
}
