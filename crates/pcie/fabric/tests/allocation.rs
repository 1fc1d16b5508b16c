//! Once its buffers have reached their working size, a link allocates nothing.

use bench_harness::link::established_pair;
use fabric::{Protection, Time, Willing};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use tlp::{Bdf, Header, Span, Tag, Tlp, TransactionId};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, which is the system's, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_link_allocates_nothing() {
    let (mut host, mut device) = established_pair(Protection::Encrypted, 1452);
    let (payload, mut datagram) = ([7; 4096], [0; 2000]);
    let mut now = Time(1);
    let (mut received, mut datagrams) = (0u64, 0u64);
    let mut round = |number: u64| {
        now.0 += 10_000;
        for index in 0..16 {
            let span = Span::of_bytes(number * 4096, [4, 128, 4096][index % 3]).unwrap();
            let header = Header::memory_write(Bdf(1), span);
            host.send(&Tlp::new(header, &payload[..header.payload_bytes()])).unwrap();
            let id = TransactionId::new(Bdf(1), Tag::truncated(index as u16));
            host.send(&Tlp::new(Header::memory_read(id, span), &[])).unwrap();
        }
        loop {
            let mut is_quiet = true;
            while let Some(transmit) = host.transmit(now, &mut datagram) {
                // Every seventh datagram is lost, so that packets wait out of order and go again.
                datagrams += 1;
                if !datagrams.is_multiple_of(7) {
                    device.on_datagram(now, &mut datagram[..transmit.bytes]);
                }
                is_quiet = false;
            }
            while let Some(tlp) = device.receive(Willing::ALL) {
                received += 1;
                let header = tlp.header;
                if header.class() == tlp::Class::NonPosted {
                    let answer = header.completion(Bdf(2), tlp::Status::UnsupportedRequest);
                    device.send(&Tlp::new(answer, &[])).unwrap();
                }
            }
            while let Some(transmit) = device.transmit(now, &mut datagram) {
                host.on_datagram(now, &mut datagram[..transmit.bytes]);
                is_quiet = false;
            }
            while host.receive(Willing::ALL).is_some() {
                received += 1;
            }
            if is_quiet && host.is_idle() && host.open_requests() == 0 {
                return;
            }
            now.0 += 5_000;
        }
    };
    (0..400).for_each(&mut round);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (400..800).for_each(&mut round);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(received, 800 * 48);
    assert_eq!(after - before, 0, "allocations in 400 rounds");
    assert!(host.counters().packets_resent > 0, "some were lost");
}
