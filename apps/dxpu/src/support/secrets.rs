//! Processes of `dxpu` hold tokens and keys: their memory goes into no core dump, and no other process of the same user
//! reads it.
//!
//! A program that `dxpu run` starts is not touched by this: the kernel makes a process dumpable again when it executes
//! another program, and limits are changed only in processes that start no program of a user.

use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior, setrlimit};

/// For developers in search of a fault: set to 1, core dumps and debuggers work as usual.
const ALLOWED: &str = "DXPU_CORE_DUMPS";

fn are_dumps_allowed() -> bool {
    std::env::var_os(ALLOWED).is_some_and(|value| value == "1")
}

/// Keeps this process's memory to itself.
pub(crate) fn keep() {
    if !are_dumps_allowed() {
        // Fails nowhere that is known; without it, this process is as any other.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// The same for a process that starts processes of `dxpu` alone: they have no core dumps either, whatever they load.
pub(crate) fn keep_in_children() {
    if are_dumps_allowed() {
        return;
    }
    let mut limit = getrlimit(Resource::Core);
    limit.current = Some(0);
    let _ = setrlimit(Resource::Core, limit);
}
