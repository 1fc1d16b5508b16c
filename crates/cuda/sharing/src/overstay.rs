//! Finds a kernel of an offline session that keeps the device from online sessions.
//!
//! A gate stops what has not begun. What runs goes on to its end, and the device's own slices give an online session about half of
//! the time meanwhile. That is right for a kernel of milliseconds; one that never ends must not have half of a GPU for good.

use crate::{
    mutant::{Mutant, is_planted},
    page::Gate,
};

/// A kernel that runs on at a closed gate for so long ends its session. Kernels of real programs take a tenth of it.
pub(crate) const RUNS_ON_MAX_NS: u64 = 500_000_000;
/// One that runs on for so long is an offence: longer than a group by far, and no reason yet to end a program.
const OFFENCE_NS: u64 = 20_000_000;
/// The most that counts between two looks: longer, and the thread that looks was held up itself.
const GAP_MAX_NS: u64 = 50_000_000;

/// What was seen of the work that runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overstay {
    work: Option<u64>,
    runs_on_ns: u64,
    last_look_ns: Option<u64>,
    offences: u64,
}

impl Overstay {
    /// The work that the last look found.
    pub fn work(&self) -> Option<u64> {
        self.work
    }

    /// How many kernels have run on at a closed gate for longer than any group should.
    pub fn offences(&self) -> u64 {
        self.offences
    }

    /// One look: the gate, and the number of the work that runs, if that is known. True: the session is to end.
    pub fn look(&mut self, gate: Gate, running: Option<u64>, now_ns: u64) -> bool {
        let passed_ns =
            now_ns.saturating_sub(self.last_look_ns.replace(now_ns).unwrap_or(now_ns)).min(GAP_MAX_NS);
        if running != self.work {
            (self.work, self.runs_on_ns) = (running, 0);
            return false;
        }
        let counts = !gate.is_open() || is_planted(Mutant::OverstayAtAnOpenGate);
        if running.is_some() && counts {
            let before_ns = self.runs_on_ns;
            self.runs_on_ns += passed_ns;
            self.offences += u64::from((before_ns..self.runs_on_ns).contains(&OFFENCE_NS));
        }
        self.runs_on_ns >= RUNS_ON_MAX_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many looks of 10 ms it takes, with the gate and the work of each.
    fn looks(each: impl Fn(u64) -> (Gate, Option<u64>)) -> Option<u64> {
        let mut overstay = Overstay::default();
        (0..1000).find(|&at| {
            let (gate, running) = each(at);
            overstay.look(gate, running, 1 + at * 10_000_000)
        })
    }

    #[test]
    fn a_kernel_that_runs_on_at_a_closed_gate_for_half_a_second_ends_its_session() {
        assert_eq!(looks(|_| (Gate::Closed, Some(1))), Some(50));
        let half = looks(|at| (if at % 2 == 0 { Gate::Closed } else { Gate::Open }, Some(1)));
        assert!(half.is_some_and(|at| (98..=102).contains(&at)), "{half:?}");
    }

    #[test]
    fn a_long_kernel_alone_and_many_short_ones_do_not() {
        let alone = |_| (Gate::Open, Some(1));
        assert_eq!(looks(alone), None);
        assert_eq!(looks(|at| (Gate::Closed, Some(at / 20))), None);
        assert_eq!(looks(|_| (Gate::Closed, None)), None);
        crate::mutant::plant(Some(Mutant::OverstayAtAnOpenGate));
        assert!(looks(alone).is_some(), "the mistake is found");
        crate::mutant::plant(None);
    }

    #[test]
    fn each_kernel_is_one_offence_at_most() {
        let mut overstay = Overstay::default();
        // Two looks at each of five kernels, then many at one.
        for at in 0..10 {
            overstay.look(Gate::Closed, Some(at / 2), 1 + at * 10_000_000);
        }
        assert_eq!(overstay.offences(), 0, "each ran on for 10 ms");
        for at in 10..30 {
            overstay.look(Gate::Closed, Some(9), 1 + at * 10_000_000);
        }
        assert_eq!(overstay.offences(), 1);
    }

    #[test]
    fn a_pause_of_the_thread_that_looks_counts_little() {
        let mut overstay = Overstay::default();
        let far = [1, 2, 20_000_000_000, 40_000_000_000, 60_000_000_000];
        assert!(!far.into_iter().any(|now_ns| overstay.look(Gate::Closed, Some(1), now_ns)));
    }
}
