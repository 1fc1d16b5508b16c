//! What the box's proxy has on its side: slots with endpoints, each of which serves one host.
//!
//! A device's packets always go to its host: nothing in them says where to, so nothing in them can lead astray. Packets
//! from the network reach a device only when they come from its host, in the current pairing.

use crate::endpoint::Endpoint;
use crate::tables::{BoxTable, Epoch, NodeId, PathId, SlotId, TableError};
use crate::tlp_buf::TlpBuf;
use units::Time;

/// A packet for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// From which slot.
    pub slot: SlotId,
    /// To which host. Its slot is 0.
    pub host: NodeId,
    /// Which way.
    pub path: PathId,
    /// In which pairing.
    pub epoch: Epoch,
    /// What.
    pub packet: TlpBuf,
}

/// The endpoints of a box, and the table of the hosts that have them.
pub struct BoxEndpoints {
    table: BoxTable,
    devices: Vec<Option<Box<dyn Endpoint>>>,
    /// The slot to look at first, so that none is always last.
    next_slot: usize,
    refused: u64,
}

impl BoxEndpoints {
    /// A box with empty slots.
    pub fn new(slots: u16) -> Self {
        let devices = (0..slots).map(|_| None).collect();
        Self { table: BoxTable::new(slots), devices, next_slot: 0, refused: 0 }
    }

    /// The table, to look at.
    pub fn table(&self) -> &BoxTable {
        &self.table
    }

    /// Packets from the network that no device was given.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Puts a device into a slot.
    pub fn insert(&mut self, slot: SlotId, device: Box<dyn Endpoint>) -> Result<(), TableError> {
        self.table.set_valid(slot, true)?;
        self.devices[usize::from(slot.0)] = Some(device);
        Ok(())
    }

    /// Takes a device out, whichever host has it.
    pub fn take_out(&mut self, slot: SlotId) -> Result<Option<Box<dyn Endpoint>>, TableError> {
        self.table.set_valid(slot, false)?;
        Ok(self.devices[usize::from(slot.0)].take())
    }

    /// The manager gives a slot to a host. The device is as after power-on: nothing of its last host is left.
    pub fn pair(&mut self, slot: SlotId, host: NodeId, path: PathId, epoch: Epoch) -> Result<(), TableError> {
        self.table.pair(slot, host, path, epoch)?;
        self.reset(slot);
        Ok(())
    }

    /// The manager takes a slot back: packets of the old pairing are dropped, and the device forgets.
    pub fn clear(&mut self, slot: SlotId, epoch: Epoch) -> Result<(), TableError> {
        self.table.clear(slot, epoch)?;
        self.reset(slot);
        Ok(())
    }

    /// The host resets its device.
    pub fn reset(&mut self, slot: SlotId) {
        if let Some(Some(device)) = self.devices.get_mut(usize::from(slot.0)) {
            device.reset();
        }
    }

    /// A packet from the network.
    pub fn receive(&mut self, source: NodeId, slot: SlotId, epoch: Epoch, packet: TlpBuf, now: Time) {
        match self.devices.get_mut(usize::from(slot.0)) {
            Some(Some(device)) if self.table.admits(slot, source, epoch) => device.receive(packet, now),
            _ => self.refused += 1,
        }
    }

    /// The next packet of any device, each slot in turn.
    pub fn transmit(&mut self, now: Time) -> Option<Outgoing> {
        let count = self.devices.len();
        for step in 0..count {
            let index = (self.next_slot + step) % count;
            let slot = self.table.entries()[index].slot;
            let Some(device) = &mut self.devices[index] else { continue };
            let Some((host, path, epoch)) = self.table.host_of(slot) else { continue };
            if let Some(packet) = device.transmit(now) {
                self.next_slot = (index + 1) % count;
                return Some(Outgoing { slot, host, path, epoch, packet });
            }
        }
        None
    }

    /// The next packet of one slot's device: for a caller that has room for that slot and perhaps not for others.
    pub fn transmit_slot(&mut self, slot: SlotId, now: Time) -> Option<TlpBuf> {
        self.table.host_of(slot)?;
        self.devices.get_mut(usize::from(slot.0))?.as_mut()?.transmit(now)
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        self.devices.iter_mut().flatten().for_each(|device| device.on_tick(now));
    }

    /// When [`BoxEndpoints::on_tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        self.devices.iter().flatten().filter_map(|device| device.wake_at()).min()
    }
}
