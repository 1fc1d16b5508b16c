//! Where an offline session's streams wait for the gate.
//!
//! The work of a stream falls into groups. In front of each stands a wait for the gate, which the device itself carries
//! out. The host may run thousands of launches ahead: when the gate closes, what still runs is the rest of one group.
//!
//! ```text
//!   wait  k k k  wait  k k k k  wait  K  wait  k k …          costs of a group: at most the budget, or one kernel
//! ```

use crate::{
    mutant::{Mutant, is_planted},
    page::{Field, Page, SLOTS},
};
use std::collections::HashMap;

/// The budget of a group while online sessions come and go, unless the governor sets another.
const BUDGET_NS: u64 = 50_000;
/// The budget while no online session was busy lately. A wait costs about 2 us, so this is half a percent.
const QUIET_BUDGET_NS: u64 = 400_000;
/// The budget while there is no online session. One that comes finds no more than this queued without a wait.
const ABSENT_BUDGET_NS: u64 = 5_000_000;
/// A group inside of a graph is longer by this factor.
const GRAPH_BUDGETS: u64 = 2;
/// No group is planned shorter: the waits would cost more than the work.
const BUDGET_MIN_NS: u64 = 10_000;
/// An online session was busy lately if it was within this time.
const LATELY_NS: u64 = 100_000_000;
/// A stream counts as in use if it had work within this time. Streams in use share the budget.
const IN_USE_NS: u64 = 10_000_000;
/// With the gate closed the host queues no more groups than this: at about 1,000 queued operations the driver's own
/// calls block, with locks held.
const QUEUED_MAX: u64 = 64;

/// How likely it is that an online session comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// There is no online session.
    Absent,
    /// There are some; none was busy lately.
    Quiet,
    /// One is busy, or was lately.
    Lately,
}

impl Demand {
    /// What the page says.
    pub fn of(page: Page<'_>, now_ns: u64) -> Self {
        let present = page.present();
        if page.closers() != 0 {
            return Self::Lately;
        }
        if present == 0 {
            return Self::Absent;
        }
        let was_busy = |slot: usize| {
            present & 1 << slot != 0 && now_ns.saturating_sub(page.get(slot, Field::IdleSince)) < LATELY_NS
        };
        if (0..SLOTS).any(was_busy) { Self::Lately } else { Self::Quiet }
    }
}

/// What a piece of work does at the turnstile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It belongs to the stream's group.
    Pass,
    /// It begins a group: put a wait for the gate in front.
    Wait,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    spent_ns: u64,
    used_at_ns: u64,
}

/// One offline session's groups.
#[derive(Clone, Debug)]
pub struct Turnstile {
    budget_ns: u64,
    groups: HashMap<u64, Group>,
    /// Waits that were put into streams and not passed yet.
    queued: u64,
    /// How many streams are in use, and when they were counted.
    in_use: (u64, u64),
}

impl Default for Turnstile {
    fn default() -> Self {
        Self { budget_ns: BUDGET_NS, groups: HashMap::new(), queued: 0, in_use: (1, 0) }
    }
}

impl Turnstile {
    /// The governor sets another budget.
    pub fn set_budget(&mut self, budget_ns: u64) {
        self.budget_ns = budget_ns.max(BUDGET_MIN_NS);
    }

    /// The budget of each stream's next group.
    pub fn budget_ns(&self, demand: Demand) -> u64 {
        let whole = match demand {
            Demand::Absent => ABSENT_BUDGET_NS,
            Demand::Quiet => QUIET_BUDGET_NS.max(self.budget_ns),
            Demand::Lately => self.budget_ns,
        };
        // Groups of several streams run one after another in the worst case; the online session waits for all of them.
        let streams = if is_planted(Mutant::BudgetPerStream) { 1 } else { self.in_use.0.max(1) };
        (whole / streams).max(BUDGET_MIN_NS)
    }

    /// The budget of the groups inside of a graph. A node that waits costs about 4 us, twice as much as a wait in a stream: with
    /// groups of 50 us a graph of training ran at 0.92 of its pace on an H200 while no online session was busy.
    pub fn graph_budget_ns(&self) -> u64 {
        GRAPH_BUDGETS * self.budget_ns(Demand::Lately)
    }

    /// Work is about to be put into `stream`. A kernel whose cost is not known counts as a whole group.
    pub fn before(&mut self, stream: u64, cost_ns: Option<u64>, demand: Demand, now_ns: u64) -> Turn {
        self.count_streams(stream, now_ns);
        let budget_ns = self.budget_ns(demand);
        let cost_ns = cost_ns.unwrap_or(match is_planted(Mutant::UnknownCostsNothing) {
            true => 0,
            false => budget_ns,
        });
        let Some(group) = self.groups.get_mut(&stream) else {
            self.groups.insert(stream, Group { spent_ns: cost_ns, used_at_ns: now_ns });
            let turn = if is_planted(Mutant::NewStreamPasses) { Turn::Pass } else { Turn::Wait };
            self.queued += u64::from(turn == Turn::Wait);
            return turn;
        };
        group.used_at_ns = now_ns;
        let sum_ns = group.spent_ns.saturating_add(cost_ns);
        let judged_ns = if is_planted(Mutant::WaitBehindTheKernel) { group.spent_ns } else { sum_ns };
        if judged_ns <= budget_ns {
            group.spent_ns = sum_ns;
            return Turn::Pass;
        }
        group.spent_ns = cost_ns;
        self.queued += 1;
        Turn::Wait
    }

    /// A stream is gone.
    pub fn forget(&mut self, stream: u64) {
        self.groups.remove(&stream);
    }

    /// Streams have passed so many waits.
    pub fn passed(&mut self, waits: u64) {
        self.queued = self.queued.saturating_sub(waits);
    }

    /// Waits that no stream has passed yet.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether the host holds the next launch back.
    pub fn must_hold(&self, is_open: bool) -> bool {
        !is_open && self.queued >= QUEUED_MAX
    }

    /// Counts the streams in use, again when a new one comes or some time has passed.
    fn count_streams(&mut self, stream: u64, now_ns: u64) {
        let is_new = !self.groups.contains_key(&stream);
        if !is_new && now_ns.saturating_sub(self.in_use.1) < IN_USE_NS {
            return;
        }
        let is_used = |group: &&Group| now_ns.saturating_sub(group.used_at_ns) < IN_USE_NS;
        let others = self.groups.iter().filter(|(name, group)| **name != stream && is_used(group)).count();
        self.in_use = (others as u64 + 1, now_ns);
    }
}

/// How long groups take.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupTimes {
    mean_us: f64,
    mean_square: f64,
    longest_us: u64,
}

/// The weight of a new group.
const GROUP_WEIGHT: f64 = 1.0 / 64.0;

impl GroupTimes {
    /// A group took so long.
    pub fn over(&mut self, us: u64) {
        let (first, time) = (self.mean_us == 0.0, us as f64);
        let weight = if first { 1.0 } else { GROUP_WEIGHT };
        self.mean_us += (time - self.mean_us) * weight;
        self.mean_square += (time * time - self.mean_square) * weight;
        self.longest_us = self.longest_us.max(us);
    }

    /// The longest one.
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }

    /// How long an online session that comes at any time waits for the group that runs: `E[d^2] / 2 E[d]`.
    pub fn residual_us(&self) -> u64 {
        if self.mean_us == 0.0 { 0 } else { (self.mean_square / (2.0 * self.mean_us)).round() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cut_into_groups_by_its_cost() {
        let mut turnstile = Turnstile::default();
        let mut turns = |costs: &[u64]| -> Vec<bool> {
            let turn = |&cost: &u64| turnstile.before(1, Some(cost * 1000), Demand::Lately, 0) == Turn::Wait;
            costs.iter().map(turn).collect()
        };
        assert_eq!(turns(&[20, 20, 10, 1, 60, 1]), [true, false, false, true, true, true]);
        assert_eq!(turns(&[49, 1]), [false, true], "1 us was in the group before");
        assert_eq!(turnstile.before(1, None, Demand::Lately, 0), Turn::Wait, "of unknown cost");
        assert_eq!(turnstile.before(1, Some(1), Demand::Lately, 0), Turn::Wait);
    }

    #[test]
    fn groups_are_longer_when_no_online_session_is_near_and_shorter_with_several_streams() {
        let mut turnstile = Turnstile::default();
        assert_eq!(turnstile.budget_ns(Demand::Absent), ABSENT_BUDGET_NS);
        assert_eq!(turnstile.budget_ns(Demand::Quiet), QUIET_BUDGET_NS);
        for stream in 0..4 {
            turnstile.before(stream, Some(1), Demand::Lately, 1000);
        }
        assert_eq!(turnstile.budget_ns(Demand::Lately), BUDGET_NS / 4);
        turnstile.before(3, Some(1), Demand::Lately, 1000 + IN_USE_NS);
        assert_eq!(turnstile.budget_ns(Demand::Lately), BUDGET_NS, "the others are not in use any more");
        assert_eq!(turnstile.graph_budget_ns(), 2 * BUDGET_NS);
        turnstile.set_budget(0);
        assert_eq!(turnstile.budget_ns(Demand::Lately), BUDGET_MIN_NS);
    }

    #[test]
    fn the_host_holds_launches_back_at_64_groups_while_the_gate_is_closed() {
        let mut turnstile = Turnstile::default();
        for _ in 0..64 {
            assert!(!turnstile.must_hold(false));
            turnstile.before(1, None, Demand::Lately, 0);
        }
        assert!(turnstile.must_hold(false) && !turnstile.must_hold(true));
        turnstile.passed(1);
        assert!(!turnstile.must_hold(false));
    }

    #[test]
    fn the_residual_of_equal_groups_is_half_of_one_and_long_ones_weigh_more() {
        let mut times = GroupTimes::default();
        assert_eq!(times.residual_us(), 0);
        (0..100).for_each(|_| times.over(50));
        assert_eq!((times.residual_us(), times.longest_us()), (25, 50));
        (0..1000).for_each(|at| times.over(if at % 2 == 0 { 10 } else { 990 }));
        // Nearly all time is spent in the long ones.
        assert!((470..=520).contains(&times.residual_us()), "{}", times.residual_us());
    }
}
