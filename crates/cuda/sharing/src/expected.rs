//! An online session that is expected back.
//!
//! Where contexts are merged, a fault ends the session of a protected online program, which goes on in another one. Between the two the
//! program has no slot of the page:
//!
//! ```text
//!   slot of the lost session ── its process ends ──┤   no slot   ├── slot of the next session ── its replay begins: the gate is closed
//!                             ├──────────────── the page says that it is expected ─────────────┤
//! ```
//!
//! Offline sessions that begin in between must not take the GPU for one without online work: a fault of theirs would end the next session
//! before it has brought the program back, and so for ever.

use crate::page::Page;
use std::sync::atomic::Ordering::SeqCst;

const EXPECTED_UNTIL: usize = 12;

/// A program that has not come back after so long is not waited for: it may have ended.
const BACK_WITHIN_NS: u64 = 10_000_000_000;

impl Page<'_> {
    /// The caller's session is lost, and its program will have another one here. Said while the slot is still the session's.
    pub fn expect_online(&self, now_ns: u64) {
        self.header(EXPECTED_UNTIL).store(now_ns.saturating_add(BACK_WITHIN_NS), SeqCst);
    }

    /// The next session of a program that was lost has closed the gate, and does its work again.
    pub fn online_is_back(&self) {
        self.header(EXPECTED_UNTIL).store(0, SeqCst);
    }

    /// Whether an online session is expected back.
    pub fn is_online_expected(&self, now_ns: u64) -> bool {
        let left_ns = self.header(EXPECTED_UNTIL).load(SeqCst).saturating_sub(now_ns);
        // More is never written: a word that is damaged holds no session back for good. Twice as much, since the caller may have looked
        // at the clock before the word was written.
        (1..=2 * BACK_WITHIN_NS).contains(&left_ns)
    }

    /// Whether an online session is there, or is expected back.
    pub fn is_online_near(&self, now_ns: u64) -> bool {
        // In this order: a session that comes has its slot before it is expected no more.
        self.is_online_expected(now_ns) || self.present() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::{EXPECTED_UNTIL, SeqCst};
    use crate::{Owner, PAGE_WORDS, Page};
    use std::sync::atomic::AtomicU64;
    use work_class::Class;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_lost_session_is_expected_until_another_one_comes_and_not_for_ever() {
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = Page::create(&words, 1).unwrap();
        let claim = |class| page.claim(Owner::new(1, 1).unwrap(), class, S).unwrap();
        assert!(!page.is_online_near(S));
        let lost = claim(Class::Online);
        page.expect_online(S);
        page.release(lost);
        let guest = claim(Class::Offline);
        assert!(page.is_online_near(S + 1) && page.is_online_near(10 * S), "an offline session is not it");
        assert!(!page.is_online_near(11 * S), "it does not come");
        page.expect_online(11 * S);
        let next = claim(Class::Online);
        assert!(page.is_online_expected(12 * S), "it has not closed the gate yet");
        page.online_is_back();
        assert!(!page.is_online_expected(12 * S) && page.is_online_near(30 * S));
        page.release(next);
        assert!(!page.is_online_near(12 * S), "it has come, and has left");
        page.release(guest);
        page.header(EXPECTED_UNTIL).store(u64::MAX, SeqCst);
        assert!(!page.is_online_expected(12 * S), "no session wrote that");
        page.expect_online(12 * S);
        assert!(page.is_online_expected(12 * S - 1) && !page.is_online_expected(22 * S), "it is whole again");
    }
}
