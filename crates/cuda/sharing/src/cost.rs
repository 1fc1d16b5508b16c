//! What sharing costs an online program, measured and not guessed.
//!
//! A request that begins while the gate is open may find offline work on the device: it is *disturbed*. One that begins while
//! the gate is closed is not. The difference between the two, for requests of the same kind, is what sharing costs.

use std::collections::HashMap;

/// So many disturbed requests are needed for a judgement.
const DISTURBED_MIN: u64 = 8;
/// Or so many requests, if hardly one is disturbed: then they cost little, whatever one of them costs.
const REQUESTS_MIN: u64 = 50;
/// Disturbed requests that cannot be compared are few, if they are fewer than one in so many.
const FEW_IN: u64 = 20;
/// So many undisturbed requests of a kind are needed to know how long it takes.
const CALM_MIN: u64 = 8;
/// The weight of a new undisturbed request, when there are more than its inverse.
const CALM_WEIGHT: f64 = 1.0 / 32.0;
/// More kinds of requests than programs have. Further ones are not measured until others are forgotten.
const KINDS_MAX: usize = 256;

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// How many were undisturbed, ever, and how long such a one takes.
    calms: u64,
    calm_us: f64,
    /// The variance of the undisturbed ones, with the same weights.
    calm_variance: f64,
    /// The undisturbed ones since the last judgement, and their time.
    calm: u64,
    calm_sum_us: f64,
    /// The disturbed ones since the last judgement.
    disturbed: u64,
    disturbed_sum_us: f64,
    disturbed_squares: f64,
}

impl Kind {
    fn add_calm(&mut self, us: f64) {
        self.calms = self.calms.saturating_add(1);
        let (weight, away) = (self.calm_weight(), us - self.calm_us);
        self.calm_us += away * weight;
        self.calm_variance = (1.0 - weight) * (self.calm_variance + weight * away * away);
        self.calm += 1;
        self.calm_sum_us += us;
    }

    fn add_disturbed(&mut self, us: f64) {
        self.disturbed += 1;
        self.disturbed_sum_us += us;
        self.disturbed_squares += us * us;
    }

    fn calm_weight(&self) -> f64 {
        CALM_WEIGHT.max(1.0 / self.calms as f64)
    }

    fn is_comparable(&self) -> bool {
        self.calms >= CALM_MIN
    }

    fn added_us(&self) -> f64 {
        self.disturbed_sum_us - self.disturbed as f64 * self.calm_us
    }

    /// The variance of what [`Kind::added_us`] says, because requests vary by themselves: of the sum, and of the mean that it is compared
    /// with.
    fn added_variance(&self) -> f64 {
        let count = self.disturbed as f64;
        let mean = self.disturbed_sum_us / count.max(1.0);
        // A few may be alike by chance.
        let of_one = (self.disturbed_squares / count.max(1.0) - mean * mean).max(self.calm_variance);
        let weight = self.calm_weight();
        count * of_one + count * count * self.calm_variance * weight / (2.0 - weight)
    }

    fn is_recent(&self) -> bool {
        self.disturbed + self.calm > 0
    }
}

/// A judgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The time that sharing adds to the program's requests, as a share of the time that they would take without: 0.1 is a tenth.
    pub share: f64,
    /// How far `share` may be off by chance: its standard error, because requests take different times also by themselves.
    pub noise: f64,
    /// How much longer a disturbed request takes, on average.
    pub added_us: f64,
    /// The time that all requests would have taken without, since the last judgement.
    pub usual_us: f64,
}

/// Collects times of requests.
#[derive(Clone, Debug, Default)]
pub struct CostMeter {
    kinds: HashMap<u64, Kind>,
    /// The time of all requests since the last judgement, also of kinds that are not measured.
    spent_us: f64,
}

impl CostMeter {
    /// A request of a kind (a hash of its commands) took so long, from its first command to the end of its wait.
    pub fn request(&mut self, kind: u64, is_disturbed: bool, us: u64) {
        self.spent_us += us as f64;
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            return;
        }
        let kind = self.kinds.entry(kind).or_default();
        match is_disturbed {
            true => kind.add_disturbed(us as f64),
            false => kind.add_calm(us as f64),
        }
    }

    /// The cost since the last judgement, when there are requests enough.
    ///
    /// Each kind is compared with itself: a program that begins with its longest requests, say because they fill a cache, must
    /// not look like one that is disturbed.
    pub fn judge(&mut self) -> Option<Cost> {
        let comparable = || self.kinds.values().filter(|kind| kind.is_comparable());
        let disturbed: u64 = comparable().map(|kind| kind.disturbed).sum();
        let requests = disturbed + comparable().map(|kind| kind.calm).sum::<u64>();
        let is_calm = requests >= REQUESTS_MIN && self.blind() * FEW_IN < requests;
        if disturbed < DISTURBED_MIN && !is_calm {
            if self.kinds.len() >= KINDS_MAX {
                // Kinds that came once, as a program's first requests are, must not keep out those that it stays with.
                self.forget_kinds();
            }
            return None;
        }
        let added_us: f64 = comparable().map(Kind::added_us).sum();
        let all_us: f64 = comparable().map(|kind| kind.calm_sum_us + kind.disturbed_sum_us).sum();
        // What is left is the time of as many calm requests: above zero, unless all took less than a microsecond.
        let comparable_us = (all_us - added_us).max(1.0);
        let usual_us = (self.spent_us - added_us).max(0.0);
        let noise = comparable().map(Kind::added_variance).sum::<f64>().sqrt() / comparable_us;
        self.forget();
        Some(Cost {
            share: added_us / comparable_us,
            noise,
            added_us: added_us / disturbed.max(1) as f64,
            usual_us,
        })
    }

    /// Whether there are disturbed requests enough for a judgement, and no calm ones that they could be compared with.
    pub fn is_blind(&self) -> bool {
        self.blind() >= DISTURBED_MIN
    }

    /// Disturbed requests of kinds that are not known without guests.
    fn blind(&self) -> u64 {
        self.kinds.values().filter(|kind| !kind.is_comparable()).map(|kind| kind.disturbed).sum()
    }

    /// A new judgement begins.
    pub(crate) fn forget(&mut self) {
        self.spent_us = 0.0;
        self.forget_kinds();
    }

    /// How long undisturbed requests take stays known; when room is short, only of kinds that still come.
    fn forget_kinds(&mut self) {
        if self.kinds.len() > KINDS_MAX / 2 {
            self.kinds.retain(|_, kind| kind.is_recent());
        }
        for kind in self.kinds.values_mut() {
            (kind.calm, kind.calm_sum_us) = (0, 0.0);
            (kind.disturbed, kind.disturbed_sum_us, kind.disturbed_squares) = (0, 0.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    #[test]
    fn each_kind_is_compared_with_itself() {
        let mut meter = CostMeter::default();
        // Long requests are disturbed more often than short ones; each takes 100 us more then.
        for _ in 0..30 {
            meter.request(1, true, 10_100);
            meter.request(2, false, 1_000);
        }
        assert_eq!(meter.judge(), None, "no kind has both");
        assert!(meter.is_blind());
        for _ in 0..30 {
            meter.request(1, false, 10_000);
        }
        meter.request(2, true, 1_100);
        let cost = meter.judge().unwrap();
        assert!((cost.added_us - 100.0).abs() < 1e-6, "{cost:?}");
        let usual_us = 60.0 * 10_000.0 + 31.0 * 1_000.0;
        assert!((cost.share - 31.0 * 100.0 / usual_us).abs() < 1e-9, "{cost:?}");
        assert!((cost.usual_us - usual_us).abs() < 1e-6, "{cost:?}");
        assert_eq!(meter.judge(), None, "they are forgotten");
        assert!(!meter.is_blind());
    }

    #[test]
    fn where_hardly_a_request_is_disturbed_the_cost_is_known_to_be_small() {
        let mut meter = CostMeter::default();
        (0..REQUESTS_MIN).for_each(|_| meter.request(1, false, 1_000));
        assert_eq!(meter.judge().unwrap().share, 0.0, "the gate has not been open");
        (0..REQUESTS_MIN).for_each(|_| meter.request(1, false, 1_000));
        meter.request(1, true, 2_000);
        assert!((meter.judge().unwrap().share - 1.0 / 51.0).abs() < 1e-9);
        (0..REQUESTS_MIN).for_each(|_| meter.request(1, false, 1_000));
        (0..REQUESTS_MIN / FEW_IN + 1).for_each(|_| meter.request(2, true, 1_000));
        assert_eq!(meter.judge(), None, "what others cost is not known");
    }

    #[test]
    fn how_far_the_cost_may_be_off_by_chance_is_told() {
        let mut dice = Dice::new(3);
        let mut judge = |spread_us: u64| {
            let (mut meter, mut shares, mut noises) = (CostMeter::default(), Vec::new(), 0.0);
            for _ in 0..400 {
                for is_disturbed in [false, true] {
                    (0..60).for_each(|_| meter.request(1, is_disturbed, 3_000 + dice.below(spread_us + 1)));
                }
                let cost = meter.judge().unwrap();
                shares.push(cost.share);
                noises += cost.noise / 400.0;
            }
            let mean = shares.iter().sum::<f64>() / 400.0;
            let deviation = (shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / 400.0).sqrt();
            (mean, deviation, noises)
        };
        assert_eq!(judge(0), (0.0, 0.0, 0.0), "all take equally long");
        let (mean, deviation, noise) = judge(4_000);
        assert!(mean.abs() < 0.005, "{mean}");
        assert!((0.8..1.25).contains(&(noise / deviation)), "{noise} {deviation}");
    }

    #[test]
    fn the_time_of_requests_that_are_not_measured_counts_as_the_programs() {
        let mut meter = CostMeter::default();
        for at in 0..30 {
            meter.request(1, false, 1_000);
            meter.request(1, true, 1_100);
            meter.request(100 + at, false, 500);
        }
        let cost = meter.judge().unwrap();
        assert!((cost.usual_us - 30.0 * (1_000.0 + 1_000.0 + 500.0)).abs() < 1e-6, "{cost:?}");
        (0..30).for_each(|_| meter.request(1, true, 1_000));
        assert!((meter.judge().unwrap().usual_us - 30_000.0).abs() < 1e-6, "since the last judgement");
    }

    #[test]
    fn how_long_a_calm_request_takes_is_remembered_for_a_program_that_is_always_disturbed() {
        let mut meter = CostMeter::default();
        (0..CALM_MIN).for_each(|_| meter.request(1, false, 1_000));
        for _ in 0..5 {
            (0..DISTURBED_MIN).for_each(|_| meter.request(1, true, 1_250));
            let cost = meter.judge().unwrap();
            assert!((cost.added_us - 250.0).abs() < 1e-6, "{cost:?}");
        }
    }

    #[test]
    fn a_program_that_becomes_slower_by_itself_is_not_disturbed() {
        let mut meter = CostMeter::default();
        let mut last = None;
        for round in 0..40 {
            let us = if round < 20 { 1_000 } else { 2_000 };
            (0..20).for_each(|_| meter.request(1, false, us));
            (0..20).for_each(|_| meter.request(1, true, us));
            last = meter.judge();
        }
        assert!(last.unwrap().share.abs() < 0.01, "{last:?}");
    }

    #[test]
    fn a_program_whose_first_requests_are_all_different_is_measured_later() {
        let mut meter = CostMeter::default();
        (0..10_000).for_each(|kind| meter.request(kind, true, 1));
        let second = |meter: &mut CostMeter| {
            (0..50).for_each(|_| meter.request(77_777, false, 1_000));
            (0..50).for_each(|_| meter.request(77_777, true, 1_300));
            meter.judge()
        };
        let judged = (0..4).find_map(|_| second(&mut meter)).expect("it is measured within seconds");
        assert!((judged.added_us - 300.0).abs() < 1e-6, "{judged:?}");
    }

    #[test]
    fn a_program_with_kinds_without_end_takes_bounded_memory() {
        let mut meter = CostMeter::default();
        (0..10_000).for_each(|kind| meter.request(kind, true, 1));
        assert_eq!(meter.kinds.len(), KINDS_MAX);
        (0..2).for_each(|_| meter.forget());
        meter.request(77_777, true, 1);
        assert_eq!(meter.kinds.len(), 1, "those that came no more have made room");
    }
}
