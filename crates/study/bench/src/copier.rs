//! A copier and the port of its host, set up and ready to measure with.
//!
//! What lies between them is the caller's: nothing, a link in made-up time, or a network.

use pcie::TlpBuf;
use pcie::endpoint::dma::{DmaDevice, DmaOptions, ENGINE_BYTES};
use pcie::endpoint::{Endpoint, FunctionOptions};
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use std::time::Duration;
use tlp::{Bdf, SizeLimit, TagSpace};
use units::Time;

/// Memory of each device; BAR 2 shows it.
pub const MEMORY_BYTES: u64 = 64 << 20;
/// The BAR of a device's memory.
pub const MEMORY_BAR: u8 = 2;
/// Where the host puts the memory of the first device; others follow.
const WINDOW_BASE: u64 = 0x40_0000_0000;
const REGISTERS: u64 = 0x8000_0000;

/// Where the host sees a device's memory.
pub fn window(device: usize) -> u64 {
    WINDOW_BASE + device as u64 * MEMORY_BYTES
}

/// The device whose window has this address; `None`: the address is the host's.
pub fn owner(address: u64) -> Option<usize> {
    address.checked_sub(WINDOW_BASE).map(|offset| (offset / MEMORY_BYTES) as usize)
}

/// How a copier uses its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copier {
    /// Reads that may be open: 1 to 768.
    pub tags: u16,
    /// The largest read.
    pub read_bytes: SizeLimit,
    /// The largest payload, of writes and of completions.
    pub payload_bytes: SizeLimit,
}

/// Nothing is asked of memory while a device is set up.
struct NoMemory;

impl HostMemory for NoMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&self, _: u64, _: &[u8]) -> bool {
        false
    }
}

/// Where the PCI Express capability is, found as drivers find it.
fn express(port: &mut HostPort, device: &mut DmaDevice) -> u16 {
    let mut at = 0x34;
    loop {
        port.config_read(Access(u64::from(at)), at, 2);
        settle(port, device);
        let output = std::iter::from_fn(|| port.next_output()).last();
        let Some(HostOutput::Done { data: Some(data), .. }) = output else { unreachable!("it answers") };
        // The first byte of a capability names it, the second leads on; the pointer to the first only leads on.
        let (id, next) = if at == 0x34 { (0, data[0]) } else { (data[0], data[1]) };
        match (id, next) {
            (0x10, _) => return at,
            (_, 0) => unreachable!("a PCI Express device has one"),
            (_, next) => at = u16::from(next),
        }
    }
}

/// A device and the port of its host, looked at and set up as a guest does it, with the device's memory in window
/// `number`.
///
/// # Panics
///
/// When the device does not let itself be set up, which would be a bug.
pub fn copier(how: Copier, number: usize) -> (DmaDevice, HostPort) {
    let tags_max = how.tags.clamp(1, 768);
    let function = FunctionOptions {
        tags_max,
        read_bytes_max: how.read_bytes,
        timeout: Duration::from_secs(10),
        force_tags: Some(if tags_max > 256 { TagSpace::TenBits } else { TagSpace::EightBits }),
    };
    let mut device = DmaDevice::new(DmaOptions { memory_bytes: MEMORY_BYTES, function });
    let mut port = HostPort::new(HostPortOptions::default());
    port.discover();
    settle(&mut port, &mut device);
    // Payload as given, reads as large as the device likes; registers, memory; memory and bus master on.
    let control = 0x0010 | u16::from(how.payload_bytes.to_bits()) << 5 | 5 << 12;
    let (low, high) = (window(number) as u32, (window(number) >> 32) as u32);
    let express = express(&mut port, &mut device);
    let writes: [(u16, &[u8]); 5] = [
        (0x10, &(REGISTERS as u32).to_le_bytes()),
        (0x18, &low.to_le_bytes()),
        (0x1c, &high.to_le_bytes()),
        (express + 8, &control.to_le_bytes()),
        (0x04, &6u16.to_le_bytes()),
    ];
    for (access, (register, value)) in writes.into_iter().enumerate() {
        port.config_write(Access(access as u64), register, value);
        settle(&mut port, &mut device);
    }
    while let Some(output) = port.next_output() {
        let is_sound =
            !matches!(output, HostOutput::Discovered(Err(_)) | HostOutput::Done { data: None, .. });
        assert!(is_sound, "the device was not set up: {output:?}");
    }
    (device, port)
}

/// Passes packets to and fro until there are none, in no time.
fn settle(port: &mut HostPort, device: &mut DmaDevice) {
    loop {
        let mut is_quiet = true;
        while let Some(packet) = port.transmit(Time::ZERO) {
            device.receive(packet, Time::ZERO);
            is_quiet = false;
        }
        while let Some(packet) = device.transmit(Time::ZERO) {
            port.receive(&packet, &NoMemory);
            is_quiet = false;
        }
        if is_quiet {
            return;
        }
    }
}

/// Begins a copy of an engine, as the device's own scheduler would: the registers are written where the device is.
pub fn ring(device: &mut DmaDevice, engine: u64, host: u64, at: u64, bytes: u32, kind: u32, now: Time) {
    let base = REGISTERS + engine * ENGINE_BYTES;
    let registers: [(u64, Vec<u8>); 5] = [
        (0x00, host.to_le_bytes().to_vec()),
        (0x08, at.to_le_bytes().to_vec()),
        (0x10, bytes.to_le_bytes().to_vec()),
        (0x1c, u32::MAX.to_le_bytes().to_vec()),
        (0x14, kind.to_le_bytes().to_vec()),
    ];
    for (offset, value) in registers {
        let packet = TlpBuf::memory_write(Bdf::default(), base + offset, &value).expect("within a page");
        device.receive(packet, now);
    }
}
