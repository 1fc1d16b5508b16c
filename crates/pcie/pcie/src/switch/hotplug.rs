//! Devices come and go: pairing, the slot's registers, surprise removal.

use tlp::Config;

use super::{Switch, SwitchOutput};
use crate::config::{find_capability, register};
use crate::tables::{EntryId, Epoch, NodeId, PathId, SlotId, TableError};
use crate::tlp_buf::TlpBuf;

/// Slot status bits that say that something happened.
const EVENTS: u16 = register::SLOT_STATUS_BUTTON
    | register::SLOT_STATUS_PRESENCE_CHANGED
    | register::SLOT_STATUS_COMMAND_DONE
    | register::SLOT_STATUS_LINK_CHANGED;

impl Switch {
    /// The manager puts a box's device into a slot. The host's software hears of it.
    pub fn plug(
        &mut self,
        entry: EntryId,
        node: NodeId,
        slot: SlotId,
        path: PathId,
        epoch: Epoch,
    ) -> Result<(), TableError> {
        self.table.pair(entry, node, slot, path, epoch)?;
        // The port's registers are as the host's software left them; the row has to know.
        self.learn();
        let port = &mut self.ports[usize::from(entry.0)];
        port.set_link(true);
        let changed = register::SLOT_STATUS_PRESENCE_CHANGED | register::SLOT_STATUS_LINK_CHANGED;
        self.slot_event(entry, changed, Some(true));
        Ok(())
    }

    /// The manager asks for a device back: the attention button is pressed. The host's software turns the power off when
    /// it has let go of the device; that is [`SwitchOutput::Reset`].
    pub fn request_removal(&mut self, entry: EntryId) {
        if usize::from(entry.0) < self.ports.len() {
            self.slot_event(entry, register::SLOT_STATUS_BUTTON, None);
        }
    }

    /// The device is gone, asked for or not. What was on its way to it is answered as unsupported; what comes from it
    /// afterwards is of an old epoch.
    pub fn unplug(&mut self, entry: EntryId, epoch: Epoch) -> Result<(), TableError> {
        let was_used = self.table.entry(entry).is_some_and(|row| row.used);
        self.table.clear(entry, epoch)?;
        if !was_used {
            return Ok(());
        }
        let open = self.transits[usize::from(entry.0)].take_all();
        self.fail_all(entry, open);
        // Packets that have not left yet go nowhere either.
        self.out.retain(|output| !matches!(output, SwitchOutput::Down { entry: to, .. } if *to == entry));
        let port = &mut self.ports[usize::from(entry.0)];
        let was_on = port.slot_control() & register::SLOT_CONTROL_POWER_OFF == 0;
        port.set_link(false);
        if was_on {
            port.report(register::ERROR_SURPRISE_DOWN);
        }
        self.turning_off.retain(|waiting| *waiting != entry);
        let changed = register::SLOT_STATUS_PRESENCE_CHANGED | register::SLOT_STATUS_LINK_CHANGED;
        self.slot_event(entry, changed, Some(false));
        Ok(())
    }

    /// Sets status bits, and interrupts the host if it asked to be.
    fn slot_event(&mut self, entry: EntryId, bits: u16, presence: Option<bool>) {
        let port = &mut self.ports[usize::from(entry.0)];
        let mut status = port.slot_status() | bits;
        match presence {
            Some(true) => status |= register::SLOT_STATUS_PRESENT,
            Some(false) => status &= !register::SLOT_STATUS_PRESENT,
            None => {}
        }
        port.set_slot_status(status);
        let control = port.slot_control();
        let wanted = [
            (register::SLOT_STATUS_BUTTON, register::SLOT_CONTROL_BUTTON),
            (register::SLOT_STATUS_PRESENCE_CHANGED, register::SLOT_CONTROL_PRESENCE),
            (register::SLOT_STATUS_COMMAND_DONE, register::SLOT_CONTROL_COMMAND),
            (register::SLOT_STATUS_LINK_CHANGED, register::SLOT_CONTROL_LINK),
        ];
        let is_wanted = wanted.iter().any(|(event, enable)| bits & event != 0 && control & enable != 0);
        if is_wanted && control & register::SLOT_CONTROL_INTERRUPT != 0 {
            self.port_interrupt(entry);
        }
    }

    /// The port's own interrupt, by MSI.
    fn port_interrupt(&mut self, entry: EntryId) {
        let port = &self.ports[usize::from(entry.0)];
        let Some(at) = find_capability(&port.config, register::MSI_ID) else { return };
        let is_on = port.config.u16(at + register::MSI_CONTROL) & register::MSI_CONTROL_ENABLE != 0;
        if !is_on || !port.config.bus_master() {
            return;
        }
        let address = u64::from(port.config.u32(at + register::MSI_ADDRESS + 4)) << 32
            | u64::from(port.config.u32(at + register::MSI_ADDRESS));
        let data = u32::from(port.config.u16(at + register::MSI_DATA));
        let message = TlpBuf::memory_write(port.id(), address, &data.to_le_bytes());
        self.out.extend(message.map(SwitchOutput::Up));
    }

    /// The host's software wrote slot control: that is a command, and every command is said to be done.
    pub(super) fn slot_control_written(
        &mut self,
        entry: EntryId,
        before: u16,
        config: Config,
        data: [u8; 4],
    ) {
        let port = &self.ports[usize::from(entry.0)];
        if config.register != port.slot_control_at() {
            return;
        }
        if config.first_enable & 0b0011 != 0 {
            let turned_off = before & register::SLOT_CONTROL_POWER_OFF == 0
                && port.slot_control() & register::SLOT_CONTROL_POWER_OFF != 0;
            if turned_off {
                self.reset_slot(entry);
            }
            self.slot_event(entry, register::SLOT_STATUS_COMMAND_DONE, None);
        } else if u16::from_le_bytes([data[2], data[3]]) & EVENTS != 0
            && self.ports[usize::from(entry.0)].slot_status() & EVENTS != 0
        {
            // Some events were cleared and others stand: with message-signalled interrupts that is a new one.
            self.slot_event(entry, 0, None);
        }
    }

    /// The device behind a port is reset: old requests are answered, and the carrier of the packets tells the device.
    pub(super) fn reset_slot(&mut self, entry: EntryId) {
        let open = self.transits[usize::from(entry.0)].take_all();
        self.fail_all(entry, open);
        if self.table.entry(entry).is_some_and(|row| row.used) {
            self.out.push_back(SwitchOutput::Reset(entry));
        }
    }
}
