//! The two ends of a transfer: where its bytes come from, where they go to, and what it means that they do not.
//!
//! Both sides of a session have them: the lanes (`bulk`) call a source and a sink, memory of a program or of a driver is one.

use cuda_abi::CudaError;
use thiserror::Error;

/// The other end of the session is gone, or broke the protocol. The session ends; nothing that waits for it gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the link to the other end of the session is lost")]
pub struct LinkLost;

impl From<LinkLost> for CudaError {
    fn from(_: LinkLost) -> Self {
        CudaError::DEVICE_UNAVAILABLE
    }
}

/// Gives the bytes of a transfer. Called from several threads at once.
pub trait Source: Sync {
    /// Fills `target` with the bytes from `offset` on.
    fn fill(&self, offset: u64, target: &mut [u8]);

    /// Hands the `bytes` from `offset` on to `send` as they lie in memory, in order, and returns true; or returns
    /// false without a call, and [`Self::fill`] is used. It saves a copy.
    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        let _ = (offset, bytes, send);
        false
    }
}

impl<F: Fn(u64, &mut [u8]) + Sync> Source for F {
    fn fill(&self, offset: u64, target: &mut [u8]) {
        self(offset, target);
    }
}

/// Takes the bytes of a transfer. Called from several threads at once, for parts that never overlap.
pub trait Sink: Sync {
    /// Takes the bytes from `offset` on.
    fn take(&self, offset: u64, bytes: &[u8]);

    /// Hands the memory of the `bytes` from `offset` on to `read`, which fills it from the network, and returns true;
    /// or returns false without a call, and [`Self::take`] is used. It saves a copy. When the connection breaks the
    /// memory holds anything.
    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        let _ = (offset, bytes, read);
        false
    }

    /// Whether these bytes would be taken at once. False: taking them waits until bytes before them have come.
    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        let _ = (offset, bytes);
        true
    }
}

impl<F: Fn(u64, &[u8]) + Sync> Sink for F {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self(offset, bytes);
    }
}
