//! What follows from a lease for one link of a program. Pure.

use pool_api::{Class, GpuId, Lease, LeaseState};

/// A GPU under one of its epochs.
pub(crate) type Spot = (GpuId, u64);

/// What a link that has lost its place can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The lease has another place for it.
    Go,
    /// The lease still has the place that was lost.
    Same,
    /// The lease waits for GPUs.
    Wait,
    /// The lease is over.
    Over(String),
}

/// Where a link goes that used the GPU at `index` of the lease, and has lost it.
pub(crate) fn step(lease: &Lease, index: usize, lost: &Spot) -> Step {
    match lease.state {
        LeaseState::Pending | LeaseState::Parked => Step::Wait,
        LeaseState::Releasing | LeaseState::Ended => {
            let reason = lease.ended.as_ref().map_or("nobody says why", |ended| ended.reason.as_str());
            Step::Over(format!("lease {} is over: {reason}", lease.id))
        }
        LeaseState::Granted => match lease.grants.get(index) {
            Some(grant) if (&grant.gpu, grant.epoch) == (&lost.0, lost.1) => Step::Same,
            Some(_) => Step::Go,
            None => Step::Over(format!("lease {} has fewer GPUs than the program", lease.id)),
        },
    }
}

/// Whether a program that has lost its place waits for the next one for as long as its lease lives: guests have what others
/// leave, and that may take hours.
pub(crate) fn waits_for_a_seat(lease: &Lease) -> bool {
    lease.request.class == Class::Offline && lease.state == LeaseState::Pending
}

/// When a link's program was last seen to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    cut: u64,
    journal_bytes: u64,
    since_ms: u64,
}

impl Activity {
    /// The first word of a program.
    pub(crate) fn new(cut: u64, journal_bytes: u64, now_ms: u64) -> Self {
        Self { cut, journal_bytes, since_ms: now_ms }
    }

    /// Another word: a program that sent nothing has the same cut and the same journal.
    pub(crate) fn heard(self, cut: u64, journal_bytes: u64, now_ms: u64) -> Self {
        let is_same = (self.cut, self.journal_bytes) == (cut, journal_bytes);
        if is_same { self } else { Self::new(cut, journal_bytes, now_ms) }
    }

    /// As if it had sent something now: it is not asked again before it has been idle for as long again.
    pub(crate) fn restarted(self, now_ms: u64) -> Self {
        Self { since_ms: now_ms, ..self }
    }

    /// Whether it has sent nothing for so long.
    pub(crate) fn is_idle(self, for_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= for_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(state: &str, epoch: u64) -> Lease {
        let text = format!(
            r#"{{"id":"l-00c0ffee00c0ffee","tenant":"t","owner":"o","request":{{}},"state":"{state}",
            "grants":[{{"gpu":"a/0","epoch":{epoch},"endpoints":[],"model":"H200"}}],
            "created_ms":0,"expires_ms":0,"version":1}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_lost_link_goes_where_its_lease_is() {
        let lost: Spot = ("a/0".parse().unwrap(), 7);
        assert_eq!(step(&lease("granted", 8), 0, &lost), Step::Go);
        assert_eq!(step(&lease("granted", 7), 0, &lost), Step::Same);
        assert_eq!(step(&lease("pending", 7), 0, &lost), Step::Wait);
        assert_eq!(step(&lease("parked", 7), 0, &lost), Step::Wait);
        assert!(matches!(step(&lease("ended", 8), 0, &lost), Step::Over(_)));
        assert!(matches!(step(&lease("granted", 8), 1, &lost), Step::Over(_)));
    }

    #[test]
    fn guests_alone_wait_whatever_their_patience_and_while_they_have_no_seat() {
        let guest = |state: &str| {
            let lease = lease(state, 7);
            let request = pool_api::LeaseRequest { class: Class::Offline, ..lease.request.clone() };
            Lease { request, ..lease }
        };
        assert!(waits_for_a_seat(&guest("pending")));
        assert!(!waits_for_a_seat(&guest("granted")) && !waits_for_a_seat(&guest("ended")));
        assert!(!waits_for_a_seat(&lease("pending", 7)));
    }

    #[test]
    fn a_program_is_idle_when_its_journal_and_its_cut_stay() {
        let activity = Activity::new(3, 100, 1_000);
        let same = activity.heard(3, 100, 9_000);
        assert!(same.is_idle(8_000, 9_000) && !same.is_idle(8_001, 9_000));
        assert!(!same.restarted(9_000).is_idle(1, 9_000));
        assert!(!same.heard(3, 101, 9_000).is_idle(1, 9_000));
        assert!(!same.heard(4, 0, 9_000).is_idle(1, 9_000));
    }
}
