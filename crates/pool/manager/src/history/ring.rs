//! Steps of one length, the newest of which are kept.

use std::collections::BTreeMap;

use pool_api::Name;
use serde::{Deserialize, Serialize};

use super::{Point, Sample, Sums};

/// Sums over the samples of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// How many samples.
    pub(crate) samples: u32,
    /// Over the pool.
    pub(crate) pool: Sums,
    /// Over each tenant that had or wanted a GPU.
    pub(crate) tenants: BTreeMap<Name, Sums>,
}

/// A finished step, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredStep {
    /// When it began.
    pub(crate) at_ms: u64,
    /// Its sums.
    pub(crate) step: Step,
}

impl StoredStep {
    /// Its place among the records of a day: the step of the next day at the same time takes it over.
    pub(crate) fn slot(&self) -> u64 {
        self.at_ms / super::DAY_STEP_MS % super::DAY_STEPS as u64
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    step_ms: u64,
    keep: usize,
    /// By the number of the step since 1970.
    steps: BTreeMap<u64, Step>,
}

impl Ring {
    pub(super) fn new(step_ms: u64, keep: usize) -> Self {
        Self { step_ms, keep, steps: BTreeMap::new() }
    }

    /// Adds a sample. Returns the step before, if this sample begins a new one.
    pub(super) fn add(&mut self, now_ms: u64, sample: &Sample) -> Option<StoredStep> {
        let number = now_ms / self.step_ms;
        let finished = self.steps.last_key_value().filter(|(last, _)| **last < number);
        let finished =
            finished.map(|(last, step)| StoredStep { at_ms: last * self.step_ms, step: step.clone() });
        let step = self.steps.entry(number).or_default();
        step.samples += 1;
        step.pool.add(&sample.pool);
        for (tenant, sums) in &sample.tenants {
            step.tenants.entry(tenant.clone()).or_default().add(sums);
        }
        self.forget_older_than(number);
        finished
    }

    pub(super) fn restore(&mut self, stored: StoredStep, now_ms: u64) {
        let (number, now) = (stored.at_ms / self.step_ms, now_ms / self.step_ms);
        // A step of the future is from a leader whose clock was ahead: it would stay in front of all that comes.
        if number <= now {
            self.steps.entry(number).or_insert(stored.step);
            self.forget_older_than(now);
        }
    }

    fn forget_older_than(&mut self, newest: u64) {
        let oldest = (newest + 1).saturating_sub(self.keep as u64);
        self.steps = self.steps.split_off(&oldest);
        while self.steps.len() > self.keep {
            self.steps.pop_first();
        }
    }

    pub(super) fn first_ms(&self) -> Option<u64> {
        self.steps.keys().next().map(|number| number * self.step_ms)
    }

    pub(super) fn tenants(&self) -> impl Iterator<Item = &Name> {
        self.steps.values().flat_map(|step| step.tenants.keys())
    }

    /// Steps that began after `from_ms` and not after `until_ms`. A tenant that is not in a step had nothing there.
    pub(super) fn points<'a>(
        &'a self,
        tenant: Option<&'a Name>,
        from_ms: u64,
        until_ms: u64,
    ) -> impl Iterator<Item = Point> + 'a {
        let steps = self.steps.range(from_ms / self.step_ms + 1..).map(move |(number, step)| {
            let sums = match tenant {
                None => step.pool,
                Some(tenant) => step.tenants.get(tenant).copied().unwrap_or_default(),
            };
            Point { at_ms: number * self.step_ms, span_ms: self.step_ms, mean: sums.over(step.samples) }
        });
        steps.take_while(move |point| point.at_ms <= until_ms)
    }
}
