//! Once its buffers have reached their working size, a journal that is cut regularly allocates nothing when it is given
//! frames and observations.

use cuda_wire::{Command, KernelRef, ModuleId, Op, StreamId, begin_command, finish_command};
use journal::{Journal, Observation};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

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
fn launches_and_their_waits_allocate_nothing() {
    let mut journal = Journal::new(1 << 30);
    let mut buffer = Vec::with_capacity(1 << 20);
    let launch = Command::Enqueue {
        stream: StreamId(1),
        op: Op::Launch {
            kernel: KernelRef { module: ModuleId(1), index: 0 },
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cooperative: false,
            attributes: vec![],
            parameters: cuda_wire::Bytes(&[7; 200]),
        },
    };
    let wait = Command::StreamSynchronize { stream: StreamId(1) };
    let mut call = 0;
    let append = |buffer: &mut Vec<u8>, command: &Command<'_>, call: u32| {
        let start = begin_command(buffer, command.opcode(), call);
        command.put_body(buffer);
        finish_command(buffer, start);
    };
    // Small writes, large writes, and a wait after each ten.
    let mut between_two_cuts = |journal: &mut Journal, buffer: &mut Vec<u8>| {
        for round in 0..100usize {
            let launches = if round % 3 == 0 { 2500 } else { 3 };
            (0..launches).for_each(|_| append(buffer, &launch, 0));
            *buffer = journal.sent(std::mem::take(buffer));
            if round % 10 == 9 {
                call += 1;
                append(buffer, &wait, call);
                *buffer = journal.sent(std::mem::take(buffer));
                journal.observed(Observation::reply(call, wait.opcode(), 0, &[]));
            }
        }
    };
    for cut in 0..20 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        between_two_cuts(&mut journal, &mut buffer);
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert!(cut < 3 || allocated == 0, "{allocated} allocations before cut {cut}");
        journal.cut_sent(cut);
        journal.cut_taken(cut);
        journal.cut_safe(cut).unwrap();
    }
}
