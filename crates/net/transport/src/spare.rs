//! Whether a thread may look for work instead of sleeping until it comes.

use std::num::NonZeroUsize;
use std::thread;

/// Up to so many cores, the thread we wait for may need the one that we burn: a program, a worker and a kernel on the
/// soft driver all run on one machine there.
const FEW_CORES_MAX: usize = 4;

/// Whether this machine, or the part of it that this process may use, has cores to spare for threads that look for work.
pub fn has_cores_to_spare() -> bool {
    is_many(thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

fn is_many(cores: usize) -> bool {
    cores > FEW_CORES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laptop_has_no_core_to_spare_and_a_server_has() {
        assert!(!is_many(1) && !is_many(2) && !is_many(4));
        assert!(is_many(5) && is_many(16));
    }
}
