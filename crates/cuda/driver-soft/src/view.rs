//! Device memory as one kernel sees it.

use crate::{
    memory::Mapping,
    space::{READ, Space, WRITE},
};
use ptx::{DeviceMemory, Span};
use std::sync::Arc;

/// What a kernel of one context may reach.
pub(crate) struct KernelView<'s> {
    pub(crate) space: &'s Space,
    pub(crate) device: u32,
    /// Lives of contexts on other devices that are enabled as peers.
    pub(crate) peers: Vec<u64>,
}

/// One block; its pages stay as long as the engine keeps this.
#[derive(Clone)]
pub(crate) struct BlockSpan {
    mapping: Arc<Mapping>,
    may_write: bool,
}

impl DeviceMemory for KernelView<'_> {
    type Span<'m>
        = BlockSpan
    where
        Self: 'm;

    fn span(&self, address: u64) -> Option<BlockSpan> {
        let block = self.space.find(address)?;
        let access = block.access_of(self.device, &self.peers);
        let may_write = access & WRITE != 0;
        (access & READ != 0).then(|| BlockSpan { mapping: block.mapping.clone(), may_write })
    }
}

macro_rules! forward {
    ($($load:ident $store:ident $ty:ty;)*) => {$(
        #[inline]
        fn $load(&self, address: u64) -> Option<$ty> {
            self.mapping.$load(address)
        }

        #[inline]
        fn $store(&self, address: u64, value: $ty) -> Option<()> {
            if self.may_write { self.mapping.$store(address, value) } else { None }
        }
    )*};
}

impl Span for BlockSpan {
    forward! {
        load8 store8 u8;
        load16 store16 u16;
        load32 store32 u32;
        load64 store64 u64;
    }

    fn compare_exchange32(&self, address: u64, old: u32, new: u32) -> Option<Result<u32, u32>> {
        if self.may_write { self.mapping.compare_exchange32(address, old, new) } else { None }
    }

    fn compare_exchange64(&self, address: u64, old: u64, new: u64) -> Option<Result<u64, u64>> {
        if self.may_write { self.mapping.compare_exchange64(address, old, new) } else { None }
    }

    fn fetch_add32(&self, address: u64, value: u32) -> Option<u32> {
        if self.may_write { self.mapping.fetch_add32(address, value) } else { None }
    }
}
