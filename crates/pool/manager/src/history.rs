//! What the pool looked like over the last day: a pure core, told the time, bounded in memory.
//!
//! ```text
//!   every 10 s: Gathering ──Sample──▶ hour:  360 steps of 10 s
//!                                └──▶ day:   720 steps of 2 min ──▶ history/000 … history/719 in the store
//! ```
//!
//! A step holds sums over the samples that fell into it, for the whole pool and for each tenant; what is shown is their
//! mean. The leader alone samples. It writes each finished step of the day to the store, so the next leader begins with
//! the day that the last one knew, without the last two minutes at most. The steps of 10 s are in memory alone: a new
//! leader shows the last hour in steps of 2 min until it has its own.

mod gather;
mod recorder;
mod ring;
mod sums;

use pool_api::Name;

pub(crate) use recorder::Recorder;
use ring::Ring;
pub(crate) use ring::StoredStep;
pub(crate) use sums::{Reason, Sums};

/// How often the leader looks.
pub(crate) const SAMPLE_MS: u64 = 10_000;
/// An hour of these.
const HOUR_STEPS: usize = 360;
/// A step of the day.
const DAY_STEP_MS: u64 = 120_000;
/// A day of these.
const DAY_STEPS: usize = 720;
/// Tenants with a series of their own in one step, those with most GPUs first. The others are in the pool's alone. A step
/// has 76 bytes for a tenant, so all steps have 21 MB at most.
const TENANTS_MAX: usize = 256;

/// One look at the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// All GPUs, and all leases that wait.
    pub(crate) pool: Sums,
    /// Those of each tenant that has or wants a GPU.
    pub(crate) tenants: std::collections::BTreeMap<Name, Sums>,
}

/// How far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// In steps of 10 s, as far as this leader has looked itself.
    Hour,
    /// In steps of 2 min.
    Day,
}

impl Span {
    /// Its length.
    pub(crate) fn ms(self) -> u64 {
        match self {
            Self::Hour => SAMPLE_MS * HOUR_STEPS as u64,
            Self::Day => DAY_STEP_MS * DAY_STEPS as u64,
        }
    }
}

/// The mean of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// When the step began.
    pub(crate) at_ms: u64,
    /// How long it is.
    pub(crate) span_ms: u64,
    /// Means, not sums.
    pub(crate) mean: Sums,
}

/// The last hour and the last day.
#[derive(Debug)]
pub(crate) struct History {
    hour: Ring,
    day: Ring,
}

impl Default for History {
    fn default() -> Self {
        Self { hour: Ring::new(SAMPLE_MS, HOUR_STEPS), day: Ring::new(DAY_STEP_MS, DAY_STEPS) }
    }
}

impl History {
    /// Takes a sample in. Returns the step of the day that it finished, to be stored.
    pub(crate) fn add(&mut self, now_ms: u64, mut sample: Sample) -> Option<StoredStep> {
        keep_largest(&mut sample);
        let _ = self.hour.add(now_ms, &sample);
        self.day.add(now_ms, &sample)
    }

    /// Takes in what earlier leaders stored. A step that is known already stays as it is.
    pub(crate) fn restore(&mut self, steps: impl IntoIterator<Item = StoredStep>, now_ms: u64) {
        for step in steps {
            self.day.restore(step, now_ms);
        }
    }

    /// The steps of one span that began after `after_ms`, oldest first, of the pool or of one tenant.
    pub(crate) fn points(&self, span: Span, tenant: Option<&Name>, now_ms: u64, after_ms: u64) -> Vec<Point> {
        let from_ms = after_ms.max(now_ms.saturating_sub(span.ms()));
        match span {
            Span::Day => self.day.points(tenant, from_ms, u64::MAX).collect(),
            Span::Hour => {
                let first_ms = self.hour.first_ms().unwrap_or(u64::MAX);
                let earlier = self.day.points(tenant, from_ms, first_ms.saturating_sub(DAY_STEP_MS));
                earlier.chain(self.hour.points(tenant, from_ms, u64::MAX)).collect()
            }
        }
    }

    /// Since when anything is known.
    pub(crate) fn since_ms(&self) -> Option<u64> {
        [self.day.first_ms(), self.hour.first_ms()].into_iter().flatten().min()
    }

    /// Every tenant that had or wanted a GPU, by name.
    pub(crate) fn tenants(&self) -> Vec<Name> {
        let all: std::collections::BTreeSet<&Name> = self.day.tenants().collect();
        all.into_iter().cloned().collect()
    }
}

/// Drops tenants beyond [`TENANTS_MAX`]: those with the fewest GPUs and leases that wait.
fn keep_largest(sample: &mut Sample) {
    if sample.tenants.len() <= TENANTS_MAX {
        return;
    }
    let mut all: Vec<_> = std::mem::take(&mut sample.tenants).into_iter().collect();
    all.sort_by(|(_, a), (_, b)| (b.leased + b.waiting).total_cmp(&(a.leased + a.waiting)));
    all.truncate(TENANTS_MAX);
    sample.tenants = all.into_iter().collect();
}

#[cfg(test)]
mod tests;
