//! The host's memory, and those of devices as far as the host can reach them.

use bench_harness::copier::owner;
use pcie::host::HostMemory;
use pcie::{Bdf, TlpBuf};
use std::cell::RefCell;

/// Counts what is written, and hands on what is a device's.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) written: RefCell<u64>,
    pub(super) for_peers: RefCell<Vec<(usize, TlpBuf)>>,
}

impl HostMemory for Memory {
    fn read(&self, _: u64, into: &mut [u8]) -> bool {
        into.fill(0x5a);
        true
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        match owner(address) {
            Some(peer) => {
                let packet = TlpBuf::memory_write(Bdf::default(), address, from);
                self.for_peers.borrow_mut().extend(packet.map(|packet| (peer, packet)));
            }
            None => *self.written.borrow_mut() += from.len() as u64,
        }
        true
    }
}
