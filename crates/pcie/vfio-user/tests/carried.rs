//! A device that another program serves, carried by packets: host's port, packets, our client, the program.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pcie::Time;
use pcie::endpoint::Endpoint;
use pcie::flow::RequesterOptions;
use pcie::host::{Access, HostMemory, HostOutput, HostPort, HostPortOptions};
use vfio_user::message::{Command, DeviceInfo, Direction, Header, IrqInfo, RegionInfo, Reply, Request, irq};
use vfio_user::{Client, ClientEndpoint, Connection};

/// A program that serves a device: it copies guest memory, by message, and raises an MSI. Written against the protocol
/// and nothing else of ours but its codec.
struct Program {
    connection: Connection,
    config: Vec<u8>,
    registers: [u8; 64],
    msi: Vec<OwnedFd>,
}

impl Program {
    fn serve(connection: Connection) {
        let mut config = vec![0; 4096];
        config[0..4].copy_from_slice(&[0x34, 0x12, 0x78, 0x56]);
        config[0x06] = 0x10;
        // A 64-bit BAR; MSI, then MSI-X, which the host is not to see.
        config[0x10] = 4;
        config[0x34] = 0x40;
        config[0x40..0x44].copy_from_slice(&[0x05, 0x60, 0x84, 0]);
        config[0x60..0x64].copy_from_slice(&[0x11, 0, 3, 0]);
        let mut program = Self { connection, config, registers: [0; 64], msi: Vec::new() };
        while let Ok(incoming) = program.connection.receive() {
            let Direction::Command { no_reply } = incoming.header.direction else { panic!("nobody asked") };
            program.on_command(incoming.header, &incoming.body, incoming.fds, no_reply);
        }
    }

    fn on_command(&mut self, header: Header, body: &[u8], fds: Vec<OwnedFd>, no_reply: bool) {
        let bar = RegionInfo { flags: 3, index: 0, size: 4096 };
        let data;
        let reply = match Request::decode(header.command, body).unwrap() {
            Request::Version { .. } => Reply::Version { major: 0, minor: 0, capabilities: b"{}" },
            Request::DeviceInfo => Reply::DeviceInfo(DeviceInfo { resettable: true, regions: 9, irqs: 5 }),
            Request::RegionInfo { index: 0 } => Reply::RegionInfo(bar),
            Request::RegionInfo { index: 7 } => Reply::RegionInfo(RegionInfo { index: 7, ..bar }),
            Request::RegionInfo { index } => Reply::RegionInfo(RegionInfo { flags: 0, index, size: 0 }),
            Request::IrqInfo { index } => {
                let count = if index == irq::MSI { 4 } else { 0 };
                Reply::IrqInfo(IrqInfo { flags: 1, index, count })
            }
            Request::SetIrqs { start, .. } => {
                // They come one by one: this program takes one file descriptor with a message.
                self.msi.truncate(start as usize);
                self.msi.extend(fds);
                Reply::Done(Command::SetIrqs)
            }
            Request::DmaMap { .. } => Reply::Done(Command::DmaMap),
            Request::RegionRead { offset, region, count } => {
                let place = if region == 7 { &self.config[..] } else { &self.registers[..] };
                data = place[offset as usize..][..count as usize].to_vec();
                Reply::RegionRead { offset, region, data: &data }
            }
            Request::RegionWrite { offset, region, data } => {
                let place = if region == 7 { &mut self.config[..] } else { &mut self.registers[..] };
                place[offset as usize..][..data.len()].copy_from_slice(data);
                if region == 0 && offset == 24 {
                    self.copy();
                }
                Reply::RegionWrite { offset, region, count: data.len() as u32 }
            }
            Request::DeviceReset => {
                self.registers = [0; 64];
                Reply::Done(Command::DeviceReset)
            }
            other => panic!("not expected: {other:?}"),
        };
        if !no_reply {
            self.send(header.id, header.command, Direction::Reply { error: None }, &reply.encode());
        }
    }

    fn send(&mut self, id: u16, command: u16, direction: Direction, body: &[u8]) {
        let header = Header { id, command, body_bytes: body.len(), direction };
        self.connection.send(&[&header.encode()[..], body].concat(), &[]).unwrap();
    }

    /// Copies `length` bytes from `source` to `target`: it asks, it writes, it waits for nothing but the memory.
    fn copy(&mut self) {
        let field = |at: usize| u64::from_le_bytes(self.registers[at..at + 8].try_into().unwrap());
        let (source, target, length) = (field(0), field(8), field(16));
        let ask = Direction::Command { no_reply: false };
        self.send(500, 11, ask, &Request::DmaRead { address: source, count: length }.encode());
        let memory = loop {
            // The host may go on reading registers meanwhile.
            let incoming = self.connection.receive().unwrap();
            match incoming.header.direction {
                Direction::Reply { error } => break error.is_none().then_some(incoming.body),
                Direction::Command { no_reply } => {
                    self.on_command(incoming.header, &incoming.body, incoming.fds, no_reply);
                }
            }
        };
        let status = match &memory {
            Some(body) => {
                let Reply::DmaRead { data, .. } = Reply::decode(11, body).unwrap() else { panic!() };
                let quiet = Direction::Command { no_reply: true };
                self.send(501, 12, quiet, &Request::DmaWrite { address: target, data }.encode());
                1
            }
            None => 2,
        };
        self.registers[32] = status;
        if let Some(event) = self.msi.get(2) {
            rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

struct Memory(RefCell<Vec<u8>>);

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let memory = self.0.borrow();
        let place = memory.get(address as usize..address as usize + into.len());
        place.map(|place| into.copy_from_slice(place)).is_some()
    }
    fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut memory = self.0.borrow_mut();
        let place = memory.get_mut(address as usize..address as usize + from.len());
        place.map(|place| place.copy_from_slice(from)).is_some()
    }
}

/// Both ends, and the packets between them.
struct Carried {
    port: HostPort,
    endpoint: ClientEndpoint,
    memory: Memory,
    start: Instant,
    next: u64,
}

impl Carried {
    fn until<T>(&mut self, what: &str, wanted: impl Fn(HostOutput) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            let now = Time::at(self.start.elapsed());
            while let Some(packet) = self.port.transmit(now) {
                self.endpoint.receive(packet, now);
            }
            while let Some(packet) = self.endpoint.transmit(now) {
                self.port.receive(&packet, &self.memory);
            }
            self.port.on_tick(now);
            self.endpoint.on_tick(now);
            while let Some(output) = self.port.next_output() {
                if let Some(found) = wanted(output) {
                    return found;
                }
            }
        }
        panic!("never happened: {what}");
    }

    fn access(&mut self) -> Access {
        self.next += 1;
        Access(self.next)
    }

    fn done(&mut self, access: Access) -> Option<Vec<u8>> {
        self.until("an answer", |output| match output {
            HostOutput::Done { access: done, data } if done == access => Some(data),
            _ => None,
        })
    }

    fn config_write(&mut self, at: u16, data: &[u8]) {
        let access = self.access();
        self.port.config_write(access, at, data);
        assert!(self.done(access).is_some());
    }

    fn config_read(&mut self, at: u16, bytes: usize) -> Option<Vec<u8>> {
        let access = self.access();
        self.port.config_read(access, at, bytes);
        self.done(access)
    }

    fn bar_read(&mut self, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let access = self.access();
        self.port.bar_read(access, 0, offset, bytes);
        self.done(access)
    }
}

#[test]
fn a_foreign_device_is_carried_unchanged() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let program = std::thread::spawn(move || Program::serve(Connection::new(theirs).unwrap()));
    let client = Client::new(Connection::new(ours).unwrap()).unwrap();
    let endpoint = ClientEndpoint::new(client, RequesterOptions::default()).unwrap();
    assert_eq!(endpoint.fds().count(), 5);
    let memory = Memory(RefCell::new((0..0x20000u32).map(|n| ((n * 13) >> 4) as u8).collect()));
    let port = HostPort::new(HostPortOptions::default());
    let mut carried = Carried { port, endpoint, memory, start: Instant::now(), next: 0 };

    carried.port.discover();
    let found = carried.until("discovery", |output| match output {
        HostOutput::Discovered(found) => Some(found.unwrap()),
        _ => None,
    });
    assert_eq!((found.id, found.msi, found.msix), ((0x1234, 0x5678), 4, 0));
    assert_eq!(found.bars[0].map(|bar| (bar.size, bar.is_64_bit)), Some((4096, true)));

    carried.config_write(0x10, &[0, 0, 0, 0x80, 5, 0, 0, 0]);
    assert_eq!(carried.config_read(0x10, 8).unwrap(), [4, 0, 0, 0x80, 5, 0, 0, 0]);
    assert_eq!(carried.config_read(0x41, 1).unwrap(), [0], "no way leads to MSI-X");
    assert_eq!(carried.bar_read(0, 4), None, "memory is not on");
    carried.config_write(0x04, &[6, 0]);
    assert_eq!(carried.bar_read(0, 4).unwrap(), [0; 4]);
    carried.config_write(0x44, &[0, 0, 0xe0, 0xfe, 0, 0, 0, 0, 0x40, 0]);
    carried.config_write(0x42, &[0x21, 0]);

    let copy: Vec<u8> = [0x1003u64, 0x9001, 5000].iter().flat_map(|value| value.to_le_bytes()).collect();
    carried.port.bar_write(0, 0, &copy);
    carried.port.bar_write(0, 24, &[1]);
    let vector = carried.until("an interrupt", |output| match output {
        HostOutput::Msi(vector) => Some(vector),
        _ => None,
    });
    assert_eq!(vector, 2);
    assert_eq!(carried.bar_read(32, 1).unwrap(), [1]);
    let memory = carried.memory.0.borrow();
    assert_eq!(memory[0x9001..0x9001 + 5000], memory[0x1003..0x1003 + 5000]);
    drop(memory);

    // Memory that is not the guest's: the device is told, and nothing changes.
    carried.port.bar_write(0, 0, &0x8000_0000u64.to_le_bytes());
    carried.port.bar_write(0, 24, &[1]);
    carried.until("an interrupt", |output| matches!(output, HostOutput::Msi(2)).then_some(()));
    assert_eq!(carried.bar_read(32, 1).unwrap(), [2]);
    assert!(carried.port.violations().outside_memory > 0);

    // The program ends: no device is there any longer, and no thread hangs.
    let Carried { endpoint, .. } = &mut carried;
    endpoint.reset();
    assert!(endpoint.is_alive());
    drop(carried);
    program.join().unwrap();
}

#[test]
fn a_program_that_dies_leaves_an_empty_slot() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stopper = theirs.try_clone().unwrap();
    let program = std::thread::spawn(move || Program::serve(Connection::new(theirs).unwrap()));
    let client = Client::new(Connection::new(ours).unwrap()).unwrap();
    let endpoint = ClientEndpoint::new(client, RequesterOptions::default()).unwrap();
    let port = HostPort::new(HostPortOptions::default());
    let memory = Memory(RefCell::new(vec![0; 4096]));
    let mut carried = Carried { port, endpoint, memory, start: Instant::now(), next: 0 };
    assert!(carried.config_read(0, 4).is_some());
    stopper.shutdown(std::net::Shutdown::Both).unwrap();
    program.join().unwrap();
    assert_eq!(carried.config_read(0, 4), None);
    assert_eq!(carried.config_read(0, 4), None);
    assert!(!carried.endpoint.is_alive());
}
