//! What is added up, for the pool and for each tenant.

use pool_api::{Explanation, Filter};
use serde::{Deserialize, Serialize};

/// Why a lease waits: the first of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its tenant's limit.
    Quota,
    /// GPUs are there; leases before it get them.
    Queue,
    /// Others have them.
    Leased,
    /// They are being cleaned or made ready.
    Cleaning,
    /// They are broken, tainted, or in a box that is dead or drained.
    Out,
    /// They are held back as spares.
    Spare,
    /// They are free, but not enough of them together.
    Together,
    /// No GPU of the pool fits.
    NoneFits,
    /// The leader explained others: it explains some of the queue at each look.
    NotExamined,
}

impl Reason {
    /// Each, in the order of [`Sums::reasons`].
    pub(crate) const ALL: [Self; 9] = [
        Self::Quota,
        Self::Queue,
        Self::Leased,
        Self::Cleaning,
        Self::Out,
        Self::Spare,
        Self::Together,
        Self::NoneFits,
        Self::NotExamined,
    ];

    /// As the API spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Queue => "queue",
            Self::Leased => "leased",
            Self::Cleaning => "cleaning",
            Self::Out => "out",
            Self::Spare => "spare",
            Self::Together => "together",
            Self::NoneFits => "none_fits",
            Self::NotExamined => "not_examined",
        }
    }

    /// What an explanation comes to.
    pub(crate) fn of(explanation: &Explanation) -> Self {
        let has = |filters: &[Filter]| {
            explanation.filters.iter().any(|count| count.gpus > 0 && filters.contains(&count.filter))
        };
        if has(&[Filter::Quota]) {
            Self::Quota
        } else if has(&[Filter::Usable]) {
            Self::Queue
        } else if has(&[Filter::Leased]) {
            Self::Leased
        } else if has(&[Filter::Cleaning, Filter::NotReady]) {
            Self::Cleaning
        } else if has(&[Filter::Health, Filter::BoxState, Filter::Taint]) {
            Self::Out
        } else if has(&[Filter::Spare, Filter::Guard, Filter::Beside]) {
            Self::Spare
        } else if has(&[Filter::Topology]) {
            Self::Together
        } else {
            Self::NoneFits
        }
    }
}

/// Sums over GPUs and leases, and over samples. Single precision: seven digits are more than a chart shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sums {
    /// GPUs there are.
    pub(crate) gpus: f32,
    /// GPUs that a lease could have now.
    pub(crate) free: f32,
    /// GPUs that leases have; a share counts as its part.
    pub(crate) leased: f32,
    /// Utilisation in percent, of each GPU that reports one.
    pub(crate) busy_pct: f32,
    /// How many GPUs that is.
    pub(crate) busy_of: f32,
    /// Activity of multiprocessors in percent, of each GPU that reports it. Left out of records where no GPU does, as in
    /// those of managers that did not know it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) sm_pct: f32,
    /// How many GPUs that is.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) sm_of: f32,
    /// Bytes in use, of the GPUs that report them.
    pub(crate) memory_used: f32,
    /// Bytes that these GPUs have.
    pub(crate) memory_of: f32,
    /// Leases that wait.
    pub(crate) waiting: f32,
    /// The same by [`Reason`].
    pub(crate) reasons: [f32; Reason::ALL.len()],
}

impl Sums {
    /// The sum of both.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, 1.0);
    }

    /// The mean over so many samples.
    pub(crate) fn over(&self, samples: u32) -> Self {
        let mut mean = Self::default();
        mean.combine(self, 1.0 / samples.max(1) as f32);
        mean
    }

    fn combine(&mut self, other: &Self, factor: f32) {
        let Self {
            gpus,
            free,
            leased,
            busy_pct,
            busy_of,
            sm_pct,
            sm_of,
            memory_used,
            memory_of,
            waiting,
            reasons,
        } = self;
        *gpus += other.gpus * factor;
        *free += other.free * factor;
        *leased += other.leased * factor;
        *busy_pct += other.busy_pct * factor;
        *busy_of += other.busy_of * factor;
        *sm_pct += other.sm_pct * factor;
        *sm_of += other.sm_of * factor;
        *memory_used += other.memory_used * factor;
        *memory_of += other.memory_of * factor;
        *waiting += other.waiting * factor;
        for (reason, more) in reasons.iter_mut().zip(other.reasons) {
            *reason += more * factor;
        }
    }

    /// Adds leases that wait for one reason.
    pub(crate) fn add_waiting(&mut self, reason: Reason) {
        self.waiting += 1.0;
        let place = Reason::ALL.iter().position(|each| *each == reason).expect("every reason is in the list");
        self.reasons[place] += 1.0;
    }

    /// The mean utilisation of the GPUs that report one.
    pub(crate) fn utilisation_pct(&self) -> Option<f32> {
        (self.busy_of > 0.0).then(|| self.busy_pct / self.busy_of)
    }

    /// The mean activity of multiprocessors, of the GPUs that report it.
    pub(crate) fn sm_activity_pct(&self) -> Option<f32> {
        (self.sm_of > 0.0).then(|| self.sm_pct / self.sm_of)
    }
}

fn is_zero(value: &f32) -> bool {
    *value == 0.0
}
