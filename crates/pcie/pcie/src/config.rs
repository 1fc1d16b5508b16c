//! Configuration space: 4 KiB of registers with rights for every bit.

mod bars;
mod build;
mod capability;
pub mod register;

pub use bars::{Bar, BarKind, BarWindow};
pub use build::{Builder, Identity};
pub use capability::{DeviceType, Slot, capabilities, find_capability, find_extended};

/// Configuration space of one function.
///
/// Every bit is read-only, writable, or cleared by writing one. What a write *means* is up to the owner, which looks
/// at the registers after it.
#[derive(Clone)]
pub struct ConfigSpace {
    value: Box<[u8; 4096]>,
    writable: Box<[u8; 4096]>,
    cleared_by_one: Box<[u8; 4096]>,
    initial: Box<[u8; 4096]>,
    bars: [Option<Bar>; 6],
    is_bridge: bool,
}

impl ConfigSpace {
    /// Four bytes at a multiple of 4.
    pub fn read(&self, at: u16) -> [u8; 4] {
        let at = usize::from(at & 0xffc);
        [self.value[at], self.value[at + 1], self.value[at + 2], self.value[at + 3]]
    }

    /// Writes the enabled ones of four bytes, within the rights.
    pub fn write(&mut self, at: u16, enables: u8, data: [u8; 4]) {
        let at = usize::from(at & 0xffc);
        for byte in (0..4).filter(|byte| enables >> byte & 1 != 0) {
            let (writable, clear) = (self.writable[at + byte], self.cleared_by_one[at + byte]);
            let old = self.value[at + byte];
            self.value[at + byte] = (old & !writable | data[byte] & writable) & !(data[byte] & clear);
        }
    }

    /// Two bytes, as the owner sees them.
    pub fn u16(&self, at: u16) -> u16 {
        let at = usize::from(at);
        u16::from_le_bytes([self.value[at], self.value[at + 1]])
    }

    /// Four bytes, as the owner sees them.
    pub fn u32(&self, at: u16) -> u32 {
        let at = usize::from(at);
        u32::from_le_bytes([self.value[at], self.value[at + 1], self.value[at + 2], self.value[at + 3]])
    }

    /// One byte.
    pub fn u8(&self, at: u16) -> u8 {
        self.value[usize::from(at)]
    }

    /// The owner sets two bytes, whatever the rights.
    pub fn set_u16(&mut self, at: u16, value: u16) {
        let at = usize::from(at);
        self.value[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// The owner sets bits of four bytes.
    pub fn set_bits(&mut self, at: u16, bits: u32) {
        let value = self.u32(at) | bits;
        let at = usize::from(at);
        self.value[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8; 4096] {
        &self.value
    }

    /// As after a reset. What errors were seen survives, as the specification has it for sticky registers.
    pub fn reset(&mut self) {
        let errors =
            find_extended(self, register::AER_ID).map(|at| (at, self.u32(at + 4), self.u32(at + 16)));
        *self.value = *self.initial;
        if let Some((at, uncorrectable, correctable)) = errors {
            self.set_bits(at + 4, uncorrectable);
            self.set_bits(at + 16, correctable);
        }
    }

    /// Whether it is a Type 1 header.
    pub fn is_bridge(&self) -> bool {
        self.is_bridge
    }

    /// The command register allows this function to answer to memory addresses.
    pub fn memory_enabled(&self) -> bool {
        self.u16(register::COMMAND) & register::COMMAND_MEMORY != 0
    }

    /// The command register allows this function to send requests.
    pub fn bus_master(&self) -> bool {
        self.u16(register::COMMAND) & register::COMMAND_BUS_MASTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ConfigSpace {
        let identity = Identity { vendor: 0x1b36, device: 0x10, class: 0x01_08_02, revision: 1 };
        Builder::endpoint(identity)
            .bar(0, BarKind::Memory64, 16384)
            .bar(2, BarKind::Memory32, 4096)
            .express(DeviceType::Endpoint)
            .msi(4)
            .aer()
            .build()
    }

    #[test]
    fn only_writable_bits_change_and_only_enabled_bytes() {
        let mut config = example();
        config.write(0, 0xf, [0xff; 4]);
        assert_eq!(config.u32(0), 0x0010_1b36);
        config.write(4, 0b0001, [0xff; 4]);
        assert_eq!(config.u16(4), 0x0046);
        config.write(4, 0b0010, [0xff; 4]);
        assert_eq!(config.u16(4), 0x0546);
    }

    #[test]
    fn a_bar_shows_its_size_and_then_holds_its_address() {
        let mut config = example();
        config.write(0x10, 0xf, [0xff; 4]);
        config.write(0x14, 0xf, [0xff; 4]);
        assert_eq!((config.u32(0x10), config.u32(0x14)), (0xffff_c004, 0xffff_ffff));
        config.write(0x18, 0xf, [0xff; 4]);
        assert_eq!(config.u32(0x18), 0xffff_f000);
        config.write(0x10, 0xf, 0x8001_0000u32.to_le_bytes());
        config.write(0x14, 0xf, 0x12u32.to_le_bytes());
        let window = config.bar_window(0).unwrap();
        assert_eq!((window.base, window.size), (0x12_8001_0000, 16384));
        assert_eq!(config.decode(0x12_8001_0010, 4), None, "memory is not enabled");
        config.write(4, 0xf, [2, 0, 0, 0]);
        assert_eq!(config.decode(0x12_8001_0010, 4), Some((0, 0x10)));
        assert_eq!(config.decode(0x12_8001_3ffe, 4), None, "no access leaves its BAR");
        assert_eq!(config.bar_window(1), None, "the upper half is no BAR of its own");
    }

    #[test]
    fn status_bits_are_cleared_by_ones() {
        let mut config = example();
        let aer = find_extended(&config, register::AER_ID).unwrap();
        config.set_bits(aer + 4, register::ERROR_UNSUPPORTED | register::ERROR_TIMEOUT);
        config.write(aer + 4, 0xf, register::ERROR_TIMEOUT.to_le_bytes());
        assert_eq!(config.u32(aer + 4), register::ERROR_UNSUPPORTED);
        config.write(4, 1, [6, 0, 0, 0]);
        config.reset();
        assert_eq!(config.u16(4), 0);
        assert_eq!(config.u32(aer + 4), register::ERROR_UNSUPPORTED, "errors outlive a reset");
    }

    #[test]
    fn capabilities_are_found_and_the_list_ends() {
        let config = example();
        let ids: Vec<u8> = capabilities(&config).map(|(id, _)| id).collect();
        assert_eq!(ids, [register::PM_ID, register::MSI_ID, register::EXPRESS_ID]);
        assert!(find_capability(&config, register::MSIX_ID).is_none());
    }
}
