//! The guest's memory as its device sees it: ranges the peer allowed, and nothing else.

use pcie::host::HostMemory;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock, Weak};

use crate::backing::Backing;

/// Ranges kept for one peer. With a virtual IOMMU every mapped page is a range, so it is generous.
pub const DMA_MAPS_MAX: usize = 65_535;
/// Ranges and offsets are multiples of this.
const PAGE: u64 = 4096;

/// What a device may do to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// It may read.
    pub read: bool,
    /// It may write.
    pub write: bool,
}

/// Why a range was not mapped or unmapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Empty, wrapping, or not in whole pages.
    #[error("the range {address:#x}+{size:#x} at {offset:#x} is not in whole pages")]
    Range {
        /// As asked.
        address: u64,
        /// As asked.
        size: u64,
        /// Into the file.
        offset: u64,
    },
    /// Part of it is mapped already.
    #[error("the range {address:#x}+{size:#x} overlaps another")]
    Overlap {
        /// As asked.
        address: u64,
        /// As asked.
        size: u64,
    },
    /// Nothing mapped there, or only part of a range was named.
    #[error("the range {address:#x}+{size:#x} does not name mapped ranges")]
    NotMapped {
        /// As asked.
        address: u64,
        /// As asked.
        size: u64,
    },
    /// The file ends before the range does.
    #[error("the file is only {len:#x} bytes long")]
    BeyondFile {
        /// The file's length.
        len: u64,
    },
    /// The file is not shared memory.
    #[error("the file is not shared memory (a sealed memfd, or a file on tmpfs)")]
    NotMemory,
    /// The file could not be looked at or mapped.
    #[error("cannot use the file")]
    Inspect(#[source] std::io::Error),
    /// Too many ranges.
    #[error("more than {DMA_MAPS_MAX} ranges")]
    TooMany,
}

/// Why memory could not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// No range covers it.
    #[error("no guest memory at {address:#x}")]
    Unmapped {
        /// The first byte that is not mapped.
        address: u64,
    },
    /// The range came without a file.
    #[error("memory at {address:#x} is not shared with us; the guest needs memory with share=on")]
    NotShared {
        /// Where.
        address: u64,
    },
    /// The range does not allow it.
    #[error("memory at {address:#x} does not allow that")]
    Denied {
        /// Where.
        address: u64,
    },
    /// The file got shorter than it was.
    #[error("the file behind memory at {address:#x} is gone")]
    Lost {
        /// Where.
        address: u64,
    },
}

struct Range {
    size: u64,
    rights: Rights,
    offset: u64,
    /// Ranges without a file are BARs of other devices, or memory that is not shared. They exist, so that they can be
    /// unmapped again; no device can reach them.
    backing: Option<Arc<Backing>>,
}

#[derive(Default)]
struct Table {
    ranges: BTreeMap<u64, Range>,
    /// One mapping a file, however many ranges refer to it.
    backings: Vec<Weak<Backing>>,
}

/// Guest memory. Copies of this value are the same memory; any thread may use one.
///
/// Access and changes exclude each other: when [`GuestMemory::unmap`] has returned, no copy into or out of the range
/// is under way, and none will begin.
#[derive(Clone, Default)]
pub struct GuestMemory {
    table: Arc<RwLock<Table>>,
}

impl GuestMemory {
    /// No memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range. Without a file it can be unmapped and nothing else.
    pub fn map(
        &self,
        address: u64,
        size: u64,
        rights: Rights,
        offset: u64,
        file: Option<OwnedFd>,
    ) -> Result<(), MapError> {
        let in_pages = (address | size | offset).is_multiple_of(PAGE);
        if size == 0 || !in_pages || address.checked_add(size - 1).is_none() {
            return Err(MapError::Range { address, size, offset });
        }
        let mut table = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if table.ranges.len() >= DMA_MAPS_MAX {
            return Err(MapError::TooMany);
        }
        // The range before this one, or one that begins inside it.
        let last = address + (size - 1);
        if let Some((start, range)) = table.ranges.range(..=last).next_back()
            && start + (range.size - 1) >= address
        {
            return Err(MapError::Overlap { address, size });
        }
        let backing = file.map(|fd| table.backing(fd, offset, size)).transpose()?;
        table.ranges.insert(address, Range { size, rights, offset, backing });
        Ok(())
    }

    /// Removes the ranges that lie in `address..address + size`; none may stick out.
    pub fn unmap(&self, address: u64, size: u64) -> Result<(), MapError> {
        let missing = MapError::NotMapped { address, size };
        let Some(last) = size.checked_sub(1).and_then(|more| address.checked_add(more)) else {
            return Err(missing);
        };
        let mut table = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let touched = |start: u64, range: &Range| start <= last && start + (range.size - 1) >= address;
        let mut inside = Vec::new();
        for (&start, range) in table.ranges.range(..=last).rev().take_while(|(s, r)| touched(**s, r)) {
            if start < address || start + (range.size - 1) > last {
                return Err(missing);
            }
            inside.push(start);
        }
        if inside.is_empty() {
            return Err(missing);
        }
        for start in inside {
            table.ranges.remove(&start);
        }
        table.backings.retain(|backing| backing.strong_count() > 0);
        Ok(())
    }

    /// Removes everything.
    pub fn unmap_all(&self) {
        let mut table = self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *table = Table::default();
    }

    /// How many ranges there are.
    pub fn range_count(&self) -> usize {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner()).ranges.len()
    }

    /// Copies guest memory out.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MemoryFault> {
        let table = self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        table.check(address, into.len(), |rights| rights.read)?;
        let mut done = 0;
        while done < into.len() {
            let at = address + done as u64;
            let (backing, offset, here) = table.at(at, into.len() - done)?;
            backing
                .read(offset, &mut into[done..done + here])
                .map_err(|_| MemoryFault::Lost { address: at })?;
            done += here;
        }
        Ok(())
    }

    /// Copies into guest memory: all of it, or, when any byte may not be written, none.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryFault> {
        let table = self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        table.check(address, from.len(), |rights| rights.write)?;
        let mut done = 0;
        while done < from.len() {
            let at = address + done as u64;
            let (backing, offset, here) = table.at(at, from.len() - done)?;
            backing.write(offset, &from[done..done + here]).map_err(|_| MemoryFault::Lost { address: at })?;
            done += here;
        }
        Ok(())
    }
}

impl Table {
    /// The file of `fd`, mapped once.
    fn backing(&mut self, fd: OwnedFd, offset: u64, size: u64) -> Result<Arc<Backing>, MapError> {
        let end = offset.checked_add(size).ok_or(MapError::BeyondFile { len: 0 })?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| MapError::Inspect(error.into()))?;
        #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
        let identity = (stat.st_dev as u64, stat.st_ino as u64);
        let known = self
            .backings
            .iter()
            .filter_map(Weak::upgrade)
            .find(|backing| backing.identity == identity && backing.len() >= end);
        let backing = match known {
            Some(backing) => backing,
            None => {
                let backing = Arc::new(Backing::new(fd)?);
                self.backings.push(Arc::downgrade(&backing));
                backing
            }
        };
        if backing.len() < end {
            return Err(MapError::BeyondFile { len: backing.len() });
        }
        Ok(backing)
    }

    /// The range `address` is in, and how far into it.
    fn find(&self, address: u64) -> Result<(&Range, u64), MemoryFault> {
        let (start, range) =
            self.ranges.range(..=address).next_back().ok_or(MemoryFault::Unmapped { address })?;
        let into = address - start;
        if into >= range.size {
            return Err(MemoryFault::Unmapped { address });
        }
        Ok((range, into))
    }

    /// Whether `len` bytes may be reached, before any is.
    fn check(&self, address: u64, len: usize, allowed: fn(Rights) -> bool) -> Result<(), MemoryFault> {
        let mut done = 0u64;
        while done < len as u64 {
            let at = address.checked_add(done).ok_or(MemoryFault::Unmapped { address: u64::MAX })?;
            let (range, into) = self.find(at)?;
            if range.backing.is_none() {
                return Err(MemoryFault::NotShared { address: at });
            }
            if !allowed(range.rights) {
                return Err(MemoryFault::Denied { address: at });
            }
            done += range.size - into;
        }
        Ok(())
    }

    /// The piece of a checked access that begins at `address`: its file, the place in it, and how much of it.
    fn at(&self, address: u64, len: usize) -> Result<(&Backing, u64, usize), MemoryFault> {
        let (range, into) = self.find(address)?;
        let backing = range.backing.as_deref().ok_or(MemoryFault::NotShared { address })?;
        let here = (range.size - into).min(len as u64) as usize;
        Ok((backing, range.offset + into, here))
    }
}

impl HostMemory for GuestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        GuestMemory::read(self, address, into).is_ok()
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        GuestMemory::write(self, address, from).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    const RW: Rights = Rights { read: true, write: true };

    fn memfd(len: u64, sealed: bool) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, len).unwrap();
        if sealed {
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        }
        fd
    }

    #[test]
    fn an_access_may_span_ranges_and_files() {
        for sealed in [true, false] {
            let memory = GuestMemory::new();
            memory.map(0x10000, 0x1000, RW, 0x1000, Some(memfd(0x2000, sealed))).unwrap();
            memory.map(0x11000, 0x1000, RW, 0, Some(memfd(0x1000, sealed))).unwrap();
            let data: Vec<u8> = (0..0x1800).map(|n| (n * 7) as u8).collect();
            memory.write(0x10400, &data).unwrap();
            let mut back = vec![0; data.len()];
            memory.read(0x10400, &mut back).unwrap();
            assert_eq!(back, data);
            assert_eq!(memory.write(0x11fff, &[1, 2]), Err(MemoryFault::Unmapped { address: 0x12000 }));
            let mut last = [0];
            memory.read(0x11fff, &mut last).unwrap();
            assert_eq!(last, [0], "a write that cannot be done whole is not begun");
        }
    }

    #[test]
    fn rights_and_missing_files_are_respected() {
        let memory = GuestMemory::new();
        let read_only = Rights { read: true, write: false };
        memory.map(0, 0x1000, read_only, 0, Some(memfd(0x1000, true))).unwrap();
        memory.map(0x1000, 0x1000, RW, 0, None).unwrap();
        assert_eq!(memory.write(0, &[1]), Err(MemoryFault::Denied { address: 0 }));
        assert_eq!(memory.read(0x1000, &mut [0]), Err(MemoryFault::NotShared { address: 0x1000 }));
        assert_eq!(memory.read(u64::MAX, &mut [0, 0]), Err(MemoryFault::Unmapped { address: u64::MAX }));
        memory.unmap(0x1000, 0x1000).unwrap();
    }

    #[test]
    fn ranges_never_overlap_and_are_unmapped_whole() {
        let memory = GuestMemory::new();
        memory.map(0x4000, 0x2000, RW, 0, None).unwrap();
        for (address, size) in [(0x3000, 0x2000), (0x5000, 0x1000), (0x4000, 0x1000), (0x3000, 0x8000)] {
            assert!(matches!(memory.map(address, size, RW, 0, None), Err(MapError::Overlap { .. })));
        }
        memory.map(0x6000, 0x1000, RW, 0, None).unwrap();
        memory.map(0x3000, 0x1000, RW, 0, None).unwrap();
        for (address, size) in
            [(0x4000, 0x1000), (0x5000, 0x1000), (0x5000, 0x2000), (0x9000, 0x1000), (0, 0)]
        {
            assert!(matches!(memory.unmap(address, size), Err(MapError::NotMapped { .. })), "{address:#x}");
        }
        memory.unmap(0x3000, 0x4000).unwrap();
        assert_eq!(memory.range_count(), 0);
    }

    #[test]
    fn odd_ranges_are_refused() {
        let memory = GuestMemory::new();
        for (address, size, offset) in
            [(0, 0, 0), (1, 0x1000, 0), (0, 0x1001, 0), (0, 0x1000, 12), (u64::MAX - 0xfff, 0x2000, 0)]
        {
            assert!(matches!(memory.map(address, size, RW, offset, None), Err(MapError::Range { .. })));
        }
        let beyond = memory.map(0, 0x2000, RW, 0, Some(memfd(0x1000, true)));
        assert!(matches!(beyond, Err(MapError::BeyondFile { len: 0x1000 })));
        memory.map(u64::MAX - 0xfff, 0x1000, RW, 0, Some(memfd(0x1000, true))).unwrap();
        memory.write(u64::MAX - 7, &[1; 8]).unwrap();
        assert!(memory.write(u64::MAX - 7, &[1; 9]).is_err(), "memory does not wrap around");
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_not_a_signal() {
        let memory = GuestMemory::new();
        let fd = memfd(0x2000, false);
        memory.map(0, 0x2000, RW, 0, Some(fd.try_clone().unwrap())).unwrap();
        ftruncate(&fd, 0x1000).unwrap();
        assert_eq!(memory.read(0x1800, &mut [0; 16]), Err(MemoryFault::Lost { address: 0x1800 }));
    }

    #[test]
    fn only_memory_is_taken_for_memory() {
        let memory = GuestMemory::new();
        let (pipe, _end) = std::io::pipe().unwrap();
        assert!(matches!(memory.map(0, 0x1000, RW, 0, Some(pipe.into())), Err(MapError::NotMemory)));
        let zero: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
        assert!(matches!(memory.map(0, 0x1000, RW, 0, Some(zero)), Err(MapError::NotMemory)));
    }

    #[test]
    fn a_thousand_ranges_of_one_file_map_it_once() {
        let memory = GuestMemory::new();
        let fd = memfd(0x1000 * 1000, true);
        for page in 0..1000u64 {
            memory.map(page << 20, 0x1000, RW, page << 12, Some(fd.try_clone().unwrap())).unwrap();
        }
        assert_eq!(memory.table.read().unwrap().backings.len(), 1);
        memory.write(7 << 20, b"seven").unwrap();
        let mut back = [0; 5];
        memory.read(7 << 20, &mut back).unwrap();
        assert_eq!(&back, b"seven");
    }

    #[test]
    fn nothing_is_written_once_unmap_has_returned() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let memory = GuestMemory::new();
        let fd = memfd(0x1000, true);
        let file = std::fs::File::from(fd.try_clone().unwrap());
        let look = || {
            let mut bytes = [0; 64];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0x100).unwrap();
            bytes
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut count = 0u8;
                while !stop.load(Ordering::Relaxed) {
                    count = count.wrapping_add(1);
                    let _ = memory.write(0x100, &[count; 64]);
                }
            });
            for _ in 0..50 {
                memory.map(0, 0x1000, RW, 0, Some(fd.try_clone().unwrap())).unwrap();
                let before = look();
                while look() == before {
                    std::thread::yield_now();
                }
                memory.unmap(0, 0x1000).unwrap();
                let (first, _, second) = (look(), std::thread::yield_now(), look());
                assert!(first == second && first.iter().all(|byte| *byte == first[0]));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
