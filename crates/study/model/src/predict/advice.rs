//! Advice in words, each with the figure that a replay shows.

use super::what_if::{Change, SMALL_READ_BACK_BYTES, changed};
use super::{PlaneKind, Question, Subject, TermCost};
use crate::profile::{Action, Direction, Profile, SHORT_KERNEL_US, Summary};
use crate::replay::replay;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// What, and why.
    pub text: String,
    /// Performance kept if it is done, in percent of the program as recorded.
    pub kept_pct: f64,
    /// Percentage points gained.
    pub gained_points: f64,
}

/// Advice that gains less is not worth a sentence.
const GAIN_POINTS_MIN: f64 = 0.5;
/// Kernels named in a sentence.
const NAMED_KERNELS: usize = 3;

/// What would help, the best first.
pub(crate) fn advise(
    subject: &Subject<'_>,
    question: &Question,
    summary: &Summary,
    kept_pct: f64,
    terms: &[TermCost],
) -> Vec<Advice> {
    let mut advice = Vec::new();
    let other = match question.plane {
        PlaneKind::Api => PlaneKind::Pcie,
        PlaneKind::Pcie => PlaneKind::Api,
    };
    let other_pct = subject.kept_pct(&question.plane_at(other, question.rtt_us));
    advice.push(Advice {
        text: which_plane(question, other, kept_pct, other_pct),
        kept_pct: other_pct,
        gained_points: other_pct - kept_pct,
    });

    let plane = question.plane_at(question.plane, question.rtt_us);
    for change in Change::ALL {
        let Some(profile) = changed(subject.profile, change) else { continue };
        let wall_us = replay(&profile, &subject.habits, &subject.machine, &plane).wall_us;
        let changed_pct = 100.0 * subject.native_us / wall_us;
        let gained_points = changed_pct - kept_pct;
        if gained_points >= GAIN_POINTS_MIN {
            let text = format!("{}: keeps {changed_pct:.1} %", describe(change, summary, subject.profile));
            advice.push(Advice { text, kept_pct: changed_pct, gained_points });
        }
    }
    advice[1..].sort_by(|a, b| b.gained_points.total_cmp(&a.gained_points));
    if advice.len() == 1
        && let Some(worst) = terms.first()
    {
        let text = format!(
            "nothing simple removes what costs most ({}): a shorter way or more bandwidth would",
            worst.term.name()
        );
        advice.push(Advice { text, kept_pct: kept_pct + worst.points, gained_points: worst.points });
    }
    advice
}

fn which_plane(question: &Question, other: PlaneKind, kept_pct: f64, other_pct: f64) -> String {
    let (plane, other) = (question.plane.name(), other.name());
    let rtt_us = question.rtt_us;
    if other_pct > kept_pct + GAIN_POINTS_MIN {
        format!(
            "lease the {other} plane: at {rtt_us} us it keeps {other_pct:.1} %, the {plane} plane {kept_pct:.1} %"
        )
    } else if other_pct + GAIN_POINTS_MIN < kept_pct {
        format!("the {plane} plane is the right one: at {rtt_us} us the {other} plane keeps {other_pct:.1} %")
    } else {
        format!("either plane will do: at {rtt_us} us the {other} plane keeps {other_pct:.1} %")
    }
}

fn describe(change: Change, summary: &Summary, profile: &Profile) -> String {
    match change {
        Change::Graphs => {
            let short = 100.0 * summary.short_launches as f64 / summary.launches.max(1) as f64;
            let most: Vec<String> = summary
                .kernels
                .iter()
                .take(NAMED_KERNELS)
                .map(|kernel| format!("{} ({} times)", kernel.name, kernel.launches))
                .collect();
            format!(
                "launch less often: {} launches, {short:.0} % of them up to {SHORT_KERNEL_US} us, most often {}; \
                 fused or captured into graphs",
                summary.launches,
                most.join(", ")
            )
        }
        Change::FewerReadBacks => {
            let small = |action: &Action| {
                matches!(action, Action::Copy { direction: Direction::DeviceToHost, bytes, waits: true, .. }
                    if *bytes <= SMALL_READ_BACK_BYTES)
            };
            let count = profile.records.iter().filter(|record| small(&record.action)).count();
            format!(
                "read back less often: {count} copies of up to {SMALL_READ_BACK_BYTES} bytes make the program wait; \
                 one in ten"
            )
        }
        Change::FewerWaits => {
            format!("wait less often: {} waits for the GPU; one in ten", summary.waits)
        }
        Change::PinnedUploads => {
            let waiting: u64 = summary
                .copies
                .iter()
                .filter(|copies| {
                    copies.direction == Direction::HostToDevice && (copies.waits || !copies.pinned)
                })
                .map(|copies| copies.count)
                .sum();
            format!(
                "copy from page-locked memory and do not wait for it: {waiting} host-to-device copies hold the \
                 program up"
            )
        }
    }
}
