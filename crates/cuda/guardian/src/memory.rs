//! A guardian's memory: out of swap, and quick to have.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Says in the environment of a guardian how its allocator is to have memory.
pub fn tune_memory(command: &mut Command) {
    // One arena: the allocator would keep freed blocks of each thread to itself.
    command.env("MALLOC_ARENA_MAX", "1");
    // Large pages: an image of 20 GB has five million small ones, and the kernel makes each of them at its first touch. And what was
    // made stays: the allocator would give the blocks of an older cut back to the kernel, and ask for them again for the next.
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1099511627776");
}

/// As large as most blocks of an image, and small enough for the allocator's heap, which keeps them.
const PIECE_BYTES: usize = 64 << 10;
/// How much a thread touches between two looks at the machine's memory.
const STEP_PIECES: usize = 1024;
/// One thread makes about 1 GiB a second on a machine whose memory is fresh, and eight make four; the programs of the box need the
/// other cores.
const THREADS_MAX: usize = 8;

/// Has the kernel make `bytes` of memory now, a part of them if the machine has little left: the first touch of a page costs many
/// times as much as the next, and the first image of a program would wait for it. Says how much was made.
///
/// The memory stays in the allocator of a process that was started with [`tune_memory`].
pub fn make_ready(bytes: u64) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / 2).clamp(1, THREADS_MAX);
    let made = AtomicU64::new(0);
    // Each thread holds what it made until all have ended: what one frees, another would be given again.
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..threads).map(|_| scope.spawn(|| make_in_turn(bytes, &made))).collect();
        drop(makers.into_iter().map(|maker| maker.join().unwrap_or_default()).collect::<Vec<_>>());
    });
    made.into_inner()
}

/// Makes steps until all threads together have made `bytes`. Gives what it made itself.
fn make_in_turn(bytes: u64, made: &AtomicU64) -> Vec<Vec<u8>> {
    const STEP_BYTES: u64 = (STEP_PIECES * PIECE_BYTES) as u64;
    let mut held = Vec::new();
    loop {
        let before = made.load(Ordering::Relaxed);
        if before >= bytes || available_bytes().is_none_or(|left| left / 2 <= bytes - before) {
            return held;
        }
        if made.compare_exchange(before, before + STEP_BYTES, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            held.extend((0..STEP_PIECES).map(|_| vec![1; PIECE_BYTES]));
        }
    }
}

/// Memory that the machine can still give, as the kernel estimates it.
pub fn available_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Has the kernel keep this process' memory in memory, if it may have as much as it wants; says whether it does.
///
/// With a limit the process would get no more memory at all beyond it, so then swap is left as it is. (Core dumps are
/// switched off for every process of `dxpu`.)
pub fn keep_out_of_swap() -> bool {
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none();
    // On fault: the stacks of threads and what the allocator has set aside need not be there before they are used.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    is_unlimited && mlockall(flags).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_made_ready_unless_the_machine_has_little_left() {
        assert_eq!(make_ready(0), 0);
        assert_eq!(make_ready(1 << 20), (STEP_PIECES * PIECE_BYTES) as u64, "a step at least");
        assert_eq!(make_ready(200 << 20), 256 << 20, "in steps, of all threads together");
        assert_eq!(make_ready(u64::MAX / 2), 0, "no machine has as much");
    }
}
