//! Message-signalled interrupts as the device sends them: a write of a number to an address.

use crate::config::{ConfigSpace, find_capability, register};

/// An address and the number to write there.
type Message = (u64, u32);

/// The message of an MSI vector; none when MSI is off. A device with fewer vectors than it wants shares them.
pub(super) fn msi(config: &ConfigSpace, vector: u16) -> Option<Message> {
    let at = find_capability(config, register::MSI_ID)?;
    let control = config.u16(at + register::MSI_CONTROL);
    if control & register::MSI_CONTROL_ENABLE == 0 {
        return None;
    }
    let vectors = 1u16 << (control >> 4 & 7).min(5);
    let low = u64::from(config.u32(at + register::MSI_ADDRESS));
    let high = u64::from(config.u32(at + register::MSI_ADDRESS + 4));
    let data = u32::from(config.u16(at + register::MSI_DATA));
    let number = data & !u32::from(vectors - 1) | u32::from(vector % vectors);
    Some((high << 32 | low, number))
}

/// The MSI-X table and its pending bits.
pub(super) struct Msix {
    capability: u16,
    bar: u8,
    table_offset: u64,
    pending_offset: u64,
    table: Vec<u8>,
    pending: Vec<u8>,
}

const ENTRY: usize = 16;

impl Msix {
    /// The table a configuration space speaks of, with all vectors masked.
    pub(super) fn of(config: &ConfigSpace) -> Option<Self> {
        let capability = find_capability(config, register::MSIX_ID)?;
        let vectors = usize::from(config.u16(capability + register::MSIX_CONTROL) & 0x7ff) + 1;
        let place = config.u32(capability + register::MSIX_TABLE);
        let pending_place = config.u32(capability + register::MSIX_PENDING);
        let mut table = vec![0; vectors * ENTRY];
        table.chunks_exact_mut(ENTRY).for_each(|entry| entry[12] = 1);
        Some(Self {
            capability,
            bar: (place & 7) as u8,
            table_offset: u64::from(place & !7),
            pending_offset: u64::from(pending_place & !7),
            table,
            pending: vec![0; vectors.div_ceil(64) * 8],
        })
    }

    pub(super) fn is_on(&self, config: &ConfigSpace) -> bool {
        config.u16(self.capability + register::MSIX_CONTROL) & register::MSIX_CONTROL_ENABLE != 0
    }

    fn is_masked(&self, config: &ConfigSpace, vector: usize) -> bool {
        let control = config.u16(self.capability + register::MSIX_CONTROL);
        control & register::MSIX_CONTROL_MASK != 0 || self.table[vector * ENTRY + 12] & 1 != 0
    }

    fn message(&self, vector: usize) -> Message {
        let entry = &self.table[vector * ENTRY..][..ENTRY];
        let address = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        (address & !3, u32::from_le_bytes(entry[8..12].try_into().expect("four bytes")))
    }

    /// The message of a vector, or a note that it is pending.
    pub(super) fn raise(&mut self, config: &ConfigSpace, vector: u16) -> Option<Message> {
        let vector = usize::from(vector);
        if vector >= self.table.len() / ENTRY {
            return None;
        }
        if self.is_masked(config, vector) {
            self.pending[vector / 8] |= 1 << (vector % 8);
            return None;
        }
        Some(self.message(vector))
    }

    /// The messages of vectors that are pending and no longer masked.
    pub(super) fn take_unmasked(&mut self, config: &ConfigSpace) -> Vec<Message> {
        if !self.is_on(config) || self.pending.iter().all(|bits| *bits == 0) {
            return Vec::new();
        }
        let vectors = self.table.len() / ENTRY;
        let pending = |this: &Self, vector: usize| this.pending[vector / 8] >> (vector % 8) & 1 != 0;
        let free: Vec<usize> =
            (0..vectors).filter(|v| pending(self, *v) && !self.is_masked(config, *v)).collect();
        for vector in &free {
            self.pending[vector / 8] &= !(1 << (vector % 8));
        }
        free.into_iter().map(|vector| self.message(vector)).collect()
    }

    /// Reads table or pending bits; none when the access is elsewhere.
    pub(super) fn read(&self, bar: u8, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let inside = |start: u64, place: &[u8]| {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            Some(place.get(from..from.checked_add(bytes)?)?.to_vec())
        };
        if bar != self.bar {
            return None;
        }
        inside(self.table_offset, &self.table).or_else(|| inside(self.pending_offset, &self.pending))
    }

    /// Writes the table; says whether the access was for it.
    pub(super) fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let Some(from) = offset.checked_sub(self.table_offset).filter(|_| bar == self.bar) else {
            return false;
        };
        let end = from as usize + data.len();
        match self.table.get_mut(from as usize..end) {
            Some(place) => {
                place.copy_from_slice(data);
                true
            }
            None => false,
        }
    }
}
