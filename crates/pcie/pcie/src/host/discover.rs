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
    /// The bytes that the lists of capabilities are made of, as they were when the device was looked at: offset and value.
    /// The guest is shown these, whatever the device says later. A list that leads back to itself ends before it does.
    pub(super) links: Vec<(u16, u8)>,
    /// Configuration space as it was then.
    pub(super) config: Vec<u8>,
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
    Sizing(Box<[u8; CONFIG_BYTES]>),
    Sizes(Box<[u8; CONFIG_BYTES]>),
    Restoring(Discovery),
}

/// The configuration space of a PCI Express function.
const CONFIG_BYTES: usize = 4096;
/// Where the extended capabilities begin.
const EXTENDED: u16 = 0x100;
/// As many capabilities as there is room for.
const CAPABILITIES_MAX: usize = 48;
/// As many extended capabilities as there is room for.
const EXTENDED_MAX: usize = (CONFIG_BYTES - EXTENDED as usize) / 8;

const BAR_REGISTERS: [u16; 6] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24];

impl HostPort {
    /// Looks at the device. The answer is [`HostOutput::Discovered`]. Nothing else may go on meanwhile.
    pub fn discover(&mut self) {
        self.discovering = Some(Stage::Header);
        let registers: Vec<u16> = (0..CONFIG_BYTES as u16).step_by(4).collect();
        let requests = self.config_reads(&registers);
        self.submit(JobId(OWN_JOB), CONFIG_BYTES, requests);
    }

    pub(super) fn discovery_step(&mut self, data: Option<Vec<u8>>) {
        let Some(stage) = self.discovering.take() else { return };
        let Some(data) = data else { return self.discovered(Err(DiscoverError::NoDevice)) };
        match stage {
            Stage::Header => {
                let Ok(header) = <Box<[u8; CONFIG_BYTES]>>::try_from(data.into_boxed_slice()) else {
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
fn parse(header: &[u8; CONFIG_BYTES]) -> Discovery {
    let u16_at = |at: usize| u16::from_le_bytes([header[at.min(254)], header[at.min(254) + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    let mut found = Discovery { id: (u16_at(0), u16_at(2)), ..Discovery::default() };
    found.links = extended_links(header);
    found.config = header.to_vec();
    found.links.push((register::HEADER_TYPE, header[usize::from(register::HEADER_TYPE)]));
    if u16_at(register::STATUS.into()) & register::STATUS_CAPABILITIES == 0 {
        found.links.push((register::CAPABILITIES, 0));
        return found;
    }
    let mut pointer_at = register::CAPABILITIES as u8;
    let mut seen: Vec<u8> = Vec::new();
    loop {
        let at = header[usize::from(pointer_at)] & 0xfc;
        // A list that bites its tail, or leads elsewhere, ends here.
        if !(0x40..=0xf0).contains(&at) || seen.contains(&at) || seen.len() == CAPABILITIES_MAX {
            found.links.push((pointer_at.into(), 0));
            break;
        }
        seen.push(at);
        found.links.extend([(pointer_at.into(), at), (at.into(), header[usize::from(at)])]);
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
                found.msix_link = Some((pointer_at, 0));
            }
            register::EXPRESS_ID => found.express = Some(at.into()),
            _ => {}
        }
        pointer_at = at + 1;
    }
    // Where the list goes on behind MSI-X, after what was found out about the rest of it.
    let next = |at: u16| found.links.iter().find(|(link, _)| *link == at).map(|(_, value)| *value);
    let after_msix = found.msix_link.and_then(|(pointer_at, _)| {
        let msix = next(pointer_at.into())?;
        Some((pointer_at, next(u16::from(msix) + 1)?))
    });
    found.msix_link = after_msix;
    found
}

/// The headers of the extended capabilities, each of which leads to the next.
fn extended_links(header: &[u8; CONFIG_BYTES]) -> Vec<(u16, u8)> {
    let dword = |at: u16| {
        let at = usize::from(at);
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let mut headers: Vec<(u16, u32)> = Vec::new();
    let mut at = EXTENDED;
    loop {
        let value = dword(at);
        let is_there = value != 0 && value != u32::MAX;
        if !is_there && !headers.is_empty() {
            // A list that leads to nothing ends where it did.
            break;
        }
        if !is_there {
            headers.push((at, 0));
            break;
        }
        headers.push((at, value));
        let next = (value >> 20 & 0xffc) as u16;
        if next < EXTENDED || headers.iter().any(|(known, _)| *known == next) || headers.len() == EXTENDED_MAX
        {
            break;
        }
        at = next;
    }
    if let Some((_, last)) = headers.last_mut() {
        *last &= 0x000f_ffff;
    }
    let bytes = |(at, value): (u16, u32)| (at..).zip(value.to_le_bytes());
    headers.into_iter().flat_map(bytes).collect()
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
            parse(&[fill; CONFIG_BYTES]);
            bars(&[fill; 24]);
        }
    }

    /// As a virtual machine walks both lists over what it is shown; says how many capabilities it met.
    fn walk(shown: &[u8; CONFIG_BYTES]) -> (usize, usize) {
        let mut plain = 0;
        let mut at = shown[usize::from(register::CAPABILITIES)];
        while at != 0 && shown[usize::from(register::STATUS)] & register::STATUS_CAPABILITIES as u8 != 0 {
            plain += 1;
            assert!(plain <= CAPABILITIES_MAX, "the list has no end");
            at = shown[usize::from(at) + 1];
        }
        let mut extended = 0;
        let mut at = EXTENDED;
        while at != 0 {
            let place = usize::from(at);
            let value = u32::from_le_bytes(shown[place..place + 4].try_into().unwrap());
            extended += usize::from(value != 0);
            assert!(extended <= EXTENDED_MAX, "the extended list has no end");
            at = (value >> 20 & 0xffc) as u16;
        }
        (plain, extended)
    }

    fn shown(seen: &[u8; CONFIG_BYTES], later: &[u8; CONFIG_BYTES], msix: bool) -> [u8; CONFIG_BYTES] {
        let mut learnt = super::super::learn::Learnt::default();
        learnt.discovered(parse(seen), msix);
        let mut shown = *later;
        learnt.overlay(0, &mut shown);
        shown
    }

    #[test]
    fn whatever_a_device_says_its_lists_end() {
        for fill in 0..=255u8 {
            walk(&shown(&[fill; CONFIG_BYTES], &[fill; CONFIG_BYTES], fill % 2 == 0));
        }
        let mut random = 7u64;
        for _ in 0..2_000 {
            let mut seen = [0u8; CONFIG_BYTES];
            for byte in &mut seen {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                *byte = (random >> 56) as u8;
            }
            seen[usize::from(register::STATUS)] |= register::STATUS_CAPABILITIES as u8;
            walk(&shown(&seen, &seen, random.is_multiple_of(2)));
        }
    }

    #[test]
    fn a_device_that_turns_into_all_ones_keeps_the_lists_it_had() {
        let mut seen = [0u8; CONFIG_BYTES];
        seen[usize::from(register::STATUS)] = register::STATUS_CAPABILITIES as u8;
        seen[usize::from(register::CAPABILITIES)] = 0x40;
        seen[0x40..0x42].copy_from_slice(&[register::EXPRESS_ID, 0x80]);
        seen[0x80..0x82].copy_from_slice(&[register::MSIX_ID, 0x60]);
        seen[0x60..0x62].copy_from_slice(&[register::MSI_ID, 0]);
        seen[0x100..0x104].copy_from_slice(&(0x200 << 20 | 1u32).to_le_bytes());
        seen[0x200..0x204].copy_from_slice(&3u32.to_le_bytes());
        assert_eq!(walk(&shown(&seen, &seen, true)), (3, 2));
        assert_eq!(walk(&shown(&seen, &[0xff; CONFIG_BYTES], true)), (3, 2));
        assert_eq!(walk(&shown(&seen, &[0xff; CONFIG_BYTES], false)), (2, 2), "without MSI-X");
        // Lists that bite their tail end before they do.
        seen[0x61] = 0x40;
        seen[0x200..0x204].copy_from_slice(&(0x100 << 20 | 3u32).to_le_bytes());
        assert_eq!(walk(&shown(&seen, &seen, true)), (3, 2));
        assert_eq!(walk(&shown(&seen, &seen, false)), (2, 2));
    }
}
