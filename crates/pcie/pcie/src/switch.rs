//! The host's proxy as the paper draws it: a switch with an upstream port and a downstream port for each slot, whose
//! devices are in boxes elsewhere.
//!
//! ```text
//!            root complex
//!                 │  receive_from_host / SwitchOutput::Up
//!        ┌────────┴────────┐
//!        │  upstream port  │ Type 1
//!        ├────┬────┬───────┤ internal bus
//!        │ p0 │ p1 │  …    │ Type 1, hot-plug slots
//!        └─┬──┴─┬──┴───────┘
//!          │    │   receive_from_network / SwitchOutput::Down, by the host's table
//!       box, slot, path, epoch
//! ```
//!
//! The ports' registers are the only truth about buses and windows; every write to them is carried over into the table,
//! and packets are routed by the table.

mod hotplug;
mod port;
mod transit;

use std::collections::VecDeque;
use std::time::Duration;

use tlp::{Bdf, Body, Class, Config, Header, MessageRouting, ReadCompletionBoundary, Routing, Status, code};
use units::Time;

use crate::config::register;
use crate::flow::as_completion;
use crate::tables::{EntryId, Epoch, HostRoute, HostTable, NodeId, PathId, SlotId, TableError};
use crate::tlp_buf::TlpBuf;
use port::Port;
use transit::Transit;

/// What leaves the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchOutput {
    /// To the root complex.
    Up(TlpBuf),
    /// To the device of a slot, through the network.
    Down {
        /// Which row of the table.
        entry: EntryId,
        /// Where it is.
        route: Route,
        /// What.
        packet: TlpBuf,
    },
    /// The host's software resets what is in the slot, or turns its power off.
    Reset(EntryId),
}

/// Where a slot's device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The box.
    pub node: NodeId,
    /// Its slot.
    pub slot: SlotId,
    /// The way there.
    pub path: PathId,
    /// The pairing.
    pub epoch: Epoch,
}

/// How a switch behaves.
#[derive(Clone, Copy, Debug)]
pub struct SwitchOptions {
    /// How many slots.
    pub slots: u16,
    /// Let slots reach each other without the root complex. Off, as access control services have it: then a packet for
    /// another slot goes up, where an IOMMU can look at it.
    pub peer_to_peer: bool,
    /// How long a device may take to answer before the switch answers for it.
    pub timeout: Duration,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        Self { slots: 4, peer_to_peer: false, timeout: Duration::from_millis(50) }
    }
}

/// What was wrong with packets from the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchViolations {
    /// From a node, slot or epoch that no row is paired with.
    pub not_paired: u64,
    /// In the name of a function that is not behind the slot's port.
    pub foreign_requester: u64,
    /// Completions that answer no open request.
    pub unexpected_completion: u64,
}

/// The switch.
pub struct Switch {
    options: SwitchOptions,
    upstream: Port,
    ports: Vec<Port>,
    /// Requests on their way to each slot.
    transits: Vec<Transit>,
    table: HostTable,
    out: VecDeque<SwitchOutput>,
    violations: SwitchViolations,
    /// Slots that have not acknowledged that the power goes away.
    turning_off: Vec<EntryId>,
}

impl Switch {
    /// A switch with empty slots.
    pub fn new(options: SwitchOptions) -> Self {
        let slots = options.slots.clamp(1, 32);
        Self {
            options,
            upstream: Port::upstream(),
            ports: (0..slots).map(|slot| Port::downstream(slot + 1)).collect(),
            transits: (0..slots).map(|_| Transit::default()).collect(),
            table: HostTable::new(slots),
            out: VecDeque::new(),
            violations: SwitchViolations::default(),
            turning_off: Vec::new(),
        }
    }

    /// The table, to look at.
    pub fn table(&self) -> &HostTable {
        &self.table
    }

    /// What was wrong so far.
    pub fn violations(&self) -> SwitchViolations {
        self.violations
    }

    /// Takes the next thing that leaves.
    pub fn next_output(&mut self) -> Option<SwitchOutput> {
        self.out.pop_front()
    }

    /// Another way to the same slot, within a pairing.
    pub fn set_path(&mut self, entry: EntryId, path: PathId, epoch: Epoch) -> Result<(), TableError> {
        self.table.set_path(entry, path, epoch)
    }

    /// A packet from the root complex.
    pub fn receive_from_host(&mut self, packet: TlpBuf, now: Time) {
        match packet.header.body {
            Body::Config(config) => self.on_config(packet, config, now),
            Body::Message(message) if message.code == code::PME_TURN_OFF => {
                self.turning_off = self.present().collect();
                if self.turning_off.is_empty() {
                    self.acknowledge_turn_off();
                }
                self.broadcast(&packet, now);
            }
            _ => match self.route_down(&packet.header) {
                HostRoute::Remote(entry) => self.send_down(entry, packet, now),
                HostRoute::Broadcast => self.broadcast(&packet, now),
                HostRoute::Local => {}
                HostRoute::Nowhere => self.refuse(&packet.header),
            },
        }
    }

    /// Where a packet from above goes: memory must be in the upstream port's windows first.
    fn route_down(&self, header: &Header) -> HostRoute {
        if let Routing::Memory(address) = header.routing()
            && !self.upstream.claims(address)
        {
            return HostRoute::Nowhere;
        }
        self.table.route(header)
    }

    fn present(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.table.entries().filter(|(_, entry)| entry.used).map(|(id, _)| id)
    }

    fn broadcast(&mut self, packet: &TlpBuf, now: Time) {
        let present: Vec<EntryId> = self.present().collect();
        present.into_iter().for_each(|entry| self.send_down(entry, packet.clone(), now));
    }

    fn send_down(&mut self, entry: EntryId, packet: TlpBuf, now: Time) {
        let Some(row) = self.table.entry(entry).filter(|row| row.used) else {
            return self.refuse(&packet.header);
        };
        let route = Route { node: row.box_node, slot: row.slot, path: row.path, epoch: row.epoch };
        if packet.header.class() == Class::NonPosted {
            let deadline = now + self.options.timeout;
            if !self.transits[usize::from(entry.0)].open(&packet.header, deadline) {
                // The root complex uses a tag twice, or has more open than any tag space has.
                return self.refuse(&packet.header);
            }
        }
        self.out.push_back(SwitchOutput::Down { entry, route, packet });
    }

    fn up(&mut self, packet: TlpBuf) {
        self.out.push_back(SwitchOutput::Up(packet));
    }

    /// No device is there.
    fn refuse(&mut self, header: &Header) {
        if header.class() == Class::NonPosted {
            let completer = self.upstream.id();
            self.up(TlpBuf::completion(header, completer, Status::UnsupportedRequest));
        }
    }

    fn on_config(&mut self, mut packet: TlpBuf, config: Config, now: Time) {
        if !config.is_type_1 {
            return match config.target.function() {
                0 => self.own_registers(None, &packet.header, config, &packet.payload),
                _ => self.refuse(&packet.header),
            };
        }
        let bus = config.target.bus();
        let (secondary, subordinate) = self.upstream.buses();
        if bus == secondary && secondary != 0 {
            let port = usize::from(config.target.device());
            if port >= self.ports.len() || config.target.function() != 0 {
                return self.refuse(&packet.header);
            }
            return self.own_registers(Some(EntryId(port as u16)), &packet.header, config, &packet.payload);
        }
        let behind = (secondary..=subordinate).contains(&bus) && secondary != 0;
        let port = self.ports.iter().position(|port| port.has_bus(bus)).filter(|_| behind);
        let Some(port) = port else { return self.refuse(&packet.header) };
        // The last bus before the device: Type 1 becomes Type 0, and only device 0 is on a link.
        if bus == self.ports[port].buses().0 {
            if config.target.device() != 0 {
                return self.refuse(&packet.header);
            }
            packet.header.body = Body::Config(Config { is_type_1: false, ..config });
        }
        self.send_down(EntryId(port as u16), packet, now);
    }

    /// Reads or writes a port's own registers.
    fn own_registers(&mut self, which: Option<EntryId>, header: &Header, config: Config, payload: &[u8]) {
        let port = match which {
            None => &mut self.upstream,
            Some(entry) => &mut self.ports[usize::from(entry.0)],
        };
        let Some(data) = payload.first_chunk::<4>().copied().filter(|_| config.is_write) else {
            let data = port.config.read(config.register);
            let (limit, boundary) = (tlp::MAX_PAYLOAD_BYTES_RESET, ReadCompletionBoundary::Bytes128);
            let id = config.target;
            self.out.extend(TlpBuf::completions(header, id, 0, &data, limit, boundary).map(SwitchOutput::Up));
            return;
        };
        let bridge_control = port.config.u16(register::BRIDGE_CONTROL);
        let slot_control = port.slot_control();
        port.write(config, data);
        let id = port.id();
        let reset_asked = bridge_control & register::BRIDGE_CONTROL_RESET == 0
            && port.config.u16(register::BRIDGE_CONTROL) & register::BRIDGE_CONTROL_RESET != 0;
        self.up(TlpBuf::completion(header, id, Status::Success));
        self.learn();
        match which {
            Some(entry) => {
                if reset_asked {
                    self.reset_slot(entry);
                }
                self.slot_control_written(entry, slot_control, config, data);
            }
            None if reset_asked => {
                for entry in 0..self.ports.len() as u16 {
                    self.reset_slot(EntryId(entry));
                }
            }
            None => {}
        }
    }

    /// Carries the ports' registers over into the table.
    fn learn(&mut self) {
        for (index, port) in self.ports.iter().enumerate() {
            let entry = EntryId(index as u16);
            let (secondary, _) = port.buses();
            self.table.learn_bus(entry, (secondary != 0).then_some(secondary), 0);
            let (memory, prefetchable) = port.windows();
            self.table.learn_windows(entry, memory, prefetchable);
        }
    }

    /// A packet from the network. It counts only if it comes from where a row's device is, in the row's epoch.
    pub fn receive_from_network(
        &mut self,
        source: NodeId,
        slot: SlotId,
        epoch: Epoch,
        packet: TlpBuf,
        now: Time,
    ) {
        let Some(entry) = self.table.by_slot(source, slot, epoch) else {
            self.violations.not_paired += 1;
            return;
        };
        let port = &self.ports[usize::from(entry.0)];
        if let Some(completion) = as_completion(&packet.header) {
            match self.transits[usize::from(entry.0)].close(completion) {
                true => self.up(packet),
                false => self.violations.unexpected_completion += 1,
            }
            return;
        }
        // Source validation: a device cannot speak in the name of a function that is not behind this port.
        if !port.has_bus(packet.header.id().requester.bus()) {
            self.violations.foreign_requester += 1;
            return;
        }
        self.on_upward(entry, packet, now);
    }

    fn on_upward(&mut self, entry: EntryId, packet: TlpBuf, now: Time) {
        match packet.header.routing() {
            Routing::Memory(address) => {
                let bus_master = self.upstream.config.bus_master();
                if !bus_master || !self.ports[usize::from(entry.0)].config.bus_master() {
                    return self.refuse_down(entry, &packet.header, now);
                }
                // An address below this switch belongs to a slot, or to no device.
                match self.upstream.claims(address) {
                    true if self.options.peer_to_peer => match self.table.by_address(address) {
                        Some(peer) if peer != entry => self.send_across(entry, peer, packet, now),
                        _ => self.refuse_down(entry, &packet.header, now),
                    },
                    _ => self.up(packet),
                }
            }
            Routing::Implicit(MessageRouting::Gather) => {
                self.turning_off.retain(|waiting| *waiting != entry);
                if self.turning_off.is_empty() {
                    self.acknowledge_turn_off();
                }
            }
            Routing::Implicit(MessageRouting::Local) => {}
            Routing::Io(_) => self.refuse_down(entry, &packet.header, now),
            // A device neither configures others nor broadcasts.
            Routing::Id(_) if matches!(packet.header.body, Body::Config(_)) => {
                self.refuse_down(entry, &packet.header, now);
            }
            Routing::Implicit(MessageRouting::Broadcast) => {}
            Routing::Id(_) | Routing::Implicit(_) => self.up(packet),
        }
    }

    /// Slots reach each other with writes. A read would need its answer to find the way back between two boxes; it goes
    /// the long way, through the root complex.
    fn send_across(&mut self, from: EntryId, to: EntryId, packet: TlpBuf, now: Time) {
        match packet.header.class() {
            Class::Posted => self.send_down(to, packet, now),
            _ => self.refuse_down(from, &packet.header, now),
        }
    }

    /// Tells a device that its request has no target.
    fn refuse_down(&mut self, entry: EntryId, header: &Header, now: Time) {
        if header.class() == Class::NonPosted {
            let completer = self.ports[usize::from(entry.0)].id();
            self.send_down(entry, TlpBuf::completion(header, completer, Status::UnsupportedRequest), now);
        }
    }

    fn acknowledge_turn_off(&mut self) {
        let ack = Header::message(self.upstream.id(), MessageRouting::Gather, code::PME_TO_ACK);
        self.up(TlpBuf::bare(ack));
    }

    /// Answers for devices that did not.
    pub fn on_tick(&mut self, now: Time) {
        for entry in 0..self.ports.len() {
            let late = self.transits[entry].take_late(now);
            if !late.is_empty() {
                self.ports[entry].report(register::ERROR_TIMEOUT);
            }
            self.fail_all(EntryId(entry as u16), late);
        }
    }

    /// When [`Switch::on_tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        self.transits.iter().filter_map(Transit::wake_at).min()
    }

    fn fail_all(&mut self, entry: EntryId, requests: Vec<Header>) {
        let completer = self.ports[usize::from(entry.0)].id();
        for header in requests {
            self.up(TlpBuf::completion(&header, completer, Status::UnsupportedRequest));
        }
    }

    /// What a port is called.
    pub fn port_id(&self, entry: EntryId) -> Option<Bdf> {
        self.ports.get(usize::from(entry.0)).map(Port::id)
    }
}
