//! How long offline programs wait after faults, where a fault ends the contexts of all (merged contexts).
//!
//! ```text
//!   fault 1        fault 2          fault 3
//!   ├─ 1 s ─▶      ├─ 2 s ─▶        ├─ 4 s ─────▶  … at most the longest wait     forgotten after ten minutes without one
//! ```
//!
//! Each fault costs an online program the time of a replay. Whose fault it was is not known here, so all offline programs of the GPU wait:
//! one that faults again and again has less and less to do with the GPU. Online and dedicated programs never wait.

/// After the first fault.
const FIRST_MS: u64 = 1000;
/// Every session of the GPU meets a fault, one after the other. Within this time it is the same.
const SAME_FAULT_MS: u64 = 1000;
/// A fault after so long a time without one counts as the first.
const FORGOTTEN_AFTER_MS: u64 = 10 * 60 * 1000;
/// Faults in a row are counted up to here; more double nothing.
const IN_A_ROW_MAX: u8 = 63;
const MS_BITS: u32 = 56;

/// The faults of a GPU, as one word: how many in a row, and when the last one was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultBackoff {
    in_a_row: u8,
    last_ms: u64,
}

impl FaultBackoff {
    /// As the page keeps it. Zero: there was no fault.
    pub fn word(self) -> u64 {
        u64::from(self.in_a_row) << MS_BITS | self.last_ms
    }

    /// From the page. Another process may have written any word.
    pub fn from_word(word: u64) -> Self {
        let in_a_row = ((word >> MS_BITS) as u8).min(IN_A_ROW_MAX);
        Self { in_a_row, last_ms: word & ((1 << MS_BITS) - 1) }
    }

    /// A session has met a fault.
    #[must_use]
    pub fn after_fault(self, now_ns: u64) -> Self {
        let now_ms = (now_ns / 1_000_000) & ((1 << MS_BITS) - 1);
        let since_ms = now_ms.saturating_sub(self.last_ms);
        match self.in_a_row {
            1.. if since_ms < SAME_FAULT_MS => self,
            1.. if since_ms < FORGOTTEN_AFTER_MS => {
                Self { in_a_row: (self.in_a_row + 1).min(IN_A_ROW_MAX), last_ms: now_ms }
            }
            _ => Self { in_a_row: 1, last_ms: now_ms },
        }
    }

    /// How many faults there were in a row.
    pub fn in_a_row(self) -> u8 {
        self.in_a_row
    }

    /// How long an offline program must still wait. `longest_ns`: the most that it waits after any fault.
    pub fn wait_ns(self, now_ns: u64, longest_ns: u64) -> u64 {
        if self.in_a_row == 0 {
            return 0;
        }
        let doublings = u32::from(self.in_a_row - 1).min(32);
        let wait_ns = (FIRST_MS * 1_000_000).saturating_mul(1 << doublings).min(longest_ns);
        // A moment that has not come yet is no reason to wait for longer.
        let since_ns = now_ns.saturating_sub(self.last_ms.saturating_mul(1_000_000));
        wait_ns.saturating_sub(since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const LONGEST: u64 = 60 * S;

    #[test]
    fn the_wait_doubles_with_each_fault_up_to_the_longest() {
        let (mut backoff, mut now) = (FaultBackoff::default(), 100 * S);
        assert_eq!(backoff.wait_ns(now, LONGEST), 0, "nothing has happened");
        let mut waits = Vec::new();
        for _ in 0..9 {
            backoff = FaultBackoff::from_word(backoff.after_fault(now).word());
            waits.push(backoff.wait_ns(now, LONGEST) / S);
            now += backoff.wait_ns(now, LONGEST) + S;
            assert_eq!(backoff.wait_ns(now, LONGEST), 0, "it is over");
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.wait_ns(now, 0), 0, "no program waits where the longest wait is none");
        for _ in 0..200 {
            now += 70 * S;
            backoff = backoff.after_fault(now);
        }
        assert_eq!(backoff.wait_ns(now + 10 * S, LONGEST), 50 * S);
    }

    #[test]
    fn a_fault_that_all_sessions_meet_counts_once() {
        let first = FaultBackoff::default().after_fault(100 * S);
        let last = (0..20).fold(first, |backoff, step| backoff.after_fault(100 * S + step * 49_000_000));
        assert_eq!(last, first);
        assert_eq!(last.after_fault(101 * S).in_a_row(), 2, "the next one");
    }

    #[test]
    fn faults_are_forgotten() {
        let twice = FaultBackoff::default().after_fault(100 * S).after_fault(200 * S);
        assert_eq!(twice.in_a_row(), 2);
        assert_eq!(twice.after_fault(200 * S + 599 * S).in_a_row(), 3);
        assert_eq!(twice.after_fault(200 * S + 600 * S).in_a_row(), 1);
    }

    #[test]
    fn no_word_has_a_program_wait_for_longer_than_the_longest_wait() {
        for word in [u64::MAX, 1 << 63, 255 << MS_BITS, (1 << MS_BITS) - 1, 1] {
            let backoff = FaultBackoff::from_word(word);
            assert!(backoff.wait_ns(5 * S, LONGEST) <= LONGEST, "{word:#x}");
            assert!(backoff.after_fault(5 * S).in_a_row() <= IN_A_ROW_MAX, "{word:#x}");
        }
        // The clock of a machine that was started again is behind.
        assert_eq!(FaultBackoff { in_a_row: 3, last_ms: 1 << 40 }.after_fault(S).in_a_row(), 3);
    }
}
