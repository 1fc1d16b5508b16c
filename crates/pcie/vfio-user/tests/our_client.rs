//! Our client speaks to our server, and to a device that asks for memory by message.

mod device;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use device::{BAR_BYTES, LATE_PAGE, Slot, guest_memory};
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::message::{Command, DeviceInfo, Direction, Header, RegionInfo, Reply, Request, irq, region};
use vfio_user::{Client, ClientError, ClientEvent, Connection, IrqKind};

const SOON: Duration = Duration::from_secs(2);

#[test]
fn registers_memory_and_interrupts_work() {
    let slot = Slot::new(Duration::from_millis(200));
    let mut client = Client::connect(&slot.path).unwrap();
    assert_eq!(client.regions().len(), 9);
    assert_eq!(client.regions()[0].size, BAR_BYTES);
    assert_eq!(client.irq_info(irq::MSI).unwrap().count, 4);

    client.write(0, 8, &[5; 8]).unwrap();
    client.post_write(0, 16, &[6; 4]).unwrap();
    let mut back = [0; 12];
    client.read(0, 8, &mut back).unwrap();
    assert_eq!(back, [5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6]);

    let memory = guest_memory(0x4000);
    client.dma_map(0x8000, 0x4000, 0, Some(memory.as_fd())).unwrap();
    slot.bus().memory.write(0x9000, b"hello").unwrap();
    let mut seen = [0; 5];
    rustix::io::pread(&memory, &mut seen, 0x1000).unwrap();
    assert_eq!(&seen, b"hello");
    client.dma_map(0xf_0000, 0x1000, 0, None).unwrap();
    client.dma_unmap(0xf_0000, 0x1000).unwrap();
    assert!(matches!(client.dma_unmap(0xf_0000, 0x1000), Err(ClientError::Refused { .. })));

    let events: Vec<_> = (0..4).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
    let borrowed: Vec<_> = events.iter().map(|event| event.as_fd()).collect();
    client.set_irqs(irq::MSI, &borrowed).unwrap();
    assert!(slot.bus().interrupts.raise(IrqKind::Msi, 3));
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&events[3], &mut count), Ok(8));
    client.clear_irqs(irq::MSI).unwrap();
    assert!(!slot.bus().interrupts.raise(IrqKind::Msi, 3));
    client.reset().unwrap();
}

#[test]
fn reads_overtake_one_that_is_late() {
    let slot = Slot::new(Duration::from_secs(2));
    let mut client = Client::connect(&slot.path).unwrap();
    let late = client.begin_read(0, LATE_PAGE, 4).unwrap();
    let early = client.begin_read(region::CONFIG, 0, 2).unwrap();
    let first = client.next_event(SOON).unwrap();
    assert_eq!(first, Some(ClientEvent::Read { request: early, data: Some(vec![0, 1]) }));
    assert_eq!(client.next_event(Duration::ZERO).unwrap(), None);
    let access = slot.seen.lock().unwrap().late[0];
    slot.bus().completions.complete(access, vec![4, 3, 2, 1]);
    let second = client.next_event(SOON).unwrap();
    assert_eq!(second, Some(ClientEvent::Read { request: late, data: Some(vec![4, 3, 2, 1]) }));
    let refused = client.begin_read(3, 0, 4).unwrap();
    let third = client.next_event(SOON).unwrap();
    assert_eq!(third, Some(ClientEvent::Read { request: refused, data: None }));
    let written = client.begin_write(0, 0, &[1]).unwrap();
    let fourth = client.next_event(SOON).unwrap();
    assert_eq!(fourth, Some(ClientEvent::Written { request: written, taken: true }));
}

/// A device written out message by message: it asks for memory before it answers a read.
fn scripted_device(mut connection: Connection) {
    let expect = |connection: &mut Connection| connection.receive().unwrap();
    let reply = |connection: &mut Connection, header: Header, reply: Reply<'_>| {
        let body = reply.encode();
        let direction = Direction::Reply { error: None };
        let mut bytes = Header { body_bytes: body.len(), direction, ..header }.encode().to_vec();
        bytes.extend(body);
        connection.send(&bytes, &[]).unwrap();
    };
    let ask = |connection: &mut Connection, id: u16, request: Request<'_>| {
        let body = request.encode();
        let command = request.command() as u16;
        let direction = Direction::Command { no_reply: false };
        let mut bytes = Header { id, command, body_bytes: body.len(), direction }.encode().to_vec();
        bytes.extend(body);
        connection.send(&bytes, &[]).unwrap();
    };
    let version = expect(&mut connection);
    reply(&mut connection, version.header, Reply::Version { major: 0, minor: 0, capabilities: b"" });
    let info = expect(&mut connection);
    let shape = DeviceInfo { resettable: false, regions: 1, irqs: 0 };
    reply(&mut connection, info.header, Reply::DeviceInfo(shape));
    let bar = expect(&mut connection);
    reply(&mut connection, bar.header, Reply::RegionInfo(RegionInfo { flags: 3, index: 0, size: 4096 }));

    let read = expect(&mut connection);
    assert_eq!(read.header.command, Command::RegionRead as u16);
    ask(&mut connection, 100, Request::DmaRead { address: 0x1000, count: 4 });
    let memory = expect(&mut connection);
    assert_eq!(memory.header.id, 100);
    let Reply::DmaRead { data, .. } = Reply::decode(11, &memory.body).unwrap() else { panic!() };
    ask(&mut connection, 101, Request::DmaWrite { address: 0x2000, data });
    assert_eq!(expect(&mut connection).header.direction, Direction::Reply { error: Some(14) });
    reply(&mut connection, read.header, Reply::RegionRead { offset: 0, region: 0, data });
}

#[test]
fn a_device_may_ask_for_memory_while_it_owes_an_answer() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let device = std::thread::spawn(move || scripted_device(Connection::new(theirs).unwrap()));
    let mut client = Client::new(Connection::new(ours).unwrap()).unwrap();
    let request = client.begin_read(0, 0, 4).unwrap();
    let asked = client.next_event(SOON).unwrap().unwrap();
    assert_eq!(asked, ClientEvent::DmaRead { id: 100, address: 0x1000, count: 4 });
    client.answer_dma_read(100, 0x1000, Some(&[1, 2, 3, 4])).unwrap();
    let Some(ClientEvent::DmaWrite { id: 101, address: 0x2000, data, no_reply: false }) =
        client.next_event(SOON).unwrap()
    else {
        panic!("the device writes")
    };
    assert_eq!(data, [1, 2, 3, 4]);
    client.answer_dma_write(101, 0x2000, 4, false).unwrap();
    let answer = client.next_event(SOON).unwrap();
    assert_eq!(answer, Some(ClientEvent::Read { request, data: Some(vec![1, 2, 3, 4]) }));
    device.join().unwrap();
    assert!(matches!(client.next_event(SOON), Err(ClientError::Receive(_))));
}
