//! Where registers are and what their bits mean.

/// Vendor and device.
pub const ID: u16 = 0x00;
/// Command.
pub const COMMAND: u16 = 0x04;
/// Answer to I/O addresses.
pub const COMMAND_IO: u16 = 1 << 0;
/// Answer to memory addresses.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Send requests.
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// Status.
pub const STATUS: u16 = 0x06;
/// Status: there is a list of capabilities.
pub const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Revision and class.
pub const CLASS: u16 = 0x08;
/// Header type.
pub const HEADER_TYPE: u16 = 0x0e;
/// The first base address register.
pub const BAR0: u16 = 0x10;
/// Head of the list of capabilities.
pub const CAPABILITIES: u16 = 0x34;

/// Type 1: primary, secondary and subordinate bus.
pub const BUSES: u16 = 0x18;
/// Type 1: memory base and limit, in MiB.
pub const MEMORY_WINDOW: u16 = 0x20;
/// Type 1: prefetchable base and limit.
pub const PREFETCHABLE_WINDOW: u16 = 0x24;
/// Type 1: upper half of the prefetchable base.
pub const PREFETCHABLE_BASE_HIGH: u16 = 0x28;
/// Type 1: upper half of the prefetchable limit.
pub const PREFETCHABLE_LIMIT_HIGH: u16 = 0x2c;
/// Type 1: bridge control.
pub const BRIDGE_CONTROL: u16 = 0x3e;
/// Bridge control: reset the secondary bus.
pub const BRIDGE_CONTROL_RESET: u16 = 1 << 6;

/// Power management capability.
pub const PM_ID: u8 = 0x01;
/// MSI capability.
pub const MSI_ID: u8 = 0x05;
/// PCI Express capability.
pub const EXPRESS_ID: u8 = 0x10;
/// MSI-X capability.
pub const MSIX_ID: u8 = 0x11;
/// Advanced error reporting, an extended capability.
pub const AER_ID: u16 = 0x0001;

/// Express: device capabilities, from the capability.
pub const EXPRESS_DEVICE_CAP: u16 = 0x04;
/// Express: device control.
pub const EXPRESS_DEVICE_CONTROL: u16 = 0x08;
/// Device control: 8-bit tags.
pub const DEVICE_CONTROL_EXTENDED_TAG: u16 = 1 << 8;
/// Device control: reset the function.
pub const DEVICE_CONTROL_FLR: u16 = 1 << 15;
/// Express: link status.
pub const EXPRESS_LINK_STATUS: u16 = 0x12;
/// Link status: the link is up.
pub const LINK_STATUS_ACTIVE: u16 = 1 << 13;
/// Express: slot control.
pub const EXPRESS_SLOT_CONTROL: u16 = 0x18;
/// Slot control: interrupt on hot-plug events.
pub const SLOT_CONTROL_INTERRUPT: u16 = 1 << 5;
/// Slot control: interrupt on attention button.
pub const SLOT_CONTROL_BUTTON: u16 = 1 << 0;
/// Slot control: interrupt on presence changes.
pub const SLOT_CONTROL_PRESENCE: u16 = 1 << 3;
/// Slot control: interrupt when a command is done.
pub const SLOT_CONTROL_COMMAND: u16 = 1 << 4;
/// Slot control: the power is off.
pub const SLOT_CONTROL_POWER_OFF: u16 = 1 << 10;
/// Slot control: interrupt when the link comes or goes.
pub const SLOT_CONTROL_LINK: u16 = 1 << 12;
/// Express: slot status.
pub const EXPRESS_SLOT_STATUS: u16 = 0x1a;
/// Slot status: the attention button was pressed.
pub const SLOT_STATUS_BUTTON: u16 = 1 << 0;
/// Slot status: presence changed.
pub const SLOT_STATUS_PRESENCE_CHANGED: u16 = 1 << 3;
/// Slot status: a command is done.
pub const SLOT_STATUS_COMMAND_DONE: u16 = 1 << 4;
/// Slot status: a card is there.
pub const SLOT_STATUS_PRESENT: u16 = 1 << 6;
/// Slot status: the link came or went.
pub const SLOT_STATUS_LINK_CHANGED: u16 = 1 << 8;
/// Express: device control 2.
pub const EXPRESS_DEVICE_CONTROL_2: u16 = 0x28;
/// Device control 2: 10-bit tags.
pub const DEVICE_CONTROL_2_TEN_BIT_TAGS: u16 = 1 << 12;

/// Power management: control and status, from the capability.
pub const PM_CONTROL: u16 = 0x04;

/// MSI: control, from the capability.
pub const MSI_CONTROL: u16 = 0x02;
/// MSI control: on.
pub const MSI_CONTROL_ENABLE: u16 = 1 << 0;
/// MSI: address, from the capability.
pub const MSI_ADDRESS: u16 = 0x04;
/// MSI with 64-bit addresses: data, from the capability.
pub const MSI_DATA: u16 = 0x0c;

/// MSI-X: control, from the capability.
pub const MSIX_CONTROL: u16 = 0x02;
/// MSI-X control: on.
pub const MSIX_CONTROL_ENABLE: u16 = 1 << 15;
/// MSI-X control: all vectors masked.
pub const MSIX_CONTROL_MASK: u16 = 1 << 14;
/// MSI-X: BAR and offset of the table, from the capability.
pub const MSIX_TABLE: u16 = 0x04;
/// MSI-X: BAR and offset of the pending bits.
pub const MSIX_PENDING: u16 = 0x08;

/// AER: uncorrectable errors that were seen, from the capability.
pub const AER_UNCORRECTABLE: u16 = 0x04;
/// AER: which of them to keep quiet about.
pub const AER_UNCORRECTABLE_MASK: u16 = 0x08;
/// AER: which of them are fatal.
pub const AER_SEVERITY: u16 = 0x0c;
/// AER: correctable errors that were seen.
pub const AER_CORRECTABLE: u16 = 0x10;
/// AER: header of the packet that caused the first of them.
pub const AER_HEADER_LOG: u16 = 0x1c;

/// The link went down by surprise.
pub const ERROR_SURPRISE_DOWN: u32 = 1 << 5;
/// A packet's payload was known to be bad.
pub const ERROR_POISONED: u32 = 1 << 12;
/// A request was never answered.
pub const ERROR_TIMEOUT: u32 = 1 << 14;
/// A request was aborted.
pub const ERROR_COMPLETER_ABORT: u32 = 1 << 15;
/// A completion that answers no open request.
pub const ERROR_UNEXPECTED_COMPLETION: u32 = 1 << 16;
/// A packet that breaks the rules.
pub const ERROR_MALFORMED: u32 = 1 << 18;
/// A request that the function does not support.
pub const ERROR_UNSUPPORTED: u32 = 1 << 20;
