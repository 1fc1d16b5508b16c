//! Nodes that move bytes between the client and memory of ours, each time a graph runs.

#![allow(unsafe_code)]

use crate::{
    op::Work,
    pinned::{OwnedPages, SLOT_BYTES, Slot},
};
use cuda_abi::CuResult;
use cuda_driver::HostLink;
use cuda_wire::{TransferId, transfer_of_run};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pinned memory of any size. The order of a graph's nodes decides which node uses it when.
pub(super) struct Buffer {
    memory: Memory,
    bytes: usize,
}

enum Memory {
    Slot(Slot),
    Pages(OwnedPages),
}

impl Buffer {
    pub(super) fn new(work: &Work, bytes: u64) -> CuResult<Self> {
        let bytes = bytes as usize;
        let memory = match bytes <= SLOT_BYTES {
            true => Memory::Slot(work.slots.take()?),
            false => Memory::Pages(OwnedPages::new(&work.api, bytes)?),
        };
        Ok(Self { memory, bytes })
    }

    fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Slot(slot) => slot.start().cast(),
            Memory::Pages(pages) => pages.start(),
        }
    }

    pub(super) fn address(&self) -> usize {
        self.start().expose_provenance()
    }

    /// Puts bytes in, while no node reads them.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "beyond the buffer");
        // SAFETY: in bounds, and the order of the nodes gives these bytes to us alone now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().add(at), bytes.len()) };
    }

    /// Takes bytes out, while no node writes them.
    fn read(&self, offset: u64, target: &mut [u8]) {
        let at = offset as usize;
        assert!(at.checked_add(target.len()).is_some_and(|end| end <= self.bytes), "beyond the buffer");
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.start().add(at), target.as_mut_ptr(), target.len()) };
    }
}

/// Asks the client for bytes.
pub(super) struct PullIn {
    pub(super) link: Arc<dyn HostLink>,
    pub(super) transfer: TransferId,
    pub(super) buffer: Arc<Buffer>,
}

impl PullIn {
    pub(super) unsafe extern "C" fn call(argument: *mut c_void) {
        // SAFETY: the argument is a `PullIn` that the graph keeps.
        let this = unsafe { &*argument.cast::<Self>() };
        let sink = |offset: u64, bytes: &[u8]| this.buffer.write(offset, bytes);
        // A client that is gone sends nothing, and does not read what the graph then computes.
        let _ = this.link.receive(this.transfer, this.buffer.bytes as u64, true, &sink);
    }
}

/// Sends bytes to the client, under the name of this run.
pub(super) struct SendOut {
    pub(super) link: Arc<dyn HostLink>,
    pub(super) transfer: TransferId,
    pub(super) run: Arc<AtomicU32>,
    pub(super) buffer: Arc<Buffer>,
}

impl SendOut {
    pub(super) unsafe extern "C" fn call(argument: *mut c_void) {
        // SAFETY: the argument is a `SendOut` that the graph keeps.
        let this = unsafe { &*argument.cast::<Self>() };
        let transfer = transfer_of_run(this.transfer, this.run.load(Ordering::SeqCst));
        let source = |offset: u64, target: &mut [u8]| this.buffer.read(offset, target);
        let _ = this.link.send(transfer, this.buffer.bytes as u64, &source);
    }
}
