//! Device memory out of safe Rust: one range of words. For tests and for users that need no mapping of host pages.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{DeviceMemory, Span};

/// One range of memory that begins at a base address.
#[derive(Debug)]
pub struct FlatMemory {
    base: u64,
    words: Vec<AtomicU64>,
}

/// All of a [`FlatMemory`].
#[derive(Clone, Copy, Debug)]
pub struct FlatSpan<'m>(&'m FlatMemory);

impl FlatMemory {
    /// `bytes` of zeros at `base`, which must be a multiple of 256.
    pub fn new(base: u64, bytes: u64) -> Self {
        assert_eq!(base % 256, 0, "allocations are aligned");
        Self { base, words: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, address: u64) -> Option<&AtomicU64> {
        self.words.get(usize::try_from(address.checked_sub(self.base)? / 8).ok()?)
    }

    /// Copies bytes out; `None` outside the range.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = FlatSpan(self).load8(address + index as u64)?;
        }
        Some(())
    }

    /// Copies bytes in; `None` outside the range.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        for (index, &byte) in bytes.iter().enumerate() {
            FlatSpan(self).store8(address + index as u64, byte)?;
        }
        Some(())
    }
}

impl DeviceMemory for FlatMemory {
    type Span<'m> = FlatSpan<'m>;

    fn span(&self, address: u64) -> Option<FlatSpan<'_>> {
        self.word(address).map(|_| FlatSpan(self))
    }
}

impl FlatSpan<'_> {
    fn load(&self, address: u64) -> Option<u64> {
        Some(self.0.word(address)?.load(Ordering::Relaxed) >> (address % 8 * 8))
    }

    /// Replaces the bits of `mask`, which stands at the place of `address` in its word.
    fn store(&self, address: u64, value: u64, mask: u64) -> Option<()> {
        let shift = address % 8 * 8;
        let word = self.0.word(address)?;
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let new = old & !(mask << shift) | (value & mask) << shift;
            match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(()),
                Err(now) => old = now,
            }
        }
    }
}

impl Span for FlatSpan<'_> {
    fn load8(&self, address: u64) -> Option<u8> {
        self.load(address).map(|bits| bits as u8)
    }

    fn load16(&self, address: u64) -> Option<u16> {
        self.load(address).map(|bits| bits as u16)
    }

    fn load32(&self, address: u64) -> Option<u32> {
        self.load(address).map(|bits| bits as u32)
    }

    fn load64(&self, address: u64) -> Option<u64> {
        self.load(address)
    }

    fn store8(&self, address: u64, value: u8) -> Option<()> {
        self.store(address, value.into(), 0xFF)
    }

    fn store16(&self, address: u64, value: u16) -> Option<()> {
        self.store(address, value.into(), 0xFFFF)
    }

    fn store32(&self, address: u64, value: u32) -> Option<()> {
        self.store(address, value.into(), 0xFFFF_FFFF)
    }

    fn store64(&self, address: u64, value: u64) -> Option<()> {
        self.0.word(address)?.store(value, Ordering::Relaxed);
        Some(())
    }

    fn compare_exchange32(&self, address: u64, old: u32, new: u32) -> Option<Result<u32, u32>> {
        let shift = address % 8 * 8;
        let mask = 0xFFFF_FFFFu64 << shift;
        let word = self.0.word(address)?;
        let mut whole = word.load(Ordering::SeqCst);
        loop {
            let now = (whole >> shift) as u32;
            if now != old {
                return Some(Err(now));
            }
            let next = whole & !mask | u64::from(new) << shift;
            match word.compare_exchange_weak(whole, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Ok(old)),
                Err(other) => whole = other,
            }
        }
    }

    fn compare_exchange64(&self, address: u64, old: u64, new: u64) -> Option<Result<u64, u64>> {
        Some(self.0.word(address)?.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst))
    }
}
