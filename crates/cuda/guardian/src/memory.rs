//! A guardian's memory: out of swap, and quick to have.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use std::process::Command;

/// Says in the environment of a guardian how its allocator is to have memory.
pub fn tune_memory(command: &mut Command) {
    // One arena: the allocator would keep freed blocks of each thread to itself.
    command.env("MALLOC_ARENA_MAX", "1");
    // Large pages: an image of 20 GB has five million small ones, and the kernel makes each of them at its first touch.
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
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
