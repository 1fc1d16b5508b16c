//! Device memory as work finds it: which addresses hold something, and which kernels may touch it.
//!
//! [`Space`] changes in the order of execution. What the program was promised in the order of its calls is in
//! [`crate::promises`].

use crate::{
    account::Charge,
    memory::{Mapping, Physical, Region},
    turns::{Turn, Turns},
};
use cuda_wire::VaRange;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

/// Bit of a device's access: may read.
pub(crate) const READ: u8 = 1;
/// Bit of a device's access: may write.
pub(crate) const WRITE: u8 = 2;

/// Physical memory of cuMemCreate.
pub(crate) struct PhysicalMemory {
    pub(crate) pages: Arc<Physical>,
    pub(crate) device: u32,
    /// None for memory of another session, which it is charged to.
    pub(crate) _charge: Option<Charge>,
}

/// Which kernels may touch a block.
pub(crate) enum Access {
    /// Kernels of its device and of contexts that enabled it as a peer.
    Owner,
    /// What cuMemSetAccess said, for each device.
    Granted(Vec<AtomicU8>),
}

/// One allocation, or one mapping of physical memory.
pub(crate) struct Block {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) device: u32,
    /// The life of the context it ends with; 0 for what belongs to no context.
    pub(crate) life: u64,
    pub(crate) access: Access,
    /// The turn that put it here.
    pub(crate) turn: u64,
    /// Keeps the memory charged: its own, or that of what it maps.
    pub(crate) held: Held,
}

/// What a block keeps alive beside its pages.
#[allow(dead_code, reason = "held for the sake of their ends")]
pub(crate) enum Held {
    Charge(Charge),
    /// The part of physical memory from an offset on.
    Physical(Arc<PhysicalMemory>, u64),
    Nothing,
}

impl Block {
    /// What a kernel may do here; `peers` are the lives of contexts it may reach on other devices.
    pub(crate) fn access_of(&self, device: u32, peers: &[u64]) -> u8 {
        match &self.access {
            Access::Owner if self.device == device || peers.contains(&self.life) => READ | WRITE,
            Access::Owner => 0,
            Access::Granted(devices) => devices.get(device as usize).map_or(0, |access| access.load(Relaxed)),
        }
    }

    /// What a copy may do here: copies reach all devices.
    fn access_of_copies(&self) -> u8 {
        match &self.access {
            Access::Owner => READ | WRITE,
            Access::Granted(devices) => devices.iter().fold(0, |all, access| all | access.load(Relaxed)),
        }
    }
}

/// How many ranges a client may have kept free beside its first.
const FURTHER_MAX: usize = 4096;

/// All mapped blocks of a session.
pub(crate) struct Space {
    region: OnceLock<Arc<Region>>,
    /// Where the program has registered host memory.
    further: RwLock<Vec<Arc<Region>>>,
    blocks: RwLock<BTreeMap<u64, Arc<Block>>>,
    /// The order of blocks at each address; told whenever a block goes.
    pub(crate) turns: Turns,
}

/// A copy met an address that nothing may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAddress;

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            region: OnceLock::new(),
            further: RwLock::default(),
            blocks: RwLock::default(),
            turns: Turns::default(),
        }
    }

    /// Takes the region; once.
    pub(crate) fn set_region(&self, region: Arc<Region>) -> bool {
        self.region.set(region).is_ok()
    }

    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.region.get()
    }

    /// Keeps one more range free, unless there are too many.
    pub(crate) fn add_region(&self, range: VaRange) -> bool {
        let mut further = locks::write(&self.further);
        let region = (further.len() < FURTHER_MAX).then(|| Region::reserve(range.base, range.bytes));
        let Some(Ok(region)) = region else { return false };
        further.push(region);
        true
    }

    /// The region that holds a range.
    pub(crate) fn region_of(&self, start: u64, bytes: u64) -> Option<Arc<Region>> {
        let holds = |region: &&Arc<Region>| region.contains(start, bytes);
        let first = self.region.get().filter(holds).cloned();
        first.or_else(|| locks::read(&self.further).iter().find(holds).cloned())
    }

    /// Fresh pages at a range of a region.
    pub(crate) fn pages(&self, start: u64, bytes: u64) -> io::Result<Arc<Mapping>> {
        Mapping::private(&self.region_of(start, bytes).ok_or(io::ErrorKind::NotFound)?, start, bytes)
    }

    /// Adds a block where none is.
    pub(crate) fn insert(&self, block: Block) -> Arc<Block> {
        let block = Arc::new(block);
        let mut blocks = locks::write(&self.blocks);
        let old = blocks.insert(block.mapping.start(), block.clone());
        debug_assert!(old.is_none(), "blocks do not overlap");
        block
    }

    /// Removes the block that starts at `start`, if it is still the one of that turn. Its pages go when the last work that
    /// holds them ends.
    pub(crate) fn remove(&self, start: u64, turn: u64) {
        let mut blocks = locks::write(&self.blocks);
        let removed = match blocks.get(&start) {
            Some(block) if block.turn == turn => blocks.remove(&start),
            _ => None,
        };
        drop(blocks);
        // Unmapping takes time; it happens here, outside the lock.
        drop(removed);
        self.turns.tell();
    }

    /// Removes whatever starts at an address of the driver's own.
    pub(crate) fn remove_at(&self, start: u64) {
        if let Some(turn) = self.find(start).map(|block| block.turn) {
            self.remove(start, turn);
        }
    }

    /// Removes all blocks of a context's life.
    pub(crate) fn remove_life(&self, life: u64) {
        self.remove_where(|block| block.life == life);
    }

    /// Removes everything.
    pub(crate) fn clear(&self) {
        self.remove_where(|_| true);
    }

    fn remove_where(&self, matches: impl Fn(&Block) -> bool) {
        let mut removed = Vec::new();
        let mut blocks = locks::write(&self.blocks);
        blocks.retain(|_, block| {
            let goes = matches(block);
            if goes {
                removed.push(block.clone());
            }
            !goes
        });
        drop(blocks);
        drop(removed);
        self.turns.tell();
    }

    /// Whether any block overlaps the range.
    pub(crate) fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let blocks = locks::read(&self.blocks);
        blocks.range(..start + bytes).next_back().is_some_and(|(_, block)| block.mapping.end() > start)
    }

    /// Waits for a turn, or until `give_up` says so.
    pub(crate) fn wait_for(&self, turn: &Turn, give_up: impl Fn() -> bool) -> bool {
        turn.wait(|| self.overlaps(turn.start, turn.bytes), give_up)
    }

    /// Whether a turn has come.
    pub(crate) fn is_clear_for(&self, turn: &Turn) -> bool {
        turn.has_come(|| self.overlaps(turn.start, turn.bytes))
    }

    /// Parts of physical memory that are mapped at addresses that `wanted` names: the memory, where in it, how many bytes.
    pub(crate) fn mapped_parts(&self, wanted: impl Fn(u64) -> bool) -> Vec<(Arc<PhysicalMemory>, u64, u64)> {
        let blocks = locks::read(&self.blocks);
        let part = |block: &Arc<Block>| match &block.held {
            Held::Physical(memory, offset) if wanted(block.mapping.start()) => {
                Some((memory.clone(), *offset, block.mapping.end() - block.mapping.start()))
            }
            _ => None,
        };
        blocks.values().filter_map(part).collect()
    }

    /// The block that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Block>> {
        let blocks = locks::read(&self.blocks);
        let (_, block) = blocks.range(..=address).next_back()?;
        (address < block.mapping.end()).then(|| block.clone())
    }
}

/// Reads and writes for copies: remembers the last block, crosses from one mapping to the next where they touch.
pub(crate) struct Cursor<'s> {
    space: &'s Space,
    block: Option<Arc<Block>>,
    /// The driver's own reads and writes: no cuMemSetAccess stops them.
    is_driver: bool,
}

impl<'s> Cursor<'s> {
    pub(crate) fn new(space: &'s Space) -> Self {
        Self { space, block: None, is_driver: false }
    }

    /// For cuts, which save memory that the program itself may not touch at the moment.
    pub(crate) fn of_driver(space: &'s Space) -> Self {
        Self { space, block: None, is_driver: true }
    }

    /// The block at `address` and how many of `bytes` it holds.
    fn at(&mut self, address: u64, bytes: usize, access: u8) -> Result<(&Block, usize), BadAddress> {
        let kept = self.block.take().filter(|b| b.mapping.start() <= address && address < b.mapping.end());
        let block = kept.or_else(|| self.space.find(address)).ok_or(BadAddress)?;
        let block: &Block = self.block.insert(block);
        if !self.is_driver && block.access_of_copies() & access != access {
            return Err(BadAddress);
        }
        Ok((block, bytes.min((block.mapping.end() - address) as usize)))
    }

    pub(crate) fn read(&mut self, mut address: u64, mut target: &mut [u8]) -> Result<(), BadAddress> {
        while !target.is_empty() {
            let (block, bytes) = self.at(address, target.len(), READ)?;
            let (now, later) = target.split_at_mut(bytes);
            block.mapping.read(address, now).ok_or(BadAddress)?;
            target = later;
            address += bytes as u64;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, mut address: u64, mut source: &[u8]) -> Result<(), BadAddress> {
        while !source.is_empty() {
            let (block, bytes) = self.at(address, source.len(), WRITE)?;
            let (now, later) = source.split_at(bytes);
            block.mapping.write(address, now).ok_or(BadAddress)?;
            source = later;
            address += bytes as u64;
        }
        Ok(())
    }
}
