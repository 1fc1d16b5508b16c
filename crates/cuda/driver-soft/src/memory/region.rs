//! The reserved range of addresses and which granules of it have pages.

use super::{GRANULE, Physical, raw};
use crate::sync::{Lock, lock};
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Condvar},
};

/// A range of this process's addresses that nothing else uses.
#[derive(Debug)]
pub(crate) struct Region {
    base: u64,
    bytes: u64,
    granules: Lock<Granules>,
    released: Condvar,
}

/// How many private mappings hold each granule that has pages, and which granules a shared mapping holds alone.
#[derive(Debug, Default)]
struct Granules {
    private: HashMap<u64, u32>,
    shared: HashMap<u64, ()>,
    /// Granules of private mappings whose pages are in a memory file, which other sessions may have: the file and the place in it.
    lent: HashMap<u64, (Arc<Physical>, u64)>,
}

/// A part of a memory file that stands for private granules.
#[derive(Debug)]
pub(crate) struct LentPiece {
    pub(crate) pages: Arc<Physical>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Region {
    /// Reserves exactly this range, if nothing is there yet.
    pub(crate) fn reserve(base: u64, bytes: u64) -> io::Result<Arc<Self>> {
        if bytes == 0
            || !base.is_multiple_of(GRANULE)
            || !bytes.is_multiple_of(GRANULE)
            || base.checked_add(bytes).is_none()
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE never touches what is mapped already, and the new mapping gives no access.
        let got = unsafe { libc::mmap(base as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if got as u64 != base {
            // A kernel before 4.17 takes the address as a hint only.
            // SAFETY: this is the mapping that was made a moment ago; no other code knows of it.
            unsafe { libc::munmap(got, bytes as usize) };
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(Arc::new(Self { base, bytes, granules: Lock::default(), released: Condvar::new() }))
    }

    /// Address after the last.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Whether a range lies in the region.
    pub(crate) fn contains(&self, start: u64, bytes: u64) -> bool {
        start >= self.base && start.checked_add(bytes).is_some_and(|end| end <= self.base + self.bytes)
    }

    /// Makes all granules of a range readable and writable; they may be shared with other private mappings.
    pub(super) fn take_private(&self, start: u64, bytes: u64) -> io::Result<()> {
        let mut granules = lock(&self.granules);
        let range = granules_of(start, bytes);
        while range.clone().any(|granule| granules.shared.contains_key(&granule)) {
            granules = self.wait(granules);
        }
        let fresh: Vec<u64> =
            range.clone().filter(|granule| !granules.private.contains_key(granule)).collect();
        let mut done: Vec<(u64, u64)> = Vec::new();
        for (first, count) in runs(&fresh) {
            if let Err(error) = self.map_private(first, count) {
                for (first, count) in done {
                    self.unmap(first, count);
                }
                return Err(error);
            }
            done.push((first, count));
        }
        for granule in range {
            *granules.private.entry(granule).or_default() += 1;
        }
        Ok(())
    }

    /// Gives back what [`Region::take_private`] took.
    pub(super) fn give_private(&self, start: u64, bytes: u64) {
        let mut granules = lock(&self.granules);
        let mut empty = Vec::new();
        let mut kept = Vec::new();
        for granule in granules_of(start, bytes) {
            let Some(count) = granules.private.get_mut(&granule) else { continue };
            *count -= 1;
            if *count == 0 {
                granules.private.remove(&granule);
                granules.lent.remove(&granule);
                empty.push(granule);
            } else if !granules.lent.contains_key(&granule) {
                kept.push(granule);
            }
        }
        for (first, count) in runs(&empty) {
            self.unmap(first, count);
        }
        // A granule may be half alive for long; the whole pages of the dead half need no memory.
        for granule in kept {
            let from = start.max(granule * GRANULE).next_multiple_of(PAGE);
            let to = (start + bytes).min((granule + 1) * GRANULE) / PAGE * PAGE;
            if from < to {
                self.discard(from, to - from);
            }
        }
        drop(granules);
        self.released.notify_all();
    }

    /// Has the granules of a range, which private mappings hold, lie in memory files, and says in which, with the address of the
    /// first granule. Their bytes stay. The caller has made sure that no work touches them meanwhile.
    pub(crate) fn lend(&self, start: u64, bytes: u64) -> io::Result<(u64, Vec<LentPiece>)> {
        let mut granules = lock(&self.granules);
        let range = granules_of(start, bytes);
        if range.is_empty() || !range.clone().all(|granule| granules.private.contains_key(&granule)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fresh: Vec<u64> = range.clone().filter(|granule| !granules.lent.contains_key(granule)).collect();
        for (first, count) in runs(&fresh) {
            let pages = self.move_to_file(first, count)?;
            let places = (0..count).map(|index| (first + index, (pages.clone(), index * GRANULE)));
            granules.lent.extend(places);
        }
        let mut pieces: Vec<LentPiece> = Vec::new();
        for (pages, offset) in range.clone().filter_map(|granule| granules.lent.get(&granule)) {
            match pieces.last_mut() {
                Some(last) if Arc::ptr_eq(&last.pages, pages) && last.offset + last.bytes == *offset => {
                    last.bytes += GRANULE;
                }
                _ => pieces.push(LentPiece { pages: pages.clone(), offset: *offset, bytes: GRANULE }),
            }
        }
        Ok((range.start * GRANULE, pieces))
    }

    /// Copies granules into a new memory file and maps that in their place.
    fn move_to_file(&self, first: u64, count: u64) -> io::Result<Arc<Physical>> {
        /// Parts without a byte in them are left out of the file: they take no memory.
        const STEP: usize = 64 << 10;
        let (start, bytes) = (first * GRANULE, count * GRANULE);
        let pages = Physical::create(bytes)?;
        let file = std::fs::File::from(pages.descriptor()?);
        let mut buffer = vec![0; STEP];
        for offset in (0..bytes).step_by(STEP) {
            // SAFETY: private mappings hold these granules, so they are readable and writable while the lock is held.
            unsafe { raw::read(start + offset, &mut buffer) };
            if buffer.iter().any(|byte| *byte != 0) {
                std::os::unix::fs::FileExt::write_all_at(&file, &buffer, offset)?;
            }
        }
        self.map_file(start, bytes, pages.fd(), 0)?;
        Ok(pages)
    }

    /// Waits until no mapping holds the granules of a range, then maps `fd` there, for one holder alone.
    pub(super) fn take_shared(&self, start: u64, bytes: u64, fd: libc::c_int, offset: u64) -> io::Result<()> {
        debug_assert!(
            start.is_multiple_of(GRANULE) && bytes.is_multiple_of(GRANULE) && self.contains(start, bytes)
        );
        let mut granules = lock(&self.granules);
        let range = granules_of(start, bytes);
        while range.clone().any(|g| granules.shared.contains_key(&g) || granules.private.contains_key(&g)) {
            granules = self.wait(granules);
        }
        self.map_file(start, bytes, fd, offset)?;
        granules.shared.extend(range.map(|granule| (granule, ())));
        Ok(())
    }

    /// Gives back what [`Region::take_shared`] took.
    pub(super) fn give_shared(&self, start: u64, bytes: u64) {
        let mut granules = lock(&self.granules);
        for granule in granules_of(start, bytes) {
            granules.shared.remove(&granule);
        }
        self.unmap(start / GRANULE, bytes / GRANULE);
        drop(granules);
        self.released.notify_all();
    }

    fn map_file(&self, start: u64, bytes: u64, fd: libc::c_int, offset: u64) -> io::Result<()> {
        debug_assert!(self.contains(start, bytes));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is inside this region. What is replaced is our own reservation, or pages whose bytes are in the
        // file: code that holds them goes on with the file's.
        let got =
            unsafe { libc::mmap(start as *mut _, bytes as usize, access, flags, fd, offset as libc::off_t) };
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wait<'l>(&self, granules: crate::sync::Guard<'l, Granules>) -> crate::sync::Guard<'l, Granules> {
        locks::wait(&self.released, granules)
    }

    fn map_private(&self, first: u64, count: u64) -> io::Result<()> {
        let (start, bytes) = (first * GRANULE, count * GRANULE);
        debug_assert!(self.contains(start, bytes));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is inside this region (its granules are), and nothing holds it, so only our own
        // reservation is replaced.
        let got = unsafe { libc::mmap(start as *mut _, bytes as usize, access, flags, -1, 0) };
        if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes the pages away and reserves the range again.
    fn unmap(&self, first: u64, count: u64) {
        let (start, bytes) = (first * GRANULE, count * GRANULE);
        debug_assert!(self.contains(start, bytes));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is inside this region and its last holder just let go of it, so no code has a way to reach
        // these pages any more.
        let got = unsafe { libc::mmap(start as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            // Out of map entries. The pages stay readable, which does no harm; only their memory must go.
            self.discard(start, bytes);
        }
    }

    /// Empties whole pages; they read as zero afterwards.
    fn discard(&self, start: u64, bytes: u64) {
        debug_assert!(
            self.contains(start, bytes) && start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE)
        );
        // SAFETY: the range is inside this region, and what was allocated there is gone.
        unsafe { libc::madvise(start as *mut _, bytes as usize, libc::MADV_DONTNEED) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: every mapping holds the region, so none is left; the range is ours alone.
        unsafe { libc::munmap(self.base as *mut _, self.bytes as usize) };
    }
}

/// The smallest page of any machine we run on; a larger one only makes `discard` fail, which is harmless.
const PAGE: u64 = 4096;

fn granules_of(start: u64, bytes: u64) -> std::ops::Range<u64> {
    start / GRANULE..(start + bytes).div_ceil(GRANULE)
}

/// Ascending numbers as `(first, count)` of each run without a gap.
fn runs(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}
