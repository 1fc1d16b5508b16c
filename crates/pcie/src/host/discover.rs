//! Looks at a device before the guest does: its BARs, its capabilities.

use super::{HostOutput, HostPort, OWN_JOB};
use crate::config::register;
use crate::flow::JobId;

/// A BAR that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveredBar {
    /// In bytes.
    pub size: u64,
    /// It takes the next register too.
    pub is_64_bit: bool,
    /// Reads have no side effects.
    pub is_prefetchable: bool,
}

/// What a device is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// Vendor and device.
    pub id: (u16, u16),
    /// By number; the upper half of a 64-bit BAR is none.
    pub bars: [Option<DiscoveredBar>; 6],
    /// MSI vectors.
    pub msi: u32,
    /// MSI-X vectors.
    pub msix: u32,
    pub(super) msi_at: Option<u16>,
    pub(super) msi_is_64_bit: bool,
    pub(super) express: Option<u16>,
    pub(super) msix_table: Option<(u8, u64)>,
    /// The byte that leads to the MSI-X capability, and where it leads to without it.
    pub(super) msix_link: Option<(u8, u8)>,
}

/// Why a device could not be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// Nothing answers.
    #[error("no device answers")]
    NoDevice,
    /// It is a bridge: slots are for devices.
    #[error("the device is a bridge")]
    Bridge,
}

/// How far the look has come.
pub(super) enum Stage {
    Header,
    Sizing(Box<[u8; 256]>),
    Sizes(Box<[u8; 256]>),
    Restoring(Discovery),
}

const BAR_REGISTERS: [u16; 6] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24];

impl HostPort {
    /// Looks at the device. The answer is [`HostOutput::Discovered`]. Nothing else may go on meanwhile.
    pub fn discover(&mut self) {
        self.discovering = Some(Stage::Header);
        let registers: Vec<u16> = (0..256).step_by(4).collect();
        let requests = self.config_reads(&registers);
        self.submit(JobId(OWN_JOB), 256, requests);
    }

    pub(super) fn discovery_step(&mut self, data: Option<Vec<u8>>) {
        let Some(stage) = self.discovering.take() else { return };
        let Some(data) = data else { return self.discovered(Err(DiscoverError::NoDevice)) };
        match stage {
            Stage::Header => {
                let Ok(header) = <Box<[u8; 256]>>::try_from(data.into_boxed_slice()) else {
                    return self.discovered(Err(DiscoverError::NoDevice));
                };
                if header[0..2] == [0xff, 0xff] {
                    return self.discovered(Err(DiscoverError::NoDevice));
                }
                if header[usize::from(register::HEADER_TYPE)] & 0x7f != 0 {
                    return self.discovered(Err(DiscoverError::Bridge));
                }
                self.discovering = Some(Stage::Sizing(header));
                // Memory off first: a BAR full of ones must not answer to anything.
                let mut requests = vec![self.config_write_request(register::COMMAND, 0b0011, [0; 4])];
                let ones = BAR_REGISTERS.map(|at| self.config_write_request(at, 0xf, [0xff; 4]));
                requests.extend(ones);
                self.submit(JobId(OWN_JOB), 0, requests);
            }
            Stage::Sizing(header) => {
                self.discovering = Some(Stage::Sizes(header));
                let requests = self.config_reads(&BAR_REGISTERS);
                self.submit(JobId(OWN_JOB), 24, requests);
            }
            Stage::Sizes(header) => {
                let mut found = parse(&header);
                found.bars = bars(&data);
                self.discovering = Some(Stage::Restoring(found));
                let zero = BAR_REGISTERS.map(|at| self.config_write_request(at, 0xf, [0; 4]));
                self.submit(JobId(OWN_JOB), 0, zero);
            }
            Stage::Restoring(found) => {
                let shows_msix = self.options.msix;
                self.learnt.discovered(found.clone(), shows_msix);
                self.discovered(Ok(found));
            }
        }
    }

    fn discovered(&mut self, outcome: Result<Discovery, DiscoverError>) {
        self.outputs.push_back(HostOutput::Discovered(outcome));
    }
}

/// The BARs of six registers that were written full of ones.
fn bars(registers: &[u8]) -> [Option<DiscoveredBar>; 6] {
    let mask = |n: usize| {
        registers.get(4 * n..4 * n + 4).map_or(0, |dw| u32::from_le_bytes(dw.try_into().expect("four bytes")))
    };
    let mut found = [None; 6];
    let mut n = 0;
    while n < 6 {
        let low = mask(n);
        let is_64_bit = low & 0b111 == 0b100 && n < 5;
        let high = if is_64_bit { mask(n + 1) } else { u32::MAX };
        let bits = u64::from(high) << 32 | u64::from(low & !0xf);
        // I/O space is not carried.
        if low & 1 == 0 && low & !0xf != 0 || is_64_bit && high != 0 {
            let size = 1 << bits.trailing_zeros().min(63);
            found[n] = Some(DiscoveredBar { size, is_64_bit, is_prefetchable: low & 0b1000 != 0 });
        }
        n += if is_64_bit { 2 } else { 1 };
    }
    found
}

/// Identity and capabilities of a Type 0 header.
fn parse(header: &[u8; 256]) -> Discovery {
    let u16_at = |at: usize| u16::from_le_bytes([header[at.min(254)], header[at.min(254) + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let mut found = Discovery { id: (u16_at(0), u16_at(2)), ..Discovery::default() };
    if u16_at(register::STATUS.into()) & register::STATUS_CAPABILITIES == 0 {
        return found;
    }
    let mut pointer_at = register::CAPABILITIES as u8;
    // As many as there is room for: a list that bites its tail ends too.
    for _ in 0..48 {
        let at = header[usize::from(pointer_at)] & 0xfc;
        if !(0x40..=0xf0).contains(&at) {
            break;
        }
        let place = usize::from(at);
        match header[place] {
            register::MSI_ID => {
                let control = u16_at(place + 2);
                found.msi = 1 << (control >> 1 & 7).min(5);
                found.msi_at = Some(at.into());
                found.msi_is_64_bit = control & 0x80 != 0;
            }
            register::MSIX_ID => {
                found.msix = u32::from(u16_at(place + 2) & 0x7ff) + 1;
                let table = u32_at(place + 4);
                found.msix_table = Some(((table & 7) as u8, u64::from(table & !7)));
                found.msix_link = Some((pointer_at, header[place + 1]));
            }
            register::EXPRESS_ID => found.express = Some(at.into()),
            _ => {}
        }
        pointer_at = at + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_become_sizes() {
        let masks = [0xffff_c004u32, 0xffff_ffff, 0xffff_f000, 0, 0x0000_000c, 0xffff_fffc];
        let registers: Vec<u8> = masks.iter().flat_map(|mask| mask.to_le_bytes()).collect();
        let found = bars(&registers);
        let sizes: Vec<Option<u64>> = found.iter().map(|bar| bar.map(|bar| bar.size)).collect();
        assert_eq!(sizes, [Some(0x4000), None, Some(0x1000), None, Some(16 << 30), None]);
        assert!(found[4].unwrap().is_prefetchable && found[4].unwrap().is_64_bit);
    }

    #[test]
    fn any_header_is_parsed_without_panic() {
        for fill in 0..=255u8 {
            parse(&[fill; 256]);
            bars(&[fill; 24]);
        }
    }
}
