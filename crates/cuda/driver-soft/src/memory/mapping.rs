//! Pages at chosen addresses, alive as long as their [`Mapping`] is held.

use super::{GRANULE, Physical, Region, raw};
use std::{io, sync::Arc};

/// Pages for one range of addresses. They go when the mapping does.
#[derive(Debug)]
pub(crate) struct Mapping {
    region: Arc<Region>,
    start: u64,
    bytes: u64,
    /// The physical memory that is mapped, if the pages are not the mapping's own. The mapping keeps it alive.
    physical: Option<Arc<Physical>>,
}

impl Mapping {
    /// Puts fresh pages at a range. The ends of the range may share pages with other private mappings.
    pub(crate) fn private(region: &Arc<Region>, start: u64, bytes: u64) -> io::Result<Arc<Self>> {
        if bytes == 0 || !region.contains(start, bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        region.take_private(start, bytes)?;
        Ok(Arc::new(Self { region: region.clone(), start, bytes, physical: None }))
    }

    /// Puts a part of physical memory at a range. Waits until all earlier mappings of the range are gone.
    pub(crate) fn shared(
        region: &Arc<Region>,
        start: u64,
        bytes: u64,
        physical: &Arc<Physical>,
        offset: u64,
    ) -> io::Result<Arc<Self>> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes());
        let aligned = [start, bytes, offset].iter().all(|value| value.is_multiple_of(GRANULE));
        if bytes == 0 || !aligned || !fits || !region.contains(start, bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        region.take_shared(start, bytes, physical.fd(), offset)?;
        Ok(Arc::new(Self { region: region.clone(), start, bytes, physical: Some(physical.clone()) }))
    }

    /// First address.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Address after the last.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    #[inline]
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.bytes && bytes <= self.bytes - offset
    }

    /// Copies out of the range; `None` when it leaves it.
    pub(crate) fn read(&self, address: u64, target: &mut [u8]) -> Option<()> {
        if target.is_empty() {
            return Some(());
        }
        if !self.holds(address, target.len() as u64) {
            return None;
        }
        // SAFETY: the bytes are inside this mapping, whose pages are there as long as `self` is.
        unsafe { raw::read(address, target) };
        Some(())
    }

    /// Copies into the range; `None` when it leaves it.
    pub(crate) fn write(&self, address: u64, source: &[u8]) -> Option<()> {
        if source.is_empty() {
            return Some(());
        }
        if !self.holds(address, source.len() as u64) {
            return None;
        }
        // SAFETY: the bytes are inside this mapping, whose pages are there as long as `self` is.
        unsafe { raw::write(address, source) };
        Some(())
    }
}

macro_rules! accesses {
    ($($load:ident $store:ident $ty:ty;)*) => {$(
        /// One aligned word; `None` outside the range or when it is not aligned.
        #[inline]
        pub(crate) fn $load(&self, address: u64) -> Option<$ty> {
            const BYTES: u64 = size_of::<$ty>() as u64;
            if !address.is_multiple_of(BYTES) || !self.holds(address, BYTES) {
                return None;
            }
            // SAFETY: aligned, and inside this mapping, whose pages are there as long as `self` is.
            Some(unsafe { raw::$load(address) })
        }

        /// Writes one aligned word; `None` outside the range or when it is not aligned.
        #[inline]
        pub(crate) fn $store(&self, address: u64, value: $ty) -> Option<()> {
            const BYTES: u64 = size_of::<$ty>() as u64;
            if !address.is_multiple_of(BYTES) || !self.holds(address, BYTES) {
                return None;
            }
            // SAFETY: aligned, and inside this mapping, whose pages are there as long as `self` is.
            unsafe { raw::$store(address, value) };
            Some(())
        }
    )*};
}

impl Mapping {
    accesses! {
        load8 store8 u8;
        load16 store16 u16;
        load32 store32 u32;
        load64 store64 u64;
    }

    /// Exchanges a word if it is `old`.
    #[inline]
    pub(crate) fn compare_exchange32(&self, address: u64, old: u32, new: u32) -> Option<Result<u32, u32>> {
        if !address.is_multiple_of(4) || !self.holds(address, 4) {
            return None;
        }
        // SAFETY: aligned, and inside this mapping, whose pages are there as long as `self` is.
        Some(unsafe { raw::compare_exchange32(address, old, new) })
    }

    /// Exchanges a double word if it is `old`.
    #[inline]
    pub(crate) fn compare_exchange64(&self, address: u64, old: u64, new: u64) -> Option<Result<u64, u64>> {
        if !address.is_multiple_of(8) || !self.holds(address, 8) {
            return None;
        }
        // SAFETY: aligned, and inside this mapping, whose pages are there as long as `self` is.
        Some(unsafe { raw::compare_exchange64(address, old, new) })
    }

    /// Adds to a word and returns what was there.
    #[inline]
    pub(crate) fn fetch_add32(&self, address: u64, value: u32) -> Option<u32> {
        if !address.is_multiple_of(4) || !self.holds(address, 4) {
            return None;
        }
        // SAFETY: aligned, and inside this mapping, whose pages are there as long as `self` is.
        Some(unsafe { raw::fetch_add32(address, value) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.physical {
            None => self.region.give_private(self.start, self.bytes),
            Some(_) => self.region.give_shared(self.start, self.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x3100_0000_0000;

    fn region(index: u64) -> Arc<Region> {
        Region::reserve(BASE + (index << 32), 64 << 20).unwrap()
    }

    fn maps_inside(base: u64, bytes: u64) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|line| {
                let start = line.split('-').next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                start.is_some_and(|start| start >= base && start < base + bytes)
            })
            .count()
    }

    #[test]
    fn a_reserved_range_cannot_be_reserved_twice_and_is_free_again_after() {
        let base = BASE;
        let first = Region::reserve(base, 64 << 20).unwrap();
        assert!(Region::reserve(base, 64 << 20).is_err());
        drop(first);
        assert_eq!(maps_inside(base, 64 << 20), 0);
        Region::reserve(base, 64 << 20).unwrap();
    }

    #[test]
    fn small_mappings_share_a_granule_and_keep_their_own_bytes() {
        let region = region(1);
        let base = BASE + (1 << 32);
        let first = Mapping::private(&region, base, 512).unwrap();
        let second = Mapping::private(&region, base + 512, 512).unwrap();
        first.write(base, &[1; 512]).unwrap();
        second.write(base + 512, &[2; 512]).unwrap();
        drop(first);
        let mut bytes = [0; 512];
        second.read(base + 512, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 512]);
    }

    #[test]
    fn bounds_are_exact() {
        let region = region(2);
        let base = BASE + (2 << 32);
        let mapping = Mapping::private(&region, base + 512, 1000).unwrap();
        assert!(mapping.write(base + 511, &[0]).is_none());
        assert!(mapping.write(base + 512, &[0; 1000]).is_some());
        assert!(mapping.write(base + 513, &[0; 1000]).is_none());
        assert!(mapping.load32(base + 512 + 996).is_some());
        assert!(mapping.load32(base + 512 + 998).is_none(), "not aligned");
        assert!(mapping.load64(base + 512 + 1000).is_none());
        assert!(mapping.load64(u64::MAX - 7).is_none());
    }

    #[test]
    fn odd_addresses_and_lengths_copy_exactly() {
        let region = region(3);
        let base = BASE + (3 << 32);
        let mapping = Mapping::private(&region, base, 256).unwrap();
        let source: Vec<u8> = (0..100).collect();
        for offset in 0..17 {
            for bytes in [0, 1, 7, 8, 9, 31, 100] {
                mapping.write(base + offset, &source[..bytes]).unwrap();
                let mut target = vec![0xff; bytes];
                mapping.read(base + offset, &mut target).unwrap();
                assert_eq!(target, source[..bytes]);
            }
        }
    }

    #[test]
    fn physical_memory_mapped_twice_is_the_same_memory() {
        let region = region(4);
        let base = BASE + (4 << 32);
        let physical = Physical::create(2 * GRANULE).unwrap();
        let whole = Mapping::shared(&region, base, 2 * GRANULE, &physical, 0).unwrap();
        let half = Mapping::shared(&region, base + 8 * GRANULE, GRANULE, &physical, GRANULE).unwrap();
        whole.store32(base + GRANULE + 4, 77).unwrap();
        assert_eq!(half.load32(base + 8 * GRANULE + 4), Some(77));
        drop((whole, half));
        assert_eq!(maps_inside(base, 64 << 20), 1, "only the reservation is left");
    }
}
