//! What a kernel may ask of the world around it, besides memory.

use crate::texture::Sampler;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Services for running kernels. Several host threads call them at once.
pub trait Hooks: Sync {
    /// Text of one `printf`, already formatted. Bytes, because `%s` may print any.
    fn print(&self, text: &[u8]);

    /// Device `malloc`: an address that [`crate::DeviceMemory`] knows from now on, or 0 if there is no room.
    ///
    /// Memory of a device heap must be inside a span that exists during the whole launch.
    fn malloc(&self, bytes: u64) -> u64;

    /// Device `free`; 0 is ignored.
    fn free(&self, address: u64);

    /// `%clock64`: something that grows. Called often.
    fn clock(&self) -> u64;

    /// `%globaltimer`: nanoseconds.
    fn global_timer(&self) -> u64;

    /// `cudaGraphSetConditional`: the value that a conditional node of a graph goes by. A handle of none is ignored.
    fn set_condition(&self, handle: u64, value: u32) {
        let _ = (handle, value);
    }

    /// The texture or surface of a handle. What it shows must stay mapped during the whole launch.
    fn sampler(&self, handle: u64) -> Option<Arc<Sampler>> {
        let _ = handle;
        None
    }
}

/// Asks a running launch to stop; see [`crate::Run`].
#[derive(Debug, Default)]
pub struct AbortFlag(AtomicBool);

impl AbortFlag {
    /// Stops the launch at its next branch.
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
