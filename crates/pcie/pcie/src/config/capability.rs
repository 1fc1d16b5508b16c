//! The two lists of capabilities.

use super::{ConfigSpace, register};

/// What a PCI Express function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DeviceType {
    /// An endpoint.
    Endpoint = 0,
    /// The port of a switch that looks at the root complex.
    Upstream = 5,
    /// A port of a switch that a device is plugged into.
    Downstream = 6,
}

/// A slot behind a downstream port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Printed on the box: 13 bits.
    pub number: u16,
}

/// All capabilities, as (ID, place). A list that bites its tail ends after 48, the most there is room for.
pub fn capabilities(config: &ConfigSpace) -> impl Iterator<Item = (u8, u16)> {
    let mut at = u16::from(config.u8(register::CAPABILITIES)) & 0xfc;
    let has_list = config.u16(register::STATUS) & register::STATUS_CAPABILITIES != 0;
    let mut left = if has_list { 48 } else { 0 };
    std::iter::from_fn(move || {
        if at < 0x40 || left == 0 {
            return None;
        }
        left -= 1;
        let here = at;
        at = u16::from(config.u8(here + 1)) & 0xfc;
        Some((config.u8(here), here))
    })
}

/// The place of the capability with this ID.
pub fn find_capability(config: &ConfigSpace, id: u8) -> Option<u16> {
    capabilities(config).find(|(found, _)| *found == id).map(|(_, at)| at)
}

/// The place of the extended capability with this ID.
pub fn find_extended(config: &ConfigSpace, id: u16) -> Option<u16> {
    let mut at = 0x100;
    for _ in 0..480 {
        let header = config.u32(at);
        if header == 0 {
            return None;
        }
        if header as u16 == id {
            return Some(at);
        }
        at = (header >> 20) as u16 & 0xffc;
        if at < 0x100 {
            return None;
        }
    }
    None
}
