//! Base address registers: what an address belongs to.

use super::{ConfigSpace, register};

/// Width and meaning of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// Below 4 GiB.
    Memory32,
    /// Anywhere; takes the next register too.
    Memory64,
    /// Anywhere, and reads have no side effects.
    Prefetchable64,
}

/// A BAR as built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its kind.
    pub kind: BarKind,
    /// A power of two, at least 16.
    pub size: u64,
}

/// A BAR with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarWindow {
    /// Its first byte.
    pub base: u64,
    /// In bytes.
    pub size: u64,
}

impl ConfigSpace {
    /// Where BAR `index` is now.
    pub fn bar_window(&self, index: u8) -> Option<BarWindow> {
        let bar = self.bars.get(usize::from(index)).copied().flatten()?;
        let at = register::BAR0 + 4 * u16::from(index);
        let low = u64::from(self.u32(at) & !0xf);
        let high = match bar.kind {
            BarKind::Memory32 => 0,
            BarKind::Memory64 | BarKind::Prefetchable64 => u64::from(self.u32(at + 4)),
        };
        Some(BarWindow { base: high << 32 | low, size: bar.size })
    }

    /// The BARs as built.
    pub fn bars(&self) -> &[Option<Bar>; 6] {
        &self.bars
    }

    /// Which BAR `len` bytes at `address` are in, and where in it.
    pub fn decode(&self, address: u64, len: u64) -> Option<(u8, u64)> {
        if !self.memory_enabled() {
            return None;
        }
        (0..6).find_map(|index| {
            let window = self.bar_window(index)?;
            let into = address.checked_sub(window.base)?;
            (into.checked_add(len)? <= window.size).then_some((index, into))
        })
    }
}
