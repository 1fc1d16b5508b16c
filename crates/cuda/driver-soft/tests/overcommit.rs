//! Sessions of two workers on one GPU in software: each worker has a ledger of its own, and the page bounds what both have together.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_driver::{Class, Driver, PageHandle, Ticket};
use cuda_wire::*;
use driver_soft::SoftConfig;
use shared_words::{page, process};
use sharing::Field;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const ALL: u64 = 100 * MIB;
const SEAT: u64 = 40 * MIB;

/// A session of a worker that has so much memory, with a slot of the page.
struct Placed {
    session: Session,
    page: PageHandle,
    ticket: Ticket,
}

impl Placed {
    fn new(page: &PageHandle, class: Class, memory_bytes: u64) -> Self {
        let config = SoftConfig { memory_bytes, page: Some(page.clone()), ..SoftConfig::default() };
        let session = Session::with(config);
        let ticket = page.page().claim(process::this_process().unwrap(), class, process::now_ns()).unwrap();
        session.driver.share(ticket).unwrap();
        Self { session, page: page.clone(), ticket }
    }

    fn takes(&self, bytes: u64) -> Result<u64, CudaError> {
        let address = self.session.place(bytes);
        self.session.driver.memory_allocate(CONTEXT, address, bytes).map(|()| address)
    }

    fn of_page(&self, field: Field) -> u64 {
        self.page.page().get(self.ticket.slot(), field)
    }

    /// As a session leaves whose process ends.
    fn leaves(self) {
        self.page.page().release(self.ticket);
        self.page.page().memory_returns(process::now_ns());
    }
}

fn promised_twice() -> (PageHandle, Placed, Placed) {
    let (_, page) = page::create().unwrap();
    page.page().set_capacity(Some(ALL));
    let (online, guest) = (Placed::new(&page, Class::Online, ALL), Placed::new(&page, Class::Offline, SEAT));
    (page, online, guest)
}

#[test]
fn sessions_of_two_workers_never_have_more_than_the_gpu() {
    let (page, online, guest) = promised_twice();
    online.takes(80 * MIB).unwrap();
    guest.takes(15 * MIB).unwrap();
    let began = Instant::now();
    assert_eq!(guest.takes(10 * MIB), Err(CudaError::OUT_OF_MEMORY), "its seat has it, the GPU has not");
    assert!(began.elapsed() < Duration::from_secs(2), "a guest does not wait");
    assert_eq!((online.of_page(Field::UsedBytes), guest.of_page(Field::UsedBytes)), (80 * MIB, 15 * MIB));
    assert_eq!(guest.session.driver.memory_info(0), Ok((5 * MIB, SEAT)));
    assert_eq!(online.session.driver.memory_info(0), Ok((20 * MIB, ALL)), "a guest's memory is there for it");
    guest.leaves();
    assert_eq!(page.page().used_bytes(), 80 * MIB);
    online.takes(20 * MIB).unwrap();
}

#[test]
fn an_online_allocation_has_the_memory_when_the_guest_has_left() {
    type Allocation = fn(&Session, u64) -> Result<(), CudaError>;
    let allocations: [Allocation; 3] = [
        |session, bytes| session.driver.memory_allocate(CONTEXT, session.place(bytes), bytes),
        |session, bytes| session.driver.physical_create(MemoryHandleId(1), 0, bytes),
        |session, bytes| {
            let address = session.place(bytes);
            let stream = session.stream(1);
            session.driver.enqueue(stream, Op::Allocate { address, bytes })
        },
    ];
    for (at, allocate) in allocations.into_iter().enumerate() {
        let (_, online, guest) = promised_twice();
        online.takes(50 * MIB).unwrap();
        guest.takes(30 * MIB).unwrap();
        let wanted = &online;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while wanted.of_page(Field::WantBytes) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                guest.leaves();
            });
            assert_eq!(allocate(&online.session, 40 * MIB), Ok(()), "allocation {at}");
        });
        assert_eq!(online.of_page(Field::WantBytes), 0, "allocation {at}");
        assert_eq!(online.of_page(Field::UsedBytes), 90 * MIB, "allocation {at}");
    }
}

#[test]
fn without_a_guest_and_beyond_its_lease_an_online_session_hears_at_once_that_there_is_no_memory() {
    let (page, online, guest) = promised_twice();
    online.takes(70 * MIB).unwrap();
    let began = Instant::now();
    assert_eq!(online.takes(40 * MIB), Err(CudaError::OUT_OF_MEMORY), "more than its lease has");
    guest.leaves();
    // Memory that another online session of the lease has does not come back.
    let other = Placed::new(&page, Class::Online, ALL);
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!(other.takes(40 * MIB), Err(CudaError::OUT_OF_MEMORY));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!((online.of_page(Field::WantBytes), other.of_page(Field::WantBytes)), (0, 0));
}

#[test]
fn what_a_session_had_that_was_killed_with_its_worker_is_free_for_the_next_guest() {
    let (page, online, guest) = promised_twice();
    online.takes(60 * MIB).unwrap();
    guest.leaves();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let gone = sharing::Owner::new(child.id(), 1).unwrap();
    child.wait().unwrap();
    let killed = page.page().claim(gone, Class::Offline, process::now_ns()).unwrap();
    assert!(page.page().take_memory(killed, 30 * MIB));
    Placed::new(&page, Class::Offline, SEAT).takes(30 * MIB).unwrap();
}

#[test]
fn where_no_memory_is_promised_twice_the_page_bounds_nothing() {
    let (_, page) = page::create().unwrap();
    let (online, guest) = (Placed::new(&page, Class::Online, ALL), Placed::new(&page, Class::Offline, SEAT));
    online.takes(ALL).unwrap();
    guest.takes(SEAT).unwrap();
}

#[test]
fn what_a_session_gives_back_and_what_it_has_set_aside_is_counted() {
    let (page, online, _guest) = promised_twice();
    let credit = online.session.driver.grant_memory_credit();
    assert!(credit > 0);
    assert_eq!(page.page().used_bytes(), credit, "what is set aside is taken");
    let address = online.takes(60 * MIB).unwrap();
    assert_eq!(page.page().used_bytes(), 60 * MIB);
    online.session.driver.memory_free(address).unwrap();
    online.session.driver.stream_synchronize(LEGACY).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while page.page().used_bytes() != 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        let _ = online.session.driver.memory_info(0);
    }
    assert_eq!(page.page().used_bytes(), 0);
}
