//! The two mapping tables of the paper: which slot of which box a packet on the host is for, and which host a slot
//! serves.
//!
//! The manager writes the pairings; bus, base and limit are learnt from the configuration writes that pass by. Each
//! pairing has an epoch. The peer of an older pairing has an older epoch, and its packets are dropped.

use tlp::{Bdf, Header, MessageRouting, Routing};
pub use units::{Epoch, NodeId, PathId, SlotId};

/// A row of the host's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u16);

/// A range of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First byte.
    pub base: u64,
    /// Last byte.
    pub limit: u64,
}

impl Window {
    /// Whether it has this address.
    pub fn contains(&self, address: u64) -> bool {
        (self.base..=self.limit).contains(&address)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.base <= other.limit && other.base <= self.limit
    }
}

/// A row of Table 2: a bus on the host, and the slot of a box behind it.
///
/// The paper has one base and limit. A bridge has two windows, one for prefetchable memory, and large devices need
/// both; so there are two of each, learnt from the same writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostEntry {
    /// Whether something is paired with this bus.
    pub used: bool,
    /// Given by the host's software when it enumerates.
    pub bus: Option<u8>,
    /// On that bus.
    pub device: u8,
    /// Memory base and limit, given by the host's software.
    pub memory: Option<Window>,
    /// Prefetchable memory base and limit, likewise.
    pub prefetchable: Option<Window>,
    /// Which box; from the manager.
    pub box_node: NodeId,
    /// Which slot of it; from the manager.
    pub slot: SlotId,
    /// Which way; from the manager.
    pub path: PathId,
    /// Which pairing; from the manager.
    pub epoch: Epoch,
}

/// Why a table was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// There is no such row.
    #[error("there is no entry {0}")]
    NoEntry(u16),
    /// The row is paired already.
    #[error("entry {0} is in use")]
    InUse(u16),
    /// The order is older than what the row has seen.
    #[error("{asked} is not above {seen}")]
    Stale {
        /// Of the order.
        asked: Epoch,
        /// Of the row.
        seen: Epoch,
    },
    /// Nothing is in that slot of the box.
    #[error("{0} is empty")]
    Empty(SlotId),
}

/// Table 2.
#[derive(Clone, Debug, Default)]
pub struct HostTable {
    entries: Vec<HostEntry>,
}

/// Where a packet on the host goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRoute {
    /// Through the network, to what this row is paired with.
    Remote(EntryId),
    /// To all rows that are used.
    Broadcast,
    /// It ends in the proxy.
    Local,
    /// No device is there.
    Nowhere,
}

impl HostTable {
    /// `count` rows, all free.
    pub fn new(count: u16) -> Self {
        Self { entries: vec![HostEntry::default(); usize::from(count)] }
    }

    /// A row.
    pub fn entry(&self, id: EntryId) -> Option<&HostEntry> {
        self.entries.get(usize::from(id.0))
    }

    /// All rows.
    pub fn entries(&self) -> impl Iterator<Item = (EntryId, &HostEntry)> {
        (0..=u16::MAX).map(EntryId).zip(&self.entries)
    }

    /// The first free row, as the manager looks for one.
    pub fn find_free(&self) -> Option<EntryId> {
        self.entries().find(|(_, entry)| !entry.used).map(|(id, _)| id)
    }

    fn entry_mut(&mut self, id: EntryId) -> Result<&mut HostEntry, TableError> {
        self.entries.get_mut(usize::from(id.0)).ok_or(TableError::NoEntry(id.0))
    }

    /// The manager pairs a row with a slot.
    pub fn pair(
        &mut self,
        id: EntryId,
        box_node: NodeId,
        slot: SlotId,
        path: PathId,
        epoch: Epoch,
    ) -> Result<(), TableError> {
        let entry = self.entry_mut(id)?;
        if entry.used {
            return Err(TableError::InUse(id.0));
        }
        if epoch <= entry.epoch {
            return Err(TableError::Stale { asked: epoch, seen: entry.epoch });
        }
        *entry = HostEntry { used: true, box_node, slot, path, epoch, ..*entry };
        Ok(())
    }

    /// The manager moves a pairing to another path.
    pub fn set_path(&mut self, id: EntryId, path: PathId, epoch: Epoch) -> Result<(), TableError> {
        let entry = self.entry_mut(id)?;
        if !entry.used || epoch != entry.epoch {
            return Err(TableError::Stale { asked: epoch, seen: entry.epoch });
        }
        entry.path = path;
        Ok(())
    }

    /// The manager ends a pairing. The epoch stays, so that nothing older is taken again.
    pub fn clear(&mut self, id: EntryId, epoch: Epoch) -> Result<(), TableError> {
        let entry = self.entry_mut(id)?;
        if epoch < entry.epoch {
            return Err(TableError::Stale { asked: epoch, seen: entry.epoch });
        }
        let (bus, device) = (entry.bus, entry.device);
        *entry = HostEntry { bus, device, epoch, ..HostEntry::default() };
        Ok(())
    }

    /// The pairing of this row is gone with its owner: the row can be paired again, in the same epoch too. Packets
    /// are told apart by their link, which is never the same twice.
    pub fn forget(&mut self, id: EntryId) {
        if let Ok(entry) = self.entry_mut(id) {
            let (bus, device) = (entry.bus, entry.device);
            *entry = HostEntry { bus, device, ..HostEntry::default() };
        }
    }

    /// The host's software numbered a bus.
    pub fn learn_bus(&mut self, id: EntryId, bus: Option<u8>, device: u8) {
        if let Ok(entry) = self.entry_mut(id) {
            (entry.bus, entry.device) = (bus, device);
        }
    }

    /// The host's software placed memory.
    pub fn learn_windows(&mut self, id: EntryId, memory: Option<Window>, prefetchable: Option<Window>) {
        if let Ok(entry) = self.entry_mut(id) {
            (entry.memory, entry.prefetchable) = (memory, prefetchable);
        }
    }

    /// The row this memory address belongs to. Only used rows take part, and an address that two rows claim
    /// belongs to neither: the host's software is half way through moving them.
    pub fn by_address(&self, address: u64) -> Option<EntryId> {
        let claims = |entry: &HostEntry| {
            let windows = [entry.memory, entry.prefetchable];
            entry.used && windows.iter().flatten().any(|window| window.contains(address))
        };
        let mut claiming = self.entries().filter(|(_, entry)| claims(entry)).map(|(id, _)| id);
        let first = claiming.next()?;
        claiming.next().is_none().then_some(first)
    }

    /// The row of this function.
    pub fn by_id(&self, target: Bdf) -> Option<EntryId> {
        let mut matching = self
            .entries()
            .filter(|(_, entry)| entry.used && entry.bus == Some(target.bus()))
            .filter(|(_, entry)| entry.device == target.device());
        let (first, _) = matching.next()?;
        matching.next().is_none().then_some(first)
    }

    /// Where a packet from the host goes.
    pub fn route(&self, header: &Header) -> HostRoute {
        let remote = |entry: Option<EntryId>| entry.map_or(HostRoute::Nowhere, HostRoute::Remote);
        match header.routing() {
            Routing::Memory(address) => remote(self.by_address(address)),
            Routing::Id(target) => remote(self.by_id(target)),
            // No I/O space is given out: legacy endpoints are not carried.
            Routing::Io(_) => HostRoute::Nowhere,
            Routing::Implicit(MessageRouting::Broadcast) => HostRoute::Broadcast,
            Routing::Implicit(_) => HostRoute::Local,
        }
    }

    /// Whether two used rows claim the same addresses.
    pub fn has_overlaps(&self) -> bool {
        let windows: Vec<Window> = self
            .entries
            .iter()
            .filter(|entry| entry.used)
            .flat_map(|entry| [entry.memory, entry.prefetchable])
            .flatten()
            .collect();
        windows.iter().enumerate().any(|(n, one)| windows[n + 1..].iter().any(|other| one.overlaps(other)))
    }

    /// Whether a packet from the network is from where this row's slot is, now. Anything else is dropped.
    pub fn admits(&self, id: EntryId, source: NodeId, slot: SlotId, epoch: Epoch) -> bool {
        self.entry(id).is_some_and(|entry| {
            entry.used && entry.box_node == source && entry.slot == slot && entry.epoch == epoch
        })
    }

    /// The row that what comes from this slot is for.
    pub fn by_slot(&self, source: NodeId, slot: SlotId, epoch: Epoch) -> Option<EntryId> {
        self.entries().map(|(id, _)| id).find(|id| self.admits(*id, source, slot, epoch))
    }
}

/// A row of Table 3: a slot of the box, and the host it serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoxEntry {
    /// Whether a device is in place.
    pub valid: bool,
    /// Whether a host has it.
    pub used: bool,
    /// Which slot.
    pub slot: SlotId,
    /// Which host; from the manager.
    pub host_node: NodeId,
    /// Which way; from the manager.
    pub path: PathId,
    /// Which pairing; from the manager.
    pub epoch: Epoch,
}

/// Table 3.
#[derive(Clone, Debug, Default)]
pub struct BoxTable {
    entries: Vec<BoxEntry>,
}

impl BoxTable {
    /// A row for each slot, all empty.
    pub fn new(slots: u16) -> Self {
        let entries = (0..slots).map(|slot| BoxEntry { slot: SlotId(slot), ..BoxEntry::default() });
        Self { entries: entries.collect() }
    }

    /// A slot's row.
    pub fn entry(&self, slot: SlotId) -> Option<&BoxEntry> {
        self.entries.get(usize::from(slot.0))
    }

    /// All rows.
    pub fn entries(&self) -> &[BoxEntry] {
        &self.entries
    }

    fn entry_mut(&mut self, slot: SlotId) -> Result<&mut BoxEntry, TableError> {
        self.entries.get_mut(usize::from(slot.0)).ok_or(TableError::NoEntry(slot.0))
    }

    /// A device was put into a slot, or taken out. Taking it out ends the pairing.
    pub fn set_valid(&mut self, slot: SlotId, valid: bool) -> Result<(), TableError> {
        let entry = self.entry_mut(slot)?;
        entry.valid = valid;
        if !valid {
            entry.used = false;
        }
        Ok(())
    }

    /// The manager gives a slot to a host.
    pub fn pair(
        &mut self,
        slot: SlotId,
        host_node: NodeId,
        path: PathId,
        epoch: Epoch,
    ) -> Result<(), TableError> {
        let entry = self.entry_mut(slot)?;
        if !entry.valid {
            return Err(TableError::Empty(slot));
        }
        if entry.used {
            return Err(TableError::InUse(slot.0));
        }
        if epoch <= entry.epoch {
            return Err(TableError::Stale { asked: epoch, seen: entry.epoch });
        }
        *entry = BoxEntry { used: true, host_node, path, epoch, ..*entry };
        Ok(())
    }

    /// The manager takes it back.
    pub fn clear(&mut self, slot: SlotId, epoch: Epoch) -> Result<(), TableError> {
        let entry = self.entry_mut(slot)?;
        if epoch < entry.epoch {
            return Err(TableError::Stale { asked: epoch, seen: entry.epoch });
        }
        (entry.used, entry.epoch) = (false, epoch);
        Ok(())
    }

    /// Whether a packet from the network may reach this slot's device.
    pub fn admits(&self, slot: SlotId, source: NodeId, epoch: Epoch) -> bool {
        self.entry(slot).is_some_and(|entry| {
            entry.valid && entry.used && entry.host_node == source && entry.epoch == epoch
        })
    }

    /// Where what a slot's device sends goes: always to its one host.
    pub fn host_of(&self, slot: SlotId) -> Option<(NodeId, PathId, Epoch)> {
        let entry = self.entry(slot).filter(|entry| entry.valid && entry.used)?;
        Some((entry.host_node, entry.path, entry.epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlp::{Span, TransactionId};

    fn paired() -> HostTable {
        let mut table = HostTable::new(3);
        for n in 0..2u16 {
            let id = EntryId(n);
            table.pair(id, NodeId(10 + n), SlotId(n), PathId(1), Epoch(1)).unwrap();
            table.learn_bus(id, Some(5 + n as u8), 0);
            let base = 0x8000_0000 + (u64::from(n) << 24);
            let window = Window { base, limit: base + 0xff_ffff };
            let high = Window { base: (8 + u64::from(n)) << 36, limit: ((9 + u64::from(n)) << 36) - 1 };
            table.learn_windows(id, Some(window), Some(high));
        }
        table
    }

    fn read_at(address: u64) -> Header {
        Header::memory_read(TransactionId::default(), Span::of_bytes(address, 4).unwrap())
    }

    #[test]
    fn the_three_routings_find_their_rows() {
        let table = paired();
        let remote = |n| HostRoute::Remote(EntryId(n));
        assert_eq!(table.route(&read_at(0x8000_0000)), remote(0));
        assert_eq!(table.route(&read_at(0x80ff_fffc)), remote(0));
        assert_eq!(table.route(&read_at(0x8100_0000)), remote(1));
        assert_eq!(table.route(&read_at(0x8200_0000)), HostRoute::Nowhere);
        assert_eq!(table.route(&read_at(9 << 36)), remote(1));
        let config = |bus, device| {
            table.route(&Header::config_read(TransactionId::default(), false, Bdf::new(bus, device, 0), 0))
        };
        assert_eq!((config(5, 0), config(6, 0)), (remote(0), remote(1)));
        assert_eq!((config(7, 0), config(5, 1)), (HostRoute::Nowhere, HostRoute::Nowhere));
        let message = |routing| table.route(&Header::message(Bdf::default(), routing, 0x19));
        assert_eq!(message(MessageRouting::Broadcast), HostRoute::Broadcast);
        assert_eq!(message(MessageRouting::Local), HostRoute::Local);
        assert_eq!(message(MessageRouting::RootComplex), HostRoute::Local);
    }

    #[test]
    fn an_address_that_two_rows_claim_is_nobodys() {
        let mut table = paired();
        let both = Window { base: 0x8000_0000, limit: 0x81ff_ffff };
        table.learn_windows(EntryId(0), Some(both), None);
        assert!(table.has_overlaps());
        assert_eq!(table.by_address(0x8100_0000), None);
        assert_eq!(table.by_address(0x8000_0000), Some(EntryId(0)));
    }

    #[test]
    fn a_cleared_row_takes_no_packet_and_no_older_order() {
        let mut table = paired();
        assert!(table.admits(EntryId(0), NodeId(10), SlotId(0), Epoch(1)));
        table.clear(EntryId(0), Epoch(2)).unwrap();
        assert_eq!(table.route(&read_at(0x8000_0000)), HostRoute::Nowhere);
        assert!(!table.admits(EntryId(0), NodeId(10), SlotId(0), Epoch(1)));
        for old in [1, 2] {
            let again = table.pair(EntryId(0), NodeId(10), SlotId(0), PathId(1), Epoch(old));
            assert!(matches!(again, Err(TableError::Stale { .. })));
        }
        table.pair(EntryId(0), NodeId(11), SlotId(4), PathId(1), Epoch(3)).unwrap();
        assert!(!table.admits(EntryId(0), NodeId(10), SlotId(0), Epoch(1)));
        assert!(!table.admits(EntryId(0), NodeId(11), SlotId(4), Epoch(2)));
        assert!(table.admits(EntryId(0), NodeId(11), SlotId(4), Epoch(3)));
        assert_eq!(table.find_free(), Some(EntryId(2)));
        assert!(matches!(table.clear(EntryId(0), Epoch(2)), Err(TableError::Stale { .. })));
    }

    #[test]
    fn a_slot_serves_one_host_and_only_while_a_device_is_in_it() {
        let mut table = BoxTable::new(2);
        let slot = SlotId(1);
        assert_eq!(table.pair(slot, NodeId(3), PathId(0), Epoch(1)), Err(TableError::Empty(slot)));
        table.set_valid(slot, true).unwrap();
        table.pair(slot, NodeId(3), PathId(0), Epoch(1)).unwrap();
        assert_eq!(table.pair(slot, NodeId(4), PathId(0), Epoch(2)), Err(TableError::InUse(1)));
        assert!(table.admits(slot, NodeId(3), Epoch(1)));
        assert!(!table.admits(slot, NodeId(4), Epoch(1)) && !table.admits(slot, NodeId(3), Epoch(0)));
        assert!(
            !table.admits(SlotId(0), NodeId(3), Epoch(1)) && !table.admits(SlotId(9), NodeId(3), Epoch(1))
        );
        assert_eq!(table.host_of(slot), Some((NodeId(3), PathId(0), Epoch(1))));
        table.set_valid(slot, false).unwrap();
        assert_eq!(table.host_of(slot), None);
    }
}
