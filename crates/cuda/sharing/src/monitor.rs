//! Whether a guest may sit beside the online program of a GPU at all: a state machine of the box, once a second.
//!
//! ```text
//!   Init ──10 s──▶ Healthy ◀──30 s quiet── Unhealthy          no newcomers, guests stay
//!     │              │  ▲                     │
//!     │              ▼  └─30 s x 2^k quiet─ Overlimit ◀───────┘      the guest is evicted
//!     └─the online program wants memory───────▲
//!   Off: the GPU is bad, drained, lent whole, cut by MIG or on the PCIe plane
//! ```

use std::collections::VecDeque;

/// How much history the mean of the online program's load has.
const LOAD_S: usize = 60;
const INIT_S: u32 = 10;
const QUIET_S: u32 = 30;
/// The cost must be above the slack for so long to count.
const OVER_SLACK_S: u32 = 10;
/// The longest time that a GPU stays closed after an eviction.
const PENALTY_MAX_S: u32 = 3600;
/// After so long without trouble an eviction is forgotten.
const FORGET_S: u32 = 3600;
/// Device faults of a guest: the first may be a bug that its next version does not have.
const FAULTS_MAX: u32 = 2;

/// Where a GPU stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorState {
    /// The worker or the lease is new: too little is known.
    Init,
    /// Guests may come.
    Healthy,
    /// Guests stay; none may come.
    Unhealthy,
    /// The guest must go, and none may come for a while.
    Overlimit,
    /// No guests on this GPU.
    Off(OffReason),
}

/// Why a GPU takes no guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// The GPU is bad.
    Bad,
    /// An operator drains it.
    Drained,
    /// Its lease is dedicated.
    Dedicated,
    /// It is cut into instances.
    Mig,
    /// It is lent over the PCIe plane.
    PciePlane,
}

/// What that means for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// One may come.
    Open,
    /// One that is there stays.
    NoNewcomers,
    /// None may be there.
    Closed,
}

/// When a GPU is not well. Settings per model.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The online program's share of time, as a mean over a minute, in thousandths.
    pub busy_milli_max: u32,
    /// Free device memory.
    pub free_bytes_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { busy_milli_max: 800, free_bytes_min: 2 << 30 }
    }
}

/// What one second has shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Why guests are out of the question, if they are.
    pub off: Option<OffReason>,
    /// The worker or the online lease is another one than a second ago.
    pub is_new: bool,
    /// The online program's share of this second, in thousandths.
    pub busy_milli: u32,
    /// The governor: the cost is above the slack.
    pub is_over_slack: bool,
    /// The governor: nothing helps.
    pub is_overlimit: bool,
    /// Clocks are held down by heat or power.
    pub is_capped: bool,
    /// Free device memory.
    pub free_bytes: u64,
    /// The online program waits for memory.
    pub wants_memory: bool,
    /// Device faults that the guest caused in this second.
    pub faults: u32,
    /// Beats in the page are old: a session is frozen.
    pub is_stale: bool,
}

/// One GPU's monitor.
#[derive(Clone, Debug)]
pub struct Monitor {
    limits: Limits,
    state: MonitorState,
    /// Seconds in this state, and of them the last ones without trouble.
    in_state_s: u32,
    quiet_s: u32,
    over_slack_s: u32,
    busy: VecDeque<u32>,
    faults: u32,
    /// How often guests were evicted, less those that were forgotten.
    evictions: u32,
    clean_s: u32,
}

/// How bad a second was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    None,
    Some,
    Evict,
}

impl Monitor {
    /// A GPU of which nothing is known.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: MonitorState::Init,
            in_state_s: 0,
            quiet_s: 0,
            over_slack_s: 0,
            busy: VecDeque::new(),
            faults: 0,
            evictions: 0,
            clean_s: 0,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> MonitorState {
        self.state
    }

    /// What that means for guests. `Off` lets guests of a dedicated lease's GPU go too: it is alone by right.
    pub fn seat(&self) -> Seat {
        match self.state {
            MonitorState::Healthy => Seat::Open,
            MonitorState::Unhealthy => Seat::NoNewcomers,
            MonitorState::Init | MonitorState::Overlimit | MonitorState::Off(_) => Seat::Closed,
        }
    }

    /// The online program's share of time, as a mean over the last minute, in thousandths.
    pub fn busy_milli(&self) -> u32 {
        self.busy.iter().sum::<u32>() / (self.busy.len() as u32).max(1)
    }

    /// How long the GPU stays closed after the eviction that it is in, if nothing else happens.
    pub fn penalty_s(&self) -> u32 {
        let doublings = self.evictions.saturating_sub(1).min(16);
        (QUIET_S << doublings).min(PENALTY_MAX_S)
    }

    /// A second has passed.
    pub fn second(&mut self, reading: Reading) -> MonitorState {
        let trouble = self.trouble(&reading);
        self.in_state_s = self.in_state_s.saturating_add(1);
        self.quiet_s = if trouble == Trouble::None { self.quiet_s.saturating_add(1) } else { 0 };
        self.remember(trouble);
        let next = match (reading.off, self.state) {
            (Some(reason), _) => MonitorState::Off(reason),
            (None, MonitorState::Off(_)) => MonitorState::Init,
            (None, _) if reading.is_new => MonitorState::Init,
            // A GPU where a guest was evicted stays closed to the end of its time, whatever else happens.
            (None, MonitorState::Overlimit) if self.quiet_s < self.penalty_s() => MonitorState::Overlimit,
            (None, MonitorState::Overlimit) => MonitorState::Healthy,
            // A want is a fact, and no reading that needs others beside it: the online program waits meanwhile.
            (None, MonitorState::Init) if self.in_state_s < INIT_S && !reading.wants_memory => {
                MonitorState::Init
            }
            (None, _) if trouble == Trouble::Evict => MonitorState::Overlimit,
            (None, _) if trouble == Trouble::Some => MonitorState::Unhealthy,
            (None, MonitorState::Unhealthy) if self.quiet_s < QUIET_S => MonitorState::Unhealthy,
            (None, _) => MonitorState::Healthy,
        };
        if next != self.state || reading.is_new {
            self.enter(next, reading.is_new);
        }
        next
    }

    fn enter(&mut self, next: MonitorState, is_new: bool) {
        if next == MonitorState::Overlimit {
            self.evictions += 1;
            self.faults = 0;
        }
        if is_new {
            self.busy.clear();
            self.over_slack_s = 0;
        }
        self.state = next;
        self.in_state_s = 0;
        self.quiet_s = 0;
    }

    fn remember(&mut self, trouble: Trouble) {
        self.clean_s = if trouble == Trouble::Evict { 0 } else { self.clean_s + 1 };
        if self.clean_s >= FORGET_S {
            self.clean_s = 0;
            self.evictions = self.evictions.saturating_sub(1);
        }
    }

    fn trouble(&mut self, reading: &Reading) -> Trouble {
        if self.busy.len() == LOAD_S {
            self.busy.pop_front();
        }
        self.busy.push_back(reading.busy_milli);
        let mean_milli = self.busy_milli();
        self.over_slack_s = if reading.is_over_slack { self.over_slack_s.saturating_add(1) } else { 0 };
        self.faults = self.faults.saturating_add(reading.faults);
        let must_evict =
            reading.is_overlimit || reading.wants_memory || reading.is_stale || self.faults >= FAULTS_MAX;
        let is_unwell = mean_milli > self.limits.busy_milli_max
            || self.over_slack_s >= OVER_SLACK_S
            || reading.is_capped
            || reading.free_bytes < self.limits.free_bytes_min;
        match (must_evict, is_unwell) {
            (true, _) => Trouble::Evict,
            (false, true) => Trouble::Some,
            (false, false) => Trouble::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WELL: Reading = Reading {
        off: None,
        is_new: false,
        busy_milli: 300,
        is_over_slack: false,
        is_overlimit: false,
        is_capped: false,
        free_bytes: 8 << 30,
        wants_memory: false,
        faults: 0,
        is_stale: false,
    };

    fn healthy() -> Monitor {
        let mut monitor = Monitor::new(Limits::default());
        let states: Vec<_> = (0..INIT_S).map(|_| monitor.second(WELL)).collect();
        assert!(states[..9].iter().all(|state| *state == MonitorState::Init));
        assert_eq!(monitor.seat(), Seat::Open);
        monitor
    }

    fn until(monitor: &mut Monitor, state: MonitorState, reading: Reading) -> u32 {
        (1..100_000).find(|_| monitor.second(reading) == state).expect("it gets there")
    }

    #[test]
    fn a_busy_or_disturbed_program_gets_no_newcomers_and_keeps_its_guest() {
        for unwell in [
            Reading { busy_milli: 1000, ..WELL },
            Reading { is_over_slack: true, ..WELL },
            Reading { is_capped: true, ..WELL },
            Reading { free_bytes: 1 << 30, ..WELL },
        ] {
            let mut monitor = healthy();
            until(&mut monitor, MonitorState::Unhealthy, unwell);
            assert_eq!(monitor.seat(), Seat::NoNewcomers);
            until(&mut monitor, MonitorState::Healthy, WELL);
        }
        let mut monitor = healthy();
        assert_eq!(until(&mut monitor, MonitorState::Unhealthy, Reading { is_over_slack: true, ..WELL }), 10);
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), QUIET_S);
    }

    #[test]
    fn evictions_close_the_seat_for_longer_each_time_and_are_forgotten_after_a_clean_hour() {
        let mut monitor = healthy();
        for closed_s in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(monitor.second(Reading { wants_memory: true, ..WELL }), MonitorState::Overlimit);
            assert_eq!(monitor.seat(), Seat::Closed);
            assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), closed_s);
        }
        for _ in 0..9 * FORGET_S {
            monitor.second(WELL);
        }
        monitor.second(Reading { is_overlimit: true, ..WELL });
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), 30);
    }

    #[test]
    fn trouble_during_an_eviction_begins_its_quiet_time_anew() {
        let mut monitor = healthy();
        monitor.second(Reading { is_stale: true, ..WELL });
        for _ in 0..20 {
            monitor.second(WELL);
        }
        assert_eq!(monitor.second(Reading { is_stale: true, ..WELL }), MonitorState::Overlimit);
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), 30);
    }

    #[test]
    fn a_want_of_memory_is_heeded_at_once_also_on_a_gpu_that_was_not_watched_for_long() {
        let mut monitor = Monitor::new(Limits::default());
        assert_eq!(monitor.second(Reading { is_overlimit: true, ..WELL }), MonitorState::Init);
        assert_eq!(monitor.second(Reading { wants_memory: true, ..WELL }), MonitorState::Overlimit);
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), 30);
    }

    #[test]
    fn a_guest_may_have_one_fault() {
        let mut monitor = healthy();
        assert_eq!(monitor.second(Reading { faults: 1, ..WELL }), MonitorState::Healthy);
        assert_eq!(monitor.second(Reading { faults: 1, ..WELL }), MonitorState::Overlimit);
    }

    #[test]
    fn a_gpu_that_was_off_or_has_another_lease_is_looked_at_anew() {
        let mut monitor = healthy();
        let dedicated = Reading { off: Some(OffReason::Dedicated), ..WELL };
        assert_eq!(monitor.second(dedicated), MonitorState::Off(OffReason::Dedicated));
        assert_eq!(monitor.seat(), Seat::Closed);
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), 1 + INIT_S);
        assert_eq!(monitor.second(Reading { is_new: true, ..WELL }), MonitorState::Init);
        assert_eq!(until(&mut monitor, MonitorState::Healthy, WELL), INIT_S);
    }

    fn any_reading() -> impl Strategy<Value = Reading> {
        let off = prop_oneof![9 => Just(None), 1 => Just(Some(OffReason::Bad))];
        (off, 0..1000u32, 0..400u32).prop_map(|(off, busy_milli, dice)| Reading {
            off,
            busy_milli,
            is_new: dice == 0,
            is_over_slack: dice % 3 == 0,
            is_overlimit: dice == 2,
            is_capped: dice == 3,
            wants_memory: dice == 4,
            faults: u32::from(dice == 5),
            is_stale: dice == 6,
            free_bytes: if dice == 7 { 0 } else { 8 << 30 },
        })
    }

    proptest! {
        #[test]
        fn a_second_that_demands_an_eviction_never_leaves_the_seat_open(
            readings in prop::collection::vec(any_reading(), 1..600)
        ) {
            let mut monitor = Monitor::new(Limits::default());
            let mut closed_left = 0u32;
            for reading in readings {
                let was = monitor.state();
                let state = monitor.second(reading);
                let demands = reading.is_overlimit || reading.wants_memory || reading.is_stale;
                prop_assert!(!demands || monitor.seat() == Seat::Closed, "{was:?} {state:?} {reading:?}");
                prop_assert_eq!(matches!(state, MonitorState::Off(_)), reading.off.is_some());
                // Whatever happens, an eviction keeps guests away for at least half a minute.
                match state {
                    MonitorState::Overlimit if was != MonitorState::Overlimit => closed_left = QUIET_S,
                    MonitorState::Overlimit => closed_left = closed_left.saturating_sub(1),
                    MonitorState::Healthy if was == MonitorState::Overlimit => prop_assert!(closed_left <= 1),
                    _ => {}
                }
            }
        }
    }
}
