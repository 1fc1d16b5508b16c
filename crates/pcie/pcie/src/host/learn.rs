//! What passes by teaches: where the guest put the device's BARs, where its interrupts go, how large packets may be.

use tlp::SizeLimit;

use super::HostOutput;
use super::discover::Discovery;
use crate::config::register;
use crate::tables::Window;

/// Where MSI-X messages of the device are sent: an address of interrupts that no guest has memory at.
pub(super) const MSIX_ADDRESS: u64 = 0xfee0_0000;
/// Marks their numbers.
pub(super) const MSIX_COOKIE: u32 = 0x4d58_0000;

/// A copy of the registers that matter, as the guest wrote them.
pub(super) struct Learnt {
    written: [u8; 256],
    shape: Option<Discovery>,
    shows_msix: bool,
}

impl Default for Learnt {
    fn default() -> Self {
        Self { written: [0; 256], shape: None, shows_msix: false }
    }
}

impl Learnt {
    pub(super) fn discovered(&mut self, shape: Discovery, shows_msix: bool) {
        (self.shape, self.shows_msix) = (Some(shape), shows_msix);
    }

    pub(super) fn reset(&mut self) {
        self.written = [0; 256];
    }

    pub(super) fn config_written(&mut self, offset: u16, data: &[u8]) {
        let start = usize::from(offset);
        for (at, value) in (start..256).zip(data) {
            self.written[at] = *value;
        }
    }

    fn u32(&self, at: u16) -> u32 {
        let at = usize::from(at).min(252);
        u32::from_le_bytes(self.written[at..at + 4].try_into().expect("four bytes"))
    }

    fn u16(&self, at: u16) -> u16 {
        let at = usize::from(at).min(254);
        u16::from_le_bytes([self.written[at], self.written[at + 1]])
    }

    /// Where the guest put a BAR.
    pub(super) fn bar_base(&self, bar: u8) -> Option<u64> {
        let shape = self.shape.as_ref()?.bars.get(usize::from(bar)).copied().flatten()?;
        let at = register::BAR0 + 4 * u16::from(bar);
        let high = if shape.is_64_bit { u64::from(self.u32(at + 4)) << 32 } else { 0 };
        Some((high | u64::from(self.u32(at) & !0xf)) & !(shape.size - 1))
    }

    /// The hull of the BARs below 4 GiB, and of those above.
    pub(super) fn windows(&self) -> (Option<Window>, Option<Window>) {
        let (mut low, mut high): (Option<Window>, Option<Window>) = (None, None);
        let Some(shape) = &self.shape else { return (None, None) };
        for bar in 0..6u8 {
            let Some(size) = shape.bars[usize::from(bar)].map(|bar| bar.size) else { continue };
            let Some(base) = self.bar_base(bar).filter(|base| *base != 0) else { continue };
            let limit = base.saturating_add(size - 1);
            let hull = if limit <= u64::from(u32::MAX) { &mut low } else { &mut high };
            *hull = Some(match *hull {
                None => Window { base, limit },
                Some(old) => Window { base: old.base.min(base), limit: old.limit.max(limit) },
            });
        }
        (low, high)
    }

    /// Max_Payload_Size, as the guest set it.
    pub(super) fn max_payload(&self) -> SizeLimit {
        let control = self.express().map_or(0, |at| self.u16(at + register::EXPRESS_DEVICE_CONTROL));
        SizeLimit::from_bits((control >> 5 & 7) as u8).unwrap_or(tlp::MAX_PAYLOAD_BYTES_RESET)
    }

    /// The place of the PCI Express capability.
    pub(super) fn express(&self) -> Option<u16> {
        self.shape.as_ref()?.express
    }

    /// BAR and offset of the MSI-X table.
    pub(super) fn msix_table(&self) -> Option<(u8, u64)> {
        self.shape.as_ref().filter(|_| self.shows_msix)?.msix_table
    }

    /// Whether a write is an interrupt, and which.
    pub(super) fn interrupt(&self, address: u64, payload: &[u8]) -> Option<HostOutput> {
        let data = u32::from_le_bytes(*payload.first_chunk::<4>().filter(|_| payload.len() == 4)?);
        let shape = self.shape.as_ref()?;
        if address == MSIX_ADDRESS && data & 0xffff_0000 == MSIX_COOKIE && self.shows_msix {
            let vector = data as u16;
            return (u32::from(vector) < shape.msix).then_some(HostOutput::Msix(vector));
        }
        let at = shape.msi_at?;
        let control = self.u16(at + register::MSI_CONTROL);
        if control & register::MSI_CONTROL_ENABLE == 0 {
            return None;
        }
        let (data_at, high) = match shape.msi_is_64_bit {
            true => (register::MSI_DATA, u64::from(self.u32(at + register::MSI_ADDRESS + 4))),
            false => (register::MSI_DATA - 4, 0),
        };
        let target = high << 32 | u64::from(self.u32(at + register::MSI_ADDRESS) & !3);
        let vectors = 1u32 << (control >> 4 & 7).min(5);
        let first = u32::from(self.u16(at + data_at)) & !(vectors - 1);
        let vector = data.checked_sub(first).filter(|vector| *vector < vectors)?;
        (address == target).then_some(HostOutput::Msi(vector as u16))
    }

    /// Configuration space as it was when the device was looked at, for when the device itself does not answer.
    pub(super) fn remembered(&self, offset: u16, bytes: usize) -> Option<Vec<u8>> {
        let mut config = self.shape.as_ref()?.config.clone();
        self.overlay(0, &mut config);
        let start = usize::from(offset);
        let wanted = config.get(start..start + bytes)?;
        // This is how a guest asks whether its device is still there. It is not.
        if start < 4 && bytes <= 4 {
            return Some(vec![0xff; bytes]);
        }
        Some(wanted.to_vec())
    }

    /// Makes the lists of capabilities in what the guest reads those that were found when the device was looked at, without
    /// MSI-X when it is not to be shown. Virtual machines follow them without counting: a device that goes away in between,
    /// or lies, must not lead them in a circle.
    pub(super) fn overlay(&self, start: usize, buffer: &mut [u8]) {
        let Some(shape) = &self.shape else { return };
        let mut set = |at: u16, value: u8| {
            if let Some(byte) = usize::from(at).checked_sub(start).and_then(|at| buffer.get_mut(at)) {
                *byte = value;
            }
        };
        shape.links.iter().for_each(|(at, value)| set(*at, *value));
        if let Some((pointer_at, next)) = shape.msix_link.filter(|_| !self.shows_msix) {
            set(pointer_at.into(), next);
        }
    }
}
