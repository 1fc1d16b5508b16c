//! Another project's client speaks to our server.

mod device;

use std::os::fd::AsRawFd;
use std::time::Duration;

use device::{BAR_BYTES, LATE_PAGE, Slot, guest_memory};
use rustix::event::{EventfdFlags, eventfd};
use vfio_user::IrqKind;
use vfio_user_judge::Client;

#[test]
fn it_finds_the_device_and_reads_and_writes_it() {
    let slot = Slot::new(Duration::from_millis(200));
    let mut client = Client::new(&slot.path).unwrap();
    let sizes: Vec<u64> = (0..9).map(|index| client.region(index).unwrap().size).collect();
    assert_eq!(sizes, [BAR_BYTES, 0, 0, 0, 0, 0, 0, 4096, 0]);
    assert!(client.region(0).unwrap().file_offset.is_none(), "no BAR can be mapped");
    let counts: Vec<u32> = (0..5).map(|index| client.get_irq_info(index).unwrap().count).collect();
    assert_eq!(counts, [0, 4, 0, 1, 1]);

    let mut config = [0; 256];
    client.region_read(7, 0, &mut config).unwrap();
    assert!(config.iter().enumerate().all(|(at, value)| usize::from(*value) == at % 251));
    client.region_write(0, 0x10, &[1, 2, 3, 4]).unwrap();
    let mut back = [0; 8];
    client.region_read(0, 0xe, &mut back).unwrap();
    assert_eq!(back, [0, 0, 1, 2, 3, 4, 0, 0]);
    client.reset().unwrap();
    assert_eq!(slot.seen.lock().unwrap().resets, 1);
    client.shutdown().unwrap();
    slot.until("the peer's leaving", |seen| seen.detached == 1);
}

#[test]
fn its_memory_and_its_interrupts_are_reached() {
    let slot = Slot::new(Duration::from_millis(200));
    let mut client = Client::new(&slot.path).unwrap();
    let memory = guest_memory(1 << 20);
    client.dma_map(0x1000, 0x10_0000, 0x2000, memory.as_raw_fd()).unwrap();
    let bus = slot.bus();
    bus.memory.write(0x10_0000, b"from the device").unwrap();
    let mut seen = [0; 15];
    rustix::io::pread(&memory, &mut seen, 0x1000).unwrap();
    assert_eq!(&seen, b"from the device");

    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.set_irqs(1, 0x24, 2, 1, &[event.as_raw_fd()]).unwrap();
    assert!(bus.interrupts.raise(IrqKind::Msi, 2) && !bus.interrupts.raise(IrqKind::Msi, 1));
    let mut count = [0; 8];
    rustix::io::read(&event, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);

    client.dma_unmap(0x10_0000, 0x2000).unwrap();
    assert!(bus.memory.read(0x10_0000, &mut seen).is_err());
    client.shutdown().unwrap();
    slot.until("the peer's leaving", |seen| seen.detached == 1);
    assert!(bus.memory.read(0x1000, &mut seen).is_err(), "a peer's memory leaves with it");
    assert!(!bus.interrupts.raise(IrqKind::Msi, 2));
}

#[test]
fn a_late_answer_arrives() {
    // Nothing is given up in this test: the answer is as late as this machine is busy.
    let slot = Slot::new(Duration::from_secs(3600));
    let mut client = Client::new(&slot.path).unwrap();
    let bus = slot.bus();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            slot.until("a late read", |seen| seen.late.len() == 1);
            let access = slot.seen.lock().unwrap().late[0];
            bus.completions.complete(access, vec![1, 2, 3, 4]);
            bus.completions.complete(access, vec![9, 9, 9, 9]);
        });
        let mut late = [0; 4];
        client.region_read(0, LATE_PAGE, &mut late).unwrap();
        assert_eq!(late, [1, 2, 3, 4]);
    });
    assert_eq!(slot.seen.lock().unwrap().abandoned, []);
}

/// `patience.rs` says when an answer is missing; here is what becomes of it.
#[test]
fn a_missing_answer_is_all_ones_and_comes_too_late_for_the_next_read() {
    let slot = Slot::new(Duration::from_millis(20));
    let mut client = Client::new(&slot.path).unwrap();
    let bus = slot.bus();
    let mut never = [0; 4];
    client.region_read(0, LATE_PAGE, &mut never).unwrap();
    assert_eq!(never, [0xff; 4]);
    // The cause: the server gave this read up, and told the device.
    let access = slot.seen.lock().unwrap().late[0];
    assert_eq!(slot.seen.lock().unwrap().abandoned, [access]);
    // The answer that comes after all must not be taken for the next one's.
    bus.completions.complete(access, vec![7, 7, 7, 7]);
    client.region_read(0, 0, &mut never).unwrap();
    assert_eq!(never, [0; 4]);
}
