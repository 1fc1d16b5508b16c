//! How long operations took on the GPU: those that were timed, and by them the others.

use super::filler;
use crate::entry::{Entry, Kind, flag};
use crate::log::Log;
use model::profile::Filler;
use std::collections::{HashMap, HashSet};

/// Nothing on a GPU is shorter than this.
const SHORTEST_US: f64 = 0.1;

/// So many samples of a range speak for themselves.
const ENOUGH: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    kind: u8,
    /// The kernel's number, or the class of the copy.
    number: u64,
}

/// The samples of one class.
#[derive(Debug, Default)]
struct Samples {
    inside: Vec<f64>,
    outside: Vec<f64>,
    /// Those that saw more than their operation: code that was loaded first, or a thread that lost its processor.
    unclean: Vec<f64>,
}

impl Samples {
    fn us(self) -> f64 {
        if self.inside.is_empty() && self.outside.is_empty() {
            // Each of them is too long, so the shortest is the best.
            return self.unclean.into_iter().fold(f64::MAX, f64::min);
        }
        if self.inside.len() >= ENOUGH || self.outside.is_empty() {
            return middle(self.inside);
        }
        middle([self.inside, self.outside].concat())
    }
}

/// What the samples of a log say.
#[derive(Debug, Default)]
pub(super) struct Durations {
    /// The operations that were timed, and whether nothing else was seen.
    sampled: HashMap<u64, bool>,
    by_class: HashMap<Class, f64>,
    any_kernel_us: f64,
    pub(super) filler: Option<Filler>,
}

impl Durations {
    /// From the samples of a range, and from those outside of it for what the range has too few of: a program that warms up, or has
    /// company, is slower than it will be.
    pub(super) fn learn(log: &Log, begin: u64, end: u64) -> Self {
        // What launches of fillers cost among others is known at the end, and stands there.
        let measured = log.lines.iter().rev().find(|line| line.kind == Kind::Filler).map(|line| &line.entry);
        // An event pair sees more than the kernel does to a busy queue: the same kernel shows by how much.
        let beyond_us =
            measured.map_or(0.0, |entry| (entry.object as f64 - entry.bytes as f64).max(0.0) / 1e3);
        let mut durations = Self { filler: measured.map(filler), ..Self::default() };
        let of_range: HashSet<u64> = log
            .lines
            .iter()
            .filter(|line| line.kind.is_operation() && (begin..=end).contains(&line.entry.at))
            .map(|line| line.entry.extra)
            .collect();
        let mut classes: HashMap<Class, Samples> = HashMap::new();
        for line in log.lines.iter().filter(|line| line.kind == Kind::Sample) {
            let entry = &line.entry;
            let us = (entry.extra as f64 / 1e3 - beyond_us).max(SHORTEST_US);
            let is_clean = entry.count != 0;
            durations.sampled.insert(entry.object, is_clean);
            let class = Class { kind: entry.flags, number: entry.bytes };
            let samples = classes.entry(class).or_default();
            match (is_clean, of_range.contains(&entry.object)) {
                (false, _) => samples.unclean.push(us),
                (true, true) => samples.inside.push(us),
                (true, false) => samples.outside.push(us),
            }
        }
        let mut all = Vec::new();
        for (class, samples) in classes {
            let us = samples.us();
            if class.kind == Kind::Launch as u8 {
                all.push(us);
            }
            durations.by_class.insert(class, us);
        }
        all.sort_by(f64::total_cmp);
        durations.any_kernel_us = all.get(all.len() / 2).copied().unwrap_or(SHORTEST_US);
        durations
    }

    /// Whether an operation was timed, and if so, whether nothing else was seen.
    pub(super) fn sampled(&self, operation: u64) -> Option<bool> {
        self.sampled.get(&operation).copied()
    }

    pub(super) fn launch_us(&self, entry: &Entry) -> f64 {
        self.known_us(entry).unwrap_or(self.any_kernel_us)
    }

    /// Of a copy or a fill. One of a kind that was never timed took at most as long as its call, if that waited.
    pub(super) fn copy_us(&self, entry: &Entry, call_us: f64) -> f64 {
        let waited_us = if entry.flags & flag::WAITS != 0 { call_us } else { SHORTEST_US };
        self.known_us(entry).unwrap_or(waited_us)
    }

    fn known_us(&self, entry: &Entry) -> Option<f64> {
        let class = Class { kind: entry.kind, number: entry.object };
        self.by_class.get(&class).copied()
    }
}

/// The mean of the middle half; of two, the shorter. What disturbs a sample makes it longer, and rarely all of them.
fn middle(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let quarter = samples.len().div_ceil(4);
    let kept = match samples.len() {
        0..=2 => &samples[..samples.len().min(1)],
        count => &samples[quarter..count - quarter],
    };
    kept.iter().sum::<f64>() / kept.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_not_moved_by_what_lies_outside() {
        assert_eq!(middle(vec![5.0]), 5.0);
        assert_eq!(middle(vec![900.0, 5.0]), 5.0);
        assert_eq!(middle(vec![900.0, 5.0, 6.0]), 6.0);
        assert_eq!(middle(vec![900.0, 5.0, 6.0, 7.0]), 6.5);
        assert_eq!(middle(vec![900.0, 5.0, 6.0, 7.0, 8.0, 9.0, 800.0, 1.0]), 7.5);
    }

    #[test]
    fn samples_that_saw_more_count_only_where_there_are_no_others() {
        let clean = Samples { outside: vec![4.0], unclean: vec![3000.0, 2.0], ..Samples::default() };
        assert_eq!(clean.us(), 4.0);
        let unclean = Samples { unclean: vec![3000.0, 9.0, 12.0], ..Samples::default() };
        assert_eq!(unclean.us(), 9.0);
    }
}
