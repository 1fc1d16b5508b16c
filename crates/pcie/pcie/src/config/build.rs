//! Puts a configuration space together.

use super::{Bar, BarKind, ConfigSpace, DeviceType, Slot, register};
use tlp::SizeLimit;

/// The largest payload our functions take: what a page needs, so that a page can be one packet.
const MAX_PAYLOAD: u32 = 4096;

/// The vendor of a function and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Base class, subclass, programming interface.
    pub class: u32,
    /// Revision.
    pub revision: u8,
}

/// Collects what a function has. Capabilities are listed in ascending order of their place.
pub struct Builder {
    space: ConfigSpace,
    express: Option<u16>,
}

// Every capability has a place of its own, so that the order of the calls does not matter to what a driver sees.
const PM_AT: u16 = 0x40;
const MSI_AT: u16 = 0x50;
const MSIX_AT: u16 = 0x70;
const EXPRESS_AT: u16 = 0x80;
const AER_AT: u16 = 0x100;

impl Builder {
    /// A Type 0 header.
    pub fn endpoint(identity: Identity) -> Self {
        let mut builder = Self::header(identity, false);
        // Interrupt line and pin, latency: nothing uses them, drivers may still store a number there.
        builder.field(0x3c, &[0], &[0xff], &[]);
        builder
    }

    /// A Type 1 header.
    pub fn bridge(identity: Identity) -> Self {
        let mut builder = Self::header(identity, true);
        builder.field(register::HEADER_TYPE, &[1], &[], &[]);
        builder.field(register::BUSES, &[0; 4], &[0xff, 0xff, 0xff, 0], &[]);
        // Windows in MiB, the prefetchable one of 64 bits. Base above limit: closed.
        builder.field(register::MEMORY_WINDOW, &[0xf0, 0xff, 0, 0], &[0xf0, 0xff, 0xf0, 0xff], &[]);
        builder.field(register::PREFETCHABLE_WINDOW, &[0xf1, 0xff, 1, 0], &[0xf0, 0xff, 0xf0, 0xff], &[]);
        builder.field(register::PREFETCHABLE_BASE_HIGH, &[0; 8], &[0xff; 8], &[]);
        builder.field(0x3c, &[0], &[0xff], &[]);
        builder.field(register::BRIDGE_CONTROL, &[0, 0], &[0x43, 0], &[]);
        builder
    }

    fn header(identity: Identity, is_bridge: bool) -> Self {
        let space = ConfigSpace {
            value: Box::new([0; 4096]),
            writable: Box::new([0; 4096]),
            cleared_by_one: Box::new([0; 4096]),
            initial: Box::new([0; 4096]),
            bars: [None; 6],
            is_bridge,
        };
        let mut builder = Self { space, express: None };
        let id = u32::from(identity.device) << 16 | u32::from(identity.vendor);
        builder.field(register::ID, &id.to_le_bytes(), &[], &[]);
        // Memory, bus master, parity and SERR reporting, INTx off.
        builder.field(register::COMMAND, &[0, 0], &[0x46, 0x05], &[]);
        builder.field(register::STATUS, &register::STATUS_CAPABILITIES.to_le_bytes(), &[], &[0, 0xf9]);
        let class = identity.class << 8 | u32::from(identity.revision);
        builder.field(register::CLASS, &class.to_le_bytes(), &[], &[]);
        builder
    }

    fn field(&mut self, at: u16, value: &[u8], writable: &[u8], cleared_by_one: &[u8]) {
        let at = usize::from(at);
        self.space.value[at..at + value.len()].copy_from_slice(value);
        self.space.writable[at..at + writable.len()].copy_from_slice(writable);
        self.space.cleared_by_one[at..at + cleared_by_one.len()].copy_from_slice(cleared_by_one);
    }

    /// The subsystem, as drivers that look for boards want it.
    pub fn subsystem(mut self, vendor: u16, device: u16) -> Self {
        let id = u32::from(device) << 16 | u32::from(vendor);
        self.field(0x2c, &id.to_le_bytes(), &[], &[]);
        self
    }

    /// A base address register. `size` is a power of two, at least 16.
    ///
    /// # Panics
    ///
    /// When `size` or `index` cannot be: devices are built from constants.
    pub fn bar(mut self, index: u8, kind: BarKind, size: u64) -> Self {
        assert!(size.is_power_of_two() && size >= 16 && index < 6);
        let at = register::BAR0 + 4 * u16::from(index);
        let mask = !(size - 1);
        let low = (mask as u32 & !0xf).to_le_bytes();
        match kind {
            BarKind::Memory32 => {
                assert!(size <= 1 << 31);
                self.field(at, &[0; 4], &low, &[]);
            }
            BarKind::Memory64 | BarKind::Prefetchable64 => {
                assert!(index < 5);
                let flags = if kind == BarKind::Prefetchable64 { 0xc } else { 0x4 };
                self.field(at, &[flags, 0, 0, 0], &low, &[]);
                self.field(at + 4, &[0; 4], &((mask >> 32) as u32).to_le_bytes(), &[]);
            }
        }
        self.space.bars[usize::from(index)] = Some(Bar { kind, size });
        self
    }

    fn link(&mut self, at: u16, id: u8) {
        self.space.value[usize::from(at)] = id;
    }

    /// Power management: D0 and D3hot.
    fn power_management(&mut self) {
        self.link(PM_AT, register::PM_ID);
        // Version 3; no reset on the way from D3hot to D0.
        self.field(PM_AT + 2, &[0x03, 0x00, 0x08, 0x00], &[0, 0, 0x03, 0], &[]);
    }

    /// MSI with a 64-bit address and up to 2^`log` vectors (at most 32).
    pub fn msi(mut self, vectors: u8) -> Self {
        let log = vectors.clamp(1, 32).next_power_of_two().trailing_zeros() as u8;
        self.link(MSI_AT, register::MSI_ID);
        let control = [0x80 | log << 1, 0];
        self.field(MSI_AT + 2, &control, &[0x71, 0], &[]);
        self.field(MSI_AT + 4, &[0; 10], &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[]);
        self
    }

    /// MSI-X with its table at `table_offset` and its pending bits at `pending_offset` of `bar`.
    pub fn msix(mut self, vectors: u16, bar: u8, table_offset: u32, pending_offset: u32) -> Self {
        assert!(
            (1..=2048).contains(&vectors) && bar < 6 && (table_offset | pending_offset).is_multiple_of(8)
        );
        self.link(MSIX_AT, register::MSIX_ID);
        self.field(MSIX_AT + 2, &(vectors - 1).to_le_bytes(), &[0, 0xc0], &[]);
        self.field(MSIX_AT + 4, &(table_offset | u32::from(bar)).to_le_bytes(), &[], &[]);
        self.field(MSIX_AT + 8, &(pending_offset | u32::from(bar)).to_le_bytes(), &[], &[]);
        self
    }

    /// The PCI Express capability.
    pub fn express(mut self, kind: DeviceType) -> Self {
        self.link(EXPRESS_AT, register::EXPRESS_ID);
        self.express = Some(EXPRESS_AT);
        self.field(EXPRESS_AT + 2, &[(kind as u8) << 4 | 2, 0], &[], &[]);
        let payload = SizeLimit::new(MAX_PAYLOAD).expect("a size of the specification").to_bits();
        // Extended tags, role-based errors; endpoints can be reset by function.
        let reset = if kind == DeviceType::Endpoint { 1 << 28 } else { 0 };
        let capabilities = u32::from(payload) | 1 << 5 | 1 << 15 | reset;
        self.field(EXPRESS_AT + 4, &capabilities.to_le_bytes(), &[], &[]);
        // MPS 128, MRRS 512, relaxed ordering and no-snoop allowed, as after every reset.
        self.field(EXPRESS_AT + 8, &[0x10, 0x28, 0, 0], &[0xff, 0x7f], &[0, 0, 0x0f, 0]);
        // A link of 16 lanes at 16 GT/s, up; nothing here slows packets to that.
        let reporting = if kind == DeviceType::Downstream { 1 << 20 | 1 << 19 } else { 0 };
        self.field(EXPRESS_AT + 0xc, &(0x0000_0104u32 | reporting).to_le_bytes(), &[], &[]);
        self.field(EXPRESS_AT + 0x10, &[0, 0, 0x04, 0x01], &[0xf3, 0x0f, 0, 0], &[]);
        // Completion timeout ranges, 10-bit tags as completer and requester, AtomicOps none.
        self.field(EXPRESS_AT + 0x24, &(0x1fu32 | 3 << 16).to_le_bytes(), &[], &[]);
        self.field(EXPRESS_AT + 0x28, &[0, 0], &[0x1f, 0x10], &[]);
        self.field(EXPRESS_AT + 0x2c, &[0x1e, 0, 0, 0], &[], &[]);
        self.field(EXPRESS_AT + 0x30, &[0x04, 0], &[0x0f, 0], &[]);
        self
    }

    /// A hot-plug slot with button, indicators and power control. Call it after [`Builder::express`].
    pub fn slot(mut self, slot: Slot) -> Self {
        let at = self.express.expect("a slot belongs to a PCI Express port");
        self.space.value[usize::from(at + 3)] |= 1;
        // Button, power controller, both indicators, surprise, capable.
        let capabilities = 0b111_1011 | u32::from(slot.number) << 19;
        self.field(at + 0x14, &capabilities.to_le_bytes(), &[], &[]);
        // Indicators off and power off until something is plugged.
        self.field(at + 0x18, &[0xc0, 0x07, 0, 0], &[0xff, 0x1f], &[0, 0, 0x1f, 0x01]);
        self
    }

    /// Advanced error reporting.
    pub fn aer(mut self) -> Self {
        let header = u32::from(register::AER_ID) | 2 << 16;
        self.field(AER_AT, &header.to_le_bytes(), &[], &[]);
        let errors = 0x0027_f030u32.to_le_bytes();
        self.field(AER_AT + 4, &[0; 4], &[], &errors);
        self.field(AER_AT + 8, &[0; 4], &errors, &[]);
        self.field(AER_AT + 0xc, &0x0006_2030u32.to_le_bytes(), &errors, &[]);
        self.field(AER_AT + 0x10, &[0; 4], &[], &0x0000_31c1u32.to_le_bytes());
        self.field(AER_AT + 0x14, &0x0000_2000u32.to_le_bytes(), &0x0000_31c1u32.to_le_bytes(), &[]);
        self
    }

    /// The finished space, as after a reset.
    pub fn build(mut self) -> ConfigSpace {
        self.power_management();
        // Link what is there, in ascending order.
        let present: Vec<u16> = [PM_AT, MSI_AT, MSIX_AT, EXPRESS_AT]
            .into_iter()
            .filter(|at| self.space.value[usize::from(*at)] != 0)
            .collect();
        self.space.value[usize::from(register::CAPABILITIES)] = present[0] as u8;
        for pair in present.windows(2) {
            self.space.value[usize::from(pair[0] + 1)] = pair[1] as u8;
        }
        *self.space.initial = *self.space.value;
        self.space
    }
}
