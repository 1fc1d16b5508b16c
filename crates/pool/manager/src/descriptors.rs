//! How many files and connections this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the store (connections, logs, watches), the log, files that are read, and what waits to be accepted.
const RESERVED: u64 = 256;

/// Raises the limit as far as the system allows, and tells how many connections fit beside everything else.
pub(crate) fn connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => {
                tracing::warn!(%error, "cannot raise the limit of open files; the manager accepts fewer connections")
            }
        }
    }
    fitting(limit.current)
}

/// At least a few, whatever the limit: a manager that accepts no connection is of no use.
fn fitting(limit: Option<u64>) -> usize {
    let fits = limit.map_or(u64::MAX, |limit| limit.saturating_sub(RESERVED).max(limit / 2).max(1));
    usize::try_from(fits).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_the_store() {
        assert_eq!(fitting(Some(1024)), 768);
        assert_eq!(fitting(Some(20_000)), 19_744);
        assert_eq!(fitting(Some(100)), 50);
        assert_eq!(fitting(None), usize::MAX);
    }
}
