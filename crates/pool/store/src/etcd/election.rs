//! Leaderships: a record that is bound to an etcd lease, and goes away with it.

use std::time::Duration;

use tonic::Code;

use super::kv::{Kv, from_revision, revision_of};
use super::members::{Failure, Repeat};
use super::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, Op, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use crate::error::StoreError;
use crate::leadership::{self, Campaign, Candidacy, Leader, Leadership};
use crate::record::Record;

pub(super) async fn leader(kv: &Kv, name: &str) -> Result<Option<Leader>, StoreError> {
    Ok(kv.read(&leadership::key(name)).await?.map(to_leader))
}

fn to_leader(record: Record) -> Leader {
    Leader { address: String::from_utf8_lossy(&record.value).into_owned(), tenure: record.created }
}

pub(super) async fn campaign(kv: &Kv, candidacy: &Candidacy) -> Result<Campaign, StoreError> {
    if let Some(leader) = leader(kv, &candidacy.name).await? {
        return Ok(Campaign::Led(leader));
    }
    let request = LeaseGrantRequest { ttl_s: whole_seconds(candidacy.ttl) };
    // Granting twice leaves an unused lease, which ends by itself.
    let lease: LeaseGrantResponse = kv
        .members
        .unary("/etcdserverpb.Lease/LeaseGrant", request, Repeat::Allowed)
        .await
        .map_err(|failure| failure.into_error("campaign"))?;

    let result = stand(kv, candidacy, &lease).await;
    if !matches!(result, Ok(Campaign::Won(_))) {
        // Without its lease, a record that was made after all goes away, and one on its way is refused.
        let _ = revoke(kv, lease.id).await;
    }
    result
}

/// Makes the record, unless another candidate has.
async fn stand(kv: &Kv, candidacy: &Candidacy, lease: &LeaseGrantResponse) -> Result<Campaign, StoreError> {
    let key = candidacy.key();
    let full = kv.full_key(&key);
    let look = RangeRequest { key: full.clone(), ..RangeRequest::default() };
    let request = TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: full.clone(),
            with: Some(CompareWith::CreateRevision(0)),
        }],
        success: vec![put(full, candidacy.address.clone().into_bytes(), lease.id)],
        failure: vec![RequestOp { op: Some(Op::Range(look)) }],
    };
    let answer = kv.txn(request, Repeat::Never).await.map_err(|failure| failure.into_error("campaign"))?;
    if answer.succeeded {
        let revision = revision_of(answer.header.as_ref());
        return Ok(Campaign::Won(Leadership {
            name: candidacy.name.clone(),
            key,
            tenure: revision,
            revision,
            ttl: Duration::from_secs(u64::try_from(lease.ttl_s).unwrap_or(0)),
            handle: lease.id,
        }));
    }
    let other = answer.responses.into_iter().next().and_then(|response| response.range);
    match other.and_then(|range| range.kvs.into_iter().next()) {
        Some(found) => Ok(Campaign::Led(to_leader(kv.record(found)?))),
        None => {
            let source = "refused for a record that is not there".into();
            Err(StoreError::Damaged { doing: "campaign", source })
        }
    }
}

fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    RequestOp { op: Some(Op::Put(PutRequest { key, value, lease })) }
}

/// etcd counts in seconds. Rounded up: a leader must not lose its office sooner than it was told.
fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn lost(leadership: &Leadership) -> StoreError {
    StoreError::LeadershipLost { name: leadership.name.clone() }
}

/// The record, if it is still the one of this leadership.
async fn held(kv: &Kv, leadership: &Leadership) -> Result<Record, StoreError> {
    let record = kv.read(&leadership.key).await?;
    record.filter(|record| record.created == leadership.tenure).ok_or_else(|| lost(leadership))
}

pub(super) async fn keep_alive(kv: &Kv, leadership: &Leadership) -> Result<(), StoreError> {
    // A member that hangs must not use up all the time there is.
    let answer = kv
        .members
        .keep_alive(leadership.handle, leadership.ttl / 4)
        .await
        .map_err(|failure| failure.into_error("keep a leadership alive"))?;
    if answer.ttl_s <= 0 {
        return Err(lost(leadership));
    }
    held(kv, leadership).await.map(|_| ())
}

/// Each round looks first, so that a put whose answer was lost is found, and counts.
pub(super) async fn fence(kv: &Kv, leadership: &Leadership) -> Result<Leadership, StoreError> {
    const ROUNDS: usize = 8;
    let mut last_failure = None;
    for _ in 0..ROUNDS {
        let record = held(kv, leadership).await?;
        let full = kv.full_key(&leadership.key);
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: full.clone(),
                with: Some(CompareWith::ModRevision(from_revision(record.modified))),
            }],
            success: vec![put(full, record.value, leadership.handle)],
            failure: Vec::new(),
        };
        match kv.txn(request, Repeat::Never).await {
            Ok(answer) if answer.succeeded => {
                let revision = revision_of(answer.header.as_ref());
                return Ok(Leadership { revision, ..leadership.clone() });
            }
            // Moved since we looked, by one of our own that was on its way.
            Ok(_) => {}
            Err(failure @ Failure::Unknown(_)) => last_failure = Some(failure),
            // No such lease: its time was over between the look and the put.
            Err(failure) if failure.code() == Some(Code::NotFound) => return Err(lost(leadership)),
            Err(failure) => return Err(failure.into_error("fence")),
        }
    }
    Err(match last_failure {
        Some(failure) => failure.into_error("fence"),
        None => {
            StoreError::Unavailable { doing: "fence", source: "the leadership record keeps moving".into() }
        }
    })
}

pub(super) async fn resign(kv: &Kv, leadership: &Leadership) -> Result<(), StoreError> {
    match revoke(kv, leadership.handle).await {
        Err(failure) if failure.code() == Some(Code::NotFound) => Ok(()),
        result => result.map_err(|failure| failure.into_error("resign")),
    }
}

async fn revoke(kv: &Kv, id: i64) -> Result<(), Failure> {
    let request = LeaseRevokeRequest { id };
    let answer: Result<LeaseRevokeResponse, Failure> =
        kv.members.unary("/etcdserverpb.Lease/LeaseRevoke", request, Repeat::Allowed).await;
    answer.map(|_| ())
}
