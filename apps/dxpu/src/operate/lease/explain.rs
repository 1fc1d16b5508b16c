//! `dxpu lease explain`: which GPUs fall out where, and what would help.

use super::LeaseName;
use crate::operate::list::Look;
use crate::operate::words::{counted, name_of};
use crate::support::exit::Outcome;
use crate::support::paint::{Paper, Tone};
use pool_api::{Explanation, Filter, LeaseId, SEAT_IS_CLOSED};
use pool_client::{Client, ClientError};
use std::time::Duration;

pub(super) fn run(lease: &LeaseName, look: &Look) -> Outcome {
    look.show(|client| asked(client, lease.resolve(client)?), lines)
}

fn asked(client: &Client, id: LeaseId) -> Result<Explanation, ClientError> {
    client.get(&format!("/v1/leases/{id}/explain"), Duration::ZERO)
}

/// What a guest that has its seat should know about it; `None` while all is well.
pub(super) fn seat(client: &Client, id: LeaseId) -> Result<Option<String>, ClientError> {
    Ok(asked(client, id)?.reasons.into_iter().find(|reason| reason.starts_with(SEAT_IS_CLOSED)))
}

/// What a filter says of the GPUs that got no further.
fn words(filter: Filter) -> &'static str {
    match filter {
        Filter::Given => "not among those it names",
        Filter::Model => "of another model",
        Filter::Memory => "with less memory",
        Filter::Kind => "in a box of another kind",
        Filter::Plane => "in a box without the PCIe plane",
        Filter::Health => "bad, in burn-in or absent",
        Filter::BoxState => "in a box that is silent, dead or drained",
        Filter::Taint => "tainted",
        Filter::Leased => "leased by somebody",
        Filter::Cleaning => "being cleaned after a lease",
        Filter::NotReady => "without a worker that a borrower could find",
        Filter::Spare => "held back as spares",
        Filter::Quota => "beyond the tenant's limit",
        Filter::Seat => "of another kind: seats for guests are for offline leases alone",
        Filter::Part => "of another kind: a part that is too small, or a whole GPU where shares get parts",
        Filter::Beside => "beside a lease that it cannot be beside",
        Filter::Guard => "in a box without guard memory for its images",
        Filter::Topology => "free, but not together with enough others",
        Filter::Usable => "could be had",
    }
}

fn lines(explanation: &Explanation, paper: Paper) -> Vec<String> {
    let mut lines = vec![format!("lease {} is {}", explanation.lease, name_of(&explanation.state))];
    if explanation.ahead > 0 {
        let are = if explanation.ahead == 1 { "is" } else { "are" };
        lines.push(format!("{} {are} served before it", counted(explanation.ahead, "pending lease")));
    }
    let mut section = |head: &str, items: &[String]| {
        if !items.is_empty() {
            lines.push(String::new());
            lines.push(Tone::Faint.paint(head, paper.is_colourful));
            lines.extend(items.iter().map(|item| format!("  - {item}")));
        }
    };
    section("WHY", &explanation.reasons);
    section("WHAT WOULD LET IT RUN (any one of these)", &explanation.remedies);
    let counted: Vec<_> = explanation.filters.iter().filter(|filter| filter.gpus > 0).collect();
    if !counted.is_empty() {
        lines.push(String::new());
        lines.push(Tone::Faint.paint("GPUS OF THE POOL", paper.is_colourful));
        for filter in counted {
            lines.push(format!("  {:>7}  {}", filter.gpus, words(filter.filter)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{FilterCount, LeaseId, LeaseState};

    #[test]
    fn it_reads_as_an_answer() {
        let explanation = Explanation {
            lease: LeaseId(1),
            state: LeaseState::Pending,
            ahead: 2,
            filters: vec![
                FilterCount { filter: Filter::Leased, gpus: 7 },
                FilterCount { filter: Filter::Quota, gpus: 0 },
            ],
            reasons: vec!["all H200 are leased".into()],
            remedies: vec!["1 more H200".into()],
        };
        let paper = Paper { width: None, height: None, is_colourful: false };
        let text = lines(&explanation, paper).join("\n");
        assert!(text.contains("2 pending") && text.contains("- all H200 are leased"), "{text}");
        assert!(text.contains("7  leased by somebody") && !text.contains("quota"), "{text}");
    }
}
