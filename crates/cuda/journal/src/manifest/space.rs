//! Device memory by address: allocations, physical memory and where it is mapped.

use cuda_wire::{ContextId, MemoryHandleId};
use std::collections::BTreeMap;

/// What lies at an address.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// Memory of a context (`MemoryAllocate`, or a stream's `Allocate`).
    Allocated { bytes: u64, context: ContextId },
    /// A part of physical memory.
    Mapped { bytes: u64, offset: u64, physical: u64, access: BTreeMap<u32, u32> },
}

impl Block {
    fn bytes(&self) -> u64 {
        match self {
            Self::Allocated { bytes, .. } | Self::Mapped { bytes, .. } => *bytes,
        }
    }
}

/// Physical memory (cuMemCreate). It outlives its name while it is mapped.
#[derive(Clone, Debug)]
pub(super) struct Physical {
    pub(super) handle: MemoryHandleId,
    pub(super) device: u32,
    pub(super) bytes: u64,
    pub(super) is_released: bool,
    /// How often it is mapped.
    maps: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    pub(super) blocks: BTreeMap<u64, Block>,
    /// By the order in which they were made: a name may be given again after its release.
    pub(super) physical: BTreeMap<u64, Physical>,
    handles: BTreeMap<MemoryHandleId, u64>,
    made: u64,
}

impl Space {
    pub(super) fn allocated_bytes(&self) -> u64 {
        let allocated = self.blocks.values().map(|block| match block {
            Block::Allocated { bytes, .. } => *bytes,
            Block::Mapped { .. } => 0,
        });
        allocated.chain(self.physical.values().map(|physical| physical.bytes)).sum()
    }

    /// Whether nothing lies in a range.
    fn is_free(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0) else { return false };
        let before = self.blocks.range(..end).next_back();
        before.is_none_or(|(at, block)| at + block.bytes() <= address)
    }

    pub(super) fn allocate(&mut self, context: ContextId, address: u64, bytes: u64) {
        if self.is_free(address, bytes) {
            self.blocks.insert(address, Block::Allocated { bytes, context });
        }
    }

    pub(super) fn free(&mut self, address: u64) {
        if matches!(self.blocks.get(&address), Some(Block::Allocated { .. })) {
            self.blocks.remove(&address);
        }
    }

    pub(super) fn free_all_of(&mut self, context: ContextId) {
        self.blocks
            .retain(|_, block| !matches!(block, Block::Allocated { context: of, .. } if *of == context));
    }

    pub(super) fn create(&mut self, handle: MemoryHandleId, device: u32, bytes: u64) {
        if bytes == 0 || self.handles.contains_key(&handle) {
            return;
        }
        self.handles.insert(handle, self.made);
        self.physical.insert(self.made, Physical { handle, device, bytes, is_released: false, maps: 0 });
        self.made += 1;
    }

    pub(super) fn release(&mut self, handle: MemoryHandleId) {
        let Some(made) = self.handles.remove(&handle) else { return };
        if let Some(physical) = self.physical.get_mut(&made) {
            physical.is_released = true;
        }
        self.end_if_unused(made);
    }

    pub(super) fn map(&mut self, address: u64, bytes: u64, offset: u64, handle: MemoryHandleId) {
        let Some(&made) = self.handles.get(&handle) else { return };
        let is_free = self.is_free(address, bytes);
        let Some(physical) = self.physical.get_mut(&made) else { return };
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
        if fits && is_free {
            physical.maps += 1;
            let access = BTreeMap::new();
            self.blocks.insert(address, Block::Mapped { bytes, offset, physical: made, access });
        }
    }

    /// The starts of the mappings that fill a range exactly.
    fn filling(&self, address: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0)?;
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            let Block::Mapped { bytes, .. } = self.blocks.get(&at)? else { return None };
            starts.push(at);
            at += bytes;
        }
        (at == end).then_some(starts)
    }

    pub(super) fn unmap(&mut self, address: u64, bytes: u64) {
        for start in self.filling(address, bytes).unwrap_or_default() {
            let Some(Block::Mapped { physical: made, .. }) = self.blocks.remove(&start) else { continue };
            if let Some(physical) = self.physical.get_mut(&made) {
                physical.maps -= 1;
            }
            self.end_if_unused(made);
        }
    }

    pub(super) fn set_access(&mut self, address: u64, bytes: u64, device: u32, protection: u32) {
        if !matches!(protection, 0 | 1 | 3) {
            return;
        }
        for start in self.filling(address, bytes).unwrap_or_default() {
            if let Some(Block::Mapped { access, .. }) = self.blocks.get_mut(&start) {
                access.insert(device, protection);
            }
        }
    }

    /// Released memory ends when it is mapped nowhere.
    fn end_if_unused(&mut self, made: u64) {
        if self.physical.get(&made).is_some_and(|physical| physical.is_released && physical.maps == 0) {
            self.physical.remove(&made);
        }
    }
}
