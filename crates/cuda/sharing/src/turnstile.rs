//! Where the streams of an offline or equal session wait for the gate.
//!
//! The work of a stream falls into groups. In front of each stands a wait for the gate, which the device itself carries
//! out. The host may run thousands of launches ahead: when the gate closes, what still runs is the rest of one group.
//!
//! ```text
//!   wait  k k k  wait  k k k k  wait  K  wait  k k …          costs of a group: at most the budget, or one kernel
//! ```

use crate::{
    governor::GROUP_MAX_US,
    mutant::{Mutant, is_planted},
    page::{Field, Page, SLOTS, Ticket},
    part::Part,
};
use std::collections::HashMap;

/// The budget of a group while online sessions come and go, unless one of them orders another one.
const BUDGET_NS: u64 = 50_000;
/// The longest that an online session may order.
const ORDERED_MAX_NS: u64 = GROUP_MAX_US as u64 * 1_000;
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

/// The same while an equal session wants the turn. What runs on when the turn is over is short against a turn of 8 ms, and a wait
/// of 2 us is one percent of it.
const EQUAL_BUDGET_NS: u64 = 200_000;

/// How likely it is that a session comes that this one makes way for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// There is none.
    Absent,
    /// There are some; none was busy lately.
    Quiet,
    /// One is busy, or was lately.
    Lately,
}

impl Demand {
    /// What the page says to the session with this slot.
    pub fn of(page: Page<'_>, ticket: Ticket, now_ns: u64) -> Self {
        match ticket.part() {
            Part::Equal(_) => Self::of_online(page, now_ns).max(Self::of_equals(page, ticket)),
            Part::Online | Part::Offline => Self::of_online(page, now_ns),
        }
    }

    fn of_equals(page: Page<'_>, ticket: Ticket) -> Self {
        match page.wants() & !ticket.bit() != 0 {
            true => Self::Lately,
            false if page.has_equals(ticket.slot()) => Self::Quiet,
            false => Self::Absent,
        }
    }

    fn of_online(page: Page<'_>, now_ns: u64) -> Self {
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

/// One session's groups.
#[derive(Clone, Debug)]
pub struct Turnstile {
    budget_ns: u64,
    /// The budget without orders.
    budget_first_ns: u64,
    groups: HashMap<u64, Group>,
    /// Waits that were put into streams and not passed yet.
    queued: u64,
    /// How many streams are in use, and when they were counted.
    in_use: (u64, u64),
}

impl Default for Turnstile {
    fn default() -> Self {
        Self::with_budget(BUDGET_NS)
    }
}

impl Turnstile {
    /// The turnstile of a session with this part.
    pub fn of(part: Part) -> Self {
        Self::with_budget(match part {
            Part::Online | Part::Offline => BUDGET_NS,
            Part::Equal(_) => EQUAL_BUDGET_NS,
        })
    }

    fn with_budget(budget_ns: u64) -> Self {
        let groups = HashMap::new();
        Self { budget_ns, budget_first_ns: budget_ns, groups, queued: 0, in_use: (1, 0) }
    }

    /// Groups are as long as the online sessions of the page order.
    pub fn obey(&mut self, page: Page<'_>) {
        let ordered_ns = page.group_budget_us().map(|us| us.saturating_mul(1000));
        let most_ns = self.budget_first_ns.max(ORDERED_MAX_NS);
        self.budget_ns = ordered_ns.unwrap_or(self.budget_first_ns).clamp(BUDGET_MIN_NS, most_ns);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Owner, PAGE_WORDS};
    use crate::{Share, Turns};
    use std::sync::atomic::AtomicU64;
    use work_class::Class;

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
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = Page::create(&words, 1).unwrap();
        let online = page.claim(Owner::new(1, 1).unwrap(), Class::Online, 0).unwrap();
        for (ordered_us, budget_ns) in
            [(0, BUDGET_NS), (25, 25_000), (1, BUDGET_MIN_NS), (90, 90_000), (u64::MAX, ORDERED_MAX_NS)]
        {
            page.set(online, Field::GroupUs, ordered_us);
            turnstile.obey(page);
            assert_eq!(turnstile.budget_ns(Demand::Lately), budget_ns);
        }
    }

    #[test]
    fn groups_of_an_equal_session_are_short_while_another_wants_the_turn() {
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = Page::create(&words, 1).unwrap();
        let claim =
            |pid| page.claim_share(Owner::new(pid, 1).unwrap(), Share::new(500, pid.into()), 0).unwrap();
        let own = claim(1);
        let turnstile = Turnstile::of(own.part());
        let budget_ns = || turnstile.budget_ns(Demand::of(page, own, 1_000_000_000));
        assert_eq!(budget_ns(), ABSENT_BUDGET_NS, "alone");
        let mut other = Turns::new(page, claim(2)).unwrap();
        assert_eq!(budget_ns(), QUIET_BUDGET_NS, "another is there");
        other.begin(page, 5);
        assert_eq!((budget_ns(), turnstile.graph_budget_ns()), (EQUAL_BUDGET_NS, 2 * EQUAL_BUDGET_NS));
        other.end(page, 6);
        assert_eq!(budget_ns(), QUIET_BUDGET_NS);
        let online = page.claim(Owner::new(3, 1).unwrap(), Class::Online, 0).unwrap();
        assert!(page.close(online, 7));
        assert_eq!(Demand::of(page, own, 8), Demand::Lately, "an online session is busy");
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
}
