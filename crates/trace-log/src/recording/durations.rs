//! How long operations took on the GPU: those that were timed, and by them the others.

use super::filler;
use crate::entry::{Entry, Kind, flag};
use crate::log::Log;
use model::profile::Filler;
use std::collections::{HashMap, HashSet};

/// Nothing on a GPU is shorter than this.
const SHORTEST_US: f64 = 0.1;
/// With at least so many samples, the tenth at either end is left out: a sample may have met another program.
const TRIMMED_FROM: usize = 10;

/// So many samples of a range speak for themselves.
const ENOUGH: usize = 2;

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
}

impl Samples {
    fn best(self) -> Vec<f64> {
        if self.inside.len() >= ENOUGH || self.outside.is_empty() {
            self.inside
        } else {
            [self.inside, self.outside].concat()
        }
    }
}

/// What the samples of a log say.
#[derive(Debug, Default)]
pub(super) struct Durations {
    by_operation: HashMap<u64, f64>,
    by_class: HashMap<Class, f64>,
    any_kernel_us: f64,
    pub(super) filler: Option<Filler>,
}

impl Durations {
    /// From the samples of a range, and from those outside of it for what the range has too few of: a program that warms up, or has
    /// company, is slower than it will be.
    pub(super) fn learn(log: &Log, begin: u64, end: u64) -> Self {
        let measured = log.lines.iter().find(|line| line.kind == Kind::Filler).map(|line| &line.entry);
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
            durations.by_operation.insert(entry.object, us);
            let class = Class { kind: entry.flags, number: entry.bytes };
            let samples = classes.entry(class).or_default();
            if of_range.contains(&entry.object) { &mut samples.inside } else { &mut samples.outside }
                .push(us);
        }
        let mut all = Vec::new();
        for (class, samples) in classes {
            let mean_us = trimmed_mean(samples.best());
            if class.kind == Kind::Launch as u8 {
                all.push(mean_us);
            }
            durations.by_class.insert(class, mean_us);
        }
        all.sort_by(f64::total_cmp);
        durations.any_kernel_us = all.get(all.len() / 2).copied().unwrap_or(SHORTEST_US);
        durations
    }

    pub(super) fn is_sampled(&self, operation: u64) -> bool {
        self.by_operation.contains_key(&operation)
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
        self.by_operation.get(&entry.extra).or_else(|| self.by_class.get(&class)).copied()
    }
}

fn trimmed_mean(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let left_out = if samples.len() >= TRIMMED_FROM { samples.len() / 10 } else { 0 };
    let kept = &samples[left_out..samples.len() - left_out];
    kept.iter().sum::<f64>() / kept.len().max(1) as f64
}
