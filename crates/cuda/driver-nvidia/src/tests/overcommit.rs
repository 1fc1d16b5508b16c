//! An online session on a GPU whose memory is promised twice: it waits for what a guest has.

use super::{link::until, session::*};
use crate::memory::GRANULE;
use cuda_abi::CudaError;
use cuda_driver::{Class, Driver, PageHandle, Ticket};
use cuda_wire::*;
use shared_words::{page, process};
use sharing::{Field, MEMORY_PATIENCE_NS};
use std::time::{Duration, Instant};

const FREE: u64 = DATA + DATA_BYTES;
const HANDLE: MemoryHandleId = MemoryHandleId(1);

/// A session of a class, a slot of another one that is a guest, and their page.
struct Shared {
    session: Session,
    page: PageHandle,
    ticket: Ticket,
    guest: Ticket,
}

impl Shared {
    fn new(class: Class, capacity: Option<u64>) -> Self {
        let (_, page) = page::create().unwrap();
        page.page().set_capacity(capacity);
        let claim = |class| page.page().claim(process::this_process().unwrap(), class, 1).unwrap();
        let (ticket, guest) = (claim(class), claim(Class::Offline));
        let session = Session::with_page(page.clone());
        session.share(ticket).unwrap();
        Self { session, page, ticket, guest }
    }

    fn online() -> Self {
        Self::new(Class::Online, Some(1 << 30))
    }

    fn want(&self) -> u64 {
        self.page.page().get(self.ticket.slot(), Field::WantBytes)
    }

    /// The guest leaves when it is wanted to, a moment later its memory is there.
    fn guest_leaves_when_wanted(&self) {
        until("the session wants memory", || self.want() != 0);
        std::thread::sleep(Duration::from_millis(100));
        self.page.page().release(self.guest);
        self.page.page().memory_returns(process::now_ns());
        std::thread::sleep(Duration::from_millis(100));
        self.session.fake.take_memory(0, 100 * GRANULE as usize);
    }
}

#[test]
fn an_allocation_waits_until_the_guest_has_left() {
    type Allocation = fn(&Session) -> Result<(), CudaError>;
    let allocations: [Allocation; 3] = [
        |session| session.memory_allocate(CONTEXT, FREE, 3 * GRANULE),
        |session| session.physical_create(HANDLE, 0, 3 * GRANULE),
        |session| {
            let op = Op::Allocate { address: FREE, bytes: 3 * GRANULE };
            session.enqueue(STREAM, op)
        },
    ];
    for (at, allocate) in allocations.into_iter().enumerate() {
        let shared = Shared::online();
        shared.session.fake.take_memory(0, 2 * GRANULE as usize);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| shared.guest_leaves_when_wanted());
            assert_eq!(allocate(&shared.session), Ok(()), "allocation {at}");
        });
        assert!(began.elapsed() >= Duration::from_millis(200), "it cannot have the memory before");
        assert_eq!(shared.want(), 0, "allocation {at}");
        assert_eq!(shared.page.page().get(shared.ticket.slot(), Field::UsedBytes), 3 * GRANULE);
    }
}

#[test]
fn it_gives_up_in_time_when_the_guest_stays_and_at_once_without_one() {
    let shared = Shared::online();
    shared.session.fake.take_memory(0, GRANULE as usize);
    let timed = || {
        let began = Instant::now();
        let outcome = shared.session.memory_allocate(CONTEXT, FREE, 3 * GRANULE);
        (outcome, began.elapsed(), shared.want())
    };
    let (outcome, took, want) = timed();
    assert_eq!((outcome, want), (Err(CudaError::OUT_OF_MEMORY), 0));
    let patience = Duration::from_nanos(MEMORY_PATIENCE_NS);
    assert!((patience..patience + Duration::from_secs(5)).contains(&took), "{took:?}");
    shared.page.page().release(shared.guest);
    let (outcome, took, want) = timed();
    assert_eq!((outcome, want), (Err(CudaError::OUT_OF_MEMORY), 0));
    assert!(took < Duration::from_secs(1), "{took:?}");
    shared.session.memory_allocate(CONTEXT, FREE, GRANULE).unwrap();
}

#[test]
fn a_limit_a_guest_and_a_gpu_that_is_not_promised_twice_do_not_wait() {
    let limited = Shared::online();
    limited.session.limit_memory(DATA_BYTES + 2 * GRANULE, cuda_driver::LimitOf::Lease);
    let others = [Shared::new(Class::Offline, Some(1 << 30)), Shared::new(Class::Online, None)];
    for shared in others.iter().chain([&limited]) {
        shared.session.fake.take_memory(0, GRANULE as usize);
        let began = Instant::now();
        let outcome = shared.session.memory_allocate(CONTEXT, FREE, 3 * GRANULE);
        assert_eq!(outcome, Err(CudaError::OUT_OF_MEMORY));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(shared.want(), 0);
    }
}

#[test]
fn what_guests_have_is_free_for_an_online_session_and_not_for_a_guest() {
    let shared = Shared::online();
    shared.page.page().count_memory(shared.guest, 5 * GRANULE);
    shared.session.fake.take_memory(0, 2 * GRANULE as usize);
    assert_eq!(shared.session.memory_info(0).unwrap().0, 7 * GRANULE);
    let guest = Shared::new(Class::Offline, Some(1 << 30));
    guest.page.page().count_memory(guest.guest, 5 * GRANULE);
    guest.session.fake.take_memory(0, 2 * GRANULE as usize);
    assert_eq!(guest.session.memory_info(0).unwrap().0, 2 * GRANULE);
}
