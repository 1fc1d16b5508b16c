//! Whether a client asks for blocks by their names, or just sends them.
//!
//! Asking costs a hash of every byte, and a round trip; a block that the worker has saves its way over the link. So asking pays
//! when the part that is found, at the rate of hashing, is more than the link carries in the same time. A program that sends new
//! data finds nothing: it is asked about less and less often.

use cuda_wire::content::{BLOCK_BYTES, blocks_of};

/// Blocks after whose answers the policy decides again.
const LOOK_AFTER: u64 = 64;
/// Blocks that are sent unasked after the first time that asking did not pay. Twice as many the next time.
const PAUSE_FIRST: u64 = 256;
/// The longest pause: at most one block in a thousand is hashed for a program that sends new data for ever.
const PAUSE_MAX: u64 = 64 << 10;
/// Below this part found, in percent, asking does not pay on any link.
const FOUND_PERCENT_MIN: u64 = 10;

/// What is known about asking in one session.
#[derive(Clone, Debug)]
pub struct AskPolicy {
    /// Since the last decision.
    asked: u64,
    found: u64,
    /// Blocks to send before the next question.
    pause_left: u64,
    pause_next: u64,
    /// Bytes a second, 0 if they are not known.
    hash_rate: u64,
    link_rate: u64,
}

impl AskPolicy {
    /// A session whose worker says that it has `blocks` of the tenant's. If it has none, none is asked for.
    pub fn new(blocks: u64) -> Self {
        let pause_left = if blocks == 0 { u64::MAX } else { 0 };
        Self { asked: 0, found: 0, pause_left, pause_next: PAUSE_FIRST, hash_rate: 0, link_rate: 0 }
    }

    /// Whether the blocks of a copy would be asked for.
    pub fn asks(&self, bytes: u64) -> bool {
        bytes >= BLOCK_BYTES && self.pause_left == 0
    }

    /// A copy of so many bytes was sent unasked.
    pub fn sent_unasked(&mut self, bytes: u64) {
        if self.pause_left != u64::MAX {
            self.pause_left = self.pause_left.saturating_sub(blocks_of(bytes));
        }
    }

    /// So many blocks were asked for, and the worker had so many.
    pub fn answered(&mut self, asked: u64, found: u64) {
        self.asked += asked;
        self.found += found.min(asked);
        if self.asked < LOOK_AFTER {
            return;
        }
        if self.pays() {
            self.pause_next = PAUSE_FIRST;
        } else {
            self.pause_left = self.pause_next;
            self.pause_next = (self.pause_next * 2).min(PAUSE_MAX);
        }
        (self.asked, self.found) = (0, 0);
    }

    /// Bytes were hashed, by all threads together, at this rate.
    pub fn hashed(&mut self, bytes_a_second: u64) {
        self.hash_rate = blend(self.hash_rate, bytes_a_second);
    }

    /// Bytes left at this rate.
    pub fn sent(&mut self, bytes_a_second: u64) {
        self.link_rate = blend(self.link_rate, bytes_a_second);
    }

    fn pays(&self) -> bool {
        let found_percent = self.found * 100 / self.asked.max(1);
        let gain = u128::from(self.hash_rate) * u128::from(found_percent) / 100;
        let is_slow_link = self.hash_rate == 0 || self.link_rate == 0 || gain > u128::from(self.link_rate);
        found_percent >= FOUND_PERCENT_MIN && is_slow_link
    }
}

/// A rate that follows what was measured, and is not moved far by one measurement.
fn blend(known: u64, measured: u64) -> u64 {
    if known == 0 { measured } else { known / 4 * 3 + measured / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: u64 = 16 * BLOCK_BYTES;

    /// Copies until `blocks` have gone, of which `found` percent are there. Says how many were asked for.
    fn run(policy: &mut AskPolicy, blocks: u64, found_percent: u64) -> u64 {
        let mut asked = 0;
        for _ in 0..blocks / 16 {
            if policy.asks(COPY) {
                asked += 16;
                policy.answered(16, 16 * found_percent / 100);
            } else {
                policy.sent_unasked(COPY);
            }
        }
        asked
    }

    #[test]
    fn a_worker_that_has_nothing_is_not_asked() {
        let mut policy = AskPolicy::new(0);
        assert_eq!(run(&mut policy, 1 << 20, 100), 0);
        assert!(!AskPolicy::new(5).asks(BLOCK_BYTES - 1), "small copies go as ever");
    }

    #[test]
    fn weights_that_are_there_are_asked_for_to_the_last() {
        let mut policy = AskPolicy::new(2048);
        assert_eq!(run(&mut policy, 1 << 16, 100), 1 << 16);
    }

    #[test]
    fn new_data_is_asked_about_ever_less() {
        let mut policy = AskPolicy::new(2048);
        let asked = run(&mut policy, 1 << 20, 0);
        assert!(asked > 64 && asked < (1 << 20) / 400, "{asked}");
        // A program that loads weights after that is heard again within a pause.
        let later = run(&mut policy, 4 << 16, 100);
        assert!(later > 2 << 16, "{later}");
    }

    #[test]
    fn a_link_that_is_faster_than_hashing_is_just_used() {
        let mut policy = AskPolicy::new(2048);
        policy.hashed(3_000_000_000);
        policy.sent(10_000_000_000);
        assert!(run(&mut policy, 1 << 14, 100) < 1 << 12);
        let mut policy = AskPolicy::new(2048);
        policy.hashed(3_000_000_000);
        policy.sent(1_250_000_000);
        assert_eq!(run(&mut policy, 1 << 14, 50), 1 << 14, "half of 3 GB/s is more than 10 Gbit/s");
        assert!(run(&mut policy, 1 << 14, 30) < 1 << 12);
    }
}
