//! How long the longest group of an offline session takes, of late: a kernel that is longer than a group is a group of its own.
//!
//! An online session reads it in the slot. It is what opening the gate too early may cost, and whether time slices are of use.

/// A long kernel counts for one to two of these after its launch.
const WINDOW_NS: u64 = 1_000_000_000;

/// The longest group of this window and of the one before.
#[derive(Clone, Debug, Default)]
pub struct LongestGroup {
    window: u64,
    longest_ns: u64,
    before_ns: u64,
    published_us: Option<u64>,
}

impl LongestGroup {
    /// Work of this cost was put into a stream. What to write into the slot, in microseconds, if that is something new.
    pub fn saw(&mut self, cost_ns: u64, now_ns: u64) -> Option<u64> {
        let window = now_ns / WINDOW_NS;
        if window != self.window {
            // Also after a pause: what was launched before may be what runs.
            (self.before_ns, self.longest_ns) = (self.longest_ns, 0);
            self.window = window;
        }
        self.longest_ns = self.longest_ns.max(cost_ns);
        let us = self.longest_ns.max(self.before_ns) / 1000;
        (self.published_us.replace(us) != Some(us)).then_some(us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_kernel_is_known_at_once_and_forgotten_after_two_windows() {
        let mut longest = LongestGroup::default();
        assert_eq!(longest.saw(20_000, 1), Some(20));
        assert_eq!(longest.saw(1_400_000, 2), Some(1_400));
        assert_eq!(longest.saw(20_000, 3), None, "nothing new");
        assert_eq!(longest.saw(20_000, WINDOW_NS + 1), None, "it was in the window before");
        assert_eq!(longest.saw(30_000, 2 * WINDOW_NS + 1), Some(30));
    }

    #[test]
    fn a_session_that_paused_is_known_by_what_it_did_last() {
        let mut longest = LongestGroup::default();
        longest.saw(1_400_000, 1);
        assert_eq!(longest.saw(20_000, 60 * WINDOW_NS), None);
        assert_eq!(longest.saw(20_000, 61 * WINDOW_NS), Some(20));
    }
}
