//! Memory credit: what may be allocated without awaiting the worker's answer.
//!
//! The worker sets memory aside and says how much. Both sides count alike: every allocation command draws its bytes, awaited or not,
//! successful or not. A client that counts too much allocates what is not there, and the program finds out in a kernel; one that
//! counts too little only waits more often. So where two threads cannot agree, the lower number is taken.

use super::Link;
use cuda_abi::CuResult;
use cuda_wire::Command;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

/// Far below every credit: what is drawn or granted meanwhile does not change that nothing is left.
const NOTHING: i64 = i64::MIN / 4;

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 8)
}

/// The credit of a link.
#[derive(Debug)]
pub(super) struct Credit {
    /// In the present session.
    left: AtomicI64,
    /// In the session that is on its way to where the program is.
    of_next: AtomicI64,
    /// Drawn for commands that may not have been appended yet.
    under_way: AtomicI64,
}

impl Credit {
    pub(super) fn new(bytes: u64) -> Self {
        Self { left: AtomicI64::new(signed(bytes)), of_next: AtomicI64::new(0), under_way: AtomicI64::new(0) }
    }

    /// A reply of the present session brought more.
    pub(super) fn grant(&self, bytes: u64) {
        self.left.fetch_add(signed(bytes), SeqCst);
    }

    /// The session is lost: until another one is there, every allocation is awaited.
    pub(super) fn suspend(&self) {
        self.left.store(NOTHING, SeqCst);
    }

    /// Another session begins, and this is what it has set aside.
    pub(super) fn begin_next(&self, bytes: u64) {
        self.of_next.store(signed(bytes), SeqCst);
    }

    /// That session was told to allocate again.
    pub(super) fn replayed(&self, bytes: u64) {
        self.of_next.fetch_sub(signed(bytes), SeqCst);
    }

    /// A reply of that session brought more.
    pub(super) fn grant_next(&self, bytes: u64) {
        self.of_next.fetch_add(signed(bytes), SeqCst);
    }

    /// That session is the present one now. It will be sent commands that have gathered and allocate so many bytes; the caller keeps
    /// further ones from gathering meanwhile.
    pub(super) fn adopt_next(&self, gathered_bytes: u64) {
        let drawn = signed(gathered_bytes).saturating_add(self.under_way.load(SeqCst));
        self.left.store(self.of_next.load(SeqCst).saturating_sub(drawn), SeqCst);
    }

    fn take(&self, bytes: u64) -> bool {
        self.left.fetch_sub(signed(bytes), SeqCst) >= signed(bytes)
    }
}

/// Bytes whose command is about to be appended.
struct UnderWay<'c>(&'c Credit, u64);

impl<'c> UnderWay<'c> {
    fn begin(credit: &'c Credit, bytes: u64) -> Self {
        credit.under_way.fetch_add(signed(bytes), SeqCst);
        Self(credit, bytes)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(signed(self.1), SeqCst);
    }
}

impl Link {
    /// Has the worker allocate, by a command that draws `bytes`. Within the credit it is not awaited; beyond it only the worker knows
    /// whether there is memory.
    pub(crate) fn allocate(&self, command: &Command<'_>, bytes: u64) -> CuResult<()> {
        let under_way = UnderWay::begin(&self.credit, bytes);
        if self.credit.take(bytes) {
            return self.post(command);
        }
        self.call_and(command, || drop(under_way)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_allocation_beyond_the_credit_is_awaited_and_counted() {
        let credit = Credit::new(4 * MIB);
        assert!(credit.take(3 * MIB) && !credit.take(2 * MIB));
        credit.grant(2 * MIB);
        assert!(credit.take(MIB) && !credit.take(1));
    }

    #[test]
    fn the_next_session_knows_of_commands_that_wait_and_of_those_to_come() {
        let credit = Credit::new(64 * MIB);
        // Drawn from the lost session, and not appended when the next one takes over.
        let late = UnderWay::begin(&credit, MIB);
        assert!(credit.take(MIB));
        credit.suspend();
        credit.grant(64 * MIB);
        assert!(!credit.take(1), "without a session nothing is set aside");
        credit.begin_next(8 * MIB);
        credit.replayed(32 * MIB);
        credit.grant_next(30 * MIB);
        credit.adopt_next(2 * MIB);
        drop(late);
        assert!(credit.take(3 * MIB), "8 - 32 + 30 - 2 - 1");
        assert!(!credit.take(1));
    }
}
