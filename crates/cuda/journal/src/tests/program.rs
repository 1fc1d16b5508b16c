//! A program with two threads and two streams that uses everything, and whose results do not depend on timing.
//!
//! The two streams are ordered against each other in some places by events and in others by the host alone: one thread
//! waits, then the other is let go on and enqueues. A replay that forgets such an edge gives other results.

/// One thing that a thread does. `r` is the thread's register: the last value that it read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// target = target * 31 + source + plus
    Kernel(u32, u64, u64, u64),
    /// The same with `r`.
    KernelWithRead(u32, u64, u64),
    /// target = r + n, inside the command.
    Inline(u32, u64, u64),
    /// The same, pushed.
    Push(u32, u64, u64),
    /// From a slot of host memory, when the stream gets there.
    Pull(u32, u64, usize),
    /// To a slot of host memory.
    Out(u32, u64, usize),
    /// Runs host function `token`.
    HostCall(u32, u64),
    Print(u32, u64),
    Record(u32, u32),
    WaitEvent(u32, u32),
    /// The stream waits until a word has a value.
    WaitValue(u32, u64, u64),
    WriteValue(u32, u64, u64),
    Synchronize(u32),
    SynchronizeAll,
    SynchronizeEvent(u32),
    /// Asks until the answer is yes.
    PollStream(u32),
    PollEvent(u32),
    /// r = word of device memory.
    Read(u32, u64),
    /// r = slot of host memory.
    Look(usize),
    /// A slot of host memory = r + n.
    Set(usize, u64),
    /// Lets the other thread pass its `Await` of the same number.
    Signal(u32),
    Await(u32),
    Launch(u32, u32),
    Instantiate(u32),
    Load(u32),
    MakeEvent(u32),
    EndEvent(u32),
    Allocate(u32, u64),
    Free(u32, u64),
    MakeStream(u32),
    MemoryInfo,
}

use Act::*;

/// Words of device memory, allocated in the program.
pub(super) const A: u64 = 0x1000;
pub(super) const B: u64 = 0x1008;
pub(super) const C: u64 = 0x1010;
const FLAG: u64 = 0x1018;
/// The start and the length of the allocation.
pub(super) const BLOCK: (u64, u64) = (A, 0x40);
const TEMPORARY: u64 = 0x2000;

/// Slots of host memory. Host function `t` writes slot 3 from slot 2.
pub(super) const SLOTS: usize = 8;

/// The first thread. It sets everything up.
pub(super) const FIRST: &[Act] = &[
    MakeStream(1),
    MakeStream(2),
    MakeEvent(1),
    Load(1),
    Instantiate(1),
    Signal(0),
    Inline(1, A, 5),
    Kernel(1, A, A, 3),
    Read(1, A),
    KernelWithRead(1, A, A),
    Push(1, B, 11),
    Kernel(1, A, B, 1),
    Record(1, 1),
    SynchronizeEvent(1),
    // The other thread goes on: only the host orders stream 2 behind stream 1 here.
    Signal(1),
    Await(2),
    Kernel(1, A, C, 7),
    Print(1, A),
    Out(1, A, 0),
    Synchronize(1),
    Look(0),
    Set(1, 100),
    Pull(1, B, 1),
    Kernel(1, A, B, 2),
    PollStream(1),
    // The memory of the pull is the program's again.
    Set(1, 1),
    Launch(1, 1),
    Synchronize(1),
    Look(4),
    Set(5, 3),
    MemoryInfo,
    Launch(1, 1),
    Print(1, A),
    Synchronize(1),
    Look(4),
    Signal(3),
    // Ends only because the other thread writes the word later.
    WaitValue(1, FLAG, 9),
    Kernel(1, A, C, 1),
    Synchronize(1),
    Read(1, A),
    Signal(5),
];

/// The second thread.
pub(super) const SECOND: &[Act] = &[
    Await(0),
    Inline(2, C, 2),
    Await(1),
    Kernel(2, C, A, 5),
    Out(2, C, 2),
    HostCall(2, 1),
    PollStream(2),
    Look(3),
    Inline(2, C, 1),
    Kernel(2, C, A, 1),
    Read(2, C),
    Signal(2),
    Await(3),
    Kernel(2, C, A, 2),
    MakeEvent(2),
    Record(2, 2),
    PollEvent(2),
    EndEvent(2),
    Allocate(2, TEMPORARY),
    Kernel(2, TEMPORARY, C, 4),
    Kernel(2, C, TEMPORARY, 4),
    Out(2, C, 2),
    HostCall(2, 1),
    Synchronize(2),
    Look(3),
    Free(2, TEMPORARY),
    WriteValue(2, FLAG, 9),
    SynchronizeAll,
    Await(5),
    Record(2, 1),
    WaitEvent(1, 1),
    Kernel(1, A, C, 3),
    Read(1, A),
];
