//! The failure process, played out: GPUs break, spares take their places, repaired ones become spares.

use pool::{SplitMix, spares_for};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const DAYS_PER_YEAR: f64 = 365.0;

/// How much to simulate. A history is played in stretches, whose scatter tells how far its result can be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Years in a stretch at least. Large pools need many, since a bad week is one sample however many GPUs are in it.
    pub years: f64,
    /// Failures in a stretch at least. Small pools need many, to see several coincide.
    pub failures: u64,
    /// Failures after which even a close call is decided.
    pub failures_max: u64,
}

impl Effort {
    /// Tells 99.90 % from 99.89 %, in some seconds.
    pub const THOROUGH: Self = Self { years: 75.0, failures: 50_000, failures_max: 60_000_000 };

    fn failures_in_stretch(&self, process: &FailureProcess, gpus: usize) -> u64 {
        let failures = self.years * gpus as f64 * process.failures_per_gpu_year;
        self.failures.max(failures as u64).max(1)
    }
}

/// Stretches a history has at least, so that their scatter means something.
const STRETCHES_MIN: usize = 20;

/// Standard errors between a result and a threshold that make it a decision.
const DECISIVE_ERRORS: f64 = 3.0;

/// How long a repair takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repairs {
    /// Always the mean.
    Fixed,
    /// Any length, short ones most often.
    Exponential,
}

/// How often GPUs break, and how long they are gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureProcess {
    /// Failures of one working GPU in a year.
    pub failures_per_gpu_year: f64,
    /// How long a broken GPU is gone, on average.
    pub repair_days: f64,
    /// How repairs differ.
    pub repairs: Repairs,
}

impl FailureProcess {
    /// GPUs in repair on average, if so many work.
    pub fn mean_in_repair(&self, gpus: usize) -> f64 {
        gpus as f64 * self.failures_per_gpu_year * self.repair_days / DAYS_PER_YEAR
    }

    /// Days until the next of so many working GPUs breaks.
    pub(super) fn days_to_failure(&self, working: usize, dice: &mut SplitMix) -> f64 {
        let per_day = working as f64 * self.failures_per_gpu_year / DAYS_PER_YEAR;
        if per_day > 0.0 { dice.exponential(1.0 / per_day) } else { f64::INFINITY }
    }

    /// Days until a GPU that breaks now is back.
    pub(super) fn days_of_repair(&self, dice: &mut SplitMix) -> f64 {
        match self.repairs {
            Repairs::Fixed => self.repair_days,
            Repairs::Exponential => dice.exponential(self.repair_days),
        }
    }
}

/// A moment in days, ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Day(pub(super) f64);

impl PartialEq for Day {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Day {}

impl PartialOrd for Day {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Day {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What came of a simulated history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlayedOut {
    /// Years that were simulated.
    pub years: f64,
    /// GPUs that broke.
    pub failures: u64,
    /// The share of time in which every broken GPU had been replaced.
    pub covered: f64,
    /// The standard error of `covered`.
    pub covered_error: f64,
    /// The share of failures that found a spare at once.
    pub served_at_once: f64,
}

/// Simulates a pool that should always have `gpus` at work, until it is clear whether spares cover this share of the time.
/// Spares wait in the dark and break only once they work; while they do not suffice, fewer GPUs work.
pub fn play_out(
    process: &FailureProcess,
    gpus: usize,
    spares: usize,
    cover: f64,
    effort: &Effort,
    dice: &mut SplitMix,
) -> PlayedOut {
    let mut history = History::new(gpus + spares, gpus);
    let stretch_failures = effort.failures_in_stretch(process, gpus);
    let (mut at_once, mut failures, mut covered_days) = (0, 0, 0.0);
    let mut stretches = Vec::new();
    loop {
        let (from_day, covered_before) = (history.now_day, covered_days);
        for _ in 0..stretch_failures {
            let in_repair = history.until_next_failure(process, dice, |count, days| {
                covered_days += if count <= spares { days } else { 0.0 };
            });
            at_once += u64::from(in_repair < spares);
        }
        failures += stretch_failures;
        stretches.push((covered_days - covered_before) / (history.now_day - from_day));
        if stretches.len() < STRETCHES_MIN {
            continue;
        }
        let (covered, covered_error) = (covered_days / history.now_day, standard_error(&stretches));
        if failures >= effort.failures_max || (covered - cover).abs() > DECISIVE_ERRORS * covered_error {
            return PlayedOut {
                years: history.now_day / DAYS_PER_YEAR,
                failures,
                covered,
                covered_error,
                served_at_once: at_once as f64 / failures as f64,
            };
        }
    }
}

/// How far the mean of these shares can be trusted; there are at least two.
fn standard_error(shares: &[f64]) -> f64 {
    let count = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (variance / count).sqrt()
}

/// A pool on its way through time.
struct History {
    /// GPUs the pool has, spares included.
    owned: usize,
    /// GPUs that should be at work.
    wanted: usize,
    now_day: f64,
    /// When each GPU in repair comes back.
    returns: BinaryHeap<Reverse<Day>>,
    /// The next failure, and how many GPUs were at work when it was drawn.
    next_failure: Option<(Day, usize)>,
}

impl History {
    fn new(owned: usize, wanted: usize) -> Self {
        Self { owned, wanted, now_day: 0.0, returns: BinaryHeap::new(), next_failure: None }
    }

    /// Goes on to the next failure. Calls `stretch` with how many were in repair for how many days, as that changes, and
    /// returns how many were in repair when the failure came.
    fn until_next_failure(
        &mut self,
        process: &FailureProcess,
        dice: &mut SplitMix,
        mut stretch: impl FnMut(usize, f64),
    ) -> usize {
        loop {
            let in_repair = self.returns.len();
            let working = self.wanted.min(self.owned.saturating_sub(in_repair));
            let failure = match self.next_failure {
                Some((day, then_working)) if then_working == working => day.0,
                // More or fewer may break now. None remembers how long it has worked, so it can be drawn from here.
                _ => self.now_day + process.days_to_failure(working, dice),
            };
            self.next_failure = Some((Day(failure), working));
            match self.returns.peek() {
                Some(&Reverse(Day(back))) if back <= failure => {
                    stretch(in_repair, back - self.now_day);
                    self.now_day = back;
                    self.returns.pop();
                }
                _ => {
                    assert!(failure.is_finite(), "a failure needs a GPU that can fail");
                    stretch(in_repair, failure - self.now_day);
                    self.now_day = failure;
                    self.next_failure = None;
                    self.returns.push(Reverse(Day(failure + process.days_of_repair(dice))));
                    return in_repair;
                }
            }
        }
    }
}

/// The spares a pool of one size needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparesNeeded {
    /// GPUs that should always be at work.
    pub gpus: usize,
    /// GPUs in repair on average, by the rates alone.
    pub mean_in_repair: f64,
    /// Spares by the closed form.
    pub computed: usize,
    /// Spares by simulation: the fewest that covered enough of the time.
    pub simulated: usize,
    /// What came of it with that many.
    pub with: PlayedOut,
    /// What came of it with one less, where that is possible.
    pub with_one_less: Option<PlayedOut>,
}

/// Finds the spares that cover this share of the time, by the closed form and, apart from it, by playing it out.
pub fn spares_needed(
    process: &FailureProcess,
    gpus: usize,
    cover: f64,
    effort: &Effort,
    seed: u64,
) -> SparesNeeded {
    let mean_in_repair = process.mean_in_repair(gpus);
    let computed = spares_for(mean_in_repair, cover) as usize;
    let mut dice = SplitMix::new(seed);
    let mut spares = spares_if_unlimited(process, gpus, cover, effort, &mut dice);
    let mut play = |spares| play_out(process, gpus, spares, cover, effort, &mut dice);
    let mut with = play(spares);
    while with.covered < cover {
        spares += 1;
        with = play(spares);
    }
    let mut with_one_less = None;
    while spares > 0 {
        let less = play(spares - 1);
        if less.covered < cover {
            with_one_less = Some(less);
            break;
        }
        (spares, with) = (spares - 1, less);
    }
    SparesNeeded { gpus, mean_in_repair, computed, simulated: spares, with, with_one_less }
}

/// A first guess from one history in which spares never run out: how many were in use for how long.
fn spares_if_unlimited(
    process: &FailureProcess,
    gpus: usize,
    cover: f64,
    effort: &Effort,
    dice: &mut SplitMix,
) -> usize {
    let mut history = History::new(usize::MAX, gpus);
    let mut days_with: Vec<f64> = Vec::new();
    for _ in 0..effort.failures_in_stretch(process, gpus) * STRETCHES_MIN as u64 {
        history.until_next_failure(process, dice, |count, days| {
            if days_with.len() <= count {
                days_with.resize(count + 1, 0.0);
            }
            days_with[count] += days;
        });
    }
    let mut covered = 0.0;
    let enough = days_with.iter().position(|days| {
        covered += days;
        covered >= cover * history.now_day
    });
    enough.unwrap_or(days_with.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::poisson_cover;

    fn process(repairs: Repairs) -> FailureProcess {
        FailureProcess { failures_per_gpu_year: 0.111, repair_days: 5.0, repairs }
    }

    fn effort(failures: u64) -> Effort {
        Effort { years: 0.0, failures, failures_max: 20 * failures }
    }

    #[test]
    fn play_and_closed_form_agree_whatever_repairs_look_like() {
        for repairs in [Repairs::Fixed, Repairs::Exponential] {
            let process = process(repairs);
            let mean = process.mean_in_repair(2000);
            for spares in [2, 5, 8] {
                let played = play_out(&process, 2000, spares, 0.5, &effort(15_000), &mut SplitMix::new(5));
                let (expected, margin) = (poisson_cover(mean, spares as u64), 5.0 * played.covered_error);
                // Fewer GPUs break while fewer work, so a little more is covered than the closed form says.
                let about = expected - margin..expected + margin + 0.002;
                assert!(about.contains(&played.covered), "{repairs:?} {spares}: {played:?} {expected}");
                // A failure sees what any moment sees, so it finds a spare if fewer than all were gone.
                let at_once = poisson_cover(mean, spares as u64 - 1);
                assert!((played.served_at_once - at_once).abs() < 0.01, "{played:?} {at_once}");
            }
        }
    }

    #[test]
    fn the_spares_found_cover_and_one_less_does_not() {
        let needed = spares_needed(&process(Repairs::Exponential), 512, 0.99, &effort(10_000), 1);
        assert!(needed.with.covered >= 0.99);
        assert!(needed.with_one_less.unwrap().covered < 0.99);
        assert!(needed.simulated.abs_diff(needed.computed) <= 1, "{needed:?}");
    }

    #[test]
    fn a_close_call_is_played_for_longer() {
        let process = process(Repairs::Exponential);
        let effort = Effort { years: 0.0, failures: 500, failures_max: 200_000 };
        let clear = play_out(&process, 2000, 5, 0.5, &effort, &mut SplitMix::new(5));
        let close = play_out(&process, 2000, 5, clear.covered, &effort, &mut SplitMix::new(5));
        assert_eq!(clear.failures, 10_000);
        assert!(close.failures > 50_000 && close.covered_error < clear.covered_error, "{close:?}");
    }

    #[test]
    fn a_history_adds_up() {
        let played = play_out(&process(Repairs::Fixed), 1000, 0, 0.9999, &effort(100), &mut SplitMix::new(3));
        assert!((15.0..21.0).contains(&played.years), "111 failures a year: {played:?}");
        assert_eq!((played.failures, played.served_at_once), (2000, 0.0));
    }
}
