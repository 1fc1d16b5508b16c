//! Holds what sharing costs an online program within its slack, once a second.
//!
//! ```text
//!   cost > slack for 2 s        each second shorter groups, down to 10 us; then, or beside kernels that are longer by far, a longer guard
//!   (1 s near full load)        before the gate opens, up to 5 ms. The setting that cost too much is remembered as refused
//!   cost < 3/4 slack for 1 s    a shorter guard; then longer groups, up to 150 us: fewer waits, and more of each pause used
//!   the same for 5 to 80 s      if that would be as much as was refused: twice as long each time that it is refused again
//!   the guard at 5 ms for 30 s, or two offences (kernels that run on at a closed gate):  the monitor evicts
//! ```
//!
//! What was refused beside such kernels is not, when the guest has no more of them.
//!
//! So one bad second costs guests seconds and not minutes: what has not been refused is theirs again soon.
//!
//! Requests take different times also by themselves, the more so those of a program that the processor paces. A cost that chance may have
//! made counts for less: what counts adds up over seconds, for and against (a cumulative sum).
//!
//! Requests of a program that works most of the time wait for each other, and a cost makes that longer: in a queue the slowest requests
//! take as long as `1 / (1 - load)` says, and what a small cost adds to that grows as `1 / (1 - load)^2`. For the same delay the cost must
//! be as `(1 - load)^2`. The slack is what may be added at load 0.6 and below; above it is less.

use crate::cost::Cost;

/// How long groups may be.
const GROUPS_US: [f64; 6] = [10.0, 25.0, 50.0, 75.0, 100.0, GROUP_MAX_US];
/// The rest of such a group is what a request waits for that meets it: as long as a switch of contexts.
pub(crate) const GROUP_MAX_US: f64 = 150.0;
/// Further idle time before the gate opens.
const GUARDS_US: [f64; 8] = [0.0, 100.0, 200.0, 400.0, 800.0, 1_600.0, 3_200.0, GUARD_MAX_US];
pub(crate) const GUARD_MAX_US: f64 = 5_000.0;
/// Groups of 50 us, and no guard.
const FIRST: Setting = Setting { group: 2, guard: 0 };
/// A kernel that is longer by far than any group: shorter groups do nothing about it.
const UNCUT_US: u64 = 500;
/// The part of the slack below which offline work is given more.
const CALM_SHARE: f64 = 0.75;
/// A cost that is off the slack by this part of it counts as one second, if chance makes less.
const PLAIN_SHARE: f64 = 0.25;
/// So is one that is off it by so many times what chance makes.
const CHANCE: f64 = 2.5;
/// A cost that is above the slack by so many times that: half as much is too much, too.
const FAR: f64 = 4.0;
/// So long must the cost be low before more is given that was not refused.
const CALM_S: f64 = 1.0;
/// The same for what was refused.
const PATIENCE_S: f64 = 5.0;
const PATIENCE_MAX_S: f64 = 80.0;
/// What speaks for giving less, before anything is done: a second that is like no other, as the first of a work, says nothing.
const OVER_S: f64 = 2.0;
const OVER_URGENT_S: f64 = 1.0;
/// The weight of a second's load.
const LOAD_WEIGHT: f64 = 0.25;
/// So long at the longest guard, and the guest cannot stay.
const AT_LIMIT_S: u32 = 30;
/// Up to this load the slack is whole.
const LOAD_WHOLE: f64 = 0.6;
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

/// What guests are given: places in [`GROUPS_US`] and [`GUARDS_US`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    group: usize,
    guard: usize,
}

impl Setting {
    /// The next one that gives guests less; itself, if there is none.
    fn less(self, has_uncut: bool) -> Self {
        if self.group > 0 && !has_uncut {
            Self { group: self.group - 1, ..self }
        } else {
            Self { guard: (self.guard + 1).min(GUARDS_US.len() - 1), ..self }
        }
    }

    /// The next one that gives guests more. `None`: they have all that there is.
    fn more(self) -> Option<Self> {
        match self.guard {
            0 if self.group + 1 == GROUPS_US.len() => None,
            0 => Some(Self { group: self.group + 1, ..self }),
            _ => Some(Self { guard: self.guard - 1, ..self }),
        }
    }

    fn gives_as_much_as(self, other: Self) -> bool {
        self.group >= other.group && self.guard <= other.guard
    }
}

/// One online session's governor.
#[derive(Clone, Debug)]
pub struct Governor {
    /// The share of its requests' time that sharing may add, up to [`LOAD_WHOLE`].
    slack: f64,
    setting: Setting,
    /// This has cost too much.
    refused: Option<Setting>,
    /// So long must the cost be low before as much is given again.
    patience_s: f64,
    /// What speaks for giving less, and for giving more, in plain seconds.
    over_s: f64,
    calm_s: f64,
    /// The guest had a kernel that no gate cuts.
    has_uncut: bool,
    /// The last reading said to give less: the next one may still show what was before.
    is_tightening: bool,
    is_over_slack: bool,
    load: Option<f64>,
    at_limit_s: u32,
    offences: u64,
}

impl Governor {
    /// For a program whose requests may take so much longer: 0.1 is a tenth.
    pub fn new(slack: f64) -> Self {
        Self {
            slack,
            setting: FIRST,
            refused: None,
            patience_s: PATIENCE_S,
            over_s: 0.0,
            calm_s: 0.0,
            has_uncut: false,
            is_tightening: false,
            is_over_slack: false,
            load: None,
            at_limit_s: 0,
            offences: 0,
        }
    }

    /// A second has passed.
    pub fn second(&mut self, reading: GovernorReading) -> Orders {
        self.offences = self.offences.saturating_add(reading.offences);
        if let Some(cost) = reading.cost {
            // A request that began before this time counts whole, and nothing works more than all of the time.
            let seen = reading.load.min(1.0);
            let before = self.load.unwrap_or(seen);
            let load = before + (seen - before) * LOAD_WEIGHT;
            self.load = Some(load);
            self.weigh(cost, load, reading.longest_group_us);
        }
        let is_at_limit = self.setting.guard + 1 == GUARDS_US.len() && self.is_over_slack;
        self.at_limit_s = if is_at_limit { self.at_limit_s + 1 } else { 0 };
        Orders {
            group_us: GROUPS_US[self.setting.group],
            guard_us: GUARDS_US[self.setting.guard],
            is_over_slack: self.is_over_slack,
            is_overlimit: self.at_limit_s >= AT_LIMIT_S || self.offences >= OFFENCES_MAX,
        }
    }

    /// The guest has left; the next one begins anew.
    pub fn guest_left(&mut self) {
        *self = Self::new(self.slack);
    }

    fn slack_at(&self, load: f64) -> f64 {
        let idle = (1.0 - load).max(0.0) / (1.0 - LOAD_WHOLE);
        let factor = (idle * idle).clamp(SLACK_LEFT, 1.0);
        (self.slack * factor).max(SLACK_MIN.min(self.slack))
    }

    fn weigh(&mut self, cost: Cost, load: f64, longest_group_us: u64) {
        let slack = self.slack_at(load);
        let has_uncut = longest_group_us >= UNCUT_US;
        if std::mem::replace(&mut self.has_uncut, has_uncut) && !has_uncut {
            (self.setting.guard, self.refused, self.patience_s) = (0, None, PATIENCE_S);
        }
        let plain = (slack * PLAIN_SHARE).max(CHANCE * cost.noise).max(f64::MIN_POSITIVE);
        let over = (cost.share - slack) / plain;
        self.is_over_slack = cost.share - cost.noise > slack;
        self.over_s = (self.over_s + over.clamp(-1.0, 1.0)).max(0.0);
        self.calm_s = (self.calm_s + ((slack * CALM_SHARE - cost.share) / plain).clamp(-1.0, 1.0)).max(0.0);
        // More of the same is believed sooner, and a program near full load would not catch up for long.
        let is_urgent = self.is_tightening || load > LOAD_WHOLE;
        if self.over_s >= if is_urgent { OVER_URGENT_S } else { OVER_S } {
            self.tighten(over >= FAR);
            return;
        }
        self.is_tightening = false;
        let has_as_much = self.refused.is_some_and(|refused| self.setting.gives_as_much_as(refused));
        if has_as_much && self.calm_s >= PATIENCE_S {
            // It was refused once, and is not any more.
            (self.refused, self.patience_s) = (None, PATIENCE_S);
        }
        let Some(next) = self.setting.more() else { return };
        let is_refused = self.refused.is_some_and(|refused| next.gives_as_much_as(refused));
        if self.calm_s >= if is_refused { self.patience_s } else { CALM_S } {
            (self.setting, self.calm_s, self.over_s) = (next, 0.0, 0.0);
        }
    }

    fn tighten(&mut self, is_far: bool) {
        if !std::mem::replace(&mut self.is_tightening, true) {
            let is_again = self.refused.is_some_and(|refused| self.setting.gives_as_much_as(refused));
            self.patience_s = if is_again { (2.0 * self.patience_s).min(PATIENCE_MAX_S) } else { PATIENCE_S };
            self.refused = Some(self.setting);
        }
        (self.over_s, self.calm_s) = (0.0, 0.0);
        self.setting = self.setting.less(self.has_uncut);
        if is_far {
            self.setting = self.setting.less(self.has_uncut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    /// Requests that take a millisecond, and this much longer beside offline work.
    fn reading(added_us: f64) -> GovernorReading {
        noisy(added_us, 0.0)
    }

    fn noisy(added_us: f64, noise: f64) -> GovernorReading {
        let cost = Cost { share: added_us / 1_000.0, noise, added_us, usual_us: 0.0 };
        GovernorReading { cost: Some(cost), ..GovernorReading::default() }
    }

    /// The groups, or the guards, of so many seconds.
    fn groups(governor: &mut Governor, seconds: usize, added_us: f64) -> Vec<f64> {
        (0..seconds).map(|_| governor.second(reading(added_us)).group_us).collect()
    }

    fn guards(governor: &mut Governor, seconds: usize, added_us: f64) -> Vec<f64> {
        (0..seconds).map(|_| governor.second(reading(added_us)).guard_us).collect()
    }

    #[test]
    fn beside_a_kernel_that_no_gate_cuts_the_gate_opens_later_at_once() {
        let mut governor = Governor::new(0.1);
        let mut second = || governor.second(GovernorReading { longest_group_us: 1_400, ..reading(180.0) });
        assert_eq!(second().guard_us, 0.0);
        let orders = second();
        assert_eq!((orders.group_us, orders.guard_us), (50.0, 100.0));
    }

    #[test]
    fn offline_work_gets_less_while_it_costs_too_much_and_more_when_it_does_not() {
        let mut governor = Governor::new(0.1);
        assert_eq!(groups(&mut governor, 4, 130.0), [50.0, 25.0, 10.0, 10.0]);
        assert_eq!(guards(&mut governor, 7, 130.0), [200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0, 5000.0]);
        // Within the slack, but not by much: it stays.
        assert_eq!(guards(&mut governor, 100, 80.0), [5000.0; 100]);
        assert_eq!(
            guards(&mut governor, 8, 10.0),
            [3200.0, 1600.0, 800.0, 400.0, 200.0, 100.0, 0.0, 0.0],
            "what was not refused is given back soon"
        );
        assert_eq!(governor.setting, Setting { group: 1, guard: 0 });
        assert_eq!(groups(&mut governor, 5, 10.0), [25.0, 25.0, 25.0, 25.0, 50.0], "what was, with care");
        assert_eq!(
            groups(&mut governor, 8, 10.0),
            [50.0, 50.0, 50.0, 50.0, 75.0, 100.0, 150.0, 150.0],
            "when it does well, all that is above it, too"
        );
    }

    #[test]
    fn what_was_refused_beside_long_kernels_is_given_when_they_are_over() {
        let mut governor = Governor::new(0.1);
        let second = |governor: &mut Governor, longest_group_us, added_us| {
            governor.second(GovernorReading { longest_group_us, ..reading(added_us) })
        };
        for _ in 0..10 {
            second(&mut governor, 1_400, 300.0);
        }
        assert_eq!(second(&mut governor, 1_400, 90.0).guard_us, GUARD_MAX_US);
        let orders = second(&mut governor, 40, 10.0);
        assert_eq!((orders.guard_us, orders.group_us), (0.0, 75.0));
    }

    #[test]
    fn far_too_much_is_answered_with_two_steps() {
        let mut governor = Governor::new(0.1);
        assert_eq!(groups(&mut governor, 2, 200.0), [50.0, 10.0]);
        assert_eq!(guards(&mut governor, 3, 200.0), [200.0, 800.0, 3200.0]);
    }

    #[test]
    fn groups_are_soon_as_long_as_they_may_be_beside_a_program_that_never_notices() {
        let mut governor = Governor::new(0.1);
        assert_eq!(groups(&mut governor, 4, 10.0), [75.0, 100.0, GROUP_MAX_US, GROUP_MAX_US]);
        assert_eq!(groups(&mut governor, 2, 130.0), [GROUP_MAX_US, 100.0]);
        governor.guest_left();
        assert_eq!(groups(&mut governor, 1, 10.0), [75.0], "the next guest is another program");
    }

    #[test]
    fn what_has_cost_too_much_again_and_again_is_tried_ever_more_rarely() {
        let mut governor = Governor::new(0.1);
        let mut tries = Vec::new();
        for second in 0..400 {
            // Groups of 50 us cost too much.
            let is_long = GROUPS_US[governor.setting.group] > 30.0;
            if governor.second(reading(if is_long { 140.0 } else { 10.0 })).is_over_slack {
                tries.push(second);
            }
        }
        assert_eq!(tries, [0, 1, 7, 8, 19, 20, 41, 42, 83, 84, 165, 166, 247, 248, 329, 330]);
        // Another program, for which they do not: it is believed when it has borne some.
        assert_eq!(groups(&mut governor, 100, 10.0)[99], GROUP_MAX_US);
        groups(&mut governor, 2, 140.0);
        assert_eq!(governor.patience_s, PATIENCE_S);
    }

    #[test]
    fn one_second_that_is_like_no_other_changes_nothing() {
        let mut governor = Governor::new(0.25);
        groups(&mut governor, 10, 10.0);
        assert_eq!(groups(&mut governor, 1, 2_000.0), [GROUP_MAX_US]);
        assert_eq!(groups(&mut governor, 10, 10.0), [GROUP_MAX_US; 10]);
    }

    #[test]
    fn a_burst_that_costs_much_is_forgotten_within_seconds() {
        let mut governor = Governor::new(0.25);
        groups(&mut governor, 10, 10.0);
        guards(&mut governor, 12, 900.0);
        assert_eq!(governor.setting, Setting { group: 0, guard: GUARDS_US.len() - 1 });
        groups(&mut governor, 12, 10.0);
        assert_eq!(governor.setting, Setting { group: 4, guard: 0 });
    }

    #[test]
    fn times_that_vary_by_themselves_are_no_reason_to_give_less() {
        // A twentieth, and chance makes three tenths of it.
        let mut dice = Dice::new(9);
        let mut governor = Governor::new(0.25);
        let spread = 0.3 * 12.0f64.sqrt();
        let seconds = 2_000;
        let sum: f64 = (0..seconds)
            .map(|_| {
                let share = 0.05 + (dice.share() - 0.5) * spread;
                governor.second(noisy(share * 1_000.0, 0.3)).group_us
            })
            .sum();
        assert!(sum / f64::from(seconds) > 100.0, "{}", sum / f64::from(seconds));
        // A cost that is there all the time is found all the same.
        let over = (0..60).map(|_| {
            let share = 0.6 + (dice.share() - 0.5) * spread;
            governor.second(noisy(share * 1_000.0, 0.3)).guard_us
        });
        assert!(over.last().unwrap() >= 1_600.0);
    }

    #[test]
    fn the_nearer_a_program_is_to_falling_behind_the_less_guests_may_cost_it() {
        let governor = Governor::new(0.25);
        let slack = |load: f64| (governor.slack_at(load) * 10_000.0).round();
        assert_eq!([0.0, 0.2, 0.6].map(slack), [2500.0; 3]);
        assert_eq!([0.7, 0.8, 0.9, 1.0, 1.7].map(slack), [1406.0, 625.0, 300.0, 300.0, 300.0]);
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
    fn a_second_of_much_work_is_not_the_load() {
        let mut governor = Governor::new(0.25);
        let mut second = |load| governor.second(GovernorReading { load, ..reading(100.0) }).is_over_slack;
        assert!((0..10).all(|_| !second(0.4)));
        assert!(!second(1.0) && !second(0.4));
        assert!((0..10).any(|_| second(0.9)), "many are it");
        let mut governor = Governor::new(0.25);
        let mut second = |load| governor.second(GovernorReading { load, ..reading(100.0) }).is_over_slack;
        second(50.0);
        assert!(!(0..5).map(|_| second(0.4)).last().unwrap(), "a long request is soon forgotten");
    }

    #[test]
    fn the_monitor_hears_when_nothing_helps() {
        let mut governor = Governor::new(0.1);
        let over = (1..100).find(|_| governor.second(reading(130.0)).is_overlimit);
        assert_eq!(
            over,
            Some(1 + 2 + 7 + AT_LIMIT_S as i32 - 1),
            "a second, two shorter groups, seven guards, thirty seconds"
        );
        governor.guest_left();
        assert!(!governor.second(reading(0.0)).is_overlimit);
        let offence = GovernorReading { offences: 1, ..GovernorReading::default() };
        assert!(!governor.second(offence).is_overlimit, "the first may be a kernel of unknown cost");
        assert!(governor.second(offence).is_overlimit);
    }

    #[test]
    fn without_requests_nothing_changes() {
        let mut governor = Governor::new(0.1);
        let first = governor.second(reading(130.0));
        for _ in 0..100 {
            assert_eq!(governor.second(GovernorReading::default()), first);
        }
    }

    proptest::proptest! {
        #[test]
        fn orders_stay_within_their_bounds(
            costs in proptest::collection::vec((-100.0..2_000.0f64, 0.0..1.0f64, 0u64..1_000, 0.0..2.0f64), 0..300),
            slack in 0.0..1.0f64,
        ) {
            let mut governor = Governor::new(slack);
            for (cost, noise, longest_group_us, load) in costs {
                let orders = governor.second(GovernorReading { longest_group_us, load, ..noisy(cost, noise) });
                assert!(GROUPS_US.contains(&orders.group_us) && GUARDS_US.contains(&orders.guard_us));
                assert!((0.0..=PATIENCE_MAX_S).contains(&governor.patience_s));
            }
        }
    }
}
