//! Admission by lease: the token, then the fence.

use crate::{Fence, FenceError, Moment, PartHeld, Refusals, Trust, TrustError};
use pool_auth::{LeasePublicKey, LeaseTokenRefusal, lease_token};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use work_class::Class;

/// Lets borrowers of one slot in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAdmission {
    /// This box, as the pool knows it.
    pub box_name: String,
    /// The slot.
    pub slot: u16,
    /// The trust file of the box.
    pub trust_file: PathBuf,
    /// The fence file of the slot.
    pub fence_file: PathBuf,
}

/// What an admitted borrower has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// By which lease.
    pub lease: String,
    /// The tenant that pays.
    pub tenant: String,
    /// Of which epoch.
    pub epoch: u64,
    /// The most memory; none when the whole GPU is theirs.
    pub memory_limit_bytes: Option<u64>,
    /// What its programs are to others on the GPU.
    pub class: Class,
    /// What offline work may add to the time of its requests, in percent, if its lease says so.
    pub slack_percent: Option<u16>,
    /// How much of the GPU's time its programs have beside others, in thousandths; none when the whole GPU is theirs.
    pub share_milli: Option<u16>,
    /// Which part of the lease, if it is one; see [`LeaseAdmission::take`].
    pub part: Option<String>,
}

/// Why a borrower is not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Denial {
    /// There is no lease token.
    #[error("this GPU belongs to a pool and is used by lease, and the client has no lease token")]
    NoToken,
    /// The token is not good here and now.
    #[error(transparent)]
    Token(#[from] LeaseTokenRefusal),
    /// The lease was revoked.
    #[error("lease {lease} was revoked")]
    Revoked {
        /// Which.
        lease: String,
    },
    /// The box does not know yet which keys to trust.
    #[error("this box cannot verify lease tokens")]
    Trust(#[from] TrustError),
    /// The fence says no.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// Another session has the part.
    #[error("another process has this part of the lease; it is free when that process has ended")]
    PartTaken,
    /// The part's file cannot be made or locked.
    #[error("cannot tell whether another process has this part of the lease")]
    Part(#[source] io::Error),
    /// The machine does not tell the time.
    #[error("this machine does not tell how long it has been running")]
    Clock(#[source] io::Error),
}

impl Denial {
    /// Whether the same token may be let in a few seconds later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoToken | Self::Token(_) | Self::Revoked { .. } => false,
            Self::Fence(FenceError::Refused(crate::EpochRefusal::NotCleanYet { .. })) => true,
            Self::Fence(FenceError::Refused(crate::EpochRefusal::Stale { .. })) => false,
            Self::Fence(FenceError::Busy { .. } | FenceError::Io { .. })
            | Self::Trust(_)
            | Self::PartTaken
            | Self::Part(_)
            | Self::Clock(_) => true,
            Self::Fence(FenceError::Damaged { .. }) => false,
        }
    }
}

impl LeaseAdmission {
    /// Lets the bearer of a token in, or says why not. When this returns, the disk knows of it.
    pub fn admit(&self, token: &str) -> Result<Tenancy, Denial> {
        let admitted = self.admit_at(token, &Moment::now().map_err(Denial::Clock)?);
        match &admitted {
            // A borrower that comes a little early comes again.
            Err(denial) if !denial.is_retryable() => self.refusals().note(&denial.to_string()),
            _ => {}
        }
        admitted
    }

    /// Takes the part that a token is for. A session with a part holds this for as long as it lasts: one at a time.
    pub fn take(&self, part: &str) -> Result<PartHeld, Denial> {
        crate::parts::take(&self.fence_file, part).map_err(Denial::Part)?.ok_or(Denial::PartTaken)
    }

    /// The borrowers that were refused.
    pub fn refusals(&self) -> Refusals {
        Refusals::beside(&self.fence_file)
    }

    fn admit_at(&self, token: &str, moment: &Moment) -> Result<Tenancy, Denial> {
        if token.is_empty() {
            return Err(Denial::NoToken);
        }
        let trust = Trust::read(&self.trust_file)?;
        let now_ms = trust.manager_ms_at(moment).ok_or(TrustError::NotYet)?;
        // A key that cannot be read signs nothing; the others still do.
        let keys: Vec<LeasePublicKey> = trust.keys.iter().filter_map(|key| key.parse().ok()).collect();
        let claims = lease_token::verify(token, &keys, &self.box_name, self.slot, now_ms)?;
        if trust.denies(&claims.lease) {
            return Err(Denial::Revoked { lease: claims.lease });
        }
        // A GPU that others may use too has memory for each of them.
        let is_shared = !claims.class.is_dedicated();
        let share_milli = Some(claims.share_milli).filter(|milli| *milli < WHOLE_GPU_MILLI);
        let is_bounded = share_milli.is_some() || claims.part.is_some() || is_shared;
        Fence::new(&self.fence_file).admit(claims.epoch)?;
        Ok(Tenancy {
            lease: claims.lease,
            tenant: claims.tenant,
            epoch: claims.epoch,
            memory_limit_bytes: is_bounded.then_some(claims.memory_bytes),
            class: claims.class,
            slack_percent: claims.slack_percent,
            share_milli,
            part: claims.part,
        })
    }
}

const WHOLE_GPU_MILLI: u16 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use pool_auth::{LeaseClaims, LeaseKey};
    use proptest::prelude::*;

    struct Slot {
        _directory: tempfile::TempDir,
        admission: LeaseAdmission,
        key: LeaseKey,
    }

    fn moment(since_boot_ms: u64) -> Moment {
        Moment { boot: "one".to_owned(), since_boot_ms }
    }

    fn slot() -> Slot {
        let directory = tempfile::tempdir().unwrap();
        let key = LeaseKey::make();
        let admission = LeaseAdmission {
            box_name: "rack1-a".to_owned(),
            slot: 3,
            trust_file: directory.path().join("trust"),
            fence_file: directory.path().join("fence"),
        };
        let keys = vec!["from a later version".to_owned(), key.public().to_string()];
        Trust { keys, manager_ms: 1_000_000, at: moment(500), denied: Vec::new() }
            .write(&admission.trust_file)
            .unwrap();
        Slot { _directory: directory, admission, key }
    }

    fn claims(epoch: u64) -> LeaseClaims {
        LeaseClaims {
            lease: "l-00000000000000aa".to_owned(),
            tenant: "vision".to_owned(),
            box_name: "rack1-a".to_owned(),
            slot: 3,
            epoch,
            memory_bytes: 80 << 30,
            share_milli: 1000,
            class: Class::Dedicated,
            slack_percent: None,
            issued_ms: 1_000_000,
            expires_ms: 1_030_000,
            part: None,
        }
    }

    impl Slot {
        fn show(&self, claims: &LeaseClaims, at: &Moment) -> Result<Tenancy, Denial> {
            let token = lease_token::sign(claims, &self.key).unwrap();
            self.admission.admit_at(token.reveal(), at)
        }
    }

    #[test]
    fn a_lease_opens_its_slot_while_it_lives() {
        let slot = slot();
        let tenancy = slot.show(&claims(7), &moment(500)).unwrap();
        assert_eq!((tenancy.epoch, tenancy.memory_limit_bytes, tenancy.share_milli), (7, None, None));
        assert!(slot.show(&claims(7), &moment(30_499)).is_ok());
        assert!(matches!(
            slot.show(&claims(7), &moment(30_500)),
            Err(Denial::Token(LeaseTokenRefusal::Expired { late_ms: 0 }))
        ));
    }

    #[test]
    fn a_share_brings_its_limit() {
        let share = LeaseClaims { share_milli: 250, memory_bytes: 20 << 30, ..claims(7) };
        let tenancy = slot().show(&share, &moment(600)).unwrap();
        assert_eq!((tenancy.memory_limit_bytes, tenancy.share_milli), (Some(20 << 30), Some(250)));
    }

    #[test]
    fn a_class_comes_with_its_limit() {
        for class in [Class::Online, Class::Offline] {
            let tenancy = slot().show(&LeaseClaims { class, ..claims(7) }, &moment(600)).unwrap();
            assert_eq!((tenancy.class, tenancy.memory_limit_bytes), (class, Some(80 << 30)));
            assert_eq!(tenancy.slack_percent, None, "its worker's counts");
        }
        let slack = LeaseClaims { class: Class::Online, slack_percent: Some(7), ..claims(7) };
        assert_eq!(slot().show(&slack, &moment(600)).unwrap().slack_percent, Some(7));
    }

    #[test]
    fn a_part_brings_its_limit_and_one_session_has_it() {
        let slot = slot();
        let part = Some("ada.1".to_owned());
        let tenancy = slot
            .show(&LeaseClaims { part: part.clone(), memory_bytes: 1 << 30, ..claims(7) }, &moment(600))
            .unwrap();
        assert_eq!((tenancy.memory_limit_bytes, &tenancy.part), (Some(1 << 30), &part));
        let held = slot.admission.take("ada.1").unwrap();
        assert!(slot.admission.take("ada.1").unwrap_err().is_retryable());
        drop(held);
        assert!(slot.admission.take("ada.1").is_ok());
    }

    #[test]
    fn whoever_is_refused_leaves_no_trace() {
        let slot = slot();
        let (other_slot, other_box) = (
            LeaseClaims { slot: 4, ..claims(9) },
            LeaseClaims { box_name: "rack1-b".to_owned(), ..claims(9) },
        );
        for claims in [other_slot, other_box] {
            let denial = slot.show(&claims, &moment(600)).unwrap_err();
            assert!(
                matches!(denial, Denial::Token(LeaseTokenRefusal::Elsewhere { .. }))
                    && !denial.is_retryable()
            );
        }
        let forged = lease_token::sign(&claims(9), &LeaseKey::make()).unwrap();
        assert!(matches!(
            slot.admission.admit_at(forged.reveal(), &moment(600)),
            Err(Denial::Token(LeaseTokenRefusal::UnknownKey))
        ));
        assert!(matches!(slot.admission.admit_at("", &moment(600)), Err(Denial::NoToken)));
        assert_eq!(Fence::new(&slot.admission.fence_file).read().unwrap().bound, 0);
        assert!(slot.show(&claims(1), &moment(600)).is_ok());
    }

    /// Though its epoch is the current one, its signature holds and its time is not over; and while no manager is there.
    #[test]
    fn a_revoked_lease_opens_nothing_and_others_do() {
        let slot = slot();
        assert!(slot.show(&claims(7), &moment(600)).is_ok());
        let mut trust = Trust::read(&slot.admission.trust_file).unwrap();
        trust.denied.push(crate::DeniedLease { lease: claims(7).lease, until_ms: 2_000_000 });
        trust.write(&slot.admission.trust_file).unwrap();
        for _ in 0..2 {
            let denial = slot.show(&claims(7), &moment(700)).unwrap_err();
            assert!(matches!(denial, Denial::Revoked { .. }) && !denial.is_retryable(), "{denial}");
        }
        Fence::new(&slot.admission.fence_file).clean(7).unwrap();
        let other = LeaseClaims { lease: "l-00000000000000bb".to_owned(), ..claims(8) };
        assert!(slot.show(&other, &moment(800)).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Whatever was revoked, in whatever order leases come, go and are revoked: a revoked one is never let in and
        /// leaves no trace, and no other is refused because of it.
        #[test]
        fn exactly_the_revoked_are_refused(steps in prop::collection::vec((0u64..6, prop::bool::weighted(0.3)), 1..24)) {
            let slot = slot();
            let fence = Fence::new(&slot.admission.fence_file);
            let lease = |number: u64| format!("l-{number:016x}");
            let mut denied: Vec<u64> = Vec::new();
            for (step, (number, is_revocation)) in steps.into_iter().enumerate() {
                if is_revocation {
                    denied.push(number);
                    let mut trust = Trust::read(&slot.admission.trust_file).unwrap();
                    trust.denied.push(crate::DeniedLease { lease: lease(number), until_ms: u64::MAX });
                    trust.write(&slot.admission.trust_file).unwrap();
                    continue;
                }
                let epoch = step as u64 + 1;
                let before = fence.read().unwrap();
                let shown = slot.show(&LeaseClaims { lease: lease(number), ..claims(epoch) }, &moment(600));
                if denied.contains(&number) {
                    let is_refused = matches!(shown, Err(Denial::Revoked { .. }));
                    prop_assert!(is_refused, "{:?}", shown);
                    prop_assert_eq!(fence.read().unwrap(), before);
                } else {
                    prop_assert!(shown.is_ok(), "{:?}", shown);
                    fence.clean(epoch).unwrap();
                }
            }
        }
    }

    #[test]
    fn the_fence_has_the_last_word() {
        let slot = slot();
        slot.show(&claims(7), &moment(600)).unwrap();
        let stale = slot.show(&claims(6), &moment(600)).unwrap_err();
        assert!(!stale.is_retryable(), "{stale}");
        let early = slot.show(&claims(8), &moment(600)).unwrap_err();
        assert!(early.is_retryable(), "{early}");
        Fence::new(&slot.admission.fence_file).clean(7).unwrap();
        assert!(slot.show(&claims(7), &moment(600)).is_err());
        assert!(slot.show(&claims(8), &moment(600)).is_ok());
    }

    #[test]
    fn a_box_that_does_not_know_the_time_lets_nobody_in_yet() {
        let slot = slot();
        let rebooted = Moment { boot: "two".to_owned(), since_boot_ms: 600 };
        let denial = slot.show(&claims(7), &rebooted).unwrap_err();
        assert!(matches!(denial, Denial::Trust(TrustError::NotYet)) && denial.is_retryable());
        std::fs::remove_file(&slot.admission.trust_file).unwrap();
        assert!(slot.show(&claims(7), &moment(600)).unwrap_err().is_retryable());
    }

    /// No clock of ours is compared with the manager's, and the next manager's may be hours away from the last one's.
    #[test]
    fn hours_between_clocks_change_nothing() {
        const HOURS_MS: u64 = 6 * 3_600_000;
        let slot = slot();
        let fence = Fence::new(&slot.admission.fence_file);
        let keys = vec![slot.key.public().to_string()];
        let mut before: Option<LeaseClaims> = None;
        for (epoch, manager_ms) in [(7, 10 * HOURS_MS), (8, 11 * HOURS_MS), (9, HOURS_MS)] {
            Trust { keys: keys.clone(), manager_ms, at: moment(500), denied: Vec::new() }
                .write(&slot.admission.trust_file)
                .unwrap();
            let claims =
                LeaseClaims { issued_ms: manager_ms, expires_ms: manager_ms + 30_000, ..claims(epoch) };
            assert!(slot.show(&claims, &moment(600)).is_ok());
            let late = slot.show(&claims, &moment(30_600)).unwrap_err();
            assert!(matches!(late, Denial::Token(LeaseTokenRefusal::Expired { late_ms: 100 })), "{late}");
            // A token that seems to have hours left, by the clock of the current leader, is still of an old epoch.
            if let Some(old) = &before {
                assert!(!slot.show(old, &moment(600)).unwrap_err().is_retryable());
            }
            fence.clean(epoch).unwrap();
            before = Some(claims);
        }
    }
}
