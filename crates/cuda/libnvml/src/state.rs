//! What the process knows: whether NVML is initialised, the workers, the devices.

mod device;
mod fork;
mod library;
mod worker;

pub(crate) use device::Device;
pub(crate) use library::{current, initialise, shut_down};
