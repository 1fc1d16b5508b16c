//! A guardian's memory: out of swap, and quick to have.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use std::process::Command;

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
/// How much is touched between two looks at the machine's memory.
const STEP_PIECES: usize = 1024;

/// Has the kernel make `bytes` of memory now, a part of them if the machine has little left: the first touch of a page costs many
/// times as much as the next, and the first image of a program would wait for it. Says how much was made.
///
/// The memory stays in the allocator of a process that was started with [`tune_memory`].
pub fn make_ready(bytes: u64) -> u64 {
    let mut held: Vec<Vec<u8>> = Vec::new();
    let made = |held: &[Vec<u8>]| (held.len() * PIECE_BYTES) as u64;
    while made(&held) < bytes && available_bytes().is_some_and(|left| left / 2 > bytes - made(&held)) {
        held.extend((0..STEP_PIECES).map(|_| vec![1; PIECE_BYTES]));
    }
    made(&held)
}

/// Memory that the machine can still give, as the kernel estimates it.
fn available_bytes() -> Option<u64> {
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
        assert_eq!(make_ready(u64::MAX / 2), 0, "no machine has as much");
    }
}
