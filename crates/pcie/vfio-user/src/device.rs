//! What a server shows: the device behind the socket.

use crate::access::{AccessId, Answer, Completions};
use crate::interrupts::Interrupts;
use crate::memory::GuestMemory;
use crate::message::{irq, region};

/// One region of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionShape {
    /// In bytes; zero where there is none.
    pub size: u64,
    /// It can be written. Every region that exists can be read.
    pub writable: bool,
}

impl RegionShape {
    /// A region that can be read and written.
    pub fn read_write(size: u64) -> Self {
        Self { size, writable: true }
    }
}

/// The outside of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// By [`region`] number.
    pub regions: [RegionShape; region::COUNT as usize],
    /// Vectors by [`irq`] number.
    pub irqs: [u32; irq::COUNT as usize],
}

impl Shape {
    /// A PCI Express device: 4 KiB of configuration space, the BARs given, `msi` vectors of MSI (at most 32) and
    /// `msix` of MSI-X. An error and a removal request can be signalled.
    pub fn pci_express(bars: &[u64], msi: u32, msix: u32) -> Self {
        let mut regions = [RegionShape::default(); region::COUNT as usize];
        for (region, &size) in regions.iter_mut().zip(bars.iter().take(region::BAR_COUNT as usize)) {
            *region = RegionShape { size, writable: size > 0 };
        }
        regions[region::CONFIG as usize] = RegionShape::read_write(4096);
        Self { regions, irqs: [0, msi.min(32), msix.min(2048), 1, 1] }
    }
}

/// What a device needs to act on its guest. Valid until the peer is gone; harmless afterwards.
#[derive(Clone)]
pub struct Bus {
    /// The guest's memory.
    pub memory: GuestMemory,
    /// The guest's interrupts.
    pub interrupts: Interrupts,
    /// Answers to accesses that took longer.
    pub completions: Completions,
}

/// A PCI device as its server needs it.
///
/// Lengths and offsets are within the region when these are called. Accesses come in the order the guest made them.
pub trait Device {
    /// Regions and interrupts. Asked once for every peer.
    fn shape(&self) -> Shape;

    /// A peer has connected.
    fn attach(&mut self, bus: Bus);

    /// The guest reads `count` bytes.
    fn read(&mut self, access: AccessId, region: u32, offset: u64, count: usize) -> Answer<Vec<u8>>;

    /// The guest writes. A posted write (all but configuration space, usually) needs no late answer.
    fn write(&mut self, access: AccessId, region: u32, offset: u64, data: &[u8]) -> Answer<()>;

    /// The guest resets the device.
    fn reset(&mut self, access: AccessId) -> Answer<()>;

    /// The guest set or cleared vectors of this kind.
    fn interrupts_changed(&mut self, _index: u32) {}

    /// What `count` bytes of configuration space are when the device does not answer. Without it the read fails, and QEMU 11.1
    /// may crash if it was just plugging the device.
    fn remembered(&self, _offset: u64, _count: usize) -> Option<Vec<u8>> {
        None
    }

    /// Whether it takes another access now. A peer that writes faster than the device takes it has to wait.
    fn has_room(&self) -> bool {
        true
    }

    /// The server does not wait for this access any longer: its time is over, or the peer is gone.
    fn abandoned(&mut self, _access: AccessId) {}

    /// The peer is gone.
    fn detach(&mut self);
}
