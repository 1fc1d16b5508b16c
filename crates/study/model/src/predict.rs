//! From a profile to an answer: what is kept at a distance, why, and what would help.

mod advice;
mod curve;
mod what_if;

pub use advice::Advice;
pub use curve::{CurvePoint, curve_csv};
pub use what_if::{Change, changed};

use advice::advise;

use crate::closed_form::Parameters;
use crate::equation::PciePath;
use crate::profile::{Profile, Summary, summarise};
use crate::replay::{
    ALL_TERMS, Api, Habits, Machine, Outcome, Pcie, Plane, Term, calibrate, habits, replay, replay_without,
};

/// The two planes a lease can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneKind {
    /// PCIe packets travel.
    Pcie,
    /// CUDA calls travel.
    Api,
}

impl PlaneKind {
    /// As it is written everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcie => "pcie",
            Self::Api => "api",
        }
    }
}

/// How the pcie plane is charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PcieCosts {
    /// As the paper's builds behaved.
    Measured,
    /// As latency injected into a local GPU behaves.
    Injected {
        /// What a filler kernel costs the GPU besides its length, in microseconds.
        filler_us: f64,
        /// What its launch costs the calling thread, in microseconds.
        host_us: f64,
    },
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Which plane.
    pub plane: PlaneKind,
    /// Round trip, in microseconds: of a PCIe read on the pcie plane, of a small message on the api plane.
    pub rtt_us: f64,
    /// What the network carries each way, in gigabytes a second.
    pub bandwidth_gbps: f64,
    /// Round trips of the curve.
    pub curve_rtts_us: Vec<f64>,
    /// The PCIe path of the GPU.
    pub path: PciePath,
    /// Constants of the closed form, from its fit.
    pub parameters: Parameters,
    /// How the pcie plane is charged.
    pub pcie_costs: PcieCosts,
    /// The program only makes forward passes or runs fused graphs, so that long kernels hide the distance.
    pub long_kernels_only: bool,
    /// Constants of the api plane; round trip and bandwidth are replaced by those above.
    pub api: Api,
    /// Constants of the machine; the pause between kernels is replaced by the profile's own.
    pub machine: Machine,
}

impl Question {
    /// The plane `kind` at a distance.
    pub fn plane_at(&self, kind: PlaneKind, rtt_us: f64) -> Plane {
        let bandwidth_gbps = self.bandwidth_gbps;
        match kind {
            PlaneKind::Api => Plane::Api(Api { rtt_us, bandwidth_gbps, ..self.api }),
            PlaneKind::Pcie => {
                let pcie = match self.pcie_costs {
                    PcieCosts::Measured => {
                        Pcie::as_measured(&self.parameters, self.path, rtt_us, bandwidth_gbps)
                    }
                    PcieCosts::Injected { filler_us, host_us } => {
                        Pcie::as_injected(self.path, rtt_us, bandwidth_gbps, filler_us, host_us)
                    }
                };
                let hiding_us = self.long_kernels_only.then_some(self.parameters.hiding_us);
                Plane::Pcie(Pcie { hiding_us, ..pcie })
            }
        }
    }
}

/// What one term costs: what the program would gain without it. Terms overlap, so they need not add up to the whole loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TermCost {
    /// Which.
    pub term: Term,
    /// Time gained without it.
    pub us: f64,
    /// Percentage points of performance gained without it.
    pub points: f64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The profile in numbers.
    pub summary: Summary,
    /// How long the recording lasted.
    pub recorded_us: f64,
    /// How long its native replay lasts: the closer, the better the replay knows this program.
    pub native: Outcome,
    /// The pause between queued kernels that the recording shows.
    pub gap_us: f64,
    /// The replay on the plane that was asked for.
    pub remote: Outcome,
    /// Performance kept there, in percent. More than 100 is possible where the program spends much time in calls.
    pub kept_pct: f64,
    /// What costs most, the worst first; what costs nothing is left out.
    pub terms: Vec<TermCost>,
    /// Both planes over the distance.
    pub curve: Vec<CurvePoint>,
    /// What would help, in words.
    pub advice: Vec<Advice>,
}

impl Prediction {
    /// Native replay against the recording, in percent.
    pub fn replay_error_pct(&self) -> f64 {
        100.0 * (self.native.wall_us / self.recorded_us.max(f64::MIN_POSITIVE) - 1.0)
    }
}

/// A profile with what every replay of it needs.
pub(crate) struct Subject<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) habits: Habits,
    pub(crate) machine: Machine,
    pub(crate) native_us: f64,
}

impl Subject<'_> {
    pub(crate) fn kept_pct(&self, plane: &Plane) -> f64 {
        100.0 * self.native_us / replay(self.profile, &self.habits, &self.machine, plane).wall_us
    }
}

/// Costs below this many percentage points are noise.
const POINTS_MIN: f64 = 0.05;

/// Answers a question about a profile.
pub fn predict(profile: &Profile, question: &Question) -> Prediction {
    let habits = habits(profile);
    let machine = calibrate(profile, question.machine);
    let native = replay(profile, &habits, &machine, &Plane::Native);
    let subject = Subject { profile, habits, machine, native_us: native.wall_us };
    let plane = question.plane_at(question.plane, question.rtt_us);
    let remote = replay(profile, &habits, &machine, &plane);
    let kept_pct = 100.0 * native.wall_us / remote.wall_us;
    let summary = summarise(profile);
    let terms = terms(&subject, &plane, &remote);
    let curve = curve::curve(&subject, question);
    let advice = advise(&subject, question, &summary, kept_pct, &terms);
    Prediction {
        summary,
        recorded_us: profile.wall_us,
        native,
        gap_us: machine.gap_us,
        remote,
        kept_pct,
        terms,
        curve,
        advice,
    }
}

fn terms(subject: &Subject<'_>, plane: &Plane, remote: &Outcome) -> Vec<TermCost> {
    let kept_pct = 100.0 * subject.native_us / remote.wall_us;
    let cost = |term: Term| {
        let without = replay_without(subject.profile, &subject.habits, &subject.machine, plane, term).wall_us;
        let points = 100.0 * subject.native_us / without - kept_pct;
        TermCost { term, us: remote.wall_us - without, points }
    };
    let mut costs: Vec<TermCost> =
        ALL_TERMS.into_iter().map(cost).filter(|cost| cost.points >= POINTS_MIN).collect();
    costs.sort_by(|a, b| b.us.total_cmp(&a.us).then(a.term.cmp(&b.term)));
    costs
}
