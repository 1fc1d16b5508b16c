//! A host: it plugs and unplugs what it is told, sometimes late, and forgets what it did when it restarts.

use super::network::{Happening, Party};
use super::world::World;
use pool_api::{GpuId, HostOrders, HostReport, HostSlotReport, HostWant, Name};

#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: Name,
    pub(super) bays: Vec<Bay>,
    /// Counts runs of the proxy.
    run: u64,
    sequence: u64,
    pub(super) down_until_ms: Option<u64>,
    pub(super) frozen_until_ms: u64,
}

/// One slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Bay {
    bound: u64,
    cleared: u64,
    plugged: Option<(GpuId, u64)>,
    /// The guest does not let go before.
    pub(super) stubborn_until_ms: u64,
}

impl Host {
    pub(super) fn new(name: Name, slots: usize) -> Self {
        Self {
            name,
            bays: vec![Bay::default(); slots],
            run: 1,
            sequence: 0,
            down_until_ms: None,
            frozen_until_ms: 0,
        }
    }

    fn report(&mut self) -> HostReport {
        self.sequence += 1;
        let slot = |(number, bay): (usize, &Bay)| HostSlotReport {
            slot: number as u8,
            bound_epoch: bay.bound,
            cleared_epoch: bay.cleared,
            plugged: bay.plugged.is_some(),
            monitor_silent: false,
            detail: String::new(),
        };
        HostReport {
            agent: format!("run-{}", self.run),
            sequence: self.sequence,
            paths: vec!["udp:127.0.0.1:7100".into()],
            slots: self.bays.iter().enumerate().map(slot).collect(),
        }
    }
}

impl World {
    /// The host reports, to every manager it knows.
    pub(super) fn wake_host(&mut self, index: usize) {
        let at_ms = self.now_ms;
        if let Some(until_ms) = self.hosts[index].down_until_ms {
            if at_ms < until_ms {
                return self.agenda.put(until_ms, Happening::Wake(Party::Host(index)));
            }
            self.start_host(index);
        }
        let host = &mut self.hosts[index];
        if at_ms < host.frozen_until_ms {
            let until_ms = host.frozen_until_ms;
            return self.agenda.put(until_ms, Happening::Wake(Party::Host(index)));
        }
        // An answer belongs to the process that asked: one that starts anew does not hear what the last one was told.
        let (report, name) = (host.report(), host.name.clone());
        let request = host.run << 32 | host.sequence;
        for manager in 0..self.managers.len() {
            let command = crate::Command::ReportHost { host: name.clone(), report: report.clone() };
            self.ask(manager, Party::Host(index), request, command);
        }
        let after_ms = 600 + u64::from(self.chance(700));
        self.agenda.put(at_ms + after_ms, Happening::Wake(Party::Host(index)));
    }

    /// The proxy dies, and every device of its guests with it.
    pub(super) fn crash_host(&mut self, index: usize, for_ms: u64) {
        for slot in 0..self.hosts[index].bays.len() {
            self.unplug(index, slot);
        }
        self.hosts[index].down_until_ms = Some(self.now_ms + for_ms);
        self.hosts[index].run += 1;
    }

    fn start_host(&mut self, index: usize) {
        let remembers = self.chance(3);
        let host = &mut self.hosts[index];
        host.down_until_ms = None;
        host.sequence = 0;
        for bay in &mut host.bays {
            match remembers {
                0 => (bay.bound, bay.cleared) = (0, 0),
                1 => bay.cleared = bay.cleared.max(bay.bound),
                _ => {}
            }
        }
    }

    /// Orders arrive: only the answer to the latest report counts.
    pub(super) fn obey_host(&mut self, index: usize, request: u64, orders: &HostOrders) {
        let host = &self.hosts[index];
        let is_up = host.down_until_ms.is_none() && self.now_ms >= host.frozen_until_ms;
        if !is_up || request != (host.run << 32 | host.sequence) {
            return;
        }
        for order in &orders.slots {
            let number = usize::from(order.slot);
            // What takes time is done after the next report, or the one after that.
            if !self.is_closing() && self.chance(3) == 0 {
                continue;
            }
            match &order.want {
                HostWant::Plug { gpu, epoch, .. } => self.plug(index, number, gpu, *epoch),
                HostWant::Unplug { epoch } => {
                    let bay = &self.hosts[index].bays[number];
                    if self.now_ms < bay.stubborn_until_ms && !self.is_closing() {
                        continue;
                    }
                    if bay.plugged.as_ref().is_some_and(|(_, plugged)| plugged <= epoch) {
                        self.unplug(index, number);
                    }
                    let bay = &mut self.hosts[index].bays[number];
                    bay.cleared = bay.cleared.max(*epoch);
                }
                HostWant::Empty => {
                    self.unplug(index, number);
                    let bay = &mut self.hosts[index].bays[number];
                    bay.cleared = bay.cleared.max(bay.bound);
                }
            }
        }
    }

    fn plug(&mut self, index: usize, number: usize, gpu: &GpuId, epoch: u64) {
        let bay = &self.hosts[index].bays[number];
        let is_there = bay.plugged.as_ref() == Some(&(gpu.clone(), epoch));
        if is_there || epoch <= bay.cleared {
            return;
        }
        let name = self.hosts[index].name.clone();
        let is_bound = self.is_bound(gpu, epoch);
        self.checker.plugged(self.now_ms, (&name, number as u8), gpu, epoch, is_bound);
        let bay = &mut self.hosts[index].bays[number];
        bay.plugged = Some((gpu.clone(), epoch));
        bay.bound = bay.bound.max(epoch);
    }

    fn unplug(&mut self, index: usize, number: usize) {
        let host = &mut self.hosts[index];
        if host.bays[number].plugged.take().is_some() {
            self.checker.unplugged((&host.name, number as u8));
        }
    }

    /// A guest is gone, and with it what was plugged into one slot.
    pub(super) fn give_up(&mut self, index: usize, number: usize) {
        self.unplug(index, number);
        let bay = &mut self.hosts[index].bays[number];
        bay.cleared = bay.cleared.max(bay.bound);
    }
}
