//! A port: a Type 1 bridge.

use tlp::{Bdf, Config};

use crate::config::{
    Builder, ConfigSpace, DeviceType, Identity, Slot, find_capability, find_extended, register,
};
use crate::tables::Window;

/// One port of the switch.
pub(super) struct Port {
    pub(super) config: ConfigSpace,
    id: Bdf,
    express: u16,
}

const UPSTREAM: Identity = Identity { vendor: 0x1b36, device: 0xd801, class: 0x06_04_00, revision: 0 };
const DOWNSTREAM: Identity = Identity { vendor: 0x1b36, device: 0xd802, class: 0x06_04_00, revision: 0 };

impl Port {
    pub(super) fn upstream() -> Self {
        Self::new(Builder::bridge(UPSTREAM).express(DeviceType::Upstream).msi(1).aer().build())
    }

    pub(super) fn downstream(number: u16) -> Self {
        let builder = Builder::bridge(DOWNSTREAM).express(DeviceType::Downstream).slot(Slot { number });
        Self::new(builder.msi(1).aer().build())
    }

    fn new(config: ConfigSpace) -> Self {
        let express = find_capability(&config, register::EXPRESS_ID).expect("every port has one");
        Self { config, id: Bdf::default(), express }
    }

    /// As the last configuration write called it.
    pub(super) fn id(&self) -> Bdf {
        self.id
    }

    pub(super) fn write(&mut self, config: Config, data: [u8; 4]) {
        self.id = config.target;
        self.config.write(config.register, config.first_enable, data);
    }

    /// Secondary and subordinate bus.
    pub(super) fn buses(&self) -> (u8, u8) {
        (self.config.u8(register::BUSES + 1), self.config.u8(register::BUSES + 2))
    }

    /// Whether a bus is behind this port.
    pub(super) fn has_bus(&self, bus: u8) -> bool {
        let (secondary, subordinate) = self.buses();
        secondary != 0 && (secondary..=subordinate).contains(&bus)
    }

    /// The memory window and the prefetchable one; none while closed (base above limit) or memory is off.
    pub(super) fn windows(&self) -> (Option<Window>, Option<Window>) {
        if !self.config.memory_enabled() {
            return (None, None);
        }
        let open = |base: u64, limit: u64| (base <= limit).then_some(Window { base, limit });
        let mib = |at: u16| u64::from(self.config.u16(at) & 0xfff0) << 16;
        let memory = open(mib(register::MEMORY_WINDOW), mib(register::MEMORY_WINDOW + 2) | 0xf_ffff);
        let high = |at: u16| u64::from(self.config.u32(at)) << 32;
        let base = high(register::PREFETCHABLE_BASE_HIGH) | mib(register::PREFETCHABLE_WINDOW);
        let limit =
            high(register::PREFETCHABLE_LIMIT_HIGH) | mib(register::PREFETCHABLE_WINDOW + 2) | 0xf_ffff;
        (memory, open(base, limit))
    }

    /// Whether an address is behind this port.
    pub(super) fn claims(&self, address: u64) -> bool {
        let (memory, prefetchable) = self.windows();
        [memory, prefetchable].iter().flatten().any(|window| window.contains(address))
    }

    pub(super) fn slot_control(&self) -> u16 {
        self.config.u16(self.express + register::EXPRESS_SLOT_CONTROL)
    }

    /// Where slot control is.
    pub(super) fn slot_control_at(&self) -> u16 {
        self.express + register::EXPRESS_SLOT_CONTROL
    }

    pub(super) fn slot_status(&self) -> u16 {
        self.config.u16(self.express + register::EXPRESS_SLOT_STATUS)
    }

    pub(super) fn set_slot_status(&mut self, value: u16) {
        self.config.set_u16(self.express + register::EXPRESS_SLOT_STATUS, value);
    }

    pub(super) fn set_link(&mut self, is_up: bool) {
        let at = self.express + register::EXPRESS_LINK_STATUS;
        let status = self.config.u16(at) & !register::LINK_STATUS_ACTIVE;
        self.config.set_u16(at, if is_up { status | register::LINK_STATUS_ACTIVE } else { status });
    }

    /// Notes an uncorrectable error.
    pub(super) fn report(&mut self, error: u32) {
        if let Some(at) = find_extended(&self.config, register::AER_ID) {
            self.config.set_bits(at + register::AER_UNCORRECTABLE, error);
        }
    }
}
