//! Has an online session wait for memory that a guest has, with the clock and the process table of this machine.

use crate::{page::sweep, process::now_ns};
use sharing::{MemoryWait, PageHandle, Ticket};
use std::time::Duration;

/// A try costs a call of the driver; a guest that leaves takes tenths of a second.
const TRY_EVERY: Duration = Duration::from_millis(5);
/// How often the waiting session empties the slots of processes that are gone: their fronts may be gone, too.
const SWEEP_EVERY_NS: u64 = 100_000_000;

/// The device had no memory for an allocation that is within the session's limit. Tries again as long as a guest may leave some, and
/// says meanwhile in the page that it is wanted. `attempt` answers `None` as long as there is none.
pub fn wait_for_memory<T>(
    page: &PageHandle,
    ticket: Ticket,
    bytes: u64,
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    let page = page.page();
    let mut wait = MemoryWait::begin(page, ticket, bytes, now_ns())?;
    let (mut found, mut swept_ns) = (None, 0);
    while found.is_none() && wait.goes_on(page, now_ns()) {
        if now_ns().saturating_sub(swept_ns) >= SWEEP_EVERY_NS {
            sweep(page);
            swept_ns = now_ns();
        }
        std::thread::sleep(TRY_EVERY);
        found = attempt();
    }
    wait.end(page);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{page, process};
    use sharing::{Class, Owner};
    use std::time::Instant;

    #[test]
    fn a_guest_that_is_gone_without_its_front_is_not_waited_for() {
        let (_words, page) = page::create().unwrap();
        page.page().set_capacity(Some(1000));
        let own = process::this_process().unwrap();
        let online = page.page().claim(own, Class::Online, 1).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = Owner::new(child.id(), 1).unwrap();
        child.wait().unwrap();
        let guest = page.page().claim(gone, Class::Offline, 1).unwrap();
        assert!(page.page().take_memory(guest, 900));
        let began = Instant::now();
        let got = wait_for_memory(&page, online, 500, || page.page().take_memory(online, 500).then_some(()));
        assert_eq!(got, Some(()), "what it had is free");
        // Nothing more comes: the session waits for as long as a driver may take to give memory of the dead back, and no longer.
        let none = wait_for_memory(&page, online, 900, || page.page().take_memory(online, 900).then_some(()));
        assert_eq!(none, None);
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        assert_eq!(
            wait_for_memory(&page, online, 900, || Some(())),
            None,
            "it does not begin to wait any more"
        );
    }
}
