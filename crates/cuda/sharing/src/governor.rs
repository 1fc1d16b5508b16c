//! Holds what sharing costs an online program within its slack, once a second.
//!
//! ```text
//!   cost > slack              shorter groups, down to 10 us; then, or beside kernels that are longer by far, a longer guard before the
//!                             gate opens, up to 5 ms
//!   cost < 3/4 slack for 5 s  a shorter guard; then longer groups, up to 150 us: fewer waits, and more of each pause used
//!   the same for 2 s          where guests have never cost too much yet: longer groups in bigger steps, so that they are long after 4 s
//!   the same for 10 to 80 s   where giving more has soon cost too much before: twice as long each time
//!   the guard at 5 ms for 30 s, or two offences (kernels that run on at a closed gate):  the monitor evicts
//! ```
//!
//! Requests of a program that works all the time wait for each other, and a cost makes that longer: in a queue the slowest requests take
//! `1 / (1 - load)` as long as one alone, so a cost `c` makes them longer by the factor `(1 - load) / (1 - load (1 + c))`. For the same
//! factor at each load, `c` is as `(1 - load) / load`. The slack is what may be added at half load and below; above it is less.

use crate::cost::Cost;

const GROUP_FIRST_US: f64 = 50.0;
const GROUP_MIN_US: f64 = 10.0;
/// A kernel that is longer by far than any group: shorter groups do nothing about it.
const UNCUT_US: u64 = 500;
/// The rest of such a group is what a request waits for that meets it: as long as a switch of contexts.
pub(crate) const GROUP_MAX_US: f64 = 150.0;
const GUARD_FIRST_US: f64 = 100.0;
pub(crate) const GUARD_MAX_US: f64 = 5_000.0;
/// The part of the slack below which offline work is given more.
const CALM_SHARE: f64 = 0.75;
/// So long must the cost be low before that.
const CALM_S: u32 = 5;
/// As long as the cost has never been above the slack.
const CALM_FIRST_S: u32 = 2;
/// Where giving more has cost too much again and again.
const CALM_MAX_S: u32 = 80;
/// It has cost too much soon, if it was given this often in a row before, or less.
const SOON: u32 = 10;
/// So long at the longest guard, and the guest cannot stay.
const AT_LIMIT_S: u32 = 30;
/// The part of the slack that is left to guests at full load.
const SLACK_LEFT: f64 = 0.12;
/// A smaller cost is not told from chance within a second.
const SLACK_MIN: f64 = 0.03;
/// The first may be a kernel of unknown cost; the second is not.
const OFFENCES_MAX: u64 = 2;

/// What one second has shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct GovernorReading {
    /// The cost, when there were requests enough.
    pub cost: Option<Cost>,
    /// The share of the time that the program's requests would take without it.
    pub load: f64,
    /// Kernels of guests that ran on at a closed gate.
    pub offences: u64,
    /// How long the longest group of a guest takes.
    pub longest_group_us: u64,
}

/// What the sessions do from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Orders {
    /// The budget of offline groups.
    pub group_us: f64,
    /// Further idle time before the gate opens.
    pub guard_us: f64,
    /// The cost is above the slack now.
    pub is_over_slack: bool,
    /// Nothing helps: the guest must go.
    pub is_overlimit: bool,
}

/// One online session's governor.
#[derive(Clone, Debug)]
pub struct Governor {
    /// The share of its requests' time that sharing may add, up to half load.
    slack: f64,
    group_us: f64,
    guard_us: f64,
    calm_s: u32,
    at_limit_s: u32,
    offences: u64,
    is_over_slack: bool,
    /// How often in a row guests were given more.
    loosened: u32,
    /// So long must the cost be low before they are.
    patience_s: u32,
}

impl Governor {
    /// For a program whose requests may take so much longer: 0.1 is a tenth.
    pub fn new(slack: f64) -> Self {
        Self {
            slack,
            group_us: GROUP_FIRST_US,
            guard_us: 0.0,
            calm_s: 0,
            at_limit_s: 0,
            offences: 0,
            is_over_slack: false,
            loosened: 0,
            patience_s: CALM_FIRST_S,
        }
    }

    /// A second has passed.
    pub fn second(&mut self, reading: GovernorReading) -> Orders {
        self.offences = self.offences.saturating_add(reading.offences);
        if let Some(cost) = reading.cost {
            let slack = self.slack_at(reading.load);
            self.is_over_slack = cost.share > slack;
            self.calm_s = if cost.share < slack * CALM_SHARE { self.calm_s + 1 } else { 0 };
            if self.is_over_slack {
                self.tighten(reading.longest_group_us);
            } else if self.calm_s >= self.patience_s {
                self.loosen();
            }
        }
        self.at_limit_s = match self.guard_us >= GUARD_MAX_US && self.is_over_slack {
            true => self.at_limit_s + 1,
            false => 0,
        };
        Orders {
            group_us: self.group_us,
            guard_us: self.guard_us,
            is_over_slack: self.is_over_slack,
            is_overlimit: self.at_limit_s >= AT_LIMIT_S || self.offences >= OFFENCES_MAX,
        }
    }

    /// The guest has left; the next one begins anew.
    pub fn guest_left(&mut self) {
        *self = Self::new(self.slack);
    }

    fn slack_at(&self, load: f64) -> f64 {
        let factor = ((1.0 - load) / load.max(0.01)).clamp(SLACK_LEFT, 1.0);
        (self.slack * factor).max(SLACK_MIN.min(self.slack))
    }

    fn tighten(&mut self, longest_group_us: u64) {
        self.patience_s = match std::mem::take(&mut self.loosened) {
            0 => self.patience_s.max(CALM_S),
            1..=SOON => (2 * self.patience_s).clamp(CALM_S, CALM_MAX_S),
            _ => CALM_S,
        };
        if self.group_us > GROUP_MIN_US && longest_group_us < UNCUT_US {
            self.group_us = (self.group_us / 2.0).max(GROUP_MIN_US);
        } else {
            self.guard_us = (2.0 * self.guard_us).clamp(GUARD_FIRST_US, GUARD_MAX_US);
        }
    }

    fn loosen(&mut self) {
        self.loosened += 1;
        if self.guard_us > 0.0 {
            self.guard_us *= 0.9;
            if self.guard_us < GUARD_FIRST_US {
                self.guard_us = 0.0;
            }
        } else {
            // Short ones are soon as at first again, when the program that made them necessary does something else. Longer ones are tried
            // in small steps once they have cost too much.
            let is_bold = self.group_us < GROUP_FIRST_US || self.patience_s == CALM_FIRST_S;
            let factor = if is_bold { 1.5 } else { 1.2 };
            self.group_us = (factor * self.group_us).min(GROUP_MAX_US);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that take a millisecond, and this much longer beside offline work.
    fn reading(added_us: f64) -> GovernorReading {
        let cost = Cost { share: added_us / 1_000.0, added_us, usual_us: 0.0 };
        GovernorReading { cost: Some(cost), ..GovernorReading::default() }
    }

    #[test]
    fn beside_a_kernel_that_no_gate_cuts_the_gate_opens_later_at_once() {
        let mut governor = Governor::new(0.1);
        let orders = governor.second(GovernorReading { longest_group_us: 1_400, ..reading(500.0) });
        assert_eq!((orders.group_us, orders.guard_us), (GROUP_FIRST_US, GUARD_FIRST_US));
    }

    #[test]
    fn offline_work_gets_less_while_it_costs_too_much_and_more_when_it_does_not() {
        let mut governor = Governor::new(0.1);
        let groups: Vec<f64> = (0..3).map(|_| governor.second(reading(101.0)).group_us).collect();
        assert_eq!(groups, [25.0, 12.5, 10.0]);
        let guards: Vec<f64> = (0..7).map(|_| governor.second(reading(101.0)).guard_us).collect();
        assert_eq!(guards, [100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0]);
        // Within the slack, but not by much: it stays.
        assert_eq!(governor.second(reading(80.0)).guard_us, 5000.0);
        let calm: Vec<Orders> = (0..90).map(|_| governor.second(reading(10.0))).collect();
        assert!(calm[..4].iter().all(|orders| orders.guard_us == 5000.0), "not before five seconds");
        assert_eq!(calm[4].guard_us, 4500.0);
        let last = calm[89];
        assert_eq!(last.guard_us, 0.0);
        assert_eq!(last.group_us, GROUP_MAX_US, "and not beyond");
        assert!(!calm.iter().any(|orders| orders.is_overlimit));
    }

    #[test]
    fn groups_are_soon_as_long_as_they_may_be_beside_a_program_that_never_notices() {
        let mut governor = Governor::new(0.1);
        let groups: Vec<f64> = (0..5).map(|_| governor.second(reading(10.0)).group_us).collect();
        assert_eq!(groups, [GROUP_FIRST_US, 75.0, 112.5, GROUP_MAX_US, GROUP_MAX_US]);
        governor.second(reading(101.0));
        let calm: Vec<f64> = (0..5).map(|_| governor.second(reading(10.0)).group_us).collect();
        assert_eq!(calm, [75.0, 75.0, 75.0, 75.0, 90.0], "what has cost too much once is tried with care");
        governor.guest_left();
        governor.second(reading(10.0));
        assert_eq!(governor.second(reading(10.0)).group_us, 75.0, "the next guest is another program");
    }

    #[test]
    fn what_has_cost_too_much_again_and_again_is_tried_ever_more_rarely() {
        let mut governor = Governor::new(0.1);
        let mut tries = Vec::new();
        for second in 0..400 {
            // Groups of more than 30 us cost too much.
            let orders = governor.second(reading(if governor.group_us > 30.0 { 200.0 } else { 10.0 }));
            if orders.is_over_slack {
                tries.push(second);
            }
        }
        assert_eq!(tries, [0, 6, 18, 39, 81, 163, 244, 326]);
        // Another program, for which they do not: it is believed when it has borne some.
        let last = (0..100).map(|_| governor.second(reading(10.0))).last();
        assert_eq!(last.unwrap().group_us, GROUP_MAX_US);
        governor.second(reading(200.0));
        assert_eq!(governor.patience_s, CALM_S);
    }

    #[test]
    fn the_nearer_a_program_is_to_falling_behind_the_less_guests_may_cost_it() {
        let governor = Governor::new(0.25);
        let slack = |load: f64| (governor.slack_at(load) * 10_000.0).round();
        assert_eq!([0.0, 0.2, 0.5].map(slack), [2500.0; 3]);
        assert_eq!([0.6, 0.8, 0.9, 1.0, 1.7].map(slack), [1667.0, 625.0, 300.0, 300.0, 300.0]);
        assert_eq!(Governor::new(0.02).slack_at(0.9), 0.02, "what was asked for is not made more");
        assert_eq!(
            Governor::new(10.0).slack_at(1.0),
            1.2,
            "a program that bears much bears a part of it at full load"
        );
        let is_over =
            |load| Governor::new(0.25).second(GovernorReading { load, ..reading(100.0) }).is_over_slack;
        assert!(!is_over(0.5) && is_over(0.8));
    }

    #[test]
    fn the_monitor_hears_when_nothing_helps() {
        let mut governor = Governor::new(0.1);
        let over = (1..100).find(|_| governor.second(reading(500.0)).is_overlimit);
        assert_eq!(over, Some(3 + 6 + AT_LIMIT_S as i32), "three halvings, six doublings, thirty seconds");
        governor.guest_left();
        assert!(!governor.second(reading(0.0)).is_overlimit);
        let offence = GovernorReading { offences: 1, ..GovernorReading::default() };
        assert!(!governor.second(offence).is_overlimit, "the first may be a kernel of unknown cost");
        assert!(governor.second(offence).is_overlimit);
    }

    #[test]
    fn without_requests_nothing_changes() {
        let mut governor = Governor::new(0.1);
        let first = governor.second(reading(500.0));
        for _ in 0..100 {
            assert_eq!(governor.second(GovernorReading::default()), first);
        }
    }

    proptest::proptest! {
        #[test]
        fn orders_stay_within_their_bounds(costs in proptest::collection::vec(-100.0..2_000.0f64, 0..300)) {
            let mut governor = Governor::new(0.1);
            for cost in costs {
                let orders = governor.second(reading(cost));
                assert!((GROUP_MIN_US..=GROUP_MAX_US).contains(&orders.group_us));
                assert!((0.0..=GUARD_MAX_US).contains(&orders.guard_us));
            }
        }
    }
}
