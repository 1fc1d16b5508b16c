//! The order in which a port's packets leave when they are not taken at once.

use pcie::endpoint::Endpoint;
use pcie::endpoint::dma::{DmaDevice, DmaOptions};
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use pcie::{Time, TlpBuf};
use tlp::Class;

struct NoMemory;

impl HostMemory for NoMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
    fn write(&self, _: u64, _: &[u8]) -> bool {
        false
    }
}

/// A port whose guest has given BAR 0 a place.
fn port() -> HostPort {
    let mut device = DmaDevice::new(DmaOptions::default());
    let mut port = HostPort::new(HostPortOptions::default());
    port.discover();
    settle(&mut port, &mut device);
    port.config_write(Access(1), 0x10, &0x8000_0000u32.to_le_bytes());
    port.config_write(Access(2), 0x04, &6u16.to_le_bytes());
    settle(&mut port, &mut device);
    while port.next_output().is_some() {}
    port
}

fn settle(port: &mut HostPort, device: &mut DmaDevice) {
    while let Some(packet) = port.transmit(Time::ZERO) {
        device.receive(packet, Time::ZERO);
        while let Some(packet) = device.transmit(Time::ZERO) {
            port.receive(&packet, &NoMemory);
        }
    }
}

fn classes(port: &mut HostPort) -> Vec<Class> {
    let packets: Vec<TlpBuf> = std::iter::from_fn(|| port.transmit(Time::ZERO)).collect();
    packets.iter().map(|packet| packet.header.class()).collect()
}

/// Two writes with a read between them; each access is staged as a slot does it.
fn accesses(port: &mut HostPort) {
    port.bar_write(0, 0, &[1; 4]);
    port.stage(Time::ZERO);
    port.bar_read(Access(3), 0, 0, 4);
    port.stage(Time::ZERO);
    port.bar_write(0, 4, &[2; 4]);
    port.stage(Time::ZERO);
}

#[test]
fn staged_packets_leave_in_the_order_of_the_accesses() {
    let mut port = port();
    accesses(&mut port);
    assert_eq!(port.staged_count(), 3);
    assert_eq!(classes(&mut port), [Class::Posted, Class::NonPosted, Class::Posted]);
    assert_eq!(port.staged_count(), 0);
}

#[test]
fn the_time_of_a_request_runs_from_its_staging() {
    let mut port = port();
    port.bar_read(Access(3), 0, 0, 4);
    assert_eq!(port.wake_at(), None);
    port.stage(Time::from_millis(7));
    let timeout = HostPortOptions::default().requester.timeout;
    assert_eq!(port.wake_at(), Some(Time::from_millis(7) + timeout));
}

#[test]
fn a_reset_takes_back_what_was_asked_and_lets_writes_leave_first() {
    let mut port = port();
    accesses(&mut port);
    port.reset(Access(4));
    assert_eq!(port.next_output(), Some(HostOutput::Done { access: Access(3), data: None }));
    port.stage(Time::ZERO);
    // Two writes, then the request for the reset itself: the read is gone.
    assert_eq!(classes(&mut port), [Class::Posted, Class::Posted, Class::NonPosted]);
}

#[test]
fn nothing_leaves_for_a_device_that_is_gone() {
    let mut port = port();
    accesses(&mut port);
    port.remove();
    assert_eq!((port.staged_count(), classes(&mut port)), (0, vec![]));
}
