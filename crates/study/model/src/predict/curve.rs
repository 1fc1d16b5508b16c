//! Performance over the distance.

use super::{PlaneKind, Question, Subject};
use std::fmt::Write;

/// Both planes at one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Round trip.
    pub rtt_us: f64,
    /// Performance kept on the pcie plane, in percent.
    pub pcie_pct: f64,
    /// Performance kept on the api plane, in percent.
    pub api_pct: f64,
}

pub(super) fn curve(subject: &Subject<'_>, question: &Question) -> Vec<CurvePoint> {
    let point = |&rtt_us: &f64| CurvePoint {
        rtt_us,
        pcie_pct: subject.kept_pct(&question.plane_at(PlaneKind::Pcie, rtt_us)),
        api_pct: subject.kept_pct(&question.plane_at(PlaneKind::Api, rtt_us)),
    };
    question.curve_rtts_us.iter().map(point).collect()
}

/// The curve as CSV, with a header.
pub fn curve_csv(curve: &[CurvePoint]) -> String {
    let mut text = "rtt_us,pcie_performance_pct,api_performance_pct\n".to_owned();
    for point in curve {
        let CurvePoint { rtt_us, pcie_pct, api_pct } = point;
        writeln!(text, "{rtt_us},{pcie_pct:.3},{api_pct:.3}").expect("a string takes everything");
    }
    text
}
