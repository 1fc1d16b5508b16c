//! Messages of the protocol: bytes in, typed values out, and back. No socket, no clock, no allocation on the way in.

mod capabilities;
mod header;
mod reply;
mod request;

pub use capabilities::{Capabilities, CapabilitiesError};
pub use header::{Command, Direction, HEADER_BYTES, Header, HeaderError};
pub use reply::{DeviceInfo, IrqInfo, RegionInfo, Reply, ReplyError};
pub use request::{Request, RequestError, SmallWrite, SmallWrites};

/// Reads integers from the front of a body.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

/// A body ended before its last field.
struct Short;

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Short> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Short> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Short> {
        self.take().map(u64::from_ne_bytes)
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Regions of a PCI device, by VFIO's numbers.
pub mod region {
    /// Base address registers 0 to 5 are regions 0 to 5.
    pub const BAR_COUNT: u32 = 6;
    /// The expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// Legacy VGA.
    pub const VGA: u32 = 8;
    /// How many there are.
    pub const COUNT: u32 = 9;

    /// It can be read.
    pub const FLAG_READ: u32 = 1;
    /// It can be written.
    pub const FLAG_WRITE: u32 = 2;
}

/// Kinds of interrupt, by VFIO's numbers.
pub mod irq {
    /// The four wires of old.
    pub const INTX: u32 = 0;
    /// Message-signalled.
    pub const MSI: u32 = 1;
    /// Message-signalled, from a table in a BAR.
    pub const MSIX: u32 = 2;
    /// An uncorrectable error.
    pub const ERR: u32 = 3;
    /// The device asks to be given back.
    pub const REQ: u32 = 4;
    /// How many kinds there are.
    pub const COUNT: u32 = 5;

    /// Signalled by an event file descriptor.
    pub const FLAG_EVENTFD: u32 = 1;
    /// The number of vectors is fixed once any of them is set.
    pub const FLAG_NORESIZE: u32 = 8;

    /// `SET_IRQS` carries no data.
    pub const DATA_NONE: u32 = 1;
    /// `SET_IRQS` carries one byte for each vector.
    pub const DATA_BOOL: u32 = 2;
    /// `SET_IRQS` carries event file descriptors.
    pub const DATA_EVENTFD: u32 = 4;
    /// `SET_IRQS` masks.
    pub const ACTION_MASK: u32 = 8;
    /// `SET_IRQS` unmasks.
    pub const ACTION_UNMASK: u32 = 16;
    /// `SET_IRQS` sets what is signalled, or signals it.
    pub const ACTION_TRIGGER: u32 = 32;
}

/// Rights and flags of DMA ranges.
pub mod dma {
    /// The device may read.
    pub const READ: u32 = 1;
    /// The device may write.
    pub const WRITE: u32 = 2;
    /// `DMA_UNMAP`: report dirty pages; refused.
    pub const UNMAP_DIRTY: u32 = 1 << 1;
    /// `DMA_UNMAP`: everything, whatever the range.
    pub const UNMAP_ALL: u32 = 1 << 2;
}
